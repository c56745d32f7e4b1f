"""Autocast on the CPU: mixed dtypes are reconciled for operator, function and layers; without it, they are an error."""

import pytest
import torch

from s2attn import AttentionProblem, AttentionS2, InvalidProblem, NeighborhoodAttentionS2, neighborhood
from s2attn import neighborhood_attention as attend
from s2attn.ops import registration
from s2attn.ops.autocast import reconciled

PROBLEM = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=8, channels_out=4)
GEOMETRY = neighborhood(PROBLEM)
NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    registration.load()


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    shapes = (PROBLEM.query_tensor_shape(2), PROBLEM.key_tensor_shape(2), PROBLEM.value_tensor_shape(2))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


def operator(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.s2attn.neighborhood_attention(q, k, v, *GEOMETRY.tensors("cpu"), PROBLEM.heads)


def test_tensors_that_autocast_leaves_alone() -> None:
    double, integer = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.int32)
    elsewhere, narrow = torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.bfloat16)
    assert reconciled("cpu", narrow)[0] is narrow
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = reconciled("cpu", double, integer, elsewhere)
        assert all(a is b for a, b in zip(kept, (double, integer, elsewhere), strict=True))
        assert reconciled("cpu", narrow)[0] is narrow
        assert reconciled("cpu", narrow.float())[0].dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert reconciled("cpu", narrow)[0] is narrow


@NARROW
def test_the_operator_takes_mixed_dtypes_under_autocast_only(dtype: torch.dtype) -> None:
    q, k, v = draw()
    mixed = (q.to(dtype), k, v.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        y, lse = operator(*mixed)
    assert y.dtype == dtype
    expected_y, expected_lse = operator(*(x.to(dtype) for x in mixed))
    assert torch.equal(y, expected_y)
    assert torch.equal(lse, expected_lse)
    with pytest.raises(RuntimeError, match="dtype"):
        operator(*mixed)


@NARROW
@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
def test_the_function_takes_mixed_dtypes_under_autocast_only(dtype: torch.dtype, backend: str) -> None:
    q, k, v = draw()
    mixed = (q, k.to(dtype), v.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        y = attend(*mixed, GEOMETRY, heads=2, backend=backend)
    assert torch.equal(y, attend(*(x.to(dtype) for x in mixed), GEOMETRY, heads=2, backend=backend))
    with pytest.raises(InvalidProblem, match=r"^k: got .+, expected the dtype of q, torch.float32"):
        attend(*mixed, GEOMETRY, heads=2, backend=backend)


def test_double_precision_is_never_narrowed_nor_mixed() -> None:
    q, k, v = draw()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = attend(q.double(), k.double(), v.double(), GEOMETRY, heads=2, backend="reference")
        assert y.dtype == torch.float64
        with pytest.raises(InvalidProblem, match=r"^k: got torch.bfloat16, expected the dtype of q, torch.float64"):
            attend(q.double(), k, v, GEOMETRY, heads=2)
        with pytest.raises(RuntimeError, match="dtype Double"):
            operator(q.double(), k, v)


@NARROW
def test_gradients_come_in_the_dtypes_of_the_inputs(dtype: torch.dtype) -> None:
    q, k, v = draw()
    mixed = (q.requires_grad_(), k.to(dtype).requires_grad_(), v)
    with torch.autocast("cpu", dtype=dtype):
        y, _ = operator(*mixed)
    dq, dk = torch.autograd.grad(y.sum(), mixed[:2])
    assert (dq.dtype, dk.dtype) == (torch.float32, dtype)
    narrow = [x.detach().to(dtype).requires_grad_() for x in mixed]
    expected = torch.autograd.grad(operator(*narrow)[0].sum(), narrow[:2])
    assert torch.equal(dq, expected[0].float())
    assert torch.equal(dk, expected[1])


@NARROW
@pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])
def test_a_layer_under_autocast_stays_near_float32(kind: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    built = kind(in_channels=4, num_heads=2, in_shape=(12, 24), out_shape=(6, 12), use_qknorm=True, scale=torch.ones(1))
    query, key = torch.randn(2, 4, 6, 12), torch.randn(2, 4, 12, 24)
    with torch.autocast("cpu", dtype=dtype):
        y = built(query, key, key.to(dtype))
    assert y.dtype == dtype
    expected = built(query, key, key)
    assert float((y - expected).detach().norm() / expected.detach().norm()) < 2e-2
    y.float().square().sum().backward()
    for name, parameter in built.named_parameters():
        assert parameter.grad.dtype == torch.float32, name
        assert torch.isfinite(parameter.grad).all(), name
    with pytest.raises(InvalidProblem, match=r"^value: got .+, expected the dtype of the layer"):
        built(query, key, key.to(dtype))


@pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])
def test_autocast_compiles_as_one_graph(kind: type) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    built = kind(in_channels=4, num_heads=2, in_shape=(6, 12), out_shape=(6, 12))

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return built(x)

    x = torch.randn(2, 4, 6, 12)
    y = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, run(x), rtol=2e-2, atol=2e-2)
