"""Tensors of more elements than 32 bits count, on a GPU with some 60 GB of memory."""

import pytest
import torch
from attention_cases import ROUNDED_WEIGHTS

from s2attn import AttentionProblem, neighborhood
from s2attn.benchmarks.exact import ExactAttention, by_point
from s2attn.ops import registration


@pytest.fixture(autouse=True)
def _loaded() -> None:
    registration.load("cuda")
    torch.cuda.empty_cache()


def test_values_and_gradients_beyond_2_to_the_31_elements() -> None:
    problem = AttentionProblem((1024, 2048), (1024, 2048), heads=8, channels_in=1088, channels_out=1088)
    shape = problem.query_tensor_shape(1)
    torch.manual_seed(1)
    q, k, v, dy = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    q *= 136**-0.5
    assert q.numel() > 2**31
    geometry = neighborhood(problem)
    tables = geometry.tensors(q.device)
    y, lse = torch.ops.s2attn.neighborhood_attention(q, k, v, *tables, 8)
    gradients = torch.ops.s2attn.neighborhood_attention_backward(dy, q, k, v, y, lse, *tables, 8, [True] * 3)

    points = shape[1] * shape[2]
    crossing = 2**31 // shape[3]
    chosen = torch.cat((torch.randint(points, (200,)), torch.arange(crossing - 2, crossing + 3)))
    chosen = torch.cat((chosen, torch.tensor([0, 1, points - 2, points - 1]))).unique().to("cuda")
    exact = ExactAttention(q, k, v, geometry, heads=8)
    expected = (exact.forward(chosen)[0], *exact.backward(dy, chosen, chosen))
    for name, x, wanted in zip(("y", "dq", "dk", "dv"), (y, *gradients), expected, strict=True):
        assert torch.isfinite(x).all(), name
        error = float((by_point(x, 8)[chosen].double() - wanted).norm() / wanted.norm())
        assert error < ROUNDED_WEIGHTS[torch.bfloat16].relative, (name, error)


def test_more_owners_and_heads_than_a_launch_takes_are_refused_or_right() -> None:
    heads = 1024
    problem = AttentionProblem((1, 1), (1, 1), *2 * ["legendre-gauss"], 1.0, heads, heads, heads)
    q = torch.zeros(problem.query_tensor_shape(2**21 + 1), device="cuda", dtype=torch.bfloat16)
    v = torch.randn_like(q)
    assert q.numel() > 2**31
    try:
        y, _ = torch.ops.s2attn.neighborhood_attention(q, q, v, *neighborhood(problem).tensors("cuda"), heads)
    except ValueError as error:
        assert "points times heads: got " in str(error), error  # noqa: PT017 (either outcome is right)
    else:
        assert torch.equal(y, v)  # one key: its value
