"""Quadrature weights of the latitude grids: they integrate over the colatitude's cosine, and over the sphere."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from s2attn.errors import InvalidProblem
from s2attn.geometry.grids import FloatArray, check_latitudes, colatitudes, legendre


def latitude_weights(nlat: int, grid: str) -> FloatArray:
    r"""Weights of the quadrature rule of a grid for :math:`\int_{-1}^{1} f(\cos\theta)\, d\cos\theta`.

    Parameters
    ----------
    nlat : int
        Number of latitudes.
    grid : str
        Name of the grid, see `s2attn.geometry.colatitudes`.

    Returns
    -------
    numpy.ndarray
        float64 [nlat], dimensionless, sum 2, read-only.

    Raises
    ------
    InvalidProblem
        Unknown grid, or too few latitudes for it.

    Notes
    -----
    Clenshaw-Curtis: Clenshaw and Curtis (1960), in the explicit cosine sum given by Waldvogel (2006).
    Gauss and Lobatto: Abramowitz and Stegun, 25.4.29 and 25.4.32.
    """
    check_latitudes("nlat", nlat, grid)
    return _latitude_weights(nlat, grid)


def quadrature_weights(nlat: int, nlon: int, grid: str) -> FloatArray:
    """Area of the sphere that one point of each latitude stands for: ``2 pi w_lat / nlon``.

    Parameters
    ----------
    nlat, nlon : int
        Extents of the grid.
    grid : str
        Name of the grid, see `s2attn.geometry.colatitudes`.

    Returns
    -------
    numpy.ndarray
        float64 [nlat], steradians; summed over all nlat * nlon points: 4 pi.

    Raises
    ------
    InvalidProblem
        Unknown grid, too few latitudes, or no longitude.
    """
    if nlon < 1:
        raise InvalidProblem("nlon", nlon, "at least one longitude")
    return 2.0 * math.pi * latitude_weights(nlat, grid) / nlon


@lru_cache(maxsize=64)
def _latitude_weights(nlat: int, grid: str) -> FloatArray:
    if grid == "equiangular":
        weights = _clenshaw_curtis(nlat)
    elif grid == "legendre-gauss":
        weights = _gauss(nlat)
    else:
        weights = _lobatto(nlat)
    weights.flags.writeable = False
    return weights


def _clenshaw_curtis(nlat: int) -> FloatArray:
    intervals = nlat - 1
    theta = colatitudes(nlat, "equiangular")
    order = np.arange(1, intervals // 2 + 1)
    coefficient = np.where(2 * order == intervals, 1.0, 2.0) / (4.0 * order**2 - 1.0)
    weights = 2.0 * (1.0 - np.cos(2.0 * np.outer(theta, order)) @ coefficient) / intervals
    weights[[0, -1]] /= 2.0
    return np.asarray(0.5 * (weights + weights[::-1]))


def _gauss(nlat: int) -> FloatArray:
    theta = colatitudes(nlat, "legendre-gauss")
    value, previous = legendre(nlat, np.cos(theta))
    # 2 / ((1 - x^2) P'_n(x)^2), with P'_n from the neighbor of lower degree
    slope = nlat * (np.cos(theta) * value - previous) / np.sin(theta)
    return np.asarray(2.0 / slope**2)


def _lobatto(nlat: int) -> FloatArray:
    degree = nlat - 1
    value, _ = legendre(degree, np.cos(colatitudes(nlat, "lobatto")))
    return np.asarray(2.0 / (degree * nlat * value**2))
