"""Which implementation runs a call: chosen openly, never by falling back."""

from __future__ import annotations

import torch

from s2attn.errors import InvalidProblem, UnsupportedProblem
from s2attn.ops import registration

BACKENDS = ("cpu", "cuda", "reference")

# storage; the arithmetic is float32's
_STORED_AS = (torch.float32, torch.float16, torch.bfloat16)
KERNEL_DTYPES = {"cpu": _STORED_AS, "cuda": _STORED_AS}


def choose(q: torch.Tensor, backend: str = "auto") -> str:
    """Choose the backend of a call, and load its kernels.

    Parameters
    ----------
    q : torch.Tensor
        The queries; their device and dtype decide.
    backend : str
        ``auto`` takes the kernels of the device of q; ``cpu``, ``cuda`` and ``reference`` name one.

    Returns
    -------
    str
        ``cpu``, ``cuda`` or ``reference``; the kernels of the first two are loaded.

    Raises
    ------
    InvalidProblem
        No backend of that name.
    UnsupportedProblem
        It cannot run q. The reference is never taken unasked.
    KernelsNotBuilt
        It could, but its kernels are missing and cannot be built.
    """
    check_backend(backend)
    chosen = q.device.type if backend == "auto" else backend
    if chosen == "reference":
        return chosen
    if chosen not in KERNEL_DTYPES or refusal(q, chosen) is not None:
        raise UnsupportedProblem(f"backend={backend!r} for {q.dtype} on {q.device}", _reasons(q))
    registration.load(chosen)
    return chosen


def check_backend(backend: str) -> None:
    """Raise `InvalidProblem` unless there is a backend of that name."""
    if backend not in ("auto", *BACKENDS):
        raise InvalidProblem("backend", backend, f"auto or one of {', '.join(BACKENDS)}")


def refusal(q: torch.Tensor, backend: str) -> str | None:
    """Why compiled kernels cannot run q, in words; None if they can."""
    if q.device.type != backend:
        return f"runs tensors on {backend}, q is on {q.device}"
    if q.dtype not in KERNEL_DTYPES[backend]:
        return f"runs {', '.join(map(str, KERNEL_DTYPES[backend]))}, q is {q.dtype}"
    return None


def _reasons(q: torch.Tensor) -> dict[str, str]:
    reasons = {backend: refusal(q, backend) or "would run it" for backend in KERNEL_DTYPES}
    reasons["reference"] = 'would run it, slowly: ask for backend="reference"'
    return reasons
