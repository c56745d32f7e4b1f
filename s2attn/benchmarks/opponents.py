"""Other implementations of the same cases, called as their own layers call them, in the layout that they prefer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.operators import NeighborhoodOperator
from s2attn.benchmarks.workload import Workload
from s2attn.geometry.arcs import arcs_from_csr
from s2attn.geometry.quadrature import quadrature_weights


class OpponentUnavailableError(RuntimeError):
    """The other implementation is not installed, or not for this device."""


@dataclass(frozen=True, eq=False)
class Rival:
    """One case as another implementation runs it: `call` is what is timed, `arrange` makes its results comparable.

    Attributes
    ----------
    run
        Takes the index of an input set, returns outputs in the implementation's own layout.
    arrange
        Turns these outputs into NHWC tensors by name (y, or dq, dk and dv); never timed.
    """

    case: Case
    run: Callable[[int], tuple[torch.Tensor, ...]]
    arrange: Callable[[tuple[torch.Tensor, ...]], dict[str, torch.Tensor]]

    def call(self, index: int, /) -> tuple[torch.Tensor, ...]:
        """Run once on the input set ``index`` (modulo their number)."""
        return self.run(index)

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return the outputs of the first input set, for comparison."""
        return self.arrange(self.run(0))


class Opponent(Protocol):
    """Another implementation: whether it is here, which cases it can run, and one of them made runnable."""

    def load(self, device: str) -> str:
        """Return its version; raises `OpponentUnavailableError` with the reason where it cannot run."""

    def plays(self, case: Case) -> bool:
        """Whether the case is one of its kind."""

    def prepare(self, workload: Workload) -> Rival:
        """Make a case runnable, with the same inputs as the workload."""


class TorchHarmonics:
    """The operators below ``NeighborhoodAttentionS2`` of torch-harmonics: NHWC with packed heads, as here.

    Its layer builds psi as column list and as arcs; it gets ours, in its form. Its backward keeps the inputs only.
    """

    def load(self, device: str) -> str:
        """Import the package, which registers its operators."""
        try:
            package = importlib.import_module("torch_harmonics")
        except ImportError as error:
            raise OpponentUnavailableError(f"torch_harmonics cannot be imported: {error}") from error
        if not _has_kernel("attention_kernels::forward", device):
            raise OpponentUnavailableError(
                f"torch_harmonics {package.__version__} has no compiled attention kernels for {device}"
            )
        return str(package.__version__)

    def plays(self, case: Case) -> bool:
        """Whether it is neighborhood attention at the level of the operator."""
        return not case.is_module and not case.is_global

    def prepare(self, workload: Workload) -> Rival:
        """Make its operator runnable on the workload's own tensors."""
        case = workload.case
        assert isinstance(workload.operator, NeighborhoodOperator)
        geometry, device = workload.operator.geometry, workload.inputs[0].q.device
        row_off, col_idx = geometry.psi
        arcs, arc_off = arcs_from_csr(row_off, col_idx, geometry.grids.column_shape[1])
        tables = tuple(torch.tensor(array, device=device) for array in (col_idx, row_off, arcs, arc_off))
        weights = workload.operator.tensors.quad_weights
        extents = (case.heads, case.in_shape[1], *case.out_shape)
        operators: Any = torch.ops.attention_kernels

        def forward(index: int) -> tuple[torch.Tensor, ...]:
            x = workload.inputs[index % len(workload.inputs)]
            return (operators.forward.default(x.k, x.v, x.q, weights, *tables, *extents),)

        def backward(index: int) -> tuple[torch.Tensor, ...]:
            x = workload.inputs[index % len(workload.inputs)]
            gradients = operators.backward.default(x.k, x.v, x.q, x.dy, weights, *tables, *extents)
            return tuple(gradients)

        if case.operation == "forward":
            return Rival(case, forward, lambda found: {"y": found[0]})
        return Rival(case, backward, lambda found: dict(zip(("dk", "dv", "dq"), found, strict=True)))


class MaskedSdpa:
    """Global attention by torch's ``scaled_dot_product_attention`` with the log quadrature weights as a float mask.

    That is how torch-harmonics' ``AttentionS2`` computes it: [B, heads, points, channels], contiguous, a mask of one
    row in the dtype of q. ``forward-backward`` is its forward and autograd.
    """

    def load(self, device: str) -> str:
        """It is part of torch."""
        return str(torch.__version__)

    def plays(self, case: Case) -> bool:
        """Whether every query sees every key."""
        return not case.is_module and case.is_global

    def prepare(self, workload: Workload) -> Rival:
        """Copy the inputs into its layout."""
        case = workload.case
        dtype, device = workload.inputs[0].q.dtype, workload.inputs[0].q.device
        weights = torch.tensor(quadrature_weights(*case.in_shape, case.grid_in), device=device)
        mask = weights.log().repeat_interleave(case.in_shape[1])[None].to(dtype)
        sets = [[_by_head(x, case.heads) for x in entry[:4] if x is not None] for entry in workload.inputs]

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)

        def forward(index: int) -> tuple[torch.Tensor, ...]:
            return (attend(*sets[index % len(sets)]),)

        def backward(index: int) -> tuple[torch.Tensor, ...]:
            *inputs, dy = sets[index % len(sets)]
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in inputs]
                return torch.autograd.grad(attend(*leaves), leaves, dy)

        shapes = {"y": case.out_shape}
        if case.operation != "forward":
            shapes = {"dq": case.out_shape, "dk": case.in_shape, "dv": case.in_shape}
        return Rival(
            case,
            forward if case.operation == "forward" else backward,
            lambda found: {name: _packed(x, shapes[name]) for name, x in zip(shapes, found, strict=True)},
        )


OPPONENTS: dict[str, Opponent] = {"torch_harmonics": TorchHarmonics(), "sdpa_mask": MaskedSdpa()}


def _has_kernel(name: str, device: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, device.upper()))
    except RuntimeError:  # no operator of that name: the package came without its extension
        return False


def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """NHWC with packed heads to [B, heads, points, channels], a contiguous copy."""
    return x.reshape(x.shape[0], -1, heads, x.shape[3] // heads).transpose(1, 2).contiguous()


def _packed(x: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """[B, heads, points, channels] to NHWC with packed heads."""
    return x.transpose(1, 2).reshape(x.shape[0], *shape, -1)
