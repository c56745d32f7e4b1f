"""Module level: the layers with their projections as a case, and their values and gradients in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch.nn import functional

from s2attn.benchmarks.cases import Case
from s2attn.modules import AttentionS2, NeighborhoodAttentionS2

# Gradients of a projection's weight and bias are compared as one vector. The gradient of k's bias is zero in exact
# arithmetic (a constant added to every score cancels in the softmax), so its rounding is related to the weights'.
PROJECTIONS = ("q", "k", "v", "proj")

Layer = NeighborhoodAttentionS2 | AttentionS2


class Exact(Protocol):
    """float64 values of one attention problem at chosen flat points, each [points, B, heads, channels]."""

    def forward(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y and what normalizes the softmax."""

    def backward(
        self, dy: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return dq at the queries, dk and dv at the keys."""


# of q, k and v in NHWC, heads packed in the channels, scale in q
MakeExact = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Exact]


def make_layer(case: Case, device: torch.device) -> Layer:
    """Return the case's layer with seeded weights, and with biases that are not zero, so that they are checked too."""
    generator = torch.Generator().manual_seed(case.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        layer = _bare_layer(case)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("_bias"):
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return layer.to(device=device, dtype=getattr(torch, case.dtype))


def _bare_layer(case: Case) -> Layer:
    kind = AttentionS2 if case.is_global else partial(NeighborhoodAttentionS2, theta_cutoff=case.theta_cutoff)
    return kind(
        case.channels_in,
        in_shape=case.in_shape,
        out_shape=case.out_shape,
        grid_in=case.grid_in,
        grid_out=case.grid_out,
        num_heads=case.heads,
        out_channels=case.channels_out,
    )


def output_names(case: Case) -> tuple[str, ...]:
    """Return the names of the outputs that are compared, see `join_parameters`."""
    if case.operation == "module-forward":
        return ("y",)
    inputs = ("dx",) if case.direction == "self" else ("dquery", "dkey", "dvalue")
    return (*inputs, *(f"d{name}_projection" for name in PROJECTIONS))


def call_layer(layer: Layer, inputs: tuple[torch.Tensor, ...], dy: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Run the layer on channels-first inputs (one for self-attention, or query, key and value).

    Returns
    -------
    tuple[torch.Tensor, ...]
        y; with ``dy`` the gradients of the inputs and of every parameter instead, none of them accumulated.
    """
    if dy is None:
        with torch.no_grad():
            return (layer(*inputs),)
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(layer(*leaves), [*leaves, *layer.parameters()], dy)


def join_parameters(layer: Layer, gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the inputs as they are and those of the parameters as one vector per projection."""
    names = [name for name, _ in layer.named_parameters()]
    inputs, parameters = gradients[: -len(names)], dict(zip(names, gradients[-len(names) :], strict=True))
    vectors = [
        torch.cat([parameters[f"{name}_{part}"].flatten() for part in ("weights", "bias")]) for name in PROJECTIONS
    ]
    return (*inputs, *vectors)


def exact_layer(
    case: Case, layer: Layer, inputs: tuple[torch.Tensor, ...], dy: torch.Tensor | None, make_exact: MakeExact
) -> tuple[torch.Tensor, ...]:
    """Return what `call_layer` returns, in float64 from the same inputs and parameters.

    The projections are torch's in float64 and their chain rule autograd's; the attention between them is
    exact at every point.
    """
    parameters = {name: x.detach().double().requires_grad_() for name, x in layer.named_parameters()}
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    query, key, value = leaves * 3 if len(leaves) == 1 else leaves

    def project(points: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(points, parameters[f"{name}_weights"].flatten(1), parameters[f"{name}_bias"])

    with torch.enable_grad():
        q = project(query.permute(0, 2, 3, 1), "q") * layer.scale
        k, v = project(key.permute(0, 2, 3, 1), "k"), project(value.permute(0, 2, 3, 1), "v")
    queries, keys = (torch.arange(h * w, device=query.device) for h, w in (case.out_shape, case.in_shape))
    attention = make_exact(q.detach(), k.detach(), v.detach())
    y = _packed(attention.forward(queries)[0], case.out_shape).requires_grad_()
    with torch.enable_grad():
        output = project(y, "proj").permute(0, 3, 1, 2)
    if dy is None:
        return (output.detach(),)
    of_output = (parameters["proj_weights"], parameters["proj_bias"])
    inner, *of_projection = torch.autograd.grad(output, (y, *of_output), dy.double())
    gradients = [
        _packed(x, shape)
        for x, shape in zip(
            attention.backward(inner, queries, keys), (case.out_shape, case.in_shape, case.in_shape), strict=True
        )
    ]
    others = [name for name in parameters if not name.startswith("proj_")]
    found = torch.autograd.grad((q, k, v), [*leaves, *(parameters[name] for name in others)], gradients)
    by_name = dict(zip(others, found[len(leaves) :], strict=True))
    by_name |= dict(zip(("proj_weights", "proj_bias"), of_projection, strict=True))
    return (*found[: len(leaves)], *(by_name[name] for name in parameters))


def _packed(points: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return [points, B, heads, channels] as NHWC: the inverse of `by_point`."""
    return points.transpose(0, 1).reshape(points.shape[1], *shape, -1)
