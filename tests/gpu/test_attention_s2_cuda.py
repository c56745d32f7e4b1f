"""Global attention and autocast on CUDA: values, gradients, the fused kernels, determinism, mixed dtypes."""

from collections.abc import Iterator

import pytest
import torch
from attention_cases import ROUNDED_WEIGHTS
from torch.nn.attention import SDPBackend, sdpa_kernel

from s2attn import AttentionProblem, AttentionS2, InvalidProblem, NeighborhoodAttentionS2, neighborhood
from s2attn import neighborhood_attention as attend
from s2attn.geometry import latitude_weights
from s2attn.ops import registration
from s2attn.ops.weighted_attention import log_weight_channels, weighted_attention

DEVICE = "cuda"
FUSED = {
    torch.float32: SDPBackend.EFFICIENT_ATTENTION,
    torch.float16: SDPBackend.FLASH_ATTENTION,
    torch.bfloat16: SDPBackend.FLASH_ATTENTION,
}
DTYPES = pytest.mark.parametrize("dtype", FUSED, ids=str)
NARROW = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    registration.load(DEVICE)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(problem: AttentionProblem, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (
        problem.query_tensor_shape(2),
        problem.key_tensor_shape(2),
        problem.value_tensor_shape(2),
        problem.output_tensor_shape(2),
    )
    q, k, v, dy = (torch.randn(shape, generator=generator) for shape in shapes)
    # values of one sign: a mean over the sphere near 0 would make every relative error large
    signals = (q * (problem.channels_in // problem.heads) ** -0.5, k, v + 1, dy + 1)
    return [x.to(DEVICE, dtype) for x in signals]


def channels(nlat: int) -> torch.Tensor:
    return log_weight_channels(torch.tensor(latitude_weights(nlat, "equiangular"))).to(DEVICE)


@DTYPES
@pytest.mark.parametrize(("c", "cv"), [(64, 64), (1, 6), (33, 33), (6, 64), (128, 128)])
def test_values_and_gradients_in_the_fused_kernel(dtype: torch.dtype, c: int, cv: int) -> None:
    problem = AttentionProblem((12, 24), (12, 24), heads=2, channels_in=2 * c, channels_out=2 * cv)
    *signals, dy = draw(problem, dtype)
    exact = [x.double().requires_grad_() for x in signals]
    expected = weighted_attention(*exact, channels(12), heads=2)  # float64 has no fused kernel: torch's plain formula
    rounded = [x.requires_grad_() for x in signals]
    with sdpa_kernel(FUSED[dtype]):  # an error where it cannot run
        y = weighted_attention(*rounded, channels(12), heads=2)
    assert y.dtype == dtype
    assert float((y.double() - expected).detach().norm() / expected.detach().norm()) < ROUNDED_WEIGHTS[dtype].relative
    wanted = torch.autograd.grad(expected, exact, dy.double())
    largest = max(float(gradient.norm()) for gradient in wanted)
    for name, found, gradient in zip("qkv", torch.autograd.grad(y, rounded, dy), wanted, strict=True):
        # gradients of q and k are differences of the large terms that dv is a sum of: their error is relative to those
        assert float((found.double() - gradient).norm()) < 4 * ROUNDED_WEIGHTS[dtype].relative * largest, name


@DTYPES
@pytest.mark.usefixtures("_deterministic")
def test_deterministic_mode_makes_global_attention_bitwise_repeatable(dtype: torch.dtype) -> None:
    *signals, dy = draw(AttentionProblem((32, 64), (32, 64), heads=2, channels_in=64, channels_out=64), dtype)
    runs = []
    for _ in range(3):
        leaves = [x.clone().requires_grad_() for x in signals]
        y = weighted_attention(*leaves, channels(32), heads=2)
        runs.append((y, *torch.autograd.grad(y, leaves, dy)))
    for run in runs[1:]:
        assert all(torch.equal(found, first) for found, first in zip(run, runs[0], strict=True))


@NARROW
def test_autocast_reconciles_mixed_dtypes_for_operator_and_function(dtype: torch.dtype) -> None:
    problem = AttentionProblem((12, 24), (12, 24), heads=2, channels_in=8, channels_out=4)
    geometry = neighborhood(problem)
    q, k, v, _ = draw(problem)
    q, k = q.requires_grad_(), k.to(dtype).requires_grad_()
    with torch.autocast(DEVICE, dtype=dtype):
        y = attend(q, k, v, geometry, heads=2)
        by_operator, lse = torch.ops.s2attn.neighborhood_attention(q, k, v, *geometry.tensors(DEVICE), 2)
    expected = attend(q.to(dtype), k, v.to(dtype), geometry, heads=2)
    assert y.dtype == dtype
    assert lse.dtype == torch.float32
    assert torch.equal(y, expected)
    assert torch.equal(by_operator, expected)
    assert [x.dtype for x in torch.autograd.grad(y.sum(), (q, k))] == [torch.float32, dtype]
    with pytest.raises(InvalidProblem, match=r"^k: got .+, expected the dtype of q"):
        attend(q, k, v, geometry, heads=2)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.ops.s2attn.neighborhood_attention(q, k, v, *geometry.tensors(DEVICE), 2)


@NARROW
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])
def test_a_layer_under_autocast_stays_near_float32(kind: type, compiled: bool, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    arguments = {"in_channels": 8, "num_heads": 2, "in_shape": (12, 24), "out_shape": (6, 12), "use_qknorm": True}
    built = kind(**arguments).to(DEVICE)
    call = torch.compile(built, fullgraph=True, backend="aot_eager") if compiled else built
    query, key = torch.randn(2, 8, 6, 12, device=DEVICE), torch.randn(2, 8, 12, 24, device=DEVICE)
    with torch.autocast(DEVICE, dtype=dtype):
        y = call(query, key, key)
    assert y.dtype == dtype
    expected = built(query, key, key).detach()
    assert float((y.detach() - expected).norm() / expected.norm()) < 2e-2
    y.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in built.parameters())
