"""A case made runnable on this machine: seeded inputs, the geometry, and the operator call that a sample times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from s2attn.backends import choose
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.layer import call_layer, join_parameters, make_layer, output_names
from s2attn.geometry import Neighborhood, NeighborhoodTensors, neighborhood
from s2attn.modules import NeighborhoodAttentionS2
from s2attn.ops import registration
from s2attn.problem import AttentionProblem

_OUTPUT_NAMES: dict[str, tuple[str, ...]] = {"forward": ("y",), "backward": ("dq", "dk", "dv")}


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


@dataclass(frozen=True, eq=False)
class Workload:
    """One case with everything its call needs on the device.

    Attributes
    ----------
    backend, variant
        What runs: as the package chose it, never as it was asked for.
    layer
        The layer of a module case; None where the operator alone is called.
    """

    case: Case
    problem: AttentionProblem
    neighborhood: Neighborhood
    tensors: NeighborhoodTensors
    inputs: tuple[InputSet, ...]
    backend: str
    variant: str
    layer: NeighborhoodAttentionS2 | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of what is compared with float64, see `outputs`."""
        return output_names(self.case) if self.layer else _OUTPUT_NAMES[self.case.operation]

    def outputs(self) -> dict[str, torch.Tensor]:
        """Run the call on the first input set and return its outputs by name, for comparison."""
        found = self.call(0)
        if self.layer is not None and self.case.operation == "module-forward-backward":
            found = join_parameters(self.layer, found)
        return dict(zip(self.output_names, found, strict=True))

    def call(self, index: int) -> tuple[torch.Tensor, ...]:
        """Run the operator or the layer once on input set ``index`` (modulo their number), return its outputs."""
        inputs = self.inputs[index % len(self.inputs)]
        if self.layer is not None:
            return call_layer(self.layer, layer_inputs(self.case, inputs), inputs.dy)
        if self.case.operation == "forward":
            return _forward(self.case, inputs, self.tensors)[:1]
        gradients: tuple[torch.Tensor, ...] = torch.ops.s2attn.neighborhood_attention_backward(
            inputs.dy,
            inputs.q,
            inputs.k,
            inputs.v,
            inputs.y,
            inputs.lse,
            *self.tensors,
            self.case.heads,
            [True, True, True],
        )
        return gradients


def prepare(case: Case) -> Workload:
    """Build the geometry and draw the inputs of a case.

    Raises
    ------
    S2AttnError
        The case cannot run here (no kernels, no such device), with the reason.
    WorkloadMismatchError
        The sparsity pattern has another number of entries than the case's definition says.
    """
    device = torch.device(case.device)
    dtype = getattr(torch, case.dtype)
    problem = AttentionProblem(
        in_shape=case.in_shape,
        out_shape=case.out_shape,
        grid_in=case.grid_in,
        grid_out=case.grid_out,
        theta_cutoff=case.theta_cutoff,
        heads=case.heads,
        channels_in=case.channels_in,
        channels_out=case.channels_out,
        dtype=dtype,
    )
    geometry = neighborhood(problem)
    nnz = int(geometry.psi.col_idx.size)
    if nnz != case.psi_nnz:
        raise WorkloadMismatchError(
            f"psi has {nnz} entries, the definition of {case.name} says {case.psi_nnz}: "
            "the workload changed, so its definition (and with it the case's version) must follow"
        )
    inputs = draw_inputs(case, problem, device)
    made = make_layer(case, device) if case.is_module else None
    backend = choose(inputs[0].q, backend="auto")
    tensors = geometry.tensors(device)
    if case.operation == "backward":
        inputs = tuple(_with_forward(case, entry, tensors) for entry in inputs)
    return Workload(case, problem, geometry, tensors, inputs, backend, variant_name(problem, backend), made)


def variant_name(problem: AttentionProblem, backend: str) -> str:
    """Name what ran: the kernels' formulation, the problem's direction and dtype, and what they were compiled for."""
    record = registration.loaded().get(backend)
    target = "+".join(record.arch) if record else "torch"
    return f"{problem.direction}_gather/{str(problem.dtype).removeprefix('torch.')}/{target}"


def draw_inputs(case: Case, problem: AttentionProblem, device: torch.device) -> tuple[InputSet, ...]:
    """Return the case's seeded inputs: standard normal, q scaled by 1/sqrt(channels per head).

    The same on every run of a device type: they depend on the case's name alone. Drawn on the device, because drawing
    half-degree inputs on the host takes seconds. Those of a layer are channels first and unscaled.
    """
    generator = torch.Generator(device=device).manual_seed(case.seed)
    scale = (case.channels_in // case.heads) ** -0.5

    def normal(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32)

    if case.is_module:
        return tuple(_draw_layer_inputs(case, normal) for _ in range(case.input_sets))
    sets = []
    for _ in range(case.input_sets):
        q = (normal(problem.query_tensor_shape(case.batch)) * scale).to(problem.dtype)
        k = normal(problem.key_tensor_shape(case.batch)).to(problem.dtype)
        v = normal(problem.value_tensor_shape(case.batch)).to(problem.dtype)
        dy = None
        if case.operation == "backward":
            dy = normal(problem.output_tensor_shape(case.batch)).to(problem.dtype)
        sets.append(InputSet(q, k, v, dy))
    return tuple(sets)


def layer_inputs(case: Case, inputs: InputSet) -> tuple[torch.Tensor, ...]:
    """Return what the layer of a module case is called with."""
    return (inputs.q,) if case.direction == "self" else (inputs.q, inputs.k, inputs.v)


def _draw_layer_inputs(case: Case, normal: Callable[[tuple[int, ...]], torch.Tensor]) -> InputSet:
    def drawn(channels: int, shape: tuple[int, int]) -> torch.Tensor:
        return normal((case.batch, channels, *shape)).to(getattr(torch, case.dtype))

    q = drawn(case.channels_in, case.out_shape)
    k, v = (q, q) if case.direction == "self" else (drawn(case.channels_in, case.in_shape) for _ in range(2))
    dy = drawn(case.channels_out, case.out_shape) if case.operation == "module-forward-backward" else None
    return InputSet(q, k, v, dy)


def _forward(case: Case, inputs: InputSet, tensors: NeighborhoodTensors) -> tuple[torch.Tensor, torch.Tensor]:
    outputs: tuple[torch.Tensor, torch.Tensor] = torch.ops.s2attn.neighborhood_attention(
        inputs.q, inputs.k, inputs.v, *tensors, case.heads
    )
    return outputs


def _with_forward(case: Case, inputs: InputSet, tensors: NeighborhoodTensors) -> InputSet:
    y, lse = _forward(case, inputs, tensors)
    return inputs._replace(y=y, lse=lse)
