import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2attn.geometry import GatherTable, GridPair, Psi, arcs_from_csr, build_psi, csr_from_arcs, key_table, query_table

Pairs = set[tuple[int, int, int, int]]


@st.composite
def patterns(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Any sparsity pattern, not only disks: rows with gaps, several arcs per latitude, empty rows."""
    rows, nlat, nlon = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    member = np.array(draw(st.lists(st.booleans(), min_size=rows * nlat * nlon, max_size=rows * nlat * nlon)))
    member = member.reshape(rows, nlat * nlon)
    row_off = np.concatenate(([0], np.cumsum(member.sum(axis=1)))).astype(np.int64)
    return row_off, np.nonzero(member)[1].astype(np.int64), nlon


@given(patterns())
def test_round_trip_is_exact(pattern: tuple[np.ndarray, np.ndarray, int]) -> None:
    row_off, col_idx, nlon = pattern
    arcs, arc_off = arcs_from_csr(row_off, col_idx, nlon)
    assert arcs.dtype == arc_off.dtype == np.int32
    assert arcs.shape == (arc_off[-1], 3)
    back_off, back_idx = csr_from_arcs(arcs, arc_off, nlon)
    np.testing.assert_array_equal(back_off, row_off)
    np.testing.assert_array_equal(back_idx, col_idx)
    again, again_off = arcs_from_csr(back_off, back_idx, nlon)
    np.testing.assert_array_equal(again, arcs)
    np.testing.assert_array_equal(again_off, arc_off)


@given(patterns())
def test_no_two_arcs_touch(pattern: tuple[np.ndarray, np.ndarray, int]) -> None:
    row_off, col_idx, nlon = pattern
    arcs, arc_off = arcs_from_csr(row_off, col_idx, nlon)
    for row in range(row_off.size - 1):
        members = set(col_idx[row_off[row] : row_off[row + 1]].tolist())
        for lat, lon, length in arcs[arc_off[row] : arc_off[row + 1]].tolist():
            if length == nlon:
                assert lon == 0
            else:
                assert lat * nlon + (lon - 1) % nlon not in members
                assert lat * nlon + (lon + length) % nlon not in members


def test_the_seam_is_no_gap() -> None:
    arcs, arc_off = arcs_from_csr(np.array([0, 4]), np.array([0, 1, 718, 719]), 720)
    assert arcs.tolist() == [[0, 718, 4]]
    assert arc_off.tolist() == [0, 1]


def test_neighbors_across_latitudes_do_not_join() -> None:
    arcs, _ = arcs_from_csr(np.array([0, 2, 3]), np.array([3, 4, 5]), 4)
    assert arcs.tolist() == [[0, 3, 1], [1, 0, 1], [1, 1, 1]]


def pairs_of_psi(psi: Psi, pair: GridPair) -> Pairs:
    """(ho, wo, hi, wi) of all pairs, straight from the definition of the CSR."""
    nlon = pair.column_shape[1]
    found = set()
    for row in range(psi.row_off.size - 1):
        for column in psi.col_idx[psi.row_off[row] : psi.row_off[row + 1]].tolist():
            lat, lon = divmod(column, nlon)
            for shift in range(pair.row_shape[1]):
                row_point, column_point = (row, shift), (lat, (lon + pair.pscale * shift) % nlon)
                if pair.direction == "downsample":
                    found.add((*row_point, *column_point))
                else:
                    found.add((*column_point, *row_point))
    return found


def pairs_of_table(table: GatherTable, owner_shape: tuple[int, int], nlon_partner: int) -> list[tuple[int, ...]]:
    """(owner h, owner w, partner h, partner w) as a kernel walks them."""
    found = []
    for h in range(owner_shape[0]):
        for w in range(owner_shape[1]):
            row = h * table.residues + w % table.residues
            for lat, lon, length in table.arcs[table.arc_off[row] : table.arc_off[row + 1]].tolist():
                start = lon + w // table.residues * table.stride
                found += [(h, w, lat, (start + j) % nlon_partner) for j in range(length)]
    return found


@given(
    nlat_in=st.integers(2, 6),
    nlat_out=st.integers(2, 6),
    nlon=st.integers(1, 5),
    pscale=st.integers(1, 4),
    upsample=st.booleans(),
    cutoff=st.floats(0.05, 3.3),
)
def test_tables_expand_to_the_pairs_of_the_csr(
    nlat_in: int, nlat_out: int, nlon: int, pscale: int, upsample: bool, cutoff: float
) -> None:
    nlon_in, nlon_out = (nlon, nlon * pscale) if upsample else (nlon * pscale, nlon)
    pair = GridPair((nlat_in, nlon_in), (nlat_out, nlon_out), "equiangular", "legendre-gauss")
    psi = build_psi(pair.in_shape, pair.out_shape, pair.grid_in, pair.grid_out, cutoff)
    check_tables(psi, pair)


@given(pattern=patterns(), pscale=st.integers(1, 4), upsample=st.booleans())
def test_tables_hold_for_any_pattern(pattern: tuple[np.ndarray, np.ndarray, int], pscale: int, upsample: bool) -> None:
    row_off, col_idx, nlon = pattern
    pscale = next(p for p in (pscale, 1) if nlon % p == 0)
    rows = (row_off.size - 1, nlon // pscale)
    columns = (int(col_idx.max(initial=0)) // nlon + 1, nlon)
    pair = GridPair(*((rows, columns) if upsample else (columns, rows)), "legendre-gauss", "legendre-gauss")
    if pair.column_shape == columns:  # without a ratio, upsampling is downsampling and rows would be outputs
        check_tables(Psi(row_off, col_idx), pair)


def check_tables(psi: Psi, pair: GridPair) -> None:
    expected = pairs_of_psi(psi, pair)
    by_query = pairs_of_table(query_table(psi, pair), pair.out_shape, pair.in_shape[1])
    by_key = pairs_of_table(key_table(psi, pair), pair.in_shape, pair.out_shape[1])
    assert len(by_query) == len(by_key) == len(expected)
    assert set(by_query) == expected
    assert {(ho, wo, hi, wi) for hi, wi, ho, wo in by_key} == expected


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "query", "key"),
    [((12, 24), (6, 8), (1, 3), (3, 1)), ((5, 4), (9, 12), (3, 1), (1, 3)), ((6, 12), (6, 12), (1, 1), (1, 1))],
)
def test_residues_and_strides_follow_the_direction(
    in_shape: tuple[int, int], out_shape: tuple[int, int], query: tuple[int, int], key: tuple[int, int]
) -> None:
    pair, psi = GridPair(in_shape, out_shape), build_psi(in_shape, out_shape)
    for build, shape, expected in ((query_table, out_shape, query), (key_table, in_shape, key)):
        table = build(psi, pair)
        assert (table.residues, table.stride) == expected
        assert table.arc_off.shape == (shape[0] * table.residues + 1,)
        assert table.arcs.flags.c_contiguous
        assert table.arcs.dtype == table.arc_off.dtype == np.int32
