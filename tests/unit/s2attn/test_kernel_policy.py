"""What of the CUDA sources can be tried without CUDA: the choice of a policy, and that the bindings compile."""

import itertools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from s2attn import toolchain

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
#include <cstdio>
#include <iostream>
#include <stdexcept>
#include "csrc/cuda/select.h"
using namespace s2attn;
using namespace s2attn::cuda;
constexpr ProblemFacts kSmall{16, 16, Storage::float32, 8, 1000, 16, 3, 70, 98304};
static_assert(select_policy(kSmall, Pass::forward).variant == Variant::gather);
int main() {
  ProblemFacts facts{};
  int storage, pass;
  std::string variant, tile;
  while (std::cin >> facts.channels >> facts.channels_out >> storage >> facts.alignment_bytes >> facts.points >>
         facts.features >> facts.width >> facts.architecture >> facts.shared_bytes >> facts.octets >>
         facts.partner_longitudes >> facts.finer_partners >> pass >> variant &&
         std::getline(std::cin >> std::ws, tile)) {
    facts.storage = static_cast<Storage>(storage);
    const auto asked = [](const std::string& name) { return name == "none" ? std::string_view() : name; };
    try {
      if (variant == "candidates") {
        for (const std::string& name : candidates(facts, kPasses[pass])) std::cout << name << ";";
        std::cout << '\\n';
      } else {
        std::cout << to_string(select_policy(facts, kPasses[pass], {asked(variant), asked(tile)})) << '\\n';
      }
    } catch (const std::invalid_argument& error) {
      std::cout << "error: " << error.what() << '\\n';
    }
  }
}
"""

FLOAT32, FLOAT16, BFLOAT16 = range(3)
PASSES = ("forward", "backward_query", "backward_key")
# the most shared memory of a block by architecture, from the CUDA C++ programming guide's table of compute capabilities
SHARED_BYTES = {
    architecture: 1024 * size
    for architecture, size in {70: 96, 75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}.items()
}

# an H200 and a problem that a tile serves
FACTS = {
    "channels": 64,
    "channels_out": 64,
    "storage": BFLOAT16,
    "alignment_bytes": 16,
    "points": 64800,
    "features": 64,
    "width": 3,
    "architecture": 90,
    "shared_bytes": SHARED_BYTES[90],
    "octets": 4050,
    "partner_longitudes": 360,
    "finer_partners": 0,
    "pass": 0,
    "variant": "none",
    "tile": "none",
}


def compile_chooser(directory: Path, *flags: str) -> Path:
    (directory / "choose.cpp").write_text(PROGRAM)
    command = (
        "g++",
        "-std=c++20",
        *flags,
        f"-I{REPOSITORY}",
        str(directory / "choose.cpp"),
        "-o",
        str(directory / "choose"),
    )
    subprocess.run(command, check=True)
    return directory / "choose"


@pytest.fixture(scope="module")
def chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_chooser(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def tuning_chooser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a build for tuning has it."""
    return compile_chooser(tmp_path_factory.mktemp("tuning"), "-DS2ATTN_TUNING")


def choose_all(chooser: Path, problems: Sequence[dict[str, int | str]]) -> list[str]:
    """Policies for `FACTS` with some of them replaced, one by one."""
    lines = "\n".join(" ".join(str(value) for value in (FACTS | facts).values()) for facts in problems)
    return subprocess.run((str(chooser),), input=lines, capture_output=True, text=True, check=True).stdout.splitlines()


def chosen(chooser: Path, **facts: int | str) -> str:
    """Policy for `FACTS` with some of them replaced."""
    return choose_all(chooser, [facts])[0]


@pytest.mark.parametrize(
    ("facts", "ranks"),
    [
        ({}, 2),  # 1 degree
        ({"storage": FLOAT32, "pass": 1}, 2),
        ({"width": 8, "pass": 2}, 2),
        ({"width": 9, "pass": 2}, 6),  # a wide neighborhood: more rows have whole circles of partners
        ({"width": 9, "pass": 1}, 2),
        ({"width": 9, "storage": FLOAT32}, 6),
        ({"octets": 16200}, 2),  # half a degree: a forward with few partners ends with its blocks next to the poles
        ({"octets": 16200, "width": 5}, 0),
        ({"octets": 16200, "pass": 2}, 0),
        ({"octets": 64980}, 0),
        ({"octets": 8192, "pass": 1}, 2),
        ({"octets": 8193, "pass": 1}, 0),
        ({"finer_partners": 1}, 4),
        ({"finer_partners": 1, "width": 23}, 6),
        ({"finer_partners": 1, "width": 23, "octets": 8193}, 0),
        ({"channels": 128, "pass": 2}, 0),  # one octet per block: no one to share with
    ],
)
def test_octets_next_to_a_pole_are_shared_where_that_was_found_to_pay(
    chooser: Path, facts: dict[str, int | str], ranks: int
) -> None:
    assert f", shared ranks {ranks}}}" in chosen(chooser, **facts)


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
        storage=FLOAT32,
        alignment_bytes=16 if aligned else 4,
        variant=variant,
    )
    assert found.removesuffix(" untuned") == variant + "{{vector {}, group {}, chunks {}}}".format(*policy)


@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize(
    ("facts", "room"),
    [
        ({}, 64),
        ({"channels": 32, "channels_out": 8}, 32),
        ({"channels": 8, "channels_out": 40}, 64),
        ({"storage": FLOAT32, "channels": 36, "channels_out": 4}, 64),
        ({"architecture": 80}, 64),
        ({"channels": 72}, 128),
        ({"storage": FLOAT32, "channels": 128}, 128),
        ({"partner_longitudes": 8}, 64),
    ],
)
def test_a_tile_is_chosen_where_one_fits(chooser: Path, passes: int, facts: dict[str, int], room: int) -> None:
    assert chosen(chooser, **facts, **{"pass": passes}).startswith(f"tile{{channels {room},")


@pytest.mark.parametrize("passes", [0, 1, 2])
@pytest.mark.parametrize(
    "facts",
    [
        {"channels": 65},
        {"channels": 136},
        {"channels_out": 12},  # 24 bytes: no whole packet
        {"alignment_bytes": 8},
        {"architecture": 75},  # no tensor cores of this kind
        {"points": 2**31},  # numbers of points there have 32 bits
        {"partner_longitudes": 7},  # a group of 8 columns would go over the seam twice
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


def test_a_tile_that_a_block_has_no_shared_memory_for_is_not_chosen(chooser: Path) -> None:
    # what the four warps of two pairs park, 16 x 64 numbers of two 16-bit parts, and exchange, 16 x 16 floats twice
    needed = 4 * (2 * 16 * 64 * 2 + 2 * 16 * 16 * 4)
    float32 = {"storage": FLOAT32, "pass": 2}
    assert chosen(chooser, **float32, shared_bytes=needed).startswith("tile{channels 64")
    assert chosen(chooser, **float32, shared_bytes=needed - 1).startswith("gather{vector 4, group 16, chunks 1}")


FEW = 8192  # octets of owners
ANY = 10**9

# The tiles (octets, groups, blocks) by storage, room and pass, each up to a width of the neighborhood and a number of
# octets of owners.
TILES: dict[tuple[int, int, int], tuple[tuple[int, int, tuple[int, int, int]], ...]] = {
    (2, 32, 0): ((400, ANY, (4, 4, 4)),),
    (2, 32, 1): ((400, ANY, (4, 2, 4)),),
    (2, 32, 2): ((400, ANY, (4, 2, 3)),),
    (4, 32, 0): ((400, ANY, (4, 2, 3)),),
    (4, 32, 1): ((400, ANY, (4, 2, 2)),),
    (4, 32, 2): ((400, ANY, (4, 2, 2)),),
    (2, 64, 0): ((7, ANY, (4, 2, 4)), (400, ANY, (4, 4, 3))),
    (2, 64, 1): ((7, FEW, (5, 2, 3)), (7, ANY, (4, 2, 4)), (400, ANY, (4, 4, 3))),
    (2, 64, 2): ((400, FEW, (3, 2, 4)), (400, ANY, (4, 2, 3))),
    (4, 64, 0): ((400, ANY, (4, 2, 3)),),
    (4, 64, 1): ((400, ANY, (4, 2, 3)),),
    (4, 64, 2): ((400, ANY, (2, 2, 4)),),
    (2, 128, 0): ((400, ANY, (2, 2, 6)),),
    (2, 128, 1): ((400, ANY, (2, 2, 4)),),
    (2, 128, 2): ((400, ANY, (1, 2, 6)),),
    (4, 128, 0): ((400, ANY, (2, 2, 3)),),
    (4, 128, 1): ((400, ANY, (4, 1, 2)),),
    (4, 128, 2): ((400, ANY, (2, 2, 2)),),
}
GATHER_POLICIES = ((4, 4, 1), (4, 8, 1), (4, 16, 1), (4, 32, 1), (1, 8, 1), (1, 32, 2), (1, 32, 0))


def expected_policy(facts: dict[str, int | str]) -> str:
    """The choice once more, from the rules in csrc/README.md."""
    channels, channels_out, storage, alignment = (
        int(facts[name]) for name in ("channels", "channels_out", "storage", "alignment_bytes")
    )
    architecture, width, owners = (int(facts[name]) for name in ("architecture", "width", "octets"))
    widest, size = max(channels, channels_out), 4 if storage == FLOAT32 else 2
    whole = alignment == 16 and all(count * size % 16 == 0 for count in (channels, channels_out))
    number = int(facts["pass"])
    room = next(room for room in (32, 64, 128, 1 << 31) if widest <= room)
    if architecture >= 80 and whole and room <= 128:
        octets, groups, blocks = next(
            tile for width_of, owners_of, tile in TILES[size, room, number] if width <= width_of and owners <= owners_of
        )
        numbers = f"channels {room}, octets {octets}, groups {groups}, blocks {blocks}"
        ranks = 6 if width > 8 and (storage == FLOAT32 or number == 2) else 2
        shared = octets > 1 and owners <= (4 * FEW if number == 0 and width <= 4 else FEW)
        tile = f"tile{{{numbers}, shared ranks {ranks if shared else 0}}}"
        return tile if architecture == 90 and room > 32 and storage != FLOAT16 else f"{tile} untuned"
    vectors = alignment >= 4 * size and channels % 4 == channels_out % 4 == 0
    vector, group, chunks = next(
        policy
        for policy in GATHER_POLICIES
        if (vectors or policy[0] == 1) and (policy[2] == 0 or widest <= policy[0] * policy[1] * policy[2])
    )
    measured = architecture == 90 and width <= 7 and storage == FLOAT32 and (vector, group) == (4, 16)
    return f"gather{{vector {vector}, group {group}, chunks {chunks}}}" + ("" if measured else " untuned")


def test_the_choice_over_the_whole_domain(chooser: Path) -> None:
    sizes = (*range(1, 84), 96, 127, 128, 129, 256, 1000)
    problems: list[dict[str, int | str]] = [
        FACTS
        | {"channels": channels, "channels_out": channels_out, "features": 4 * channels, "storage": storage}
        | {"alignment_bytes": alignment, "width": width, "octets": octets, "pass": number}
        | {"architecture": architecture, "shared_bytes": SHARED_BYTES[architecture]}
        for architecture in SHARED_BYTES
        for storage, alignment, number in itertools.product((FLOAT32, FLOAT16, BFLOAT16), (2, 4, 8, 16), range(3))
        for channels, channels_out, width, octets in (
            *((size, size, 7, FEW) for size in sizes),
            *((size, size, 7, FEW + 1) for size in sizes),
            *((size, size, 8, 4050) for size in sizes),
            *((size, 16, 1, 10**6) for size in sizes),
            *((24, size, 400, 4050) for size in sizes),
        )
    ]
    wrong = [
        (facts, found)
        for facts, found in zip(problems, choose_all(chooser, problems), strict=True)
        if found != expected_policy(facts)
    ]
    assert not wrong, f"{len(wrong)} of {len(problems)}: {wrong[:3]}"


@pytest.mark.parametrize("architecture", sorted(SHARED_BYTES.keys() - {90}))
def test_nothing_claims_to_be_tuned_where_nothing_was_measured(chooser: Path, architecture: int) -> None:
    here = {"architecture": architecture, "shared_bytes": SHARED_BYTES[architecture]}
    problems = [{**here, "storage": storage, "pass": number} for storage in range(3) for number in range(3)]
    assert all(found.endswith("} untuned") for found in choose_all(chooser, problems))


@pytest.mark.parametrize(("width", "suffix"), [(1, "}"), (7, "}"), (8, " untuned"), (400, " untuned")])
def test_a_measurement_holds_for_the_widths_it_was_made_with(chooser: Path, width: int, suffix: str) -> None:
    assert chosen(chooser, storage=FLOAT32, width=width, variant="gather").endswith(suffix)


@pytest.mark.parametrize("storage", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize(
    ("number", "width", "few", "many"),
    [
        (0, 7, "4, groups 2, blocks 4", "4, groups 2, blocks 4"),
        (1, 7, "5, groups 2, blocks 3", "4, groups 2, blocks 4"),
        (1, 8, "4, groups 4, blocks 3", "4, groups 4, blocks 3"),  # more groups, and blocks of four
        (2, 7, "3, groups 2, blocks 4", "4, groups 2, blocks 3"),
        (2, 8, "3, groups 2, blocks 4", "4, groups 2, blocks 3"),
    ],
)
def test_a_problem_of_few_octets_has_blocks_of_its_own(
    chooser: Path, storage: int, number: int, width: int, few: str, many: str
) -> None:
    facts: dict[str, int | str] = {"storage": storage, "width": width, "pass": number}
    for tile, octets in ((few, 1), (few, 8192), (many, 8193), (many, 2**40)):
        found = chosen(chooser, **facts, octets=octets)
        assert found.startswith(f"tile{{channels 64, octets {tile}, ")
        assert found.endswith("}" if storage == BFLOAT16 else "} untuned")


@pytest.mark.parametrize(
    ("facts", "octets"),
    [
        ({"channels": 32, "channels_out": 32, "pass": 1}, 4),
        ({"channels": 32, "channels_out": 32, "pass": 2}, 4),
        ({"channels": 128, "pass": 1}, 2),
        ({"channels": 128, "pass": 2}, 1),
        ({"storage": FLOAT32, "pass": 1}, 4),
        ({"storage": FLOAT32, "pass": 2}, 2),
    ],
)
def test_few_octets_change_nothing_for_other_channels_and_float32(
    chooser: Path, facts: dict[str, int | str], octets: int
) -> None:
    for owners in (4050, 64980):
        assert f", octets {octets}, " in chosen(chooser, **facts, octets=owners)


def test_candidates_of_a_build_are_what_is_compiled_and_gather(chooser: Path, tuning_chooser: Path) -> None:
    assert chosen(chooser, variant="candidates") == "64 4 2 4;gather;"
    names = chosen(tuning_chooser, variant="candidates").rstrip(";").split(";")
    assert names[0] == "64 4 2 4"  # the choice, also there
    assert names[-1] == "gather"
    assert set(names[1:-1]) == {"64 8 2 2", "64 2 2 8", "64 4 4 4", "64 4 1 4", "64 4 2 5", "64 4 2 3"}


def test_neighbors_of_blocks_of_odd_numbers_have_as_many_warps_at_most(chooser: Path, tuning_chooser: Path) -> None:
    assert chosen(chooser, variant="candidates", **{"pass": 1}) == "64 5 2 3;gather;"
    by_query = chosen(tuning_chooser, variant="candidates", **{"pass": 1}).rstrip(";").split(";")
    assert set(by_query[1:-1]) == {"64 10 2 1", "64 2 2 7", "64 5 4 3", "64 5 1 3", "64 5 2 4", "64 5 2 2"}
    by_key = chosen(tuning_chooser, variant="candidates", **{"pass": 2}).rstrip(";").split(";")
    assert set(by_key[1:-1]) == {"64 6 2 2", "64 1 2 12", "64 3 4 4", "64 3 1 4", "64 3 2 5", "64 3 2 3"}


@pytest.mark.parametrize(("storage", "number"), list(itertools.product(range(3), range(3))))
def test_every_candidate_differs_by_one_step_fits_and_can_be_asked_for(
    tuning_chooser: Path, storage: int, number: int
) -> None:
    facts: dict[str, int | str] = {"storage": storage, "pass": number, "shared_bytes": SHARED_BYTES[86]}
    facts["octets"] = 10**6  # none are shared
    first, *others = chosen(tuning_chooser, **facts, variant="candidates").rstrip(";").split(";")
    for name in (first, *others[:-1]):
        channels, octets, groups, blocks = (int(part) for part in name.split())
        found = chosen(tuning_chooser, **facts, tile=f"{PASSES[number]} {name}")
        numbers = f"channels {channels}, octets {octets}, groups {groups}, blocks {blocks}"
        assert found.removesuffix(" untuned") == f"tile{{{numbers}, shared ranks 0}}"
        changed = [a != b for a, b in zip(first.split(), name.split(), strict=True)]
        assert sum(changed) <= (2 if changed[1] else 1)  # other warps also bring other blocks
    assert chosen(tuning_chooser, **facts, tile=f"{PASSES[number]} gather").startswith("gather{")


def test_a_tile_that_is_asked_for_concerns_its_pass_alone(tuning_chooser: Path) -> None:
    assert "groups 4, blocks 4" in chosen(tuning_chooser, tile="forward 64 4 4 4")
    assert "octets 5, groups 2, blocks 3" in chosen(tuning_chooser, tile="forward 64 4 4 4", **{"pass": 1})


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"tile": "forward 64 2 7 8"}, "got 64 2 7 8 for the forward, expected one of 64 4 2 4, gather"),
        ({"tile": "forward 64 4"}, "got 64 4 for the forward, expected one of 64 4 2 4, gather"),
        ({"tile": "backwards 64 2 2 8"}, "got backwards 64 2 2 8, expected forward, backward_query or"),
        ({"tile": "forward"}, "got "),
        ({"tile": "forward gather", "architecture": 75}, "got gather for the forward, expected one of none: no tile"),
    ],
)
def test_a_tile_that_is_not_there_is_an_error_that_names_those_there_are(
    chooser: Path, facts: dict[str, int | str], error: str
) -> None:
    assert chosen(chooser, **facts).startswith(f"error: S2ATTN_CUDA_TILE: {error}")


def test_the_cuda_bindings_compile_without_cuda() -> None:
    flags = toolchain._flags_of("csrc/cuda/bindings.cpp", ())
    command = ("g++", *toolchain.HOST_FLAGS, *flags, "-fsyntax-only", "csrc/cuda/bindings.cpp")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(("file", "count"), [("csrc/bindings.cpp", 2), ("csrc/cuda/bindings.cpp", 3)])
def test_torch_can_read_the_schemas(file: str, count: int) -> None:
    definitions = re.findall(r"m\.def\(\s*((?:\"[^\"]*\"\s*)+)", (REPOSITORY / file).read_text())
    schemas = ["".join(re.findall(r'"([^"]*)"', definition)) for definition in definitions]
    assert len(schemas) == count
    for schema in schemas:
        assert str(torch._C.parse_schema(schema)).startswith(schema.split("(")[0])


def test_kernel_files_include_no_torch_header() -> None:
    allowed = {"bindings.cpp", "checks.h"}
    for file in (REPOSITORY / "csrc").rglob("*"):
        if file.suffix in {".h", ".cpp", ".cu", ".cuh"} and file.name not in allowed:
            text = file.read_text()
            assert not any(f"#include <{name}/" in text for name in ("torch", "ATen", "c10")), file
