"""Neighborhood attention and its gradients in float64 at chosen points, pair by pair from psi's column list.

Independent of the kernels (no arcs), of their backward (no saved log-sum-exp) and of autograd. Works on any subset of
queries or keys, so that a grid of any size can be checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from s2attn.geometry import GridPair, Neighborhood, Psi

# Elements of the largest temporary: 32 MiB and 512 MiB of float64.
_BLOCK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}

# Where a row's owners see at least this part of the latitudes that they look at, and there are enough of them, products
# of whole matrices take less time than pairs: about 30 ns an element against 1 us a pair on one CPU thread.
_LEAST_FILL = 0.05
_LEAST_OWNERS = 16


class Columns(NamedTuple):
    """Partners of every owner point.

    The owner (h, w) walks row ``h * residues + w % residues``; its partners are the points
    ``(lat, (lon + (w // residues) * stride) mod nlon_partner)``.
    """

    row_off: torch.Tensor
    lat: torch.Tensor
    lon: torch.Tensor
    residues: int
    stride: int
    nlon_owner: int
    nlon_partner: int


class Block(NamedTuple):
    """Some owners of a list with all their pairs: ``owner`` counts from 0 within the block, ``partner`` is a point."""

    first: int
    owners: int
    owner: torch.Tensor
    partner: torch.Tensor


class Band(NamedTuple):
    """Owners of one row (``members`` of a list) that see much of a run of points; ``partner`` is [owners, partners]."""

    members: torch.Tensor
    first_point: int
    points: int
    partner: torch.Tensor


def columns_by_row(psi: Psi, grids: GridPair, device: torch.device) -> Columns:
    """Return the partners of the points of the grid with fewer longitudes: psi as it is."""
    nlon_row, nlon_column = grids.row_shape[1], grids.column_shape[1]
    row_off, columns = (torch.tensor(array, device=device) for array in psi)
    lat, lon = columns // nlon_column, columns % nlon_column
    return Columns(row_off, lat, lon, residues=1, stride=grids.pscale, nlon_owner=nlon_row, nlon_partner=nlon_column)


def columns_by_column(psi: Psi, grids: GridPair, device: torch.device) -> Columns:
    """Return the partners of the points of the grid with more longitudes: psi transposed.

    A row's point at longitude u has the column (lat, lon + pscale u); solved for u, the column at longitude w has the
    partner u = w // pscale - lon // pscale where w and lon agree modulo pscale (derived here).
    """
    nlat_column, nlon_column = grids.column_shape
    pscale = grids.pscale
    row_off, columns = (torch.tensor(array, device=device) for array in psi)
    row = torch.repeat_interleave(torch.arange(row_off.numel() - 1, device=device), row_off.diff())
    lat, lon = columns // nlon_column, columns % nlon_column
    owner_row = lat * pscale + lon % pscale
    order = torch.argsort(owner_row, stable=True)
    sizes = torch.bincount(owner_row, minlength=nlat_column * pscale)
    return Columns(
        row_off=torch.nn.functional.pad(sizes.cumsum(0), (1, 0)),
        lat=row[order],
        lon=-(lon[order] // pscale),
        residues=pscale,
        stride=1,
        nlon_owner=nlon_column,
        nlon_partner=grids.row_shape[1],
    )


def count_pairs(psi: Psi, grids: GridPair) -> int:
    """Return the number of (query, key) pairs of the whole problem."""
    return int(psi.col_idx.size) * grids.row_shape[1]


def blocks(columns: Columns, owners: torch.Tensor, max_pairs: int) -> Iterator[Block]:
    """Yield the pairs of the owners (flat points), as many at a time as stay within ``max_pairs`` (at least one)."""
    latitude, longitude = owners // columns.nlon_owner, owners % columns.nlon_owner
    row = latitude * columns.residues + longitude % columns.residues
    start = columns.row_off[row]
    count = columns.row_off[row + 1] - start
    shift = longitude // columns.residues * columns.stride
    ends = torch.cumsum(count, 0).cpu().numpy()
    first = 0
    while first < ends.size:
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + max_pairs, side="right")))
        part = slice(first, last)
        owner = torch.repeat_interleave(torch.arange(last - first, device=owners.device), count[part])
        before = torch.cumsum(count[part], 0) - count[part]
        entry = torch.arange(owner.numel(), device=owners.device) + (start[part] - before)[owner]
        lon = (columns.lon[entry] + shift[part][owner]) % columns.nlon_partner
        yield Block(first, last - first, owner, columns.lat[entry] * columns.nlon_partner + lon)
        first = last


def bands(columns: Columns, owners: torch.Tensor, max_pairs: int) -> Iterator[Band]:
    """Yield owners of one row whose partners fill much of the latitudes that they lie on, as near the poles.

    At most ``max_pairs`` products of owners and points at a time. Owners that no band holds are left to `blocks`.
    """
    latitude, longitude = owners // columns.nlon_owner, owners % columns.nlon_owner
    row = latitude * columns.residues + longitude % columns.residues
    shift = longitude // columns.residues * columns.stride
    for number, count in zip(*np.unique(row.cpu().numpy(), return_counts=True), strict=True):
        entries = slice(int(columns.row_off[number]), int(columns.row_off[number + 1]))
        lat, lon = columns.lat[entries], columns.lon[entries]
        if count < _LEAST_OWNERS or lat.numel() == 0:
            continue
        first = int(lat.min())
        points = (int(lat.max()) + 1 - first) * columns.nlon_partner
        if lat.numel() < _LEAST_FILL * points:
            continue
        for members in (row == number).nonzero().squeeze(1).split(max(1, max_pairs // points)):
            turned = (lon + shift[members].unsqueeze(1)) % columns.nlon_partner
            yield Band(members, first * columns.nlon_partner, points, lat * columns.nlon_partner + turned)


class ExactAttention:
    """float64 values of one problem at chosen points.

    Parameters
    ----------
    q, k, v
        NHWC, any floating dtype, heads packed in the channels, scale already in q.
    geometry
        Neighborhood of the problem; its float64 quadrature weights are used.
    heads
        Number of heads.
    """

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, geometry: Neighborhood, *, heads: int
    ) -> None:
        self._heads = heads
        self._q, self._k, self._v = (by_point(x, heads) for x in (q, k, v))
        self._nlon_in = geometry.grids.in_shape[1]
        self._weights = torch.tensor(geometry.quad_weights, device=q.device)
        by_row = columns_by_row(geometry.psi, geometry.grids, q.device)
        by_column = columns_by_column(geometry.psi, geometry.grids, q.device)
        queries_are_rows = geometry.grids.direction == "downsample"
        self._keys_of, self._queries_of = (by_row, by_column) if queries_are_rows else (by_column, by_row)
        widest = q.shape[0] * max(q.shape[-1], v.shape[-1])
        self._max_pairs = max(1, _BLOCK_ELEMENTS[q.device.type] // widest)
        self._band_pairs = max(1, _BLOCK_ELEMENTS[q.device.type] // (q.shape[0] * heads))

    def forward(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y [n, B, heads, Cv] and the softmax's denominator [n, B, heads] of ``queries`` (flat points).

        The scores of seeded normal inputs stay far below 700, where exp overflows in float64: no maximum is taken off.
        """
        y = self._v.new_zeros((queries.numel(), *self._v.shape[1:]), dtype=torch.float64)
        total = y.new_zeros(y.shape[:-1])
        pairwise = torch.ones(queries.numel(), dtype=torch.bool, device=queries.device)
        for band in bands(self._keys_of, queries, self._band_pairs):
            total[band.members], y[band.members] = self._sums_of_band(queries[band.members], band)
            pairwise[band.members] = False
        others = pairwise.nonzero().squeeze(1)
        for block in blocks(self._keys_of, queries[others], self._max_pairs):
            part = others[block.first : block.first + block.owners]
            weight = self._weight(queries[part][block.owner], block.partner)
            total.index_add_(0, part[block.owner], weight)
            y.index_add_(0, part[block.owner], weight.unsqueeze(-1) * self._v[block.partner].double())
        # a query without keys has y = 0 by definition, not 0/0
        return y / torch.where(total > 0, total, 1.0).unsqueeze(-1), total

    def _sums_of_band(self, queries: torch.Tensor, band: Band) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the denominators and the weighted sums of v of queries of one row, by products of matrices."""
        keys = slice(band.first_point, band.first_point + band.points)
        # [B, heads, owners or points, channels]
        q, k, v = (x.double().permute(1, 2, 0, 3) for x in (self._q[queries], self._k[keys], self._v[keys]))
        points = torch.arange(keys.start, keys.stop, device=queries.device)
        weight = torch.exp(q @ k.transpose(2, 3)) * self._weights[points // self._nlon_in]
        # what the column list does not hold is no partner
        weight *= torch.zeros_like(weight[0, 0]).scatter_(1, band.partner - keys.start, 1.0)
        return weight.sum(-1).permute(2, 0, 1), (weight @ v).permute(2, 0, 1, 3)

    def backward(
        self, dy: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return dq [n, B, heads, C] at ``queries`` and dk, dv [m, B, heads, ...] at ``keys`` (flat points).

        With p the softmax weights and delta = dy . y: dq = sum p (dy.v - delta) k, dk = sum p (dy.v - delta) q,
        dv = sum p dy. The forward is computed for exactly the queries that occur.
        """
        dy_points = by_point(dy, self._heads)
        occurs = torch.zeros(self._q.shape[0], dtype=torch.bool, device=dy.device)
        occurs[queries] = True
        for block in blocks(self._queries_of, keys, self._max_pairs):
            occurs[block.partner] = True
        needed = occurs.nonzero().squeeze(1)
        y, total = self.forward(needed)
        delta = torch.zeros_like(self._q[..., 0], dtype=torch.float64)
        normalizer = torch.ones_like(delta)
        delta[needed] = (dy_points[needed].double() * y).sum(-1)
        normalizer[needed] = total
        dq = torch.zeros((queries.numel(), *self._q.shape[1:]), dtype=torch.float64, device=dy.device)
        for block in blocks(self._keys_of, queries, self._max_pairs):
            query, key = queries[block.first + block.owner], block.partner
            _, slope, _ = self._terms(dy_points, delta, normalizer, (query, key))
            dq.index_add_(0, block.first + block.owner, slope.unsqueeze(-1) * self._k[key].double())
        dk = torch.zeros((keys.numel(), *self._k.shape[1:]), dtype=torch.float64, device=dy.device)
        dv = torch.zeros((keys.numel(), *self._v.shape[1:]), dtype=torch.float64, device=dy.device)
        for block in blocks(self._queries_of, keys, self._max_pairs):
            query, key = block.partner, keys[block.first + block.owner]
            p, slope, gradient = self._terms(dy_points, delta, normalizer, (query, key))
            dk.index_add_(0, block.first + block.owner, slope.unsqueeze(-1) * self._q[query].double())
            dv.index_add_(0, block.first + block.owner, p.unsqueeze(-1) * gradient)
        return dq, dk, dv

    def _terms(
        self, dy: torch.Tensor, delta: torch.Tensor, normalizer: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key = pair
        p = self._weight(query, key) / normalizer[query]
        gradient = dy[query].double()
        slope = p * ((gradient * self._v[key].double()).sum(-1) - delta[query])
        return p, slope, gradient

    def _weight(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        score = (self._q[query].double() * self._k[key].double()).sum(-1)
        return torch.exp(score) * self._weights[key // self._nlon_in].view(-1, 1, 1)


def by_point(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return an NHWC tensor, heads packed in its channels, as [points, batch, heads, channels]."""
    batch = tensor.shape[0]
    return tensor.reshape(batch, tensor.shape[1] * tensor.shape[2], heads, -1).transpose(0, 1)
