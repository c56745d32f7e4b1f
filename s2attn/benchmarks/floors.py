"""The least time that a case can take on a device: the time of its bytes or of its products, whichever is longer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.ceilings import Ceilings


class Work(NamedTuple):
    """What a case has to move and to compute: bytes of its tensors, each once, and floating-point operations."""

    size_bytes: float
    flop: float


def count_pairs(case: Case) -> int:
    """Return the (query, key) pairs of a case: entries of psi times rotations times the batch; global: all pairs."""
    if case.psi_nnz is None:
        return math.prod(case.in_shape) * math.prod(case.out_shape) * case.batch
    return case.psi_nnz * min(case.in_shape[1], case.out_shape[1]) * case.batch


def count_work(case: Case, pairs: int) -> Work:
    """Count the work of an operator's case.

    Parameters
    ----------
    case
        ``forward``, ``backward`` or ``forward-backward``; its channels are totals over the heads.
    pairs
        Pairs of a query and a key, times the batch.

    Returns
    -------
    Work
        Two products per pair forward (q.k and the sum of v), five backward (q.k again, dy.v, and the sums of dq, dk
        and dv), an addition and a multiplication per channel each. Bytes: q, k, v and y forward. Backward 7/4 of that:
        q, k, v and dy are read, dq, dk and dv written; exact on equal grids, the mean of down- and upsampling
        otherwise. ``forward-backward`` has both. Statistics per query and tables are left
        out.

    Raises
    ------
    ValueError
        The case is one of the layer, whose projections are not counted.
    """
    if case.is_module:
        raise ValueError(f"case: got {case.operation}, expected an operation of the operator")
    c, cv = case.channels_in, case.channels_out
    points = math.prod(case.in_shape) + math.prod(case.out_shape)
    forward_bytes = case.batch * points * (c + cv) * getattr(torch, case.dtype).itemsize
    forward = Work(forward_bytes, 2.0 * pairs * (c + cv))
    backward = Work(1.75 * forward_bytes, 2.0 * pairs * (3 * c + 2 * cv))
    if case.operation == "forward":
        return forward
    if case.operation == "backward":
        return backward
    return Work(forward.size_bytes + backward.size_bytes, forward.flop + backward.flop)


def floor_ms(work: Work, dtype: str, ceilings: Ceilings) -> float:
    """Return the milliseconds that the work takes at the ceilings of a device, bytes and products overlapping fully."""
    seconds = max(work.size_bytes / (ceilings.copy_tb_per_s * 1e12), work.flop / (ceilings.rate(dtype) * 1e12))
    return 1e3 * seconds
