"""Builds the compiled kernels into a cache, once per key; ``python -m s2attn.build``.

The cache is ``$S2ATTN_CACHE_DIR`` (default ``~/.cache/s2attn``). Each key (sources, compilers, torch, architecture,
flags; see `s2attn.toolchain`) is one directory that appears there complete, by a rename:

    <key>/s2attn_cpu.so    the library             <key>.lock          held while it is being built
    <key>/build.json       its `BuildRecord`       <key>.failed.log    log of the last build that failed
    <key>/build.log        every command and its output

A cache that cannot be written to serves the keys it holds. ``S2ATTN_CCACHE=1`` puts ccache before the compilers,
``CXX`` and ``CUDA_HOME`` choose them, ``S2ATTN_CUDA_ARCH`` names GPU architectures where no GPU is visible,
``S2ATTN_CUDA_TUNING=1`` adds the policies that ``python -m s2attn.benchmarks tune`` tries.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from s2attn.cache import default_cache_dir
from s2attn.errors import KernelsNotBuilt
from s2attn.resources import library_resources
from s2attn.toolchain import BuildPlan, CompileUnit, compiler_launcher, cuda_unavailable, plan_build

SOURCE_ROOT = Path(__file__).resolve().parents[1]
LOG_TAIL_LINES = 40


@dataclass(frozen=True)
class BuildRecord:
    """One library and how it came to be.

    Attributes
    ----------
    key : str
        Name of its directory in the cache.
    library, log : str
        Paths of the shared library and of the log of its build.
    elapsed_s : float
        Seconds this call took; next to nothing when the library was there.
    reused : bool
        Whether it was there.
    compiler : str
        Compiler and version.
    flags : tuple[str, ...]
        Flags of the kernels.
    devices, arch : tuple[str, ...]
        Kind of device it serves, and architectures of that device.
    resources : dict[str, object]
        Size of the library; for CUDA also registers, shared memory, spills and size of the machine code of each kernel,
        and the architectures whose machine code was found in it.
    """

    key: str
    library: str
    log: str
    elapsed_s: float
    reused: bool
    compiler: str
    flags: tuple[str, ...]
    devices: tuple[str, ...]
    arch: tuple[str, ...]
    resources: dict[str, object]


def build(device: str, *, source_root: Path = SOURCE_ROOT, cache_dir: Path | None = None) -> BuildRecord:
    """Build one library unless the cache holds it.

    Parameters
    ----------
    device : str
        ``cpu`` (with the schemas of all operators) or ``cuda``.
    source_root : pathlib.Path
        Directory that holds ``csrc``.
    cache_dir : pathlib.Path, optional
        Default: ``$S2ATTN_CACHE_DIR``, else ``~/.cache/s2attn``.

    Returns
    -------
    BuildRecord
        Where the library is.

    Raises
    ------
    KernelsNotBuilt
        A compiler is missing, the cache cannot be written to, or a command failed; then the message names the log.
    """
    started = time.monotonic()
    plan = plan_build(device, source_root)
    cache = default_cache_dir() if cache_dir is None else cache_dir
    record = _read_record(cache / plan.key)
    if record is None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _lock(cache / f"{plan.key}.lock"):
                record = _read_record(cache / plan.key) or _build_locked(plan, cache)
        except OSError as error:
            message = f"no kernels of key {plan.key} in {cache}, and they cannot be built there: {error}"
            raise KernelsNotBuilt(message) from error
    return dataclasses.replace(record, elapsed_s=round(time.monotonic() - started, 3))


def _read_record(directory: Path) -> BuildRecord | None:
    file = directory / "build.json"
    if not file.is_file():
        return None
    fields = json.loads(file.read_text())
    for name in ("flags", "devices", "arch"):
        fields[name] = tuple(fields[name])
    paths = {name: str(directory / fields[name]) for name in ("library", "log")}
    return BuildRecord(**{**fields, **paths, "reused": True})


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock of one key; a second builder of the same key waits here and then finds the library."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_locked(plan: BuildPlan, cache: Path) -> BuildRecord:
    # of a builder that was killed: whoever made it no longer holds the lock
    for leftover in cache.glob(f".{plan.key}-*"):
        shutil.rmtree(leftover)
    work = Path(tempfile.mkdtemp(prefix=f".{plan.key}-", dir=cache))
    try:
        return _build_in(work, plan, cache)
    finally:
        shutil.rmtree(work, ignore_errors=True)  # gone already after the rename


def _build_in(work: Path, plan: BuildPlan, cache: Path) -> BuildRecord:
    started = time.monotonic()
    log = work / "build.log"
    library = work / f"s2attn_{plan.device}.so"
    try:
        _compile_and_link(plan, library, log)
    except subprocess.CalledProcessError as error:
        failed_log = cache / f"{plan.key}.failed.log"
        os.replace(log, failed_log)
        step = next((unit.source for unit in plan.units if unit.source in error.cmd), "linking")
        message = f"building the {plan.device} kernels failed ({step}), see {failed_log}"
        raise KernelsNotBuilt(message, path=str(failed_log)) from error
    _check_runtime(library)
    record = BuildRecord(
        key=plan.key,
        library=library.name,
        log=log.name,
        elapsed_s=round(time.monotonic() - started, 3),
        reused=False,
        compiler=plan.compiler,
        flags=plan.flags,
        devices=(plan.device,),
        arch=plan.arch,
        resources=library_resources(library, log.read_text()),
    )
    (work / "build.json").write_text(json.dumps(dataclasses.asdict(record), indent=1))
    for unneeded in work.glob("*.o"):
        unneeded.unlink()
    os.chmod(work, 0o755)  # a temporary directory is private; other users may read the cache
    target = cache / plan.key
    os.rename(work, target)
    return dataclasses.replace(record, library=str(target / library.name), log=str(target / log.name))


def _check_runtime(library: Path) -> None:
    content = library.read_bytes()
    if not any(name in content for name in (b"libstdc++.so", b"libc++.so")):
        reason = "it needs no shared C++ run-time library, so it holds a copy that would clash with torch's"
        raise KernelsNotBuilt(f"{library.name} cannot be used: {reason}; install the compiler's shared libstdc++")


def _compile_and_link(plan: BuildPlan, library: Path, log: Path) -> None:
    launcher = compiler_launcher()

    def compile_unit(unit: CompileUnit) -> tuple[Path, subprocess.CompletedProcess[str], float]:
        target = library.parent / f"{unit.source.replace('/', '_')}.o"
        return target, *_run((*launcher, *unit.command, "-c", unit.source, "-o", str(target)), plan.root)

    workers = min(len(plan.units), len(os.sched_getaffinity(0)))
    with log.open("w") as log_file, ThreadPoolExecutor(workers) as pool:
        objects, failed = [], None
        for target, finished, elapsed_s in pool.map(compile_unit, plan.units):
            _log_command(log_file, finished, elapsed_s)
            objects.append(str(target))
            failed = finished if finished.returncode and failed is None else failed
        if failed is None:
            before, after = plan.link
            failed, elapsed_s = _run((*before, *objects, *after, "-o", str(library)), plan.root)
            _log_command(log_file, failed, elapsed_s)
    failed.check_returncode()


def _run(command: Sequence[str], root: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    # ccache: paths below the root count as relative, and the directory itself does not count at all
    environment = {**os.environ, "CCACHE_BASEDIR": str(root), "CCACHE_NOHASHDIR": "1", "LC_ALL": "C.UTF-8"}
    started = time.monotonic()
    finished = subprocess.run(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return finished, time.monotonic() - started


def _log_command(log_file: TextIO, finished: subprocess.CompletedProcess[str], elapsed_s: float) -> None:
    log_file.write(f"$ {shlex.join(finished.args)}\n{finished.stdout}")
    log_file.write(f"# exit code {finished.returncode} after {elapsed_s:.1f} s\n")
    log_file.flush()


def build_all(selection: str) -> list[BuildRecord]:
    """Build what ``--device`` asks for: ``cpu``, ``cuda`` or ``all`` (both), or ``auto`` (CUDA where it can be)."""
    with_cuda = selection in ("cuda", "all") or (selection == "auto" and cuda_unavailable() is None)
    return [build(device) for device in (("cpu", "cuda") if with_cuda else ("cpu",))]


def merged_document(records: Sequence[BuildRecord]) -> dict[str, object]:
    """One JSON document for the libraries of a call; key, library and log are those of the last one."""
    last = dataclasses.asdict(records[-1])
    return {
        **last,
        "key": "+".join(record.key for record in records),
        "elapsed_s": round(sum(record.elapsed_s for record in records), 3),
        "reused": all(record.reused for record in records),
        "compiler": "; ".join(record.compiler for record in records),
        "devices": [device for record in records for device in record.devices],
        "arch": [arch for record in records for arch in record.arch],
        "resources": {record.devices[0]: record.resources for record in records},
        "libraries": [dataclasses.asdict(record) for record in records],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m s2attn.build``; exit code 1 when the kernels could not be built."""
    parser = argparse.ArgumentParser(prog="python -m s2attn.build", description="Build the kernels of s2attn.")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "all"),
        default="auto",
        help="cuda and all build both libraries: the cpu library holds the operators' schemas. "
        "auto (default) adds cuda where there are a GPU, nvcc and a torch with CUDA",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    try:
        records = build_all(options.device)
    except KernelsNotBuilt as error:
        _print_failure(error)
        return 1
    if options.json:
        print(json.dumps(merged_document(records)))
        return 0
    for record in records:
        how = "reused" if record.reused else f"built in {record.elapsed_s:.1f} s"
        print(f"{record.devices[0]}: {how}, {record.library}")
    return 0


def _print_failure(error: KernelsNotBuilt) -> None:
    if error.path is not None:
        tail = Path(error.path).read_text().splitlines()[-LOG_TAIL_LINES:]
        print("\n".join(tail), file=sys.stderr)
    print(f"error: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
