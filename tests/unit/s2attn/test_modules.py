import copy
import inspect
import io
import math
import warnings

import pytest
import torch
from torch import nn

from s2attn import AttentionProblem, InvalidProblem, NeighborhoodAttentionS2, neighborhood
from s2attn.ops.reference import reference_attention


def layer(**changes: object) -> NeighborhoodAttentionS2:
    """A small layer with random biases and gains, so that no term hides behind its initial zero."""
    arguments = {"in_channels": 4, "in_shape": (6, 12), "out_shape": (6, 12), "num_heads": 2, "backend": "reference"}
    torch.manual_seed(3)
    built = NeighborhoodAttentionS2(**(arguments | changes))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.endswith("_weights") or "norm" in name:
                parameter.copy_(torch.randn_like(parameter))
    return built


def by_hand(built: NeighborhoodAttentionS2, *signals: torch.Tensor) -> torch.Tensor:
    """The layer by torch's convolutions and the reference, written from the definition."""
    projected = []
    for name, x in zip("qkv", signals, strict=True):
        y = nn.functional.conv2d(x, getattr(built, f"{name}_weights"), getattr(built, f"{name}_bias"))
        gains = getattr(built, f"{name}_norm_weights", None)
        if gains is not None:
            heads = y.reshape(y.shape[0], built.num_heads, -1, *y.shape[2:])
            rms = (heads.square().mean(dim=2, keepdim=True) + torch.finfo(y.dtype).eps).sqrt()
            y = (heads / rms * (1 + gains)[:, None, None]).reshape(y.shape)
        projected.append((y * built.scale if name == "q" else y).permute(0, 2, 3, 1))
    y, _ = reference_attention(*projected, built.neighborhood, heads=built.num_heads)
    return nn.functional.conv2d(y.permute(0, 3, 1, 2), built.proj_weights, built.proj_bias)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_qknorm": True},
        {"bias": False},
        {"num_heads": 1, "k_channels": 6, "out_channels": 3},
        {"num_heads": 3, "k_channels": 6, "out_channels": 9, "use_qknorm": True, "bias": False},
        {"scale": 0.3},
        {"scale": torch.tensor(0.7)},
        {"theta_cutoff": 1.1, "grid_in": "lobatto", "grid_out": "legendre-gauss"},
    ],
)
def test_self_attention_is_the_sum_of_its_parts(changes: dict) -> None:
    built = layer(**changes)
    x = torch.randn(2, 4, 6, 12)
    y = built(x)
    assert y.shape == (2, built.out_channels, 6, 12)
    assert y.is_contiguous()
    torch.testing.assert_close(y, by_hand(built, x, x, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [((12, 24), (6, 8)), ((5, 4), (9, 12)), ((6, 12), (6, 12))])
def test_cross_attention_between_grids(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    in_shape, out_shape = shapes
    built = layer(in_shape=in_shape, out_shape=out_shape, out_channels=6)
    query, key, value = (torch.randn(2, 4, *shape) for shape in (out_shape, in_shape, in_shape))
    torch.testing.assert_close(built(query, key, value), by_hand(built, query, key, value), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(built(query, key, key), by_hand(built, query, key, key), rtol=1e-5, atol=1e-5)


def test_constructor_arguments_are_the_public_ones_and_a_backend() -> None:
    assert list(inspect.signature(NeighborhoodAttentionS2).parameters) == [
        "in_channels",
        "in_shape",
        "out_shape",
        "grid_in",
        "grid_out",
        "num_heads",
        "scale",
        "use_qknorm",
        "bias",
        "theta_cutoff",
        "k_channels",
        "out_channels",
        "optimized_kernel",
        "backend",
    ]


def test_parameters_have_the_public_names_shapes_and_order() -> None:
    built = layer(k_channels=6, out_channels=8, use_qknorm=True, scale=nn.Parameter(torch.tensor(0.5)))
    assert [(name, tuple(p.shape)) for name, p in built.state_dict().items()] == [
        ("q_weights", (6, 4, 1, 1)),
        ("k_weights", (6, 4, 1, 1)),
        ("v_weights", (8, 4, 1, 1)),
        ("proj_weights", (8, 8, 1, 1)),
        ("scale", ()),
        ("q_bias", (6,)),
        ("k_bias", (6,)),
        ("v_bias", (8,)),
        ("proj_bias", (8,)),
        ("q_norm_weights", (3,)),
        ("k_norm_weights", (3,)),
    ]
    assert set(layer(bias=False).state_dict()) == {"q_weights", "k_weights", "v_weights", "proj_weights"}


def test_without_optimized_kernels_the_reference_runs() -> None:
    assert layer(backend="auto", optimized_kernel=False).backend == "reference"
    assert layer(backend="auto", optimized_kernel=True).backend == "auto"
    with pytest.raises(InvalidProblem, match=r"^optimized_kernel: got False, expected True, or no backend='cpu'"):
        layer(backend="cpu", optimized_kernel=False)


def test_initial_values() -> None:
    torch.manual_seed(0)
    built = NeighborhoodAttentionS2(64, (6, 12), (6, 12), num_heads=4, k_channels=32, out_channels=48, use_qknorm=True)
    bounds = {"q_weights": 6 / 96, "k_weights": 6 / 96, "v_weights": 6 / 112, "proj_weights": 6 / 96}
    for name, variance_bound in bounds.items():
        weights, bound = getattr(built, name).detach(), math.sqrt(variance_bound)
        assert weights.abs().max() <= bound
        assert weights.abs().max() > 0.98 * bound
        assert weights.var() == pytest.approx(bound**2 / 3, rel=0.1)
    for name in ("q_bias", "k_bias", "v_bias", "proj_bias", "q_norm_weights", "k_norm_weights"):
        assert (getattr(built, name) == 0).all()
    assert built.scale == pytest.approx(1 / math.sqrt(8))


def test_every_parameter_gets_a_gradient() -> None:
    built = layer(use_qknorm=True, scale=nn.Parameter(torch.tensor(0.5)))
    x = torch.randn(1, 4, 6, 12, requires_grad=True)
    built(x).square().sum().backward()
    assert dict(built.named_parameters())["scale"] is built.scale
    for name, parameter in built.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert x.grad.abs().sum() > 0


def test_kernels_and_reference_agree() -> None:
    built = layer(in_shape=(5, 4), out_shape=(9, 12), use_qknorm=True)
    query, key = torch.randn(2, 4, 9, 12), torch.randn(2, 4, 5, 4)
    expected = built(query, key, key)
    built.backend = "auto"
    torch.testing.assert_close(built(query, key, key), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("out_shape", [(5, 10), (10, 20)])
def test_compiles_without_a_graph_break(out_shape: tuple[int, int]) -> None:
    torch._dynamo.reset()
    # a cutoff of its own, so that tracing meets a neighborhood whose tensors nobody has made yet
    built = layer(in_shape=(5, 10), out_shape=out_shape, theta_cutoff=0.777, use_qknorm=True, backend="auto")
    query, key = torch.randn(1, 4, *out_shape, requires_grad=True), torch.randn(1, 4, 5, 10)
    traced = torch.compile(built, fullgraph=True, backend="aot_eager")(query, key, key)
    (found,) = torch.autograd.grad(traced.sum(), query)
    eager = built(query, key, key)
    (expected,) = torch.autograd.grad(eager.sum(), query)
    torch.testing.assert_close(traced, eager)
    torch.testing.assert_close(found, expected)


def test_strided_inputs_are_read_by_value() -> None:
    built = layer()
    x = torch.randn(2, 4, 6, 12)
    torch.testing.assert_close(built(x.contiguous(memory_format=torch.channels_last)), built(x), rtol=0, atol=0)


def test_double_precision_runs_on_the_reference() -> None:
    built = layer().double()
    assert built(torch.randn(1, 4, 6, 12, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_lowers_the_layer_as_a_whole(dtype: torch.dtype, backend: str) -> None:
    built = layer(use_qknorm=True, backend=backend)
    x = torch.randn(1, 4, 6, 12)
    with torch.autocast("cpu", dtype=dtype):
        y = built(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), built(x), rtol=0.1, atol=0.1)


def test_copies_and_state_dicts_move() -> None:
    built = layer()
    x = torch.randn(1, 4, 6, 12)
    assert copy.deepcopy(built).neighborhood is built.neighborhood
    buffer = io.BytesIO()
    torch.save(built.state_dict(), buffer)
    buffer.seek(0)
    fresh = NeighborhoodAttentionS2(4, (6, 12), (6, 12), num_heads=2, backend="reference")
    fresh.load_state_dict(torch.load(buffer))
    assert torch.equal(fresh(x), built(x))


def test_empty_neighborhoods_warn_once_and_yield_the_output_bias() -> None:
    arguments = {"in_shape": (6, 16), "out_shape": (13, 16), "grid_in": "legendre-gauss", "grid_out": "legendre-gauss"}
    with pytest.warns(
        UserWarning, match=r"^16 of 208 output points have no input point within theta_cutoff=0\.23"
    ) as seen:
        built = layer(**arguments)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    query, key = torch.randn(1, 4, 13, 16, requires_grad=True), torch.randn(1, 4, 6, 16, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = built(query, key, key)
    empty = (y == built.proj_bias[:, None, None]).all(dim=1)
    assert int(empty.sum()) == 16
    y.sum().backward()
    assert torch.isfinite(query.grad).all()
    assert torch.isfinite(key.grad).all()
    assert (query.grad.permute(0, 2, 3, 1)[empty] == 0).all()


def test_self_attention_needs_one_grid() -> None:
    with pytest.raises(InvalidProblem, match=r"^query: got \(1, 4, 12, 24\), expected \[B, 4, 6, 12\]"):
        layer(out_shape=(12, 24))(torch.zeros(1, 4, 12, 24))


def test_the_geometry_is_shared_and_shown() -> None:
    built = layer(theta_cutoff=0.9)
    assert built.neighborhood is neighborhood(AttentionProblem((6, 12), (6, 12), theta_cutoff=0.9))
    assert "theta_cutoff=0.9" in repr(built)
    assert "backend=reference" in repr(built)
