"""Latitude grids of the sphere, and pairs of them: which latitudes a grid has, and how two grids relate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from s2attn.errors import InvalidProblem

Grid = Literal["equiangular", "legendre-gauss", "lobatto"]
Direction = Literal["downsample", "upsample"]
FloatArray = NDArray[np.float64]

GRIDS: tuple[str, ...] = get_args(Grid)
MAX_EXTENT = 1 << 28  # that of csrc/checks.h

# Newton converges quadratically from guesses that are good to O(1/nlat^2): five steps reach rounding for every nlat
# up to 10000; the limit only bounds the loop.
_NEWTON_STEPS = 20
_NEWTON_DONE = 1e-10  # the step after one this small is below rounding


def check_grid(argument: str, grid: str) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless ``grid`` is a known grid."""
    if grid not in GRIDS:
        raise InvalidProblem(argument, grid, f"one of {', '.join(GRIDS)}")


def check_latitudes(argument: str, nlat: int, grid: str) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless the grid exists with ``nlat`` latitudes."""
    check_grid("grid", grid)
    least = 1 if grid == "legendre-gauss" else 2
    if not _is_count(nlat) or nlat < least:
        raise InvalidProblem(argument, nlat, f"at least {least} latitudes on the {grid} grid")


def colatitudes(nlat: int, grid: str) -> FloatArray:
    """Colatitudes of a grid, ascending from the north pole.

    Parameters
    ----------
    nlat : int
        Number of latitudes; at least 2, or 1 on the Legendre-Gauss grid.
    grid : str
        ``equiangular`` (Clenshaw-Curtis nodes, poles included), ``legendre-gauss`` (zeros of the Legendre polynomial
        P_nlat) or ``lobatto`` (poles and the zeros of P'_{nlat-1}).

    Returns
    -------
    numpy.ndarray
        float64 [nlat], radians, read-only.

    Raises
    ------
    InvalidProblem
        Unknown grid, or too few latitudes for it.
    """
    check_latitudes("nlat", nlat, grid)
    return _colatitudes(nlat, grid)


def legendre(degree: int, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Legendre polynomials P_degree(x) and P_{degree-1}(x) by the three-term recurrence (degree >= 1)."""
    previous, current = np.ones_like(x), x.copy()
    for n in range(2, degree + 1):
        previous, current = current, ((2 * n - 1) * x * current - (n - 1) * previous) / n
    return current, previous


@dataclass(frozen=True)
class GridPair:
    """The input and the output grid of a problem, validated once.

    Parameters
    ----------
    in_shape, out_shape : tuple[int, int]
        (nlat, nlon) of keys and values, and of queries.
    grid_in, grid_out : str
        Names of the latitude grids, see `colatitudes`.

    Raises
    ------
    InvalidProblem
        A shape that is no pair of positive integers, an unknown grid, or longitudes of which neither number is a
        multiple of the other.
    """

    in_shape: tuple[int, int]
    out_shape: tuple[int, int]
    grid_in: str = "equiangular"
    grid_out: str = "equiangular"

    def __post_init__(self) -> None:
        for argument, grid in (("grid_in", self.grid_in), ("grid_out", self.grid_out)):
            check_grid(argument, grid)
        for name, grid in (("in_shape", self.grid_in), ("out_shape", self.grid_out)):
            object.__setattr__(self, name, checked_shape(name, getattr(self, name), grid))
        nlon_in, nlon_out = self.in_shape[1], self.out_shape[1]
        if nlon_in % nlon_out and nlon_out % nlon_in:
            expected = f"a number of longitudes that divides or is a multiple of the {nlon_in} of in_shape"
            raise InvalidProblem("out_shape", self.out_shape, expected)

    @property
    def direction(self) -> Direction:
        """``downsample`` (self-attention included) when nlon_in is a multiple of nlon_out, else ``upsample``."""
        return "downsample" if self.in_shape[1] % self.out_shape[1] == 0 else "upsample"

    @property
    def pscale(self) -> int:
        """Ratio of the longitudes, the finer over the coarser grid; >= 1."""
        return max(self.in_shape[1], self.out_shape[1]) // min(self.in_shape[1], self.out_shape[1])

    @property
    def row_shape(self) -> tuple[int, int]:
        """(nlat, nlon) of the grid whose latitudes are the rows of psi: the one with fewer longitudes."""
        return self.out_shape if self.direction == "downsample" else self.in_shape

    @property
    def column_shape(self) -> tuple[int, int]:
        """(nlat, nlon) of the grid whose points are the columns of psi."""
        return self.in_shape if self.direction == "downsample" else self.out_shape

    @property
    def row_grid(self) -> str:
        """Grid name that belongs to `row_shape`."""
        return self.grid_out if self.direction == "downsample" else self.grid_in

    @property
    def column_grid(self) -> str:
        """Grid name that belongs to `column_shape`."""
        return self.grid_in if self.direction == "downsample" else self.grid_out


@lru_cache(maxsize=64)
def _colatitudes(nlat: int, grid: str) -> FloatArray:
    builders: dict[str, Callable[[int], FloatArray]] = {
        "equiangular": lambda n: np.linspace(0.0, math.pi, n),
        "legendre-gauss": _gauss_colatitudes,
        "lobatto": _lobatto_colatitudes,
    }
    theta = builders[grid](nlat)
    theta.flags.writeable = False
    return theta


def _gauss_colatitudes(nlat: int) -> FloatArray:
    # Tricomi's guess; Newton runs in theta, where the zeros are evenly spread, so that none is lost near the poles.
    theta = math.pi * (np.arange(nlat, dtype=np.float64) + 0.75) / (nlat + 0.5)
    for _ in range(_NEWTON_STEPS):
        x, sine = np.cos(theta), np.sin(theta)
        value, previous = legendre(nlat, x)
        # dP_n/dtheta = n (x P_n - P_{n-1}) / sin(theta)
        step = value * sine / (nlat * (x * value - previous))
        theta = theta - step
        if np.abs(step).max() < _NEWTON_DONE:
            break
    return _symmetric(theta)


def _lobatto_colatitudes(nlat: int) -> FloatArray:
    theta = np.linspace(0.0, math.pi, nlat)
    degree = nlat - 1
    inner = math.pi * (np.arange(1, degree) + 0.25) / (degree + 0.5)
    for _ in range(_NEWTON_STEPS if inner.size else 0):
        x, sine = np.cos(inner), np.sin(inner)
        value, previous = legendre(degree, x)
        # f = sin(theta) P'_n(x) = n (P_{n-1} - x P_n) / sin(theta) has the zeros wanted;
        # Legendre's equation gives P''_n, and from it df/dtheta.
        derivative = degree * (previous - x * value) / sine**2
        slope = degree * (degree + 1) * value - x * derivative
        step = derivative * sine / slope
        inner = inner - step
        if np.abs(step).max() < _NEWTON_DONE:
            break
    theta[1:-1] = inner
    return _symmetric(theta)


def _symmetric(theta: FloatArray) -> FloatArray:
    """Remove what rounding broke of the symmetry about the equator."""
    return 0.5 * (theta + (math.pi - theta[::-1]))


def checked_shape(argument: str, shape: object, grid: str) -> tuple[int, int]:
    """Return a shape as two integers, or raise `InvalidProblem` naming ``argument`` when ``grid`` has no such shape."""
    if not isinstance(shape, tuple | list) or len(shape) != 2 or not all(_is_count(extent) for extent in shape):
        raise InvalidProblem(argument, shape, "two positive integers (nlat, nlon)")
    if max(shape) > MAX_EXTENT:
        raise InvalidProblem(argument, shape, "extents up to 2^28")
    nlat, nlon = (int(extent) for extent in shape)
    check_latitudes(argument, nlat, grid)
    return nlat, nlon


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 1
