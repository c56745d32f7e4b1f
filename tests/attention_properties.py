"""What is true of the mathematics, whatever the numbers: constants, rotations about the axis, a cutoff of pi.

Of the kernels of a device and of both layers; for the reference and the geometry the same is in tests/unit/s2attn.
"""

from __future__ import annotations

from math import pi

import pytest
import torch
from attention_cases import TOLERANCES, draw, each_case
from torch import nn

from s2attn import AttentionProblem, AttentionS2, NeighborhoodAttentionS2, neighborhood
from s2attn.geometry import latitude_weights
from s2attn.ops import registration
from s2attn.ops.weighted_attention import log_weight_channels, weighted_attention

LAYERS = pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])
GRIDS = {"self": ((6, 12), (6, 12)), "down": ((12, 24), (6, 12)), "up": ((6, 12), (12, 24))}
SHAPES = pytest.mark.parametrize("shapes", GRIDS.values(), ids=GRIDS.keys())
# both sides of a comparison are off by as much
RELATIVE = 2 * TOLERANCES[torch.float32].relative
# kernels of different origin, and gradients relative to themselves, not to the larger terms they are differences of
ACROSS_KERNELS = 2e-5

Shapes = tuple[tuple[int, int], tuple[int, int]]


def close(got: torch.Tensor, expected: torch.Tensor, relative: float = RELATIVE) -> bool:
    return float((got - expected).norm()) <= relative * float(expected.norm())


class Properties:
    """The tests; ``device`` comes from the derived class."""

    device: str

    @classmethod
    def setup_class(cls) -> None:
        registration.load(cls.device)

    def layer(self, kind: type, shapes: Shapes, **changes: object) -> nn.Module:
        torch.manual_seed(3)
        return kind(in_channels=4, num_heads=2, in_shape=shapes[0], out_shape=shapes[1], use_qknorm=True, **changes).to(
            self.device
        )

    def signals(self, shapes: Shapes) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(4)
        in_shape, out_shape = shapes
        drawn = (torch.randn(2, 4, *shape, generator=generator) for shape in (out_shape, in_shape, in_shape))
        return [x.to(self.device) for x in drawn]

    @each_case
    def test_constant_values_give_constant_output(self, name: str) -> None:
        call = draw(name, device=self.device)
        y, lse = call._replace(v=torch.full_like(call.v, -7.5)).forward()
        empty = lse.isinf().all(dim=-1)
        torch.testing.assert_close(y[~empty], torch.full_like(y[~empty], -7.5), rtol=1e-5, atol=0)
        assert (y[empty] == 0).all()

    @each_case
    def test_turning_the_sphere_turns_values_and_gradients(self, name: str) -> None:
        call = draw(name, device=self.device)
        coarse = min(call.problem.nlon_in, call.problem.nlon_out)
        steps = 2 * coarse // 3 or 1
        by_in, by_out = (steps * nlon // coarse for nlon in (call.problem.nlon_in, call.problem.nlon_out))
        shifts = {"q": by_out, "k": by_in, "v": by_in, "dy": by_out}
        turned = call._replace(**{field: getattr(call, field).roll(by, 2) for field, by in shifts.items()}).got()
        largest = max(float(x.norm()) for x in call.got().values())
        for field, x in call.got().items():
            by = by_in if field in ("dk", "dv") else by_out
            # a gradient that vanishes in exact arithmetic is rounding of the others
            assert float((turned[field] - x.roll(by, 2)).norm()) <= RELATIVE * max(float(x.norm()), 0.1 * largest), (
                field
            )

    @SHAPES
    @pytest.mark.parametrize("grid", ["equiangular", "legendre-gauss", "lobatto"])
    def test_a_cutoff_of_pi_is_global_attention(self, shapes: Shapes, grid: str) -> None:
        problem = AttentionProblem(*shapes, grid, grid, pi, heads=2, channels_in=8, channels_out=4)
        geometry = neighborhood(problem)
        assert (
            geometry.psi.col_idx.size
            == geometry.psi.row_off[-1]
            == problem.grids.row_shape[0] * (problem.column_shape[0] * problem.column_shape[1])
        )
        call = draw(problem, device=self.device)
        channels = log_weight_channels(torch.tensor(latitude_weights(problem.nlat_in, grid))).to(self.device)
        leaves = [x.clone().requires_grad_() for x in (call.q, call.k, call.v)]
        y = weighted_attention(*leaves, channels, heads=2)
        everywhere = (y, *torch.autograd.grad(y, leaves, call.dy))
        for field, x in zip(call.got(), everywhere, strict=True):
            assert close(call.got()[field], x.detach(), ACROSS_KERNELS), field

    @SHAPES
    def test_a_layer_with_a_cutoff_of_pi_is_the_global_layer(self, shapes: Shapes) -> None:
        everywhere = self.layer(AttentionS2, shapes)
        local = self.layer(NeighborhoodAttentionS2, shapes, theta_cutoff=pi)
        local.load_state_dict(everywhere.state_dict())
        assert close(local(*self.signals(shapes)).detach(), everywhere(*self.signals(shapes)).detach(), ACROSS_KERNELS)

    @LAYERS
    @SHAPES
    def test_constant_values_give_a_constant_layer(self, kind: type, shapes: Shapes) -> None:
        query, key, value = self.signals(shapes)
        y = self.layer(kind, shapes)(query, key, torch.ones_like(value)).detach()
        assert close(y, y[:, :, :1, :1].expand_as(y))

    @LAYERS
    @SHAPES
    def test_turning_the_sphere_turns_a_layer(self, kind: type, shapes: Shapes) -> None:
        built, (query, key, value) = self.layer(kind, shapes), self.signals(shapes)
        by_in, by_out = (5 * shape[1] // 12 for shape in shapes)
        turned = built(query.roll(by_out, 3), key.roll(by_in, 3), value.roll(by_in, 3))
        assert close(turned.detach(), built(query, key, value).roll(by_out, 3).detach(), 1e-5)
