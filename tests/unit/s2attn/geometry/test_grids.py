import math
import pickle

import numpy as np
import pytest

from s2attn import InvalidProblem
from s2attn.geometry import GRIDS, GridPair, colatitudes


def test_equals_golden_nodes(golden_nodes: list[dict]) -> None:
    for entry in golden_nodes:
        theta = colatitudes(entry["nlat"], entry["grid"])
        expected = np.array(entry["colatitudes"] or entry["colat_first3"])
        np.testing.assert_allclose(theta[: expected.size], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("nlat", [2, 3, 4, 5, 16, 33, 360])
def test_nodes_ascend_and_mirror_at_the_equator(grid: str, nlat: int) -> None:
    theta = colatitudes(nlat, grid)
    assert theta.dtype == np.float64
    assert theta.shape == (nlat,)
    assert (np.diff(theta) > 0).all()
    np.testing.assert_allclose(theta + theta[::-1], math.pi, rtol=0, atol=1e-14)
    if grid != "legendre-gauss":
        assert (theta[0], theta[-1]) == (0.0, math.pi)


@pytest.mark.parametrize("nlat", [1, 2, 7, 64])
def test_gauss_nodes_are_those_of_numpy(nlat: int) -> None:
    x, _ = np.polynomial.legendre.leggauss(nlat)
    np.testing.assert_allclose(colatitudes(nlat, "legendre-gauss"), np.arccos(x[::-1]), rtol=0, atol=1e-13)


@pytest.mark.parametrize("nlat", [3, 8, 21])
def test_lobatto_nodes_are_zeros_of_the_derivative(nlat: int) -> None:
    inner = np.polynomial.legendre.Legendre.basis(nlat - 1).deriv().roots()
    np.testing.assert_allclose(
        np.cos(colatitudes(nlat, "lobatto")[1:-1]), np.sort(inner.real)[::-1], rtol=0, atol=1e-12
    )


def test_nodes_are_shared_and_read_only() -> None:
    theta = colatitudes(9, "lobatto")
    assert colatitudes(9, "lobatto") is theta
    with pytest.raises(ValueError, match="read-only"):
        theta[0] = 1.0


@pytest.mark.parametrize(
    ("nlat", "grid", "argument"),
    [
        (1, "equiangular", "nlat"),
        (1, "lobatto", "nlat"),
        (0, "legendre-gauss", "nlat"),
        (2.5, "equiangular", "nlat"),
        (True, "legendre-gauss", "nlat"),
        (4, "healpix", "grid"),
    ],
)
def test_bad_grids_are_named(nlat: int, grid: str, argument: str) -> None:
    with pytest.raises(InvalidProblem, match=f"^{argument}: got ") as caught:
        colatitudes(nlat, grid)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "direction", "pscale"),
    [
        ((6, 12), (6, 12), "downsample", 1),
        ((12, 12), (6, 12), "downsample", 1),
        ((6, 12), (12, 12), "downsample", 1),
        ((12, 24), (6, 8), "downsample", 3),
        ((5, 4), (9, 12), "upsample", 3),
    ],
)
def test_direction_follows_from_the_longitudes(
    in_shape: tuple[int, int], out_shape: tuple[int, int], direction: str, pscale: int
) -> None:
    pair = GridPair(in_shape, out_shape, "lobatto", "legendre-gauss")
    assert (pair.direction, pair.pscale) == (direction, pscale)
    rows_are_output = direction == "downsample"
    assert (pair.row_shape, pair.row_grid) == (
        (out_shape, "legendre-gauss") if rows_are_output else (in_shape, "lobatto")
    )
    assert (pair.column_shape, pair.column_grid) == (
        (in_shape, "lobatto") if rows_are_output else (out_shape, "legendre-gauss")
    )


def test_equal_pairs_are_one_key() -> None:
    listed = GridPair([6, np.int64(12)], (6, 12))  # type: ignore[arg-type, list-item]
    assert listed == GridPair((6, 12), (6, 12))
    assert hash(listed) == hash(GridPair((6, 12), (6, 12)))
    assert pickle.loads(pickle.dumps(listed)) == listed
