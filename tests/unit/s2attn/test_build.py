"""The cache of built kernels. Most tests run a fake compiler, which only writes down how it was called."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from s2attn import build as builder
from s2attn import toolchain
from s2attn.errors import InvalidProblem, KernelsNotBuilt

REPOSITORY = Path(__file__).parents[3]

FAKE_COMPILER = """#!/bin/sh
echo "$@" >> "{calls}"
case "$*" in
  *--version*) echo "{version}";;
  *-dM*) echo "#define __FAKE__ 1";;
  *broken.marker*) echo "fake error in broken.marker" >&2; exit 3;;
esac
output=""
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then output=$2; fi
  shift
done
if [ -n "$output" ]; then sleep 0.05; echo "made, needs {runtime}" > "$output"; fi
"""


class Workshop:
    """A copy of the sources, a cache, and compilers that pretend."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "checkout"
        self.cache = directory / "cache"
        self.calls_file = directory / "calls"
        self.bin = directory / "bin"
        self.bin.mkdir()
        shutil.copytree(REPOSITORY / "csrc", self.root / "csrc")
        self.install("fake-cc", "fake-cc 1.0")

    def install(self, name: str, version: str, runtime: str = "libstdc++.so.6") -> Path:
        script = self.bin / name
        script.write_text(FAKE_COMPILER.format(calls=self.calls_file, version=version, runtime=runtime))
        script.chmod(0o755)
        toolchain._output.cache_clear()
        return script

    def build(self, device: str = "cpu") -> builder.BuildRecord:
        return builder.build(device, source_root=self.root, cache_dir=self.cache)

    def key(self, device: str = "cpu") -> str:
        return toolchain.plan_build(device, self.root).key

    def compilations(self) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if " -o " in line]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    shop = Workshop(tmp_path)
    monkeypatch.setenv("CXX", str(shop.bin / "fake-cc"))
    monkeypatch.delenv("S2ATTN_CCACHE", raising=False)
    return shop


def test_builds_once_and_then_reuses(workshop: Workshop) -> None:
    first = workshop.build()
    assert not first.reused
    assert first.devices == ("cpu",)
    assert first.compiler == "fake-cc 1.0"
    assert "-march=native" in first.flags or "-mcpu=native" in first.flags
    assert len(workshop.compilations()) == len(toolchain.CPU_SOURCES) + 1
    second = workshop.build()
    assert second.reused
    assert len(workshop.compilations()) == len(toolchain.CPU_SOURCES) + 1
    assert (second.key, second.library, second.log, second.flags) == (first.key, first.library, first.log, first.flags)
    assert Path(first.library).parent == workshop.cache / first.key
    log = Path(first.log).read_text()
    assert all(source in log for source in toolchain.CPU_SOURCES)
    assert sorted(path.name for path in workshop.cache.iterdir()) == [first.key, f"{first.key}.lock"]
    assert sorted(path.name for path in Path(first.library).parent.iterdir()) == [
        "build.json", "build.log", "s2attn_cpu.so",
    ]  # fmt: skip


def test_a_cache_may_move(workshop: Workshop, tmp_path: Path) -> None:
    workshop.build()
    workshop.cache = workshop.cache.rename(tmp_path / "elsewhere")
    record = workshop.build()
    assert record.reused
    assert Path(record.library).read_text().startswith("made")
    assert Path(record.log).is_file()


def test_the_key_follows_everything_that_decides_the_result(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [workshop.key()]
    with (workshop.root / "csrc/cpu/lanes.h").open("a") as file:
        file.write("// one more comment\n")
    keys.append(workshop.key())
    (workshop.root / "csrc/cpu/another.h").touch()
    keys.append(workshop.key())
    monkeypatch.setattr(toolchain, "CPU_KERNEL_FLAGS", (*toolchain.CPU_KERNEL_FLAGS, "-funroll-loops"))
    keys.append(workshop.key())
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    keys.append(workshop.key())
    workshop.install("fake-cc", "fake-cc 2.0")
    keys.append(workshop.key())
    assert len(set(keys)) == len(keys)


def test_the_key_ignores_what_does_not(workshop: Workshop, tmp_path: Path) -> None:
    key = workshop.key()
    (workshop.root / "csrc/cuda/launch.cu").write_text("anything")
    (workshop.root / "csrc/README.md").write_text("anything")
    for file in (workshop.root / "csrc").rglob("*"):
        os.utime(file, (0, 0))
    workshop.root = workshop.root.rename(tmp_path / "another checkout")
    assert workshop.key() == key


def test_two_builders_of_one_key_compile_once(workshop: Workshop) -> None:
    records: list[builder.BuildRecord] = []
    builders = [threading.Thread(target=lambda: records.append(workshop.build())) for _ in range(3)]
    for thread in builders:
        thread.start()
    for thread in builders:
        thread.join()
    assert sorted(record.reused for record in records) == [False, True, True]
    assert len(workshop.compilations()) == len(toolchain.CPU_SOURCES) + 1


def test_what_a_killed_builder_left_is_removed(workshop: Workshop) -> None:
    leftover = workshop.cache / f".{workshop.key()}-abandoned"
    leftover.mkdir(parents=True)
    (leftover / "half.o").touch()
    foreign = workshop.cache / ".0123456789abcdef-of-another-key"
    foreign.mkdir()
    assert not workshop.build().reused
    assert not leftover.exists()
    assert foreign.exists()


def test_a_cache_with_the_key_is_only_read(workshop: Workshop) -> None:
    record = workshop.build()
    (workshop.cache / f"{record.key}.lock").unlink()

    def state() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in [workshop.cache, *workshop.cache.rglob("*")])

    before = state()
    assert workshop.build().reused
    assert state() == before


def test_a_cache_that_cannot_be_written_is_named(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    workshop.cache = tmp_path / "file" / "cache"
    with pytest.raises(KernelsNotBuilt, match=r"no kernels of key \w+ in .*file/cache, and they cannot be built there"):
        workshop.build()


def test_a_compiler_that_is_not_there_is_named(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(KernelsNotBuilt, match="no C\\+\\+ compiler: looked for no-such-compiler"):
        workshop.build()


def test_sources_that_are_not_there_are_named(workshop: Workshop) -> None:
    (workshop.root / "csrc/problem.h").unlink()
    with pytest.raises(KernelsNotBuilt, match=r"sources of the kernels are not at .*checkout: no csrc/problem.h"):
        workshop.build()


def test_an_unknown_device_is_refused(workshop: Workshop) -> None:
    with pytest.raises(InvalidProblem, match="device: got 'tpu', expected one of cpu, cuda"):
        workshop.build("tpu")


def test_a_failure_keeps_its_log_and_leaves_no_library(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "CPU_KERNEL_FLAGS", ("-include", "broken.marker"))
    with pytest.raises(
        KernelsNotBuilt, match=r"building the cpu kernels failed \(csrc/cpu/backward.cpp\), see "
    ) as error:
        workshop.build()
    log = Path(error.value.path)
    assert str(log) in str(error.value)
    assert "fake error in broken.marker" in log.read_text()
    assert sorted(path.name for path in workshop.cache.iterdir()) == [log.name, f"{workshop.key()}.lock"]


def test_a_library_with_a_cxx_runtime_of_its_own_is_refused(workshop: Workshop) -> None:
    workshop.install("fake-cc", "fake-cc 1.0", runtime="nothing")
    with pytest.raises(KernelsNotBuilt, match="it needs no shared C\\+\\+ run-time library"):
        workshop.build()


def test_the_runtime_that_torch_has_loaded_replaces_a_missing_one(workshop: Workshop) -> None:
    assert toolchain.shared_runtime("g++") == ()
    option, runtime = toolchain.shared_runtime(str(workshop.bin / "fake-cc"))
    assert option == "-Xlinker"
    assert Path(runtime).is_file()
    assert Path(runtime).name.startswith("libstdc++.so.6")


def test_a_real_syntax_error_ends_the_command_with_the_end_of_the_log(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "csrc", tmp_path / "csrc")
    shutil.copytree(REPOSITORY / "s2attn", tmp_path / "s2attn", ignore=shutil.ignore_patterns("__pycache__"))
    bindings = tmp_path / "csrc/bindings.cpp"
    bindings.write_text("this is no C++;\n#error stop here, before torch's headers\n")
    environment = {**os.environ, "S2ATTN_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    finished = subprocess.run(
        (sys.executable, "-m", "s2attn.build", "--device", "cpu", "--json"),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert "csrc/bindings.cpp:2:2: error: #error stop here" in finished.stderr
    (log,) = (tmp_path / "cache").glob("*.failed.log")
    last = finished.stderr.splitlines()[-1]
    assert last == f"error: building the cpu kernels failed (csrc/bindings.cpp), see {log}"


def test_the_command_prints_one_json_document(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("S2ATTN_CACHE_DIR", str(workshop.cache))
    for reused in (False, True):
        assert builder.main(["--device", "cpu", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["reused"] is reused
        assert document["key"] == toolchain.plan_build("cpu", REPOSITORY).key
        assert document["devices"] == ["cpu"]
        assert document["resources"] == {"cpu": {"library_size_bytes": len("made, needs libstdc++.so.6\n")}}
        assert Path(document["library"]).is_file()
        assert Path(document["log"]).is_file()
        assert {"elapsed_s", "compiler", "flags", "arch"} <= document.keys()
    assert builder.main(["--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("cpu: reused, ")


def test_ccache_goes_before_every_compiler_or_is_missed(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2ATTN_CCACHE", "1")
    monkeypatch.setenv("PATH", str(workshop.bin))
    with pytest.raises(KernelsNotBuilt, match="S2ATTN_CCACHE is set, but there is no ccache on PATH"):
        workshop.build()
    (workshop.bin / "ccache").write_text('#!/bin/sh\nexec "$@"\n')
    (workshop.bin / "ccache").chmod(0o755)
    monkeypatch.setenv("PATH", f"{workshop.bin}:/usr/bin:/bin")
    log = Path(workshop.build().log).read_text()
    commands = [line for line in log.splitlines() if line.startswith("$ ")]
    launched = [f"{workshop.bin}/ccache {workshop.bin}/fake-cc" in command for command in commands]
    assert launched == [True] * len(toolchain.CPU_SOURCES) + [False]  # the last one links


@pytest.mark.slow
def test_ccache_serves_another_checkout_what_did_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2ATTN_CCACHE", "1")
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "objects"))
    for name in ("one", "two"):
        shutil.copytree(REPOSITORY / "csrc", tmp_path / name / "csrc")
    with (tmp_path / "two/csrc/cpu/packed_grid.cpp").open("a") as file:
        file.write("static_assert(true);\n")
    for name in ("one", "two"):
        assert not builder.build("cpu", source_root=tmp_path / name, cache_dir=tmp_path / "cache").reused
    statistics = subprocess.run(("ccache", "--print-stats"), capture_output=True, text=True, check=True).stdout
    counts = dict(line.split("\t") for line in statistics.splitlines())
    hits = int(counts["direct_cache_hit"]) + int(counts["preprocessed_cache_hit"])
    assert hits == len(toolchain.CPU_SOURCES) - 1


@pytest.fixture
def cuda_workshop(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop.install("nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    home = workshop.bin.parent / "cuda"
    home.mkdir()
    (home / "bin").symlink_to(workshop.bin)
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("S2ATTN_CUDA_ARCH", "90")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return workshop


def test_cuda_kernels_are_compiled_for_the_named_architecture(cuda_workshop: Workshop) -> None:
    record = cuda_workshop.build("cuda")
    assert record.arch == ("sm_90",)
    assert record.compiler == "nvcc 13.0"
    kernels = [call for call in cuda_workshop.compilations() if ".cu -o" in call]
    assert len(kernels) == sum(source.endswith(".cu") for source in toolchain.CUDA_SOURCES)
    assert all("-gencode=arch=compute_90,code=sm_90" in call for call in kernels)
    assert not any("S2ATTN_TUNING" in call for call in kernels)
    assert cuda_workshop.key("cuda") != cuda_workshop.key("cpu")


def test_a_build_for_tuning_says_so_to_the_compiler(cuda_workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2ATTN_CUDA_TUNING", "1")
    record = cuda_workshop.build("cuda")
    assert "-DS2ATTN_TUNING" in record.flags
    assert all("-DS2ATTN_TUNING" in call for call in cuda_workshop.compilations() if ".cu -o" in call)


def test_the_cuda_key_follows_architecture_and_sources(
    cuda_workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [cuda_workshop.key("cuda")]
    monkeypatch.setenv("S2ATTN_CUDA_ARCH", "90,100")
    keys.append(cuda_workshop.key("cuda"))
    with (cuda_workshop.root / "csrc/cuda/policy.h").open("a") as file:
        file.write("// one more comment\n")
    keys.append(cuda_workshop.key("cuda"))
    monkeypatch.setenv("S2ATTN_CUDA_TUNING", "1")
    keys.append(cuda_workshop.key("cuda"))
    cuda_workshop.install("nvcc", "Cuda compilation tools, release 13.1, V13.1.1")
    keys.append(cuda_workshop.key("cuda"))
    assert len(set(keys)) == len(keys)
    assert toolchain.plan_build("cuda", cuda_workshop.root).arch == ("sm_100", "sm_90")


def test_a_compiler_of_another_cuda_is_refused(cuda_workshop: Workshop) -> None:
    cuda_workshop.install("nvcc", "Cuda compilation tools, release 12.8, V12.8.1")
    with pytest.raises(KernelsNotBuilt, match=r"nvcc is of CUDA 12.8, torch .* of CUDA 13.0"):
        cuda_workshop.build("cuda")


def test_cuda_kernels_without_cuda_are_refused_in_words(
    cuda_workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("S2ATTN_CACHE_DIR", str(cuda_workshop.cache))
    assert builder.main(["--device", "cuda"]) == 1
    assert "the CUDA kernels cannot be built here: torch" in capsys.readouterr().err
    assert builder.main(["--device", "auto"]) == 0
    assert capsys.readouterr().out.startswith("cpu: ")


def test_importing_builds_nothing_and_the_first_use_does(tmp_path: Path) -> None:
    program = """
import os, pathlib, torch, s2attn
cache = pathlib.Path(os.environ["S2ATTN_CACHE_DIR"])
assert not cache.exists()
problem = s2attn.AttentionProblem((4, 8), (4, 8))
x = torch.randn(1, 4, 8, 1)
try:
    s2attn.neighborhood_attention(x, x, x, s2attn.neighborhood(problem))
except s2attn.KernelsNotBuilt as error:
    print(error)
"""
    environment = {**os.environ, "S2ATTN_CACHE_DIR": str(tmp_path / "cache"), "CXX": "no-such-compiler"}
    finished = subprocess.run(
        (sys.executable, "-c", program), cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert "looked for no-such-compiler" in finished.stdout
