"""Problems, tolerances and inputs that every test of the attention operators shares, on CPU and on CUDA."""

from __future__ import annotations

from functools import cache
from math import pi
from typing import NamedTuple

import pytest
import torch

from s2attn import AttentionProblem, neighborhood
from s2attn.geometry.neighborhood import NeighborhoodTensors
from s2attn.ops.reference import reference_attention

Shape = tuple[int, int]


class Case(NamedTuple):
    """A problem and a batch to try it with."""

    problem: AttentionProblem
    batch: int = 2


def case(
    in_shape: Shape,
    out_shape: Shape,
    *,
    channels: int = 4,
    channels_out: int | None = None,
    heads: int = 1,
    batch: int = 2,
    grids: tuple[str, str] = ("equiangular", "equiangular"),
    cutoff: float | None = None,
) -> Case:
    """Make a case; channels are counted per head."""
    problem = AttentionProblem(
        in_shape,
        out_shape,
        *grids,
        cutoff,
        heads=heads,
        channels_in=heads * channels,
        channels_out=heads * (channels if channels_out is None else channels_out),
    )
    return Case(problem, batch)


GAUSS = ("legendre-gauss", "legendre-gauss")
DIRECTIONS = {"self": ((5, 18), (5, 18)), "down": ((7, 18), (4, 6)), "up": ((4, 6), (7, 18))}
# every width of a CUDA policy from both sides, and the CPU's strips of four with and without a rest
CHANNELS = (1, 6, 8, 16, 32, 33, 64, 96, 128, 130, 256)

# shapes that have broken attention kernels before
DEGENERATE = {
    "one_channel": case((6, 12), (6, 12), channels=1),
    "one_point": case((1, 1), (1, 1), grids=GAUSS, cutoff=0.1, batch=1),
    "one_latitude": case((1, 8), (1, 8), channels=1, grids=GAUSS, cutoff=0.9),
    "one_longitude": case((4, 1), (4, 1), channels=3, channels_out=2, cutoff=1.2),
    "two_poles": case((2, 4), (2, 4), heads=2, channels=1, channels_out=2, cutoff=0.5),
    "wrapping_arc": case((8, 16), (8, 16), channels=5, channels_out=3, cutoff=1.4),
    "odd_extents": case((7, 9), (5, 3), heads=3, channels=11, channels_out=2),
    "odd_upsample": case((5, 3), (7, 9), heads=3, channels=2, channels_out=11),
    "nearly_full_circle": case((5, 8), (5, 8), cutoff=2.2),
    "whole_sphere": case((5, 4), (9, 12), cutoff=pi),
    "whole_sphere_down": case((9, 12), (5, 4), heads=2, cutoff=pi, batch=1),
    "some_empty": case((6, 16), (13, 16), grids=GAUSS),
    "upsample_mostly_empty": case((6, 4), (12, 16), cutoff=0.1),
    "all_empty": case((6, 4), (5, 16), channels=1, grids=GAUSS, cutoff=1e-4),
}

ORDINARY = {
    "default_cutoff": case((12, 24), (12, 24), heads=4, batch=3),
    "down_by_4_default_cutoff": case((9, 32), (6, 8), heads=4, channels=6, batch=1),
    "up_by_4_default_cutoff": case((6, 8), (9, 32), heads=4, channels=6, batch=1),
    "down_by_2": case((13, 24), (7, 12), heads=3, channels=5, cutoff=0.7, batch=3),
    "up_by_2": case((7, 12), (13, 24), heads=3, channels=5, cutoff=0.7, batch=3),
    "fewer_latitudes_only": case((13, 16), (6, 16), heads=2, channels=8),
    "more_latitudes_only": case((6, 16), (13, 16), heads=2, channels=8),
    "gauss_to_lobatto": case((12, 24), (6, 12), grids=("legendre-gauss", "lobatto"), cutoff=0.5),
    "lobatto_to_equiangular": case((7, 8), (12, 24), grids=("lobatto", "equiangular"), channels=8),
    "equiangular_to_gauss": case((9, 16), (9, 16), grids=("equiangular", "legendre-gauss"), channels=8),
    # more longitudes than one block of owners of any kernel, and not a multiple of it
    "long_rows": case((6, 150), (6, 150), channels=16, cutoff=0.6, batch=1),
    "long_rows_down": case((5, 270), (4, 90), channels=16, cutoff=0.9, batch=1),
    "long_rows_up": case((4, 90), (5, 270), channels=16, cutoff=0.9, batch=1),
    # the same, with channels that pairs of warps share on a GPU: all of them, or some of one warp's half
    "long_rows_wide": case((6, 150), (6, 150), heads=2, channels=64, channels_out=40, cutoff=0.6, batch=1),
    "long_rows_down_wide": case((5, 270), (4, 90), channels=128, channels_out=72, cutoff=0.9, batch=1),
    "long_rows_up_wide": case((4, 90), (5, 270), channels=24, channels_out=128, cutoff=0.9, batch=1),
    # Whole vectors of channels and few keys per query, which a forward on a CPU reads where they lie. A row is a block
    # of sixteen queries and one of two; arcs cross the seam, poles see more than sixteen keys, some queries see none.
    "few_keys": case((7, 18), (7, 18), heads=2, channels=64, channels_out=48, cutoff=0.7),
    "few_keys_down": case((12, 36), (6, 18), channels=64, channels_out=32, cutoff=0.5),
    "few_keys_up": case((6, 18), (12, 36), heads=3, channels=32, cutoff=0.2),
    "wide_values": case(*DIRECTIONS["self"], heads=3, channels=4, channels_out=64, cutoff=0.8, batch=1),
    "wide_keys": case(*DIRECTIONS["down"], heads=3, channels=128, channels_out=8, cutoff=0.8, batch=1),
    "odd_widths": case(*DIRECTIONS["up"], heads=3, channels=3, channels_out=70, cutoff=0.8, batch=1),
    "wider_than_registers": case(*DIRECTIONS["up"], channels=300, channels_out=2, cutoff=0.8, batch=1),
}

WIDTHS = {
    f"{direction}_{channels}_channels": case(*shapes, heads=2, channels=channels, cutoff=0.8, batch=1)
    for direction, shapes in DIRECTIONS.items()
    for channels in CHANNELS
}

CASES = DEGENERATE | ORDINARY | WIDTHS
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

each_case = pytest.mark.parametrize("name", CASES)
EACH_DIRECTION = ("default_cutoff", "down_by_2", "up_by_2")
each_direction = pytest.mark.parametrize("name", EACH_DIRECTION)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())


class Tolerance(NamedTuple):
    """Largest errors against float64 on the same inputs, which are rounded already."""

    relative: float  # L2 of a tensor, relative to `Expected.scale`
    lse: float  # of every element, absolute and relative; lse is float32 for every storage type


TOLERANCES = {
    # the reference: sums of up to some hundred terms in another order
    torch.float64: Tolerance(1e-12, 1e-12),
    # sums of float32; rounding float64 inputs alone gives 1e-7
    torch.float32: Tolerance(2e-6, 1e-5),
    # results are rounded (half a place is 2^-12 to 2^-11), and on CUDA delta is that of the rounded y
    torch.float16: Tolerance(6e-4, 1e-5),
    # the same, with 2^-9 to 2^-8
    torch.bfloat16: Tolerance(5e-3, 1e-5),
}
# Tensor cores, and torch's fused attention on any device, multiply operands of the storage type: the weights of the
# softmax (and dy . v - delta times them) are rounded before they are summed with, by as much as the results above.
ROUNDED_WEIGHTS = TOLERANCES | {torch.float16: Tolerance(2e-3, 1e-5), torch.bfloat16: Tolerance(1e-2, 1e-5)}


def tolerance(dtype: torch.dtype, device: str) -> Tolerance:
    """Tolerance of the neighborhood kernels of a device."""
    return (ROUNDED_WEIGHTS if device == "cuda" else TOLERANCES)[dtype]


class Expected(NamedTuple):
    """Results in float64 of inputs as they are, on the CPU, and what their errors are relative to.

    dq and dk are sums of p (dy . v - delta) k and q. Where a query has few keys these are differences that nearly or
    wholly cancel, so their errors are relative to the sums of p (dy . v) k and q, if those are larger.
    """

    values: dict[str, torch.Tensor]  # y, dq, dk, dv
    scale: dict[str, float]
    lse: torch.Tensor

    @classmethod
    def of(cls, values: dict[str, torch.Tensor]) -> Expected:
        """Take values whose errors are relative to themselves."""
        return cls(values, {name: float(x.norm()) for name, x in values.items()}, torch.empty(0))


class Call(NamedTuple):
    """A problem with its inputs on a device."""

    problem: AttentionProblem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dy: torch.Tensor

    @property
    def tables(self) -> NeighborhoodTensors:
        return neighborhood(self.problem).tensors(self.q.device)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.s2attn.neighborhood_attention(self.q, self.k, self.v, *self.tables, self.problem.heads)

    def backward(self, needs: tuple[bool, bool, bool] = (True, True, True)) -> tuple[torch.Tensor, ...]:
        return torch.ops.s2attn.neighborhood_attention_backward(*self.backward_arguments(needs))

    def backward_arguments(self, needs: tuple[bool, bool, bool] = (True, True, True)) -> tuple[object, ...]:
        return (self.dy, self.q, self.k, self.v, *self.forward(), *self.tables, self.problem.heads, list(needs))

    def got(self) -> dict[str, torch.Tensor]:
        return dict(zip(("y", "dq", "dk", "dv"), (self.forward()[0], *self.backward()), strict=True))

    def expected(self) -> Expected:
        """Run the reference, which walks the column list, and torch's autograd over it."""
        q, k, v = (x.detach().cpu().double().requires_grad_() for x in (self.q, self.k, self.v))
        dy = self.dy.cpu().double()
        y, lse = reference_attention(q, k, v, neighborhood(self.problem), heads=self.problem.heads)
        gradients = torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)
        # with a constant denominator y exp(lse - lse) has the gradients without delta
        ratio = torch.where(lse.isfinite(), lse - lse.detach(), 0.0).exp()
        numerator = y * ratio.repeat_interleave(y.shape[-1] // self.problem.heads, dim=-1)
        undiminished = torch.autograd.grad(numerator, (q, k, v), dy)
        values = dict(zip(("y", "dq", "dk", "dv"), (y.detach(), *gradients), strict=True))
        norms = (y.detach(), *undiminished)
        scale = {name: max(float(values[name].norm()), float(x.norm())) for name, x in zip(values, norms, strict=True)}
        return Expected(values, scale, lse.detach())


def errors(got: dict[str, torch.Tensor], expected: Expected) -> dict[str, float]:
    """L2 errors of whole tensors relative to their scale; of tensors that should be 0, absolute."""
    return {
        name: float((x.cpu().double() - expected.values[name]).norm()) / (expected.scale[name] or 1.0)
        for name, x in got.items()
    }


def draw(
    given: AttentionProblem | str, dtype: torch.dtype = torch.float32, device: str = "cpu", batch: int = 2
) -> Call:
    """Inputs of unit variance, q scaled so that scores are about 1 for any number of channels.

    Drawn in float32 on the CPU: the same for every device. A name stands for a case of the shared list, with its batch.
    """
    problem, batch = CASES[given] if isinstance(given, str) else (given, batch)
    generator = torch.Generator().manual_seed(11)
    shapes = (
        problem.query_tensor_shape(batch),
        problem.key_tensor_shape(batch),
        problem.value_tensor_shape(batch),
        problem.output_tensor_shape(batch),
    )
    q, k, v, dy = (torch.randn(shape, generator=generator) for shape in shapes)
    q = q * (problem.channels_in // problem.heads) ** -0.5
    return Call(problem, *(x.to(device, dtype) for x in (q, k, v, dy)))


@cache
def expected_of(name: str, dtype: torch.dtype) -> Expected:
    """Results of a case of the shared list; the inputs are the same on every device."""
    return draw(name, dtype).expected()
