r"""Global attention with a weight per key, in the fused kernels of ``scaled_dot_product_attention``.

.. math:: y_o = \sum_i w_i e^{q_o \cdot k_i} v_i \, / \, \sum_i w_i e^{q_o \cdot k_i}

The weight is a bias of the score, log w_i. On a CPU, and in float32 on CUDA, torch's fused kernel takes it as a float
``attn_mask`` of one row, so there it is one. Elsewhere a mask would cost the fused kernels (FlashAttention takes none),
so the bias rides in the inner product instead: q gets the channels (1, 1, 1, 1) and k the channels (a, b, c, d) with
a + b + c + d = log(w_i / max w); then

    [q, 1, 1, 1, 1] . [k, a, b, c, d] = q . k + log w_i - log max w

and the constant cancels in the softmax. The scale of the scores must not reach these channels, so q comes with the
scale in it and the kernel is told 1.

Precision (derived here). Let L = |log(w_i / max w)|: 6.3 at the poles of the 1 degree equiangular grid, 7.7 at a
quarter degree. A single channel in bfloat16 would be wrong by up to 2^-9 L, 1 to 2 % of the weight. So L is split into
pieces of 8 significant bits, each the rounding of what the ones before it left over: a, b and c are exact in bfloat16,
float32 and TF32 (in float16 too, except that c ends at its subnormal spacing of 2^-24), and leave less than 2^-25 L, no
more than a float32 mask would. d is the rest, in float32, for inputs of float64. Products with 1 are exact and the
kernels sum in float32, so the weights enter no less exactly than the scores themselves.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn import functional

from s2attn.ops.autocast import reconciled

PIECES = 4
# Devices whose fused kernels take a mask of one row, whatever the dtype. Channels there cost copies of q and k and a
# wider product: 1.6x the CPU time (forward, float32, 45x90, 64 channels, EPYC Zen 4, 2 threads, 2026-11-30).
MASKED_DEVICES = frozenset({"cpu"})
# Dtypes whose only fused kernel on CUDA takes masks (H200, 1 degree, 64 channels, 2026-11-30: forward 45.3 ms with
# channels and 36.3 with a mask, with backward 182 and 119).
MASKED_CUDA_DTYPES = frozenset({torch.float32})
# channels per head are padded to a multiple: what the fused kernels of every dtype and device accept
_ALIGNMENT = 8


def log_weight_channels(weights: torch.Tensor) -> torch.Tensor:
    """Split the logarithms of positive weights, relative to the largest, into channels of few bits.

    Parameters
    ----------
    weights : torch.Tensor
        float64 [n], positive.

    Returns
    -------
    torch.Tensor
        float32 [n, 4]; the sum over the channels, in float64, is log(w / max w) within 2^-48 of it. The first three are
        exact in bfloat16 and in float16.
    """
    rest = (weights / weights.max()).log()
    pieces = []
    for dtype in (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32):
        piece = rest.to(dtype)
        pieces.append(piece.float())
        rest = rest - piece.double()
    return torch.stack(pieces, dim=-1)


def log_weight_mask(channels: torch.Tensor, *, nlon: int) -> torch.Tensor:
    """Sum the channels up to the mask of one row that `weighted_attention` takes in place of them.

    Parameters
    ----------
    channels : torch.Tensor
        [nlat, 4] from `log_weight_channels`, also after it was rounded to a half type: the sum is right still.
    nlon : int
        Longitudes of the keys.

    Returns
    -------
    torch.Tensor
        [1, nlat * nlon]: float64 where the channels are, else float32.
    """
    logs = channels.to(torch.promote_types(channels.dtype, torch.float32)).sum(dim=-1)
    return logs[:, None].expand(-1, nlon).reshape(1, -1)


def weighted_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    channels: torch.Tensor,
    *,
    heads: int,
    mask: torch.Tensor | None = None,
    drop_rate: float = 0.0,
) -> torch.Tensor:
    """Attention of every query over all keys, each key weighted by its latitude.

    Parameters
    ----------
    q : torch.Tensor
        [B, nlat_out, nlon_out, heads * C]; the scale is already in it.
    k, v : torch.Tensor
        [B, nlat_in, nlon_in, heads * C] and [B, nlat_in, nlon_in, heads * Cv], dtype and device of q.
    channels : torch.Tensor
        [nlat_in, 4] from `log_weight_channels`.
    heads : int
        Number of heads, packed in the channels.
    mask : torch.Tensor, optional
        [1, nlat_in * nlon_in] from `log_weight_mask`: kept by a caller, it saves two kernels per call where a mask of
        its dtype is taken. Without one it is made of the channels.
    drop_rate : float
        Probability of dropping a weight of the softmax.

    Returns
    -------
    torch.Tensor
        [B, nlat_out, nlon_out, heads * Cv] in the dtype of q.

    Notes
    -----
    The fused kernels want q, k and v equally wide: narrower ones are padded with zeros, on CUDA all three to a common
    multiple of 8 channels. There FlashAttention takes up to 256; wider heads, and float32, run in the memory-efficient
    kernel.
    """
    shape = (*q.shape[:3], v.shape[-1])
    q, k, v = reconciled(q.device.type, q, k, v)
    if _takes_mask(q):
        dtype = torch.promote_types(q.dtype, torch.float32)
        kept = mask is not None and mask.dtype == dtype
        bias = mask if kept else log_weight_mask(channels.to(dtype), nlon=k.shape[2])
        q, k, v = _split(heads, q, k, v)
        width = max(q.shape[-1], v.shape[-1])
        with _without_autocast(q.device.type):  # it would round the mask
            return _attend(q, k, v, bias, drop_rate, width=_aligned(width) if q.is_cuda else width).reshape(shape)
    q, k, v = _split(heads, q, k, v)
    width = _aligned(max(q.shape[-1] + PIECES, v.shape[-1]))
    rest = (0, width - q.shape[-1] - PIECES)
    ones = functional.pad(q.new_ones(PIECES), rest)
    logs = functional.pad(channels.to(k.dtype), rest)[:, None, None]
    return _attend(_widened(q, ones), _widened(k, logs), v, None, drop_rate, width=width).reshape(shape)


def _takes_mask(q: torch.Tensor) -> bool:
    return q.device.type in MASKED_DEVICES or (q.is_cuda and q.dtype in MASKED_CUDA_DTYPES)


def _aligned(channels: int) -> int:
    return -(-channels // _ALIGNMENT) * _ALIGNMENT


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    # only where it is on: torch.export would put the context, and all that is in it, into a graph of its own
    on = torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if on else nullcontext()


def _split(heads: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[B, nlat, nlon, heads * C] -> [B, nlat, nlon, heads, C], views."""
    return tuple(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads) for x in tensors)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, drop_rate: float, *, width: int
) -> torch.Tensor:
    """Attention of [B, nlat, nlon, heads, C], narrower tensors padded to a width: [B, points, heads, Cv]."""
    y = functional.scaled_dot_product_attention(
        _by_head(q, width), _by_head(k, width), _by_head(v, width), attn_mask=bias, dropout_p=drop_rate, scale=1.0
    )
    return y[..., : v.shape[-1]].transpose(1, 2)


def _widened(x: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    # contiguous: cat may take extents of 1 for another memory format, and the kernels need unit stride in the channels
    return torch.cat((x, tail.expand(*x.shape[:-1], -1)), dim=-1).contiguous()


def _by_head(x: torch.Tensor, width: int) -> torch.Tensor:
    """[B, nlat, nlon, heads, C] -> [B, heads, nlat * nlon, width]: a view, or padded with zeros."""
    padded = x if x.shape[-1] == width else functional.pad(x, (0, width - x.shape[-1]))  # by nothing it would copy
    return padded.flatten(1, 2).transpose(1, 2)
