"""What the operator of a case calls, on which backend, and the float64 values it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from s2attn.backends import choose
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.exact import ExactAttention, count_pairs
from s2attn.benchmarks.exact_global import ExactGlobalAttention
from s2attn.benchmarks.layer import Exact
from s2attn.geometry import Neighborhood, NeighborhoodTensors, latitude_weights, neighborhood
from s2attn.ops import registration
from s2attn.ops.weighted_attention import log_weight_channels, log_weight_mask, weighted_attention
from s2attn.problem import AttentionProblem


class WorkloadMismatchError(RuntimeError):
    """The case does not describe what would run."""


class InputSet(NamedTuple):
    """Inputs of one call: NHWC for the operator, channels first for the layer (whose self-attention takes q alone).

    y and lse are those of the saved forward (backward cases of the operator only).
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dy: torch.Tensor | None = None
    y: torch.Tensor | None = None
    lse: torch.Tensor | None = None


class Operator(Protocol):
    """The operator of a case on its geometry; ``pairs`` counts the (query, key) pairs of the whole problem."""

    @property
    def pairs(self) -> int:
        """Return the number of pairs."""

    def call(self, inputs: InputSet) -> tuple[torch.Tensor, ...]:
        """Run the operation of the case once."""

    def prepared(self, inputs: InputSet) -> InputSet:
        """Return inputs with what the operation needs beside them."""

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Exact:
        """Return the float64 values of the same problem."""


@dataclass(frozen=True, eq=False)
class NeighborhoodOperator:
    """``torch.ops.s2attn.neighborhood_attention`` and its backward, of dq, dk and dv as ``needs`` says."""

    case: Case
    geometry: Neighborhood
    tensors: NeighborhoodTensors
    needs: tuple[bool, bool, bool] = (True, True, True)

    @property
    def pairs(self) -> int:
        """Pairs within the cutoff, of all of the batch."""
        return count_pairs(self.geometry.psi, self.geometry.grids) * self.case.batch

    def call(self, inputs: InputSet) -> tuple[torch.Tensor, ...]:
        """Return y, or dq, dk and dv."""
        if self.case.operation == "forward":
            return self._forward(inputs)[:1]
        gradients: tuple[torch.Tensor, ...] = torch.ops.s2attn.neighborhood_attention_backward(
            inputs.dy,
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.y,
            inputs.lse,
            *self.tensors,
            self.case.heads,
            list(self.needs),
        )
        return gradients

    def prepared(self, inputs: InputSet) -> InputSet:
        """Return the inputs, those of a backward with the outputs of a forward."""
        if self.case.operation != "backward":
            return inputs
        y, lse = self._forward(inputs)
        return inputs._replace(y=y, lse=lse)

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Exact:
        """Return float64 values from psi's column list."""
        return ExactAttention(q, k, v, self.geometry, heads=self.case.heads)

    def _forward(self, inputs: InputSet) -> tuple[torch.Tensor, torch.Tensor]:
        outputs: tuple[torch.Tensor, torch.Tensor] = torch.ops.s2attn.neighborhood_attention(
            inputs.q, inputs.k, inputs.v, *self.tensors, self.case.heads
        )
        return outputs


@dataclass(frozen=True, eq=False)
class GlobalOperator:
    """`s2attn.ops.weighted_attention.weighted_attention`, and its gradients by autograd."""

    case: Case
    latitude_weights: torch.Tensor
    channels: torch.Tensor
    mask: torch.Tensor

    @property
    def pairs(self) -> int:
        """Every query with every key, of all of the batch."""
        return math.prod(self.case.in_shape) * math.prod(self.case.out_shape) * self.case.batch

    def call(self, inputs: InputSet) -> tuple[torch.Tensor, ...]:
        """Return y, or dq, dk and dv of a forward and its backward; no gradient is accumulated."""
        if self.case.operation == "forward":
            return (self._forward(inputs.q, inputs.k, inputs.v),)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs[:3]]
            return torch.autograd.grad(self._forward(*leaves), leaves, inputs.dy)

    def prepared(self, inputs: InputSet) -> InputSet:
        """Return the inputs as they are."""
        return inputs

    def exact(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Exact:
        """Return float64 values from the formula."""
        return ExactGlobalAttention(q, k, v, self.latitude_weights, heads=self.case.heads)

    def _forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return weighted_attention(q, k, v, self.channels, heads=self.case.heads, mask=self.mask)


def make_operator(case: Case, problem: AttentionProblem, device: torch.device) -> Operator:
    """Build the geometry of a case.

    Raises
    ------
    WorkloadMismatchError
        The sparsity pattern has another number of entries than the case's definition says.
    """
    if case.is_global:
        weights = torch.tensor(latitude_weights(case.in_shape[0], case.grid_in))
        channels = log_weight_channels(weights).to(device)
        return GlobalOperator(case, weights, channels, log_weight_mask(channels, nlon=case.in_shape[1]))
    geometry = neighborhood(problem)
    nnz = int(geometry.psi.col_idx.size)
    if nnz != case.psi_nnz:
        raise WorkloadMismatchError(
            f"psi has {nnz} entries, the definition of {case.name} says {case.psi_nnz}: "
            "the workload changed, so its definition (and with it the case's version) must follow"
        )
    return NeighborhoodOperator(case, geometry, geometry.tensors(device))


def choose_backend(case: Case, q: torch.Tensor) -> str:
    """Return the backend that runs a case; the compiled kernels it needs are loaded."""
    return "torch" if case.is_global else choose(q, backend="auto")


def name_variant(problem: AttentionProblem, backend: str, *, backward: bool) -> str:
    """Name what runs: the formulation, direction and dtype, what it was compiled for, and which CUDA kernels, if any.

    The CUDA kernels are those that ``s2attn::cuda_policy`` says serve the forward or the backward of the problem.
    """
    record = registration.loaded().get(backend)
    target = "+".join(record.arch) if record else "torch"
    parts = [f"{problem.direction}_gather", str(problem.dtype).removeprefix("torch."), target]
    if backend == "cuda":
        parts.append(torch.ops.s2attn.cuda_policy(*cuda_facts(problem), backward))
    return "/".join(parts)


def cuda_facts(problem: AttentionProblem) -> tuple[Any, ...]:
    """Return what ``s2attn::cuda_policy`` and ``s2attn::cuda_candidates`` ask about a problem, in their order."""
    geometry, heads = neighborhood(problem), problem.heads
    arcs = [len(table.arcs) for table in (geometry.query_table, geometry.key_table)]
    channels = [problem.channels_in // heads, problem.channels_out // heads]
    return problem.out_shape, problem.in_shape, arcs, heads, channels, problem.dtype


class FusedKernelSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which of torch's attention operators run; `scaled_dot_product_attention` chooses by what it is given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith("_scaled_dot_product_") and "backward" not in name:
            self.names.append(name.removeprefix("_scaled_dot_product_"))
        return func(*args, **(kwargs or {}))
