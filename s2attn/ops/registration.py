"""Loads the compiled operators ``torch.ops.s2attn.*`` and gives them shapes for tracing, gradients and autocast.

The schemas and their contract are in csrc/bindings.cpp. Nothing is loaded, let alone built, before `load` is called;
`s2attn.backends.choose` does so for whoever goes through the public functions.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch

from s2attn import build
from s2attn.build import BuildRecord
from s2attn.ops.autocast import cast
from s2attn.tracing import constant_result

FORWARD = "s2attn::neighborhood_attention"
BACKWARD = "s2attn::neighborhood_attention_backward"

_GEOMETRY = ("quad_weights", "query_arcs", "query_arc_off", "key_arcs", "key_arc_off")
_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_autocast_library = torch.library.Library("s2attn", "FRAGMENT")  # type: ignore[no-untyped-call]
_loaded: dict[str, BuildRecord] = {}
_loading = threading.Lock()


# loading is no part of what torch.compile traces
@constant_result
def load(device: str = "cpu") -> None:
    """Load the kernels of a device, building them on first use.

    Parameters
    ----------
    device : str
        ``cpu``, or ``cuda``, which loads the CPU's library too: it holds the schemas.

    Raises
    ------
    KernelsNotBuilt
        The kernels are missing and cannot be built here.
    """
    with _loading:
        if "cpu" not in _loaded:
            _load_library("cpu")
            _register()
        if device not in _loaded:
            _load_library(device)


def loaded() -> dict[str, BuildRecord]:
    """How the libraries loaded so far were built, by device."""
    return dict(_loaded)


def _load_library(device: str) -> None:
    record = build.build(device)
    torch.ops.load_library(record.library)  # type: ignore[no-untyped-call]
    _loaded[device] = record


def _register() -> None:
    torch.library.register_fake(FORWARD, _forward_fake)
    torch.library.register_fake(BACKWARD, _backward_fake)
    torch.library.register_autograd(FORWARD, _backward, setup_context=_save)
    torch.library.register_autograd(BACKWARD, _no_second_derivative)
    # not torch.library.register_autocast: it would cast quad_weights too, and to a dtype fixed at registration
    for device_type, key in _AUTOCAST_KEYS.items():
        kernel = partial(_autocast, device_type)
        _autocast_library.impl("neighborhood_attention", kernel, key)  # type: ignore[no-untyped-call]


def _forward_fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, quad_weights: torch.Tensor, *tables_and_heads: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    *tables, heads = tables_and_heads
    _check_devices(("q", "k", "v", *_GEOMETRY), (q, k, v, quad_weights, *tables))
    y = q.new_empty((*q.shape[:3], v.shape[3]))
    return y, q.new_empty((*q.shape[:3], heads), dtype=torch.float32)


def _backward_fake(dy: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
    *tensors, _, needs = arguments
    _check_devices(("q", "dy", "k", "v", "y", "lse", *_GEOMETRY), (tensors[0], dy, *tensors[1:]))
    return tuple(x.new_empty(x.shape if needed else (0,)) for x, needed in zip(arguments[:3], needs, strict=True))


def _check_devices(names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> None:
    # a single meta tensor among real ones brings a call here, and its results would be memory that nobody has written
    q = tensors[0]
    for name, x in zip(names, tensors, strict=True):
        if x.device != q.device:
            raise RuntimeError(f"{name}: got device {x.device}, expected that of q, {q.device}")


def _autocast(
    device_type: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *tables_and_heads: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AUTOCAST_KEYS[device_type]))
    with torch._C._ExcludeDispatchKeyGuard(keys):
        y, lse = torch.ops.s2attn.neighborhood_attention(*cast(device_type, q, k, v), *tables_and_heads)
    return y, lse


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, *geometry, heads = inputs
    y, lse = output
    ctx.heads = heads
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, y, lse, *geometry)


def _backward(ctx: Any, dy: torch.Tensor, _dlse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    needs = [bool(needed) for needed in ctx.needs_input_grad[:3]]
    gradients = torch.ops.s2attn.neighborhood_attention_backward(dy.contiguous(), *ctx.saved_tensors, ctx.heads, needs)
    wanted = [gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)]
    return (*wanted, None, None, None, None, None, None)


def _no_second_derivative(ctx: Any, *gradients: torch.Tensor) -> None:
    raise NotImplementedError("neighborhood attention has no second derivative")
