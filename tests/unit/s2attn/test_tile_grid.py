"""Which owners each warp of the tile kernels has: plain C++, tried without a GPU."""

import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

REPOSITORY = Path(__file__).parents[3]

PROGRAM = """
#include <cstdio>
#include <cstring>
#include "csrc/cuda/tile_grid.h"
using namespace s2attn;
using namespace s2attn::cuda;

template <int kOctets>
void print_places(const TileGrid& grid) {
  for (int64_t block = 0; block < grid.blocks; ++block)
    for (int part = 0; part < kOctets; ++part) {
      const TilePlace place = grid.place<kOctets>(static_cast<uint32_t>(block), part);
      std::printf("%u %u %u %u %d %d\\n", place.batch, place.head, place.row, place.column, place.share, place.shares);
    }
}

int main() {
  char kind[8];
  while (std::scanf("%7s", kind) == 1) {
    if (std::strcmp(kind, "divide") == 0) {
      uint32_t value, divisor;
      std::scanf("%u %u", &value, &divisor);
      std::printf("%u\\n", Divisor(divisor).quotient(value));
    } else {
      Shape shape{};
      Grid owners{};
      int residues, octets, shared;
      std::scanf("%ld %d %d %d %d %d %d", &shape.batch, &shape.heads, &owners.nlat, &owners.nlon, &residues, &octets,
                 &shared);
      const TileGrid grid(shape, GatherTable{nullptr, nullptr, residues, 1}, owners, octets, shared);
      if (octets == 1) print_places<1>(grid);
      if (octets == 3) print_places<3>(grid);
      if (octets == 4) print_places<4>(grid);
      if (octets == 5) print_places<5>(grid);
    }
  }
}
"""

LIMIT = 2**31  # of what is divided


class Place(NamedTuple):
    """As the program prints it."""

    batch: int
    head: int
    row: int
    column: int
    share: int
    shares: int


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tile_grid")
    (directory / "places.cpp").write_text(PROGRAM)
    command = ("g++", "-std=c++20", "-O1", "-Wall", "-Werror", "-Wno-unused-result", f"-I{REPOSITORY}")
    subprocess.run((*command, str(directory / "places.cpp"), "-o", str(directory / "places")), check=True)
    return directory / "places"


def answers(program: Path, *lines: str) -> list[str]:
    finished = subprocess.run((program,), input="\n".join(lines), capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def places(program: Path, *numbers: int) -> list[Place]:
    """Of every warp in the order of blocks."""
    lines = answers(program, "grid " + " ".join(map(str, numbers)))
    return [Place(*map(int, line.split())) for line in lines]


def test_divides_at_the_edges(program: Path) -> None:
    divisors = [1, 2, 3, 5, 7, 45, 641, 2**16 - 1, 2**16, 2**16 + 1, 2**30 + 1, LIMIT - 1]
    pairs = [
        (value, divisor)
        for divisor in divisors
        for value in {0, 1, divisor - 1, divisor, divisor + 1, LIMIT - 1, (LIMIT - 1) // divisor * divisor}
        if value < LIMIT
    ]
    got = answers(program, *(f"divide {value} {divisor}" for value, divisor in pairs))
    assert [int(line) for line in got] == [value // divisor for value, divisor in pairs]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, LIMIT - 1), st.integers(1, LIMIT - 1)), min_size=50, max_size=200))
def test_divides_any_numbers(program: Path, pairs: list[tuple[int, int]]) -> None:
    got = answers(program, *(f"divide {value} {divisor}" for value, divisor in pairs))
    assert [int(line) for line in got] == [value // divisor for value, divisor in pairs]


@pytest.mark.parametrize("octets", [1, 3, 4, 5])
@pytest.mark.parametrize("shared", [0, 2, 5, 100])
@pytest.mark.parametrize(
    ("batch", "heads", "nlat", "nlon", "residues"),
    [(1, 1, 6, 16, 1), (2, 3, 5, 40, 1), (1, 2, 1, 8, 1), (1, 1, 7, 36, 2), (3, 1, 4, 24, 3)],
)
def test_every_owner_has_one_place_or_all_its_shares(
    program: Path, batch: int, heads: int, nlat: int, nlon: int, residues: int, shared: int, octets: int
) -> None:
    rows, columns = nlat * residues, nlon // residues
    tile_rows = (rows + 1) // 2
    ranks = [rank // 2 if rank % 2 == 0 else tile_rows - 1 - rank // 2 for rank in range(tile_rows)]
    expected: Counter[Place] = Counter()
    for rank, tile_row in enumerate(ranks):
        shares = octets if rank < shared else 1
        expected.update(
            Place(b, h, 2 * tile_row, column, share, shares)
            for b in range(batch)
            for h in range(heads)
            for column in range(0, columns, 8)
            for share in range(shares)
        )
    got = places(program, batch, heads, nlat, nlon, residues, octets, shared)
    assert Counter(place for place in got if place.column < columns) == expected
    # those that share come first, then the rest from the poles to the equator
    order = [ranks.index(place.row // 2) for place in got]
    assert order == sorted(order)


def test_nothing_to_do_has_no_blocks(program: Path) -> None:
    assert places(program, 0, 2, 6, 16, 1, 4, 2) == []
