"""Who attends to whom: psi, the sparsity pattern of geodesic disks, and everything kernels need of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from s2attn.errors import InvalidProblem
from s2attn.geometry.arcs import GatherTable, IntArray, key_table, query_table
from s2attn.geometry.grids import FloatArray, GridPair, colatitudes
from s2attn.geometry.quadrature import quadrature_weights
from s2attn.geometry.stored import Tables, load_tables, store_tables
from s2attn.tracing import constant_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from s2attn.problem import AttentionProblem

# Points whose distance equals the cutoff in exact arithmetic must not depend on rounding: grids put many of them there.
CUTOFF_MARGIN = 1e-3


class Psi(NamedTuple):
    """Sparsity pattern as compressed rows.

    One row per latitude of the grid with fewer longitudes, for its point of longitude 0; columns are points
    ``lat * nlon + lon`` of the other grid, ascending within a row.
    """

    row_off: IntArray
    col_idx: IntArray


class NeighborhoodTensors(NamedTuple):
    """What the compiled operators take beside q, k and v, on one device."""

    quad_weights: torch.Tensor
    query_arcs: torch.Tensor
    query_arc_off: torch.Tensor
    key_arcs: torch.Tensor
    key_arc_off: torch.Tensor


def default_theta_cutoff(
    in_shape: tuple[int, int], out_shape: tuple[int, int], grid_in: str = "equiangular", grid_out: str = "equiangular"
) -> float:
    """Largest colatitude gap of the coarser grid: output when downsampling, input when upsampling.

    Returns
    -------
    float
        Radians; pi / (nlat - 1) on the equiangular grid.

    Raises
    ------
    InvalidProblem
        The shapes and grids make no problem, or the coarser grid has one latitude and so no gap.
    """
    pair = GridPair(in_shape, out_shape, grid_in, grid_out)
    if pair.row_shape[0] < 2:
        raise InvalidProblem("theta_cutoff", None, "a number: a grid with a single latitude has no default")
    return float(np.diff(colatitudes(pair.row_shape[0], pair.row_grid)).max())


def check_theta_cutoff(theta_cutoff: float) -> float:
    """Return the cutoff as a float, or raise `InvalidProblem` when it is no positive finite number."""
    if isinstance(theta_cutoff, bool) or not isinstance(theta_cutoff, int | float | np.integer | np.floating):
        raise InvalidProblem("theta_cutoff", theta_cutoff, "a positive number of radians")
    if not math.isfinite(theta_cutoff) or theta_cutoff <= 0:
        raise InvalidProblem("theta_cutoff", theta_cutoff, "a positive, finite number of radians")
    return float(theta_cutoff)


def build_psi(
    in_shape: tuple[int, int],
    out_shape: tuple[int, int],
    grid_in: str = "equiangular",
    grid_out: str = "equiangular",
    theta_cutoff: float | None = None,
) -> Psi:
    """Sparsity pattern of geodesic disks.

    Parameters
    ----------
    in_shape, out_shape : tuple[int, int]
        (nlat, nlon) of the input and the output grid.
    grid_in, grid_out : str
        Names of the grids, see `colatitudes`.
    theta_cutoff : float, optional
        Radius in radians; the disk holds every point within ``theta_cutoff * (1 + 1e-3)``, bound included. Default:
        `default_theta_cutoff`.

    Returns
    -------
    Psi
        row_off int64 [R + 1] and col_idx int64 [nnz], read-only. Downsampling: one row per output latitude, columns
        ``hi * nlon_in + wi``, and the query at longitude wo uses ``wi + pscale * wo``. Upsampling: one row per input
        latitude, columns on the output grid, and the key at longitude wi serves ``wo + pscale * wi``.

    Raises
    ------
    InvalidProblem
        A wrong shape, grid or cutoff.
    """
    pair = GridPair(in_shape, out_shape, grid_in, grid_out)
    if theta_cutoff is None:
        theta_cutoff = default_theta_cutoff(in_shape, out_shape, grid_in, grid_out)
    return _disks(pair, check_theta_cutoff(theta_cutoff) * (1.0 + CUTOFF_MARGIN))


@dataclass(frozen=True, eq=False)
class Neighborhood:
    """Everything about the geometry of a problem. Made by `neighborhood`, which keeps the last ones.

    Attributes
    ----------
    grids : GridPair
        The two grids.
    theta_cutoff : float
        The cutoff as given, radians.
    query_table, key_table : GatherTable
        Arcs by query and by key (kernels).
    quad_weights : numpy.ndarray
        float64 [nlat_in], steradians.
    """

    grids: GridPair
    theta_cutoff: float
    query_table: GatherTable
    key_table: GatherTable
    quad_weights: FloatArray
    _tensors: dict[torch.device, NeighborhoodTensors] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def psi(self) -> Psi:
        """Sparsity pattern (reference and checks): always from the grids, also where the tables come from a file."""
        return _pattern(self.grids, self.theta_cutoff)

    # torch.compile takes the tensors as they are: tracing through numpy would build them anew in every graph
    @constant_result
    def tensors(self, device: torch.device | str) -> NeighborhoodTensors:
        """Tables and float32 quadrature weights as tensors on ``device``, copied there once."""
        device = torch.device(device)
        if device not in self._tensors:
            arrays = (
                self.quad_weights.astype(np.float32),
                self.query_table.arcs,
                self.query_table.arc_off,
                self.key_table.arcs,
                self.key_table.arc_off,
            )
            # torch.export runs this under a mode that makes fake tensors: kept, they would break every later call
            with _disable_current_modes():
                self._tensors[device] = NeighborhoodTensors(*(torch.tensor(array, device=device) for array in arrays))
        return self._tensors[device]

    @property
    def empty_queries(self) -> int:
        """Number of output points without a single key in reach."""
        empty_rows = int((np.diff(self.query_table.arc_off) == 0).sum())
        return empty_rows * (self.grids.out_shape[1] // self.query_table.residues)

    def __reduce__(self) -> tuple[Callable[[GridPair, float], Neighborhood], tuple[GridPair, float]]:
        # a pickled or copied module rebuilds (or finds) its geometry instead of carrying megabytes of tables
        return _build, (self.grids, self.theta_cutoff)


def neighborhood(problem: AttentionProblem) -> Neighborhood:
    """Geometry of a problem, built once per pair of grids and cutoff (the last 32 are kept).

    Parameters
    ----------
    problem : AttentionProblem
        Heads, channels and dtype do not matter here.

    Returns
    -------
    Neighborhood
        Shared: treat it as read-only.
    """
    return _build(problem.grids, problem.cutoff)


@lru_cache(maxsize=32)
def _build(grids: GridPair, theta_cutoff: float) -> Neighborhood:
    weights = quadrature_weights(*grids.in_shape, grids.grid_in)
    weights.flags.writeable = False
    return Neighborhood(grids, theta_cutoff, *_gather_tables(grids, theta_cutoff), weights)


def _gather_tables(grids: GridPair, theta_cutoff: float) -> tuple[GatherTable, GatherTable]:
    """Return the tables by query and by key, from a file of an earlier process where there is one."""
    stored = load_tables(grids, theta_cutoff)
    if stored is None:
        psi = _pattern(grids, theta_cutoff)
        by_query, by_key = query_table(psi, grids), key_table(psi, grids)
        store_tables(grids, theta_cutoff, Tables(by_query.arcs, by_query.arc_off, by_key.arcs, by_key.arc_off))
        return by_query, by_key
    row, column = {"residues": 1, "stride": grids.pscale}, {"residues": grids.pscale, "stride": 1}
    of_query, of_key = (row, column) if grids.direction == "downsample" else (column, row)
    return (
        GatherTable(stored.query_arcs, stored.query_arc_off, **of_query),
        GatherTable(stored.key_arcs, stored.key_arc_off, **of_key),
    )


@lru_cache(maxsize=2)
def _pattern(grids: GridPair, theta_cutoff: float) -> Psi:
    """Return psi; kept for a moment, as whoever builds tables often looks at the pattern next."""
    return _disks(grids, theta_cutoff * (1.0 + CUTOFF_MARGIN))


def _disks(pair: GridPair, radius: float) -> Psi:
    """CSR of all column points within ``radius`` of each row point at longitude 0.

    Haversine: sin^2(d/2) = sin^2(dtheta/2) + sin(theta_a) sin(theta_b) sin^2(dlon/2) grows with dlon up to pi, so of
    every pair of latitudes only the last longitude in reach is looked up (derived here).
    """
    nlat, nlon = pair.column_shape
    row_theta = colatitudes(pair.row_shape[0], pair.row_grid)
    column_theta = colatitudes(nlat, pair.column_grid)
    low = np.searchsorted(column_theta, row_theta - radius)
    high = np.searchsorted(column_theta, row_theta + radius, side="right")
    row = np.repeat(np.arange(row_theta.size), high - low)
    lat = np.arange(row.size) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[row]
    reach = _reach(row_theta[row], column_theta[lat], nlon, radius)
    length = np.minimum(2 * reach + 1, nlon)
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    # members 0 .. reach lie east of the row point, the others end at the seam
    lon = step + np.where(step > np.repeat(reach, length), np.repeat(nlon - length, length), 0)
    col_idx = np.repeat(lat * nlon, length) + lon
    row_off = np.concatenate(([0], np.cumsum(np.bincount(row, weights=length, minlength=row_theta.size))))
    psi = Psi(row_off.astype(np.int64), col_idx.astype(np.int64))
    for array in psi:
        array.flags.writeable = False
    return psi


def _reach(theta_a: FloatArray, theta_b: FloatArray, nlon: int, radius: float) -> IntArray:
    """Largest number of longitudes (up to half a circle) that stays within ``radius``, or -1: no longitude does."""
    half_circle = nlon // 2
    if radius >= math.pi:
        return np.full(theta_a.size, half_circle, dtype=np.int64)
    sine = np.maximum(np.sin(theta_a) * np.sin(theta_b), 0.0)
    rest = math.sin(radius / 2) ** 2 - np.sin((theta_a - theta_b) / 2) ** 2
    havers = np.sin(math.pi * np.arange(half_circle + 1) / nlon) ** 2
    # at a pole the sine is nothing but rounding: every longitude is as near as the first
    quotient = np.divide(rest, sine, out=np.where(rest >= 0, np.inf, -np.inf), where=sine > 1e-15)
    return np.asarray(np.searchsorted(havers, quotient, side="right") - 1, dtype=np.int64)
