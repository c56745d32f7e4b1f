"""What compiles the kernels on this machine, with which flags, and the key that names the result.

Two libraries, so that a run on the CPU neither needs nor notices a GPU: ``cpu`` holds the schemas and the CPU kernels,
``cuda`` the CUDA kernels for those schemas.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from s2attn.errors import InvalidProblem, KernelsNotBuilt

DEVICES = ("cpu", "cuda")

# Raised when a build of the same sources with the same flags has to differ from an older one.
BUILD_FORMAT = 2

CPU_SOURCES = (
    "csrc/bindings.cpp",
    "csrc/cpu/backward.cpp",
    "csrc/cpu/blocks.cpp",
    "csrc/cpu/forward.cpp",
    "csrc/cpu/forward_unpacked.cpp",
    "csrc/cpu/kept_memory.cpp",
    "csrc/cpu/packed_grid.cpp",
)
CUDA_SOURCES = (
    "csrc/cuda/bindings.cpp",
    "csrc/cuda/instances/gather_bfloat16.cu",
    "csrc/cuda/instances/gather_float16.cu",
    "csrc/cuda/instances/gather_float32.cu",
    "csrc/cuda/instances/tile_backward_key_bfloat16.cu",
    "csrc/cuda/instances/tile_backward_key_float16.cu",
    "csrc/cuda/instances/tile_backward_key_float32.cu",
    "csrc/cuda/instances/tile_backward_query_bfloat16.cu",
    "csrc/cuda/instances/tile_backward_query_float16.cu",
    "csrc/cuda/instances/tile_backward_query_float32.cu",
    "csrc/cuda/instances/tile_forward_bfloat16.cu",
    "csrc/cuda/instances/tile_forward_float16.cu",
    "csrc/cuda/instances/tile_forward_float32.cu",
    "csrc/cuda/launch.cu",
    "csrc/cuda/spin.cu",
)
# What each library is made from, headers included: a change anywhere else leaves its key alone.
KEYED_PATHS = {
    "cpu": ("csrc/bindings.cpp", "csrc/checks.h", "csrc/problem.h", "csrc/cpu"),
    "cuda": ("csrc/checks.h", "csrc/problem.h", "csrc/cuda"),
}

HOST_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi")
# errno of math functions is never read, and setting it would keep loops from becoming vector code
CPU_KERNEL_FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast")
# bindings only check arguments: optimizing torch's headers would double the time of the whole build
BINDING_FLAGS = ("-O1",)
# uncompressed, so that the machine code in the library can be found and measured
NVCC_FLAGS = ("-std=c++20", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall", "-Xptxas=-v", "--no-compress")
# compiles every tile policy's neighbors too (csrc/cuda/tunings.h), from which `s2attn.benchmarks tune` chooses
TUNING_VARIABLE = "S2ATTN_CUDA_TUNING"
TUNING_FLAG = "-DS2ATTN_TUNING"


@dataclass(frozen=True)
class CompileUnit:
    """One source, and the command that compiles it up to ``-c source -o object``."""

    source: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class BuildPlan:
    """All that decides one library.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    root : pathlib.Path
        Directory that holds ``csrc``; commands run in it with relative paths, so that two checkouts of the same sources
        run the same commands.
    units : tuple[CompileUnit, ...]
        What to compile.
    link : tuple[tuple[str, ...], tuple[str, ...]]
        Linker command before and after the objects.
    compiler : str
        First line of the compiler's version text.
    flags : tuple[str, ...]
        Flags of the kernels.
    arch : tuple[str, ...]
        Processor or GPU architectures.
    key : str
        Hexadecimal digest of sources, compilers, torch, architecture and flags.
    """

    device: str
    root: Path
    units: tuple[CompileUnit, ...]
    link: tuple[tuple[str, ...], tuple[str, ...]]
    compiler: str
    flags: tuple[str, ...]
    arch: tuple[str, ...]
    key: str


def plan_build(device: str, root: Path) -> BuildPlan:
    """Plan one library from the sources below ``root``.

    Raises
    ------
    InvalidProblem
        No device of that name.
    KernelsNotBuilt
        A source or a compiler is missing, or torch has no CUDA.
    """
    if device not in DEVICES:
        raise InvalidProblem("device", device, f"one of {', '.join(DEVICES)}")
    missing = [path for path in KEYED_PATHS[device] if not (root / path).exists()]
    if missing:
        raise KernelsNotBuilt(f"the sources of the kernels are not at {root}: no {', '.join(missing)}")
    return _plan_cpu(root) if device == "cpu" else _plan_cuda(root)


def cuda_unavailable() -> str | None:
    """Why no CUDA kernels can be built for this machine, in words; None if they can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if find_nvcc() is None:
        return "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda"
    if not os.environ.get("S2ATTN_CUDA_ARCH") and not torch.cuda.is_available():
        return "no GPU is visible, and S2ATTN_CUDA_ARCH (such as 90) does not name an architecture"
    return None


def find_nvcc() -> Path | None:
    """The CUDA compiler: of ``CUDA_HOME`` or ``CUDA_PATH``, on ``PATH``, or of the toolkit's standard place."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    candidates = [home / "bin" / "nvcc" for home in homes]
    candidates += [Path(on_path)] if on_path else []
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


def compiler_launcher() -> tuple[str, ...]:
    """``ccache`` before every compiler when ``S2ATTN_CCACHE=1``; asking for it where it is missing is an error."""
    if os.environ.get("S2ATTN_CCACHE", "0") in ("", "0"):
        return ()
    ccache = shutil.which("ccache")
    if ccache is None:
        raise KernelsNotBuilt("S2ATTN_CCACHE is set, but there is no ccache on PATH")
    return (ccache,)


def _plan_cpu(root: Path) -> BuildPlan:
    compiler = _find_host_compiler()
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    kernel_flags = (*CPU_KERNEL_FLAGS, native)
    units = tuple(
        CompileUnit(source, (compiler, *HOST_FLAGS, *_flags_of(source, kernel_flags))) for source in CPU_SOURCES
    )
    version = _output(compiler, "--version")
    target = _digest([_output(compiler, native, "-dM", "-E", "-x", "c++", os.devnull)])
    libraries = (*_torch_link_flags(), "-ltorch_cpu", "-lc10", *shared_runtime(compiler))
    identity = {"compiler": version, "native": target}
    flags = (*HOST_FLAGS, *kernel_flags)
    return BuildPlan(
        device="cpu",
        root=root,
        units=units,
        link=((compiler, "-shared", "-fopenmp"), libraries),
        compiler=version.splitlines()[0],
        flags=flags,
        arch=(f"{platform.machine()}-{target[:8]}",),
        key=_key("cpu", root, identity, flags),
    )


def _plan_cuda(root: Path) -> BuildPlan:
    reason = cuda_unavailable()
    nvcc = find_nvcc()
    if reason is not None or nvcc is None:
        raise KernelsNotBuilt(f"the CUDA kernels cannot be built here: {reason}")
    version = _output(str(nvcc), "--version")
    _check_cuda_versions(version)
    compiler = _find_host_compiler()
    arch = _cuda_architectures()
    targets = tuple(f"-gencode=arch=compute_{name},code=sm_{name}" for name in arch)
    tuning = (TUNING_FLAG,) if os.environ.get(TUNING_VARIABLE, "0") not in ("", "0") else ()
    flags = (*NVCC_FLAGS, *tuning, *targets)
    kernel = (str(nvcc), f"-ccbin={compiler}", *flags)
    units = tuple(
        CompileUnit(source, kernel if source.endswith(".cu") else (compiler, *HOST_FLAGS, *_flags_of(source, ())))
        for source in CUDA_SOURCES
    )
    # nvcc knows where its run-time library is; the shared one is the one that torch has loaded
    linker = (str(nvcc), f"-ccbin={compiler}", "-shared", "-cudart=shared")
    libraries = ("-ltorch_cuda", "-ltorch_cpu", "-lc10", *shared_runtime(compiler))
    identity = {"compiler": _output(compiler, "--version"), "nvcc": version, "cuda": torch.version.cuda, "arch": arch}
    return BuildPlan(
        device="cuda",
        root=root,
        units=units,
        link=(linker, (*_torch_link_flags(), *libraries)),
        compiler=f"nvcc {_nvcc_release(version)}",
        flags=flags,
        arch=tuple(f"sm_{name}" for name in arch),
        key=_key("cuda", root, identity, flags),
    )


def _flags_of(source: str, kernel_flags: tuple[str, ...]) -> tuple[str, ...]:
    if Path(source).name != "bindings.cpp":
        return kernel_flags
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return (*BINDING_FLAGS, abi, "-isystem", str(Path(torch.__file__).parent / "include"))


def _torch_link_flags() -> tuple[str, ...]:
    # no run path: torch is imported before the library is loaded, whose dependencies are then found by their names
    return (f"-L{Path(torch.__file__).parent / 'lib'}",)


def shared_runtime(compiler: str) -> tuple[str, ...]:
    """Linker arguments for the shared C++ run-time library, where the compiler by itself would take the static one.

    A second copy in the process would share some of its data with torch's and crash while it writes numbers.
    """
    # with nothing found, the compiler repeats the name
    if Path(_output(compiler, "-print-file-name=libstdc++.so").strip()).is_file():
        return ()
    mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    loaded = sorted(path for path in mapped if Path(path).name.startswith("libstdc++.so."))
    # through the option, because nvcc knows no file of that name
    return ("-Xlinker", loaded[0]) if loaded else ()


def _find_host_compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise KernelsNotBuilt(f"no C++ compiler: looked for {', '.join(names)} (CXX names another)")


def _cuda_architectures() -> tuple[str, ...]:
    """Compute capabilities of the visible GPUs, as in ``sm_90``, or those that ``S2ATTN_CUDA_ARCH`` lists."""
    named = os.environ.get("S2ATTN_CUDA_ARCH", "")
    if named:
        return tuple(sorted(set(re.split(r"[,; ]+", named.strip()))))
    capabilities = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    return tuple(f"{major}{minor}" for major, minor in sorted(capabilities))


def _check_cuda_versions(nvcc_version: str) -> None:
    release = _nvcc_release(nvcc_version)
    if release.split(".")[0] != str(torch.version.cuda).split(".")[0]:
        raise KernelsNotBuilt(f"nvcc is of CUDA {release}, torch {torch.__version__} of CUDA {torch.version.cuda}")


def _nvcc_release(version: str) -> str:
    match = re.search(r"release (\d+\.\d+)", version)
    if match is None:
        raise KernelsNotBuilt(f"nvcc --version says nothing about its release: {version!r}")
    return match.group(1)


def _key(device: str, root: Path, identity: Mapping[str, object], flags: Sequence[str]) -> str:
    parts = {
        "format": BUILD_FORMAT,
        "device": device,
        "torch": torch.__version__,
        "flags": [*flags, *BINDING_FLAGS],
        "sources": source_digest(device, root),
        **identity,
    }
    return _digest([json.dumps(parts, sort_keys=True)])[:24]


def source_digest(device: str, root: Path) -> str:
    """Digest of names and contents of everything a library is made from."""
    files: list[Path] = []
    for entry in KEYED_PATHS[device]:
        path = root / entry
        files += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return _digest(f"{file.relative_to(root).as_posix()}\0{_digest([file.read_bytes()])}" for file in sorted(files))


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


@lru_cache(maxsize=16)
def _output(*command: str) -> str:
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise KernelsNotBuilt(f"{' '.join(command)} failed: {error}") from error
    return finished.stdout
