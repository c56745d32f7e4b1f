"""Neighborhood attention as a function of NHWC tensors: checks, then one backend, chosen openly."""

from __future__ import annotations

import torch

from s2attn.errors import InvalidProblem
from s2attn.geometry.neighborhood import Neighborhood
from s2attn.ops.autocast import reconciled
from s2attn.ops.reference import reference_attention
from s2attn.problem import DTYPES, check_channels, check_positive, check_signal


def neighborhood_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    neighborhood: Neighborhood,
    *,
    heads: int = 1,
    backend: str = "auto",
) -> torch.Tensor:
    r"""Attention of every output point over the input points of its geodesic disk.

    .. math:: y_o = \sum_i w_i e^{q_o \cdot k_i} v_i \, / \, \sum_i w_i e^{q_o \cdot k_i}

    Parameters
    ----------
    q : torch.Tensor
        [B, nlat_out, nlon_out, heads * C]; the scale is already in it.
    k : torch.Tensor
        [B, nlat_in, nlon_in, heads * C].
    v : torch.Tensor
        [B, nlat_in, nlon_in, heads * Cv].
    neighborhood : Neighborhood
        Geometry, from `s2attn.neighborhood`.
    heads : int
        Number of heads, packed in the channels (head h owns the channels h * C .. h * C + C - 1).
    backend : str
        ``auto`` (the kernels of the device of q), ``cpu``, ``cuda`` or ``reference``.

    Returns
    -------
    torch.Tensor
        y [B, nlat_out, nlon_out, heads * Cv] in the dtype of q, contiguous. A query without a key in reach yields 0 and
        gradients of 0.

    Raises
    ------
    InvalidProblem
        Extents, channels, dtypes or devices do not fit each other or the neighborhood.
    UnsupportedProblem
        The backend asked for cannot run this; nothing else is tried.
    KernelsNotBuilt
        The compiled kernels are missing or could not be built.

    Notes
    -----
    Tensors that are not contiguous are copied first. Under autocast q, k and v are cast to its dtype first, and y comes
    in that dtype; without autocast mixed dtypes are an error. The quadrature-weighted softmax is that of Bonev et al.,
    "Attention on the Sphere" (2025).
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_signal(name, x)
    q, k, v = reconciled(q.device.type, q, k, v)
    check_tensors(q, k, v, neighborhood, heads=heads)
    # here: at the top it would pull s2attn.build in before `python -m s2attn.build` runs it, which runpy warns about
    from s2attn.backends import choose

    if choose(q, backend) == "reference":
        with torch.autocast(q.device.type, enabled=False):  # it computes in float32 or float64, never below
            return reference_attention(q, k, v, neighborhood, heads=heads)[0]
    tables = neighborhood.tensors(q.device)  # one by one below: torch.compile of torch 2.11 cannot unpack them
    y, _ = torch.ops.s2attn.neighborhood_attention(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        tables.quad_weights,
        tables.query_arcs,
        tables.query_arc_off,
        tables.key_arcs,
        tables.key_arc_off,
        heads,
    )
    return torch.as_tensor(y)


def check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, neighborhood: Neighborhood, *, heads: int) -> None:
    """Raise `InvalidProblem` unless q, k and v fit each other, the neighborhood and the number of heads."""
    check_positive("heads", heads)
    if not isinstance(neighborhood, Neighborhood):
        raise InvalidProblem("neighborhood", type(neighborhood).__name__, "a Neighborhood, made by s2attn.neighborhood")
    grids = neighborhood.grids
    for name, x, shape in (("q", q, grids.out_shape), ("k", k, grids.in_shape), ("v", v, grids.in_shape)):
        if x.dim() != 4 or tuple(x.shape[1:3]) != shape:
            raise InvalidProblem(name, tuple(x.shape), f"[B, {shape[0]}, {shape[1]}, channels]")
        if x.dtype not in DTYPES:
            raise InvalidProblem(name, x.dtype, f"one of {', '.join(map(str, DTYPES))}")
        if x.dtype != q.dtype:
            raise InvalidProblem(name, x.dtype, f"the dtype of q, {q.dtype}")
        if x.device != q.device:
            raise InvalidProblem(name, str(x.device), f"the device of q, {q.device}")
        if x.shape[0] != q.shape[0]:
            raise InvalidProblem(name, tuple(x.shape), f"the batch of q, {q.shape[0]}")
        check_channels(f"channels of {name}", x.shape[3], heads)
    if k.shape[3] != q.shape[3]:
        raise InvalidProblem("k", tuple(k.shape), f"as many channels as q, {q.shape[3]}")
