"""The readable statement of the operation, in torch. It walks psi's column list, never the arcs.

So the reference and the kernels, which walk the arcs, cannot share a bug of the geometry. It is differentiable by
autograd, which keeps it independent of the kernels' backward formulas too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from s2attn.geometry.arcs import IntArray
from s2attn.geometry.grids import GridPair
from s2attn.geometry.neighborhood import Neighborhood, Psi

# Gathered keys of one step, in elements: bounds the memory of a call without gradients.
_BLOCK_ELEMENTS = 1 << 24


class QueryColumns(NamedTuple):
    """Keys of every query, as a column list.

    The query (h, w) walks row ``h * residues + w % residues``; its keys are the points
    ``(lat, (lon + (w // residues) * stride) mod nlon_in)``.
    """

    row_off: IntArray
    lat: IntArray
    lon: IntArray
    residues: int
    stride: int


def query_columns(psi: Psi, grids: GridPair) -> QueryColumns:
    """Column list by query, for both directions.

    Parameters
    ----------
    psi : Psi
        Sparsity pattern of the problem.
    grids : GridPair
        The two grids.

    Returns
    -------
    QueryColumns
        Downsampling: psi itself. Upsampling, where psi has a row per input latitude: its pairs sorted by output
        latitude and residue class (the key at longitude u serves wo = a + pscale * u, so u = wo // pscale + (r - a) /
        pscale with r = wo % pscale; derived here).
    """
    rows = np.repeat(np.arange(psi.row_off.size - 1), np.diff(psi.row_off))
    lat, lon = np.divmod(psi.col_idx, grids.column_shape[1])
    if grids.direction == "downsample":
        return QueryColumns(psi.row_off, lat, lon, residues=1, stride=grids.pscale)
    owner = lat * grids.pscale + lon % grids.pscale
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=grids.out_shape[0] * grids.pscale)
    row_off = np.concatenate(([0], np.cumsum(counts)))
    return QueryColumns(row_off, rows[order], -(lon[order] // grids.pscale), residues=grids.pscale, stride=1)


def reference_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    neighborhood: Neighborhood,
    *,
    heads: int = 1,
    quad_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Neighborhood attention, row by row from the column list.

    .. math:: y_o = \sum_i w_i e^{q_o \cdot k_i} v_i \, / \, \sum_i w_i e^{q_o \cdot k_i}

    Parameters
    ----------
    q : torch.Tensor
        [B, ho, wo, heads * C]; the scale is already in it. float64 is computed in float64, everything else in float32.
    k, v : torch.Tensor
        [B, hi, wi, heads * C] and [B, hi, wi, heads * Cv].
    neighborhood : Neighborhood
        Geometry of the problem.
    heads : int
        Number of heads, packed in the channels.
    quad_weights : torch.Tensor, optional
        [hi], steradians; default: those of the neighborhood.

    Returns
    -------
    y : torch.Tensor
        [B, ho, wo, heads * Cv] in the dtype of q; 0 where a query has no key.
    lse : torch.Tensor
        [B, ho, wo, heads], float64 for float64 and else float32: log of the denominator; -inf where a query has no key.

    Notes
    -----
    Meant for checks, and for machines without kernels: with gradients it keeps the gathered keys and values of every
    pair. Arguments are checked by `s2attn.functional`, not here.
    """
    if quad_weights is None:
        quad_weights = torch.tensor(neighborhood.quad_weights, device=q.device)
    compute_t = torch.float64 if q.dtype == torch.float64 else torch.float32
    log_weights = quad_weights.to(compute_t).log()
    grids = neighborhood.grids
    columns = query_columns(neighborhood.psi, grids)
    nlat_out, nlon_out = grids.out_shape
    owners = nlon_out // columns.residues
    q_rows = q.to(compute_t).reshape(q.shape[0], nlat_out, owners, columns.residues, heads, q.shape[-1] // heads)
    k_points, v_points = (
        x.to(compute_t).reshape(x.shape[0], x.shape[1] * x.shape[2], heads, x.shape[3] // heads) for x in (k, v)
    )
    y_rows, lse_rows = [], []
    for row in range(columns.row_off.size - 1):
        latitude, residue = divmod(row, columns.residues)
        keys = _key_points(columns, row, owners, grids.in_shape[1])
        y_row, lse_row = _attend(q_rows[:, latitude, :, residue], (k_points, v_points), keys, log_weights)
        y_rows.append(y_row)
        lse_rows.append(lse_row)
    # [B, latitude, residue, owner, heads, Cv] -> longitude = owner * residues + residue
    rows = (q.shape[0], nlat_out, columns.residues, owners, heads)
    y = torch.stack(y_rows, dim=1).reshape(*rows, v.shape[3] // heads).transpose(2, 3)
    lse = torch.stack(lse_rows, dim=1).reshape(rows).transpose(2, 3)
    return y.reshape(*q.shape[:3], v.shape[3]).to(q.dtype), lse.reshape(*q.shape[:3], heads)


def _key_points(columns: QueryColumns, row: int, owners: int, nlon_in: int) -> torch.Tensor:
    """Flat input points [owners, keys] of the queries of one row."""
    members = slice(columns.row_off[row], columns.row_off[row + 1])
    shift = np.arange(owners)[:, None] * columns.stride
    return torch.from_numpy(columns.lat[members] * nlon_in + (columns.lon[members] + shift) % nlon_in)


def _attend(
    q: torch.Tensor, keys_values: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, log_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the queries [B, n, heads, C] over the input points ``keys`` [n, m]; m = 0 sums to nothing: 0."""
    k, v = keys_values
    keys = keys.to(q.device)
    nlon_in = k.shape[1] // log_weights.shape[0]
    block = max(1, _BLOCK_ELEMENTS // max(1, keys.shape[1] * (k[:, 0].numel() + v[:, 0].numel())))
    outputs, sums = [], []
    for q_block, keys_block in zip(torch.split(q, block, dim=1), torch.split(keys, block), strict=True):
        scores = torch.einsum("bnhc,bnmhc->bnmh", q_block, k[:, keys_block])
        scores = scores + log_weights[keys_block // nlon_in].unsqueeze(-1)
        lse = scores.logsumexp(dim=2)
        outputs.append(torch.einsum("bnmh,bnmhc->bnhc", torch.exp(scores - lse.unsqueeze(2)), v[:, keys_block]))
        sums.append(lse)
    return torch.cat(outputs, dim=1), torch.cat(sums, dim=1)
