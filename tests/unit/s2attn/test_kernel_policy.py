"""What of the CUDA sources can be tried without CUDA: the choice of a policy, and that the bindings compile."""

import subprocess
from pathlib import Path

import pytest

from s2attn import toolchain

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
#include <cstdio>
#include "csrc/cuda/policy.h"
using namespace s2attn::cuda;
static_assert(select_policy({16, 16, true}) == KernelPolicy{4, 4, 1});
int main() {
  int channels, channels_out, aligned;
  while (std::scanf("%d %d %d", &channels, &channels_out, &aligned) == 3)
    std::puts(to_string(select_policy({channels, channels_out, aligned != 0})).c_str());
}
"""


@pytest.fixture(scope="module")
def chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    (directory / "choose.cpp").write_text(PROGRAM)
    command = ("g++", "-std=c++20", f"-I{REPOSITORY}", str(directory / "choose.cpp"), "-o", str(directory / "choose"))
    subprocess.run(command, check=True)
    return directory / "choose"


@pytest.mark.parametrize(
    ("facts", "policy"),
    [
        ((4, 4, 1), (4, 4, 1)),
        ((16, 8, 1), (4, 4, 1)),
        ((16, 20, 1), (4, 8, 1)),
        ((64, 64, 1), (4, 16, 1)),
        ((64, 128, 1), (4, 32, 1)),
        ((64, 64, 0), (1, 32, 2)),  # not aligned: no vectors
        ((1, 1, 1), (1, 8, 1)),
        ((6, 4, 1), (1, 8, 1)),
        ((33, 6, 1), (1, 32, 2)),
        ((66, 66, 1), (1, 32, 0)),  # more than registers are compiled for: shared memory
        ((256, 256, 1), (1, 32, 0)),
        ((5000, 1, 0), (1, 32, 0)),
    ],
)
def test_the_narrowest_policy_that_fits_is_chosen(
    chooser: Path, facts: tuple[int, int, int], policy: tuple[int, int, int]
) -> None:
    finished = subprocess.run(
        (str(chooser),), input=" ".join(map(str, facts)), capture_output=True, text=True, check=True
    )
    assert finished.stdout == "{{vector {}, group {}, chunks {}}}\n".format(*policy)


def test_the_cuda_bindings_compile_without_cuda() -> None:
    flags = toolchain._flags_of("csrc/cuda/bindings.cpp", ())
    command = ("g++", *toolchain.HOST_FLAGS, *flags, "-fsyntax-only", "csrc/cuda/bindings.cpp")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_kernel_files_include_no_torch_header() -> None:
    allowed = {"bindings.cpp", "checks.h"}
    for file in (REPOSITORY / "csrc").rglob("*"):
        if file.suffix in {".h", ".cpp", ".cu", ".cuh"} and file.name not in allowed:
            text = file.read_text()
            assert not any(f"#include <{name}/" in text for name in ("torch", "ATen", "c10")), file
