"""Global attention with weighted keys: values and gradients against the dense formula, and that it stays fused."""

import numpy as np
import pytest
import torch
from attention_cases import ROUNDED_WEIGHTS
from torch.nn.attention import SDPBackend, sdpa_kernel

from s2attn import AttentionProblem, neighborhood, neighborhood_attention
from s2attn.geometry import latitude_weights
from s2attn.ops import weighted_attention as module
from s2attn.ops.weighted_attention import log_weight_channels, weighted_attention

GRIDS = ["equiangular", "legendre-gauss", "lobatto"]
DTYPES = pytest.mark.parametrize("dtype", ROUNDED_WEIGHTS, ids=str)


@pytest.fixture(params=["mask", "channels"], autouse=True)
def _carried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways for the weights to reach the kernel, whichever is chosen on a CPU."""
    monkeypatch.setattr(module, "MASKED_DEVICES", {"mask": {"cpu"}, "channels": set()}[request.param])


def draw(problem: AttentionProblem, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (
        problem.query_tensor_shape(2),
        problem.key_tensor_shape(2),
        problem.value_tensor_shape(2),
        problem.output_tensor_shape(2),
    )
    q, k, v, dy = (torch.randn(shape, generator=generator) for shape in shapes)
    # values of one sign: a mean over the sphere near 0 would make every relative error large
    return [x.to(dtype) for x in (q * (problem.channels_in // problem.heads) ** -0.5, k, v + 1, dy + 1)]


def weights(nlat: int, grid: str = "equiangular") -> torch.Tensor:
    return torch.tensor(latitude_weights(nlat, grid))


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, heads: int) -> torch.Tensor:
    """The formula in float64, with an explicit matrix of weights."""
    q_points, k_points, v_points = (x.double().reshape(x.shape[0], -1, heads, x.shape[-1] // heads) for x in (q, k, v))
    p = torch.einsum("bnhc,bmhc->bhnm", q_points, k_points).exp() * w.repeat_interleave(k.shape[2])
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.einsum("bhnm,bmhc->bnhc", p, v_points).reshape(*q.shape[:3], v.shape[-1])


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("nlat", [2, 3, 32, 181, 721])
@pytest.mark.parametrize("grid", GRIDS)
def test_the_channels_sum_to_the_logarithm_and_survive_bfloat16(nlat: int, grid: str) -> None:
    w = weights(nlat, grid)
    exact = np.log(w.numpy() / w.numpy().max())
    channels = log_weight_channels(w)
    assert channels.shape == (nlat, 4)
    np.testing.assert_allclose(channels.double().sum(dim=-1).numpy(), exact, rtol=0, atol=1e-13)
    narrow = channels[:, :3].to(torch.bfloat16)
    assert torch.equal(narrow.float(), channels[:, :3])
    np.testing.assert_allclose(narrow.double().sum(dim=-1).numpy(), exact, rtol=2.0**-24, atol=1e-7)
    halves = channels.half()
    np.testing.assert_allclose(halves.double().sum(dim=-1).numpy(), exact, rtol=2.0**-24, atol=1e-7)


@DTYPES
@pytest.mark.parametrize(
    "problem",
    [
        AttentionProblem((12, 24), (6, 12), heads=2, channels_in=8, channels_out=8),
        AttentionProblem((6, 12), (12, 24), "lobatto", channels_in=33, channels_out=6),
        AttentionProblem((7, 9), (5, 3), "legendre-gauss", heads=3, channels_in=3, channels_out=33),
        AttentionProblem((1, 1), (4, 1), "legendre-gauss", theta_cutoff=1.0, channels_in=1, channels_out=1),
    ],
    ids=["two_heads", "wide_keys", "wide_values", "one_point"],
)
def test_values_and_gradients_equal_the_dense_formula(problem: AttentionProblem, dtype: torch.dtype) -> None:
    *signals, dy = draw(problem, dtype)
    w = weights(problem.nlat_in, problem.grid_in)
    exact = [x.double().requires_grad_() for x in signals]
    expected = dense(*exact, w, problem.heads)
    rounded = [x.requires_grad_() for x in signals]
    got = weighted_attention(*rounded, log_weight_channels(w), heads=problem.heads)
    assert got.dtype == dtype
    assert error(got.detach(), expected.detach()) < ROUNDED_WEIGHTS[dtype].relative
    gradients = torch.autograd.grad(got, rounded, dy)
    largest = max(float(g.norm()) for g in torch.autograd.grad(expected, exact, dy.double(), retain_graph=True))
    for name, found, wanted in zip("qkv", gradients, torch.autograd.grad(expected, exact, dy.double()), strict=True):
        # gradients of q and k are differences of the large terms that dv is a sum of: their error is relative to those
        assert float((found.double() - wanted).norm()) < 4 * ROUNDED_WEIGHTS[dtype].relative * largest, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2.0**-8)], ids=str)
def test_splitting_the_logarithm_is_what_makes_it_exact(dtype: torch.dtype, tolerance: float) -> None:
    # all scores equal: y is the weighted mean of v, and v singles out the latitude that one channel is worst for
    nlat = 171
    w = weights(nlat)
    channels = log_weight_channels(w)
    worst = int(channels[:, 1:].sum(dim=-1).abs().argmax())
    q, k, v = (torch.zeros(1, *shape, dtype=dtype) for shape in ((1, 1, 4), (nlat, 4, 4), (nlat, 4, 1)))
    v[:, worst] = 1.0
    exact = float(w[worst] / w.sum())
    assert float(weighted_attention(q, k, v, channels, heads=1)) == pytest.approx(exact, rel=tolerance)
    wide = [x.float() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        assert float(weighted_attention(*wide, channels, heads=1)) == pytest.approx(exact, rel=tolerance)
    unsplit = channels * torch.tensor([1, 0, 0, 0])
    assert abs(float(weighted_attention(q, k, v, unsplit, heads=1)) / exact - 1) > 0.01


@pytest.mark.parametrize("in_shape", [(6, 12), (12, 24), (3, 6)])
@pytest.mark.parametrize("grid", GRIDS)
def test_equals_neighborhood_attention_over_the_whole_sphere(in_shape: tuple[int, int], grid: str) -> None:
    problem = AttentionProblem(in_shape, (6, 12), grid, grid, np.pi, heads=2, channels_in=8, channels_out=4)
    *signals, dy = draw(problem, torch.float32)
    local = [x.clone().requires_grad_() for x in signals]
    everywhere = [x.clone().requires_grad_() for x in signals]
    y_local = neighborhood_attention(*local, neighborhood(problem), heads=2)
    y = weighted_attention(*everywhere, log_weight_channels(weights(in_shape[0], grid)), heads=2)
    torch.testing.assert_close(y, y_local, rtol=1e-5, atol=1e-6)
    for found, expected in zip(
        torch.autograd.grad(y, everywhere, dy), torch.autograd.grad(y_local, local, dy), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@DTYPES
@pytest.mark.parametrize(("c", "cv"), [(64, 64), (1, 6), (33, 33), (6, 64)])
def test_stays_in_the_fused_kernel(dtype: torch.dtype, c: int, cv: int) -> None:
    problem = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=2 * c, channels_out=2 * cv)
    *signals, dy = draw(problem, dtype)
    q, k, v = (x.requires_grad_() for x in signals)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where it cannot run
        y = weighted_attention(q, k, v, log_weight_channels(weights(6)), heads=2)
    assert "FlashAttention" in names_of_graph(y)
    torch.autograd.grad(y, (q, k, v), dy)


def names_of_graph(y: torch.Tensor) -> str:
    names, stack = [], [y.grad_fn]
    while stack:
        node = stack.pop()
        names.append(node.name())
        stack += [parent for parent, _ in node.next_functions if parent is not None]
    return " ".join(names)


def test_only_asked_for_gradients_flow() -> None:
    problem = AttentionProblem((6, 12), (6, 12), channels_in=4, channels_out=4)
    q, k, v, dy = draw(problem, torch.float32)
    k.requires_grad_()
    y = weighted_attention(q, k, v, log_weight_channels(weights(6)), heads=1)
    (dk,) = torch.autograd.grad(y, k, dy)
    q, v = q.requires_grad_(), v.requires_grad_()
    y = weighted_attention(q, k, v, log_weight_channels(weights(6)), heads=1)
    torch.testing.assert_close(dk, torch.autograd.grad(y, k, dy)[0], rtol=0, atol=0)


def test_dropping_weights_keeps_the_mean() -> None:
    torch.manual_seed(0)
    q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 32, 64, 2), torch.ones(1, 32, 64, 1)
    y = weighted_attention(q, k, v, log_weight_channels(weights(32, "legendre-gauss")), heads=1, drop_rate=0.5)
    assert float(y) != 1.0
    assert float(y) == pytest.approx(1.0, abs=0.15)
