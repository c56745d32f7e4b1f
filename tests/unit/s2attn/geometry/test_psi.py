import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2attn import InvalidProblem
from s2attn.geometry import GRIDS, GridPair, arcs_from_csr, build_psi, colatitudes, default_theta_cutoff


def sha256(array: np.ndarray, dtype: str) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, dtype=dtype).tobytes()).hexdigest()


def test_equals_every_golden_pattern(golden_psi: list[dict]) -> None:
    for entry in golden_psi:
        pair = GridPair(tuple(entry["in_shape"]), tuple(entry["out_shape"]), entry["grid_in"], entry["grid_out"])
        psi = build_psi(pair.in_shape, pair.out_shape, pair.grid_in, pair.grid_out, entry["theta_cutoff_given"])
        assert psi.row_off.dtype == psi.col_idx.dtype == np.int64
        arcs, arc_off = arcs_from_csr(*psi, pair.column_shape[1])
        found = {
            "direction": pair.direction,
            "nnz": psi.col_idx.size,
            "n_arcs": arcs.shape[0],
            "row_off_sha256": sha256(psi.row_off, "<i8"),
            "col_idx_sha256": sha256(psi.col_idx, "<i8"),
            "arcs_sha256": sha256(arcs, "<i4"),
            "arc_off_sha256": sha256(arc_off, "<i4"),
        }
        in_full = {"row_off": psi.row_off, "col_idx": psi.col_idx, "arcs": arcs, "arc_off": arc_off}
        found |= {name: array.tolist() for name, array in in_full.items() if name in entry}
        assert found == {name: entry[name] for name in found}


def test_default_cutoffs_equal_golden_ones(golden_psi: list[dict]) -> None:
    for entry in golden_psi:
        if entry["theta_cutoff_given"] is None:
            cutoff = default_theta_cutoff(
                tuple(entry["in_shape"]), tuple(entry["out_shape"]), entry["grid_in"], entry["grid_out"]
            )
            assert cutoff == pytest.approx(entry["theta_cutoff"], rel=1e-14)


@given(
    rows=st.integers(2, 9),
    columns=st.integers(2, 9),
    nlon=st.integers(1, 6),
    pscale=st.integers(1, 4),
    grids=st.tuples(st.sampled_from(GRIDS), st.sampled_from(GRIDS)),
    cutoff=st.floats(0.01, 3.5),
    upsample=st.booleans(),
)
def test_equals_distances_on_the_sphere(
    rows: int, columns: int, nlon: int, pscale: int, grids: tuple[str, str], cutoff: float, upsample: bool
) -> None:
    row_shape, column_shape = (rows, nlon), (columns, nlon * pscale)
    row_grid, column_grid = grids
    if upsample and pscale > 1:
        psi = build_psi(row_shape, column_shape, row_grid, column_grid, cutoff)
    else:
        psi = build_psi(column_shape, row_shape, column_grid, row_grid, cutoff)
    distance = distances(colatitudes(rows, row_grid), colatitudes(columns, column_grid), column_shape[1])
    radius = cutoff * 1.001
    expected, undecided = distance <= radius, np.abs(distance - radius) < 1e-7
    found = np.zeros_like(expected)
    found[np.repeat(np.arange(rows), np.diff(psi.row_off)), psi.col_idx] = True
    assert ((found == expected) | undecided).all()
    assert found.sum() == psi.col_idx.size


def distances(row_theta: np.ndarray, column_theta: np.ndarray, nlon: int) -> np.ndarray:
    """Angles [row, column point] from dot products of unit vectors, not from the formula under test."""
    lon = 2 * math.pi * np.arange(nlon) / nlon
    theta, phi = (x.ravel() for x in np.meshgrid(column_theta, lon, indexing="ij"))
    points = np.stack((np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)))
    owners = np.stack((np.sin(row_theta), np.zeros_like(row_theta), np.cos(row_theta)), axis=1)
    return np.arccos(np.clip(owners @ points, -1.0, 1.0))


def test_columns_ascend_within_a_row() -> None:
    psi = build_psi((33, 64), (33, 64), theta_cutoff=0.4)
    row = np.repeat(np.arange(33), np.diff(psi.row_off))
    assert (np.diff(psi.col_idx)[np.diff(row) == 0] > 0).all()


@pytest.mark.parametrize("cutoff", [0, 0.0, -0.1, math.nan, math.inf, -math.inf, "0.1", True])
def test_bad_cutoffs_are_named(cutoff: float) -> None:
    with pytest.raises(InvalidProblem, match=r"^theta_cutoff: got .*, expected a positive"):
        build_psi((6, 12), (6, 12), theta_cutoff=cutoff)


def test_one_latitude_has_no_default_cutoff() -> None:
    with pytest.raises(InvalidProblem, match=r"^theta_cutoff: .*single latitude"):
        build_psi((4, 8), (1, 8), "legendre-gauss", "legendre-gauss")
    assert build_psi((1, 8), (1, 8), "legendre-gauss", "legendre-gauss", 0.8).col_idx.tolist() == [0, 1, 7]
