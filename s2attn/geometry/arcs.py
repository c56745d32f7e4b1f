"""Arc segments: runs of consecutive longitudes, the compact form of psi that kernels walk.

A row of psi is a union of arcs, seldom more than one per latitude.
The seam between the last and the first longitude is no gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from s2attn.geometry.neighborhood import Psi

IntArray = NDArray[np.int64]
ArcArray = NDArray[np.int32]


class GridRelation(Protocol):
    """What the gather tables need to know of a problem; `GridPair` and `AttentionProblem` both fit."""

    @property
    def direction(self) -> str: ...
    @property
    def pscale(self) -> int: ...
    @property
    def column_shape(self) -> tuple[int, int]: ...


@dataclass(frozen=True, eq=False)
class GatherTable:
    """For every owner point, where its partners are.

    An owner point (h, w) walks row ``h * residues + w % residues``. The partners of one arc are at latitude ``lat`` and
    at the longitudes ``(lon_start + (w // residues) * stride + j) mod nlon_partner`` for j = 0 .. length - 1.

    Attributes
    ----------
    arcs : numpy.ndarray
        int32 [n, 3]: (lat, lon_start, length), ordered by latitude, then longitude within a row.
    arc_off : numpy.ndarray
        int32 [nlat_owner * residues + 1]: where each row's arcs begin.
    residues : int
        Number of longitude classes that have arcs of their own.
    stride : int
        Longitudes by which the arcs move from one owner of a class to the next.
    """

    arcs: ArcArray
    arc_off: ArcArray
    residues: int
    stride: int


def arcs_from_csr(row_off: IntArray, col_idx: IntArray, nlon: int) -> tuple[ArcArray, ArcArray]:
    """Arcs of a sparsity pattern.

    Parameters
    ----------
    row_off : numpy.ndarray
        int64 [R + 1], row offsets.
    col_idx : numpy.ndarray
        int64 [nnz], columns ``lat * nlon + lon``, ascending within a row.
    nlon : int
        Longitudes of the column grid.

    Returns
    -------
    arcs : numpy.ndarray
        int32 [n, 3]: (lat, lon_start, length); at most one arc per gap, a full circle starts at longitude 0.
    arc_off : numpy.ndarray
        int32 [R + 1].
    """
    rows = np.repeat(np.arange(row_off.size - 1), np.diff(row_off))
    ring = rows * (col_idx.max(initial=0) // nlon + 1) + col_idx // nlon
    starts = np.ones(col_idx.size, dtype=bool)
    starts[1:] = (np.diff(col_idx) != 1) | (np.diff(ring) != 0)
    first = np.flatnonzero(starts)
    length = np.diff(np.append(first, col_idx.size))
    ring, row, lat, lon = ring[first], rows[first], col_idx[first] // nlon, col_idx[first] % nlon
    lon, length, kept = _join_seam(ring, lon, length, nlon)
    order = np.lexsort((lon[kept], lat[kept], row[kept]))
    arcs = np.stack((lat[kept], lon[kept], length[kept]), axis=1)[order]
    return arcs.astype(np.int32), _offsets(row[kept], row_off.size - 1)


def csr_from_arcs(arcs: ArcArray, arc_off: ArcArray, nlon: int) -> tuple[IntArray, IntArray]:
    """Sparsity pattern of arcs: the inverse of `arcs_from_csr`.

    Returns
    -------
    row_off : numpy.ndarray
        int64 [R + 1].
    col_idx : numpy.ndarray
        int64 [nnz], ascending within a row.
    """
    row = np.repeat(np.arange(arc_off.size - 1), np.diff(arc_off))
    lat, lon, length = arcs.astype(np.int64).T
    step = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    col_idx = np.repeat(lat * nlon, length) + (np.repeat(lon, length) + step) % nlon
    rows = np.repeat(row, length)
    order = np.lexsort((col_idx, rows))
    return _offsets(rows, arc_off.size - 1).astype(np.int64), col_idx[order]


def query_table(psi: Psi, relation: GridRelation) -> GatherTable:
    """Gather table whose owners are the output points: the keys of every query.

    Parameters
    ----------
    psi : Psi
        Sparsity pattern of the problem.
    relation : GridRelation
        A `GridPair` or an `AttentionProblem`.

    Returns
    -------
    GatherTable
        Downsampling: the arcs of psi themselves. Upsampling: psi transposed (derived here, see `transposed_table`).
    """
    return _row_table(psi, relation) if relation.direction == "downsample" else transposed_table(psi, relation)


def key_table(psi: Psi, relation: GridRelation) -> GatherTable:
    """Gather table whose owners are the input points: the queries that see every key. See `query_table`."""
    return transposed_table(psi, relation) if relation.direction == "downsample" else _row_table(psi, relation)


def transposed_table(psi: Psi, relation: GridRelation) -> GatherTable:
    """Gather table whose owners are the column points of psi.

    A row point (h, u) pairs with the column points (lat, a + pscale * u) for a in the row's arcs. Seen from the column
    point (lat, w), with w = pscale * m + r: u = m + (r - a) / pscale for those a that leave the residue r. Every
    pscale-th member of an arc is a run again, so each residue class has arcs of its own (derived here).
    """
    pscale = relation.pscale
    nlat_owner, nlon_owner = relation.column_shape
    nlon_partner = nlon_owner // pscale
    arcs, arc_off = arcs_from_csr(psi.row_off, psi.col_idx, nlon_owner)
    row = np.repeat(np.arange(arc_off.size - 1), np.diff(arc_off))
    owner, start, partner, count = [], [], [], []
    for residue in range(pscale):
        lat, lon, length = arcs.astype(np.int64).T
        skip = (residue - lon) % pscale
        members = (length - skip + pscale - 1) // pscale
        last = (residue - lon - skip) // pscale
        owner.append(lat * pscale + residue)
        start.append(np.where(members == nlon_partner, 0, (last - members + 1) % nlon_partner))
        partner.append(row)
        count.append(members)
    owners, lons, partners, counts = (np.concatenate(parts) for parts in (owner, start, partner, count))
    order = np.lexsort((lons, partners, owners))
    order = order[counts[order] > 0]
    table = np.stack((partners, lons, counts), axis=1)[order].astype(np.int32)
    return _frozen(GatherTable(table, _offsets(owners[order], nlat_owner * pscale), residues=pscale, stride=1))


def _row_table(psi: Psi, relation: GridRelation) -> GatherTable:
    arcs, arc_off = arcs_from_csr(psi.row_off, psi.col_idx, relation.column_shape[1])
    return _frozen(GatherTable(arcs, arc_off, residues=1, stride=relation.pscale))


def _join_seam(ring: IntArray, lon: IntArray, length: IntArray, nlon: int) -> tuple[IntArray, IntArray, IntArray]:
    """Let a run that ends at the last longitude swallow the run of the same ring that begins at the first one."""
    head = np.flatnonzero((lon == 0) & (length < nlon))
    tail = np.flatnonzero((lon + length == nlon) & (lon > 0))
    _, in_head, in_tail = np.intersect1d(ring[head], ring[tail], assume_unique=True, return_indices=True)
    length = length.copy()
    length[tail[in_tail]] += length[head[in_head]]
    return lon, length, np.delete(np.arange(lon.size), head[in_head])


def _offsets(rows: IntArray, count: int) -> ArcArray:
    return np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=count)))).astype(np.int32)


def _frozen(table: GatherTable) -> GatherTable:
    table.arcs.flags.writeable = False
    table.arc_off.flags.writeable = False
    return table
