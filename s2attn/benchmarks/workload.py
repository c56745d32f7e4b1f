"""A case made runnable on this machine: seeded inputs, the geometry, and the operator call that a sample times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.layer import Layer, MakeExact, call_layer, join_parameters, make_layer, output_names
from s2attn.benchmarks.operators import (
    FusedKernelSeen,
    InputSet,
    Operator,
    WorkloadMismatchError,
    choose_backend,
    make_operator,
    name_variant,
)
from s2attn.problem import AttentionProblem

__all__ = ["InputSet", "Workload", "WorkloadMismatchError", "draw_inputs", "layer_inputs", "prepare"]

_OUTPUT_NAMES: dict[str, tuple[str, ...]] = {
    "forward": ("y",),
    "backward": ("dq", "dk", "dv"),
    "forward-backward": ("dq", "dk", "dv"),
}


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
    operator: Operator
    inputs: tuple[InputSet, ...]
    backend: str
    variant: str
    layer: Layer | None = None

    @property
    def pairs(self) -> int:
        """(query, key) pairs of the whole problem."""
        return self.operator.pairs

    @property
    def exact(self) -> MakeExact:
        """Makes the float64 values of the problem from q, k and v."""
        return self.operator.exact

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
        return self.operator.call(inputs)


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
    operator = make_operator(case, problem, device)
    inputs = draw_inputs(case, problem, device)
    layer = make_layer(case, device) if case.is_module else None
    backend = choose_backend(case, inputs[0].q)
    if layer is None:
        inputs = tuple(operator.prepared(entry) for entry in inputs)
    variant = name_variant(problem, backend, backward="backward" in case.operation)
    workload = Workload(case, problem, operator, inputs, backend, variant, layer)
    return _with_fused_kernel(workload) if case.is_global else workload


def _with_fused_kernel(workload: Workload) -> Workload:
    """Run global attention once and name the kernel that torch took."""
    with torch.no_grad(), FusedKernelSeen() as seen:
        workload.call(0)
    variant = "+".join(dict.fromkeys(seen.names)) or "unfused"
    return replace(workload, variant=f"{variant}/{workload.case.dtype}/torch")


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
        if case.operation != "forward":
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
