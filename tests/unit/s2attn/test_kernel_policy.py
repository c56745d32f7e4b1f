"""What of the CUDA sources can be tried without CUDA: the choice of a policy, and that the bindings compile."""

import subprocess
from pathlib import Path

import pytest

from s2attn import toolchain

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
#include <cstdio>
#include <stdexcept>
#include "csrc/cuda/policy.h"
using namespace s2attn::cuda;
constexpr ProblemFacts kSmall{16, 16, 4, 8, 1000, 16, 70};
static_assert(select_policy(kSmall, Pass::forward).variant == Variant::gather);
int main() {
  ProblemFacts facts{};
  long long points, features;
  int pass;
  char variant[32];
  while (std::scanf("%d %d %d %d %lld %lld %d %d %31s", &facts.channels, &facts.channels_out, &facts.element_bytes,
                    &facts.alignment_bytes, &points, &features, &facts.architecture, &pass, variant) == 9) {
    facts.points = points;
    facts.features = features;
    const std::string asked = std::string(variant) == "auto" ? "" : variant;
    try {
      std::puts(to_string(select_policy(facts, static_cast<Pass>(pass), asked)).c_str());
    } catch (const std::invalid_argument& error) {
      std::printf("error: %s\\n", error.what());
    }
  }
}
"""

# an H200 and a problem that a tile serves
FACTS = {
    "channels": 64,
    "channels_out": 64,
    "element_bytes": 2,
    "alignment_bytes": 16,
    "points": 64800,
    "features": 64,
    "architecture": 90,
    "pass": 0,
    "variant": "auto",
}


@pytest.fixture(scope="module")
def chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    (directory / "choose.cpp").write_text(PROGRAM)
    command = ("g++", "-std=c++20", f"-I{REPOSITORY}", str(directory / "choose.cpp"), "-o", str(directory / "choose"))
    subprocess.run(command, check=True)
    return directory / "choose"


def chosen(chooser: Path, **facts: int | str) -> str:
    """Policy for `FACTS` with some of them replaced."""
    line = " ".join(str(value) for value in (FACTS | facts).values())
    return subprocess.run((str(chooser),), input=line, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("channels", "channels_out", "aligned", "policy"),
    [
        (4, 4, True, (4, 4, 1)),
        (16, 8, True, (4, 4, 1)),
        (16, 20, True, (4, 8, 1)),
        (64, 64, True, (4, 16, 1)),
        (64, 128, True, (4, 32, 1)),
        (64, 64, False, (1, 32, 2)),  # no vectors
        (1, 1, True, (1, 8, 1)),
        (6, 4, True, (1, 8, 1)),
        (33, 6, True, (1, 32, 2)),
        (66, 66, True, (1, 32, 0)),  # more than registers are compiled for: shared memory
        (256, 256, True, (1, 32, 0)),
        (5000, 1, False, (1, 32, 0)),
    ],
)
@pytest.mark.parametrize("variant", ["gather", "two_pass"])
def test_the_narrowest_portable_policy_that_fits_is_chosen(
    chooser: Path, channels: int, channels_out: int, aligned: bool, policy: tuple[int, int, int], variant: str
) -> None:
    found = chosen(
        chooser,
        channels=channels,
        channels_out=channels_out,
        element_bytes=4,
        alignment_bytes=16 if aligned else 4,
        variant=variant,
    )
    assert found == variant + "{{vector {}, group {}, chunks {}}}".format(*policy)


@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize(
    ("facts", "room"),
    [
        ({}, 64),
        ({"channels": 32, "channels_out": 8}, 32),
        ({"channels": 8, "channels_out": 40}, 64),
        ({"element_bytes": 4, "channels": 36, "channels_out": 4}, 64),
        ({"architecture": 80}, 64),
    ],
)
def test_a_tile_is_chosen_where_one_fits(chooser: Path, passes: int, facts: dict[str, int], room: int) -> None:
    assert chosen(chooser, **facts, **{"pass": passes}).startswith(f"tile{{channels {room},")


@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize(
    "facts",
    [
        {"channels": 65},
        {"channels": 72},
        {"channels_out": 12},  # 24 bytes: no whole packet
        {"alignment_bytes": 8},
        {"architecture": 75},  # no tensor cores of this kind
        {"points": 2**31},  # numbers of points there have 32 bits
        {"features": 2**30},
    ],
)
def test_no_tile_is_chosen_where_none_fits(chooser: Path, passes: int, facts: dict[str, int]) -> None:
    assert chosen(chooser, **facts, **{"pass": passes}).startswith("gather{")
    assert chosen(chooser, **facts, **{"pass": passes, "variant": "tile"}).startswith(
        "error: S2ATTN_CUDA_VARIANT: got tile for"
    )


def test_an_unknown_variant_is_an_error_that_names_those_there_are(chooser: Path) -> None:
    assert chosen(chooser, variant="fast") == (
        "error: S2ATTN_CUDA_VARIANT: got fast, expected one of gather, two_pass, tile"
    )


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
