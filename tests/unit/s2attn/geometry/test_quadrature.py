import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2attn import InvalidProblem
from s2attn.geometry import GRIDS, colatitudes, latitude_weights, quadrature_weights


def test_equals_golden_weights(golden_nodes: list[dict]) -> None:
    for entry in golden_nodes:
        weights = latitude_weights(entry["nlat"], entry["grid"])
        expected = np.array(entry["weights"] or entry["weights_first3"])
        np.testing.assert_allclose(weights[: expected.size], expected, rtol=0, atol=1e-13)


@given(grid=st.sampled_from(GRIDS), nlat=st.integers(2, 200), nlon=st.integers(1, 400))
def test_weights_sum_to_the_sphere(grid: str, nlat: int, nlon: int) -> None:
    weights = quadrature_weights(nlat, nlon, grid)
    assert weights.dtype == np.float64
    assert weights.shape == (nlat,)
    assert (weights > 0).all()
    assert nlon * weights.sum() == pytest.approx(4 * math.pi, rel=1e-13)


@pytest.mark.parametrize(("grid", "surplus"), [("equiangular", -1), ("legendre-gauss", 0), ("lobatto", -1)])
@pytest.mark.parametrize("nlat", [2, 3, 5, 8, 13])
def test_polynomials_up_to_the_promised_degree_are_exact(grid: str, surplus: int, nlat: int) -> None:
    # Clenshaw-Curtis: nlat - 1; Gauss: 2 nlat - 1; Lobatto: 2 nlat - 3
    degree = nlat - 1 if grid == "equiangular" else 2 * (nlat + surplus) - 1
    x, weights = np.cos(colatitudes(nlat, grid)), latitude_weights(nlat, grid)
    for power in range(degree + 1):
        exact = 2.0 / (power + 1) if power % 2 == 0 else 0.0
        assert weights @ x**power == pytest.approx(exact, abs=1e-14)


def test_single_gauss_latitude_carries_everything() -> None:
    assert latitude_weights(1, "legendre-gauss").tolist() == pytest.approx([2.0])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidProblem, match=r"^nlon: got 0"):
        quadrature_weights(4, 0, "equiangular")
    with pytest.raises(InvalidProblem, match=r"^nlat: got 1"):
        latitude_weights(1, "lobatto")
    with pytest.raises(InvalidProblem, match=r"^grid: got 'gauss'"):
        latitude_weights(4, "gauss")
