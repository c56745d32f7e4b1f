"""The global layer: the local one without a cutoff, with the public layer's arguments and parameters."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from s2attn import AttentionS2, NeighborhoodAttentionS2


def layer(**changes: object) -> AttentionS2:
    """A small layer with random biases and gains, so that no term hides behind its initial zero."""
    arguments = {"in_channels": 4, "num_heads": 2, "in_shape": (6, 12), "out_shape": (6, 12)}
    torch.manual_seed(3)
    built = AttentionS2(**(arguments | changes))
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if not name.endswith("_weights") or "norm" in name:
                parameter.copy_(torch.randn_like(parameter))
    return built


def local_twin(built: AttentionS2, **changes: object) -> NeighborhoodAttentionS2:
    """The reference with a cutoff of the whole sphere and the same parameters."""
    twin = NeighborhoodAttentionS2(
        built.in_channels,
        built.in_shape,
        built.out_shape,
        built.grid_in,
        built.grid_out,
        built.num_heads,
        theta_cutoff=math.pi,
        k_channels=built.k_channels,
        out_channels=built.out_channels,
        backend="reference",
        **changes,
    )
    twin.load_state_dict(built.state_dict())
    return twin.double()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_qknorm": True},
        {"bias": False},
        {"k_channels": 6, "out_channels": 2, "use_qknorm": True},
        {"scale": 0.3},
        {"scale": torch.tensor([0.7])},
        {"in_shape": (12, 24), "grid_in": "lobatto", "grid_out": "legendre-gauss"},
        {"in_shape": (5, 4), "grid_in": "legendre-gauss"},
    ],
)
def test_equals_the_local_layer_over_the_whole_sphere(changes: dict) -> None:
    built = layer(**changes)
    twin = local_twin(built, **{name: changes[name] for name in ("use_qknorm", "bias", "scale") if name in changes})
    signals = [torch.randn(2, 4, *shape) for shape in (built.out_shape, built.in_shape, built.in_shape)]
    exact = [x.double().requires_grad_() for x in signals]
    rounded = [x.requires_grad_() for x in signals]
    y, expected = built(*rounded), twin(*exact)
    assert y.shape == (2, built.out_channels, *built.out_shape)
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    y.square().sum().backward()
    expected.square().sum().backward()
    for x, wanted in zip(rounded, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)
    for (name, parameter), wanted in zip(
        sorted(built.named_parameters()), sorted(twin.named_parameters()), strict=True
    ):
        torch.testing.assert_close(parameter.grad.double(), wanted[1].grad, rtol=1e-4, atol=1e-3, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_that_was_in_a_half_type_has_its_weights_still(dtype: torch.dtype) -> None:
    built = layer(in_shape=(12, 24), grid_in="lobatto")
    there_and_back = copy.deepcopy(built).to(dtype).float()
    there_and_back.load_state_dict(built.state_dict())
    signals = [torch.randn(1, 4, *shape) for shape in (built.out_shape, built.in_shape, built.in_shape)]
    torch.testing.assert_close(there_and_back(*signals), built(*signals), rtol=1e-6, atol=1e-6)


def test_constructor_arguments_are_the_public_ones() -> None:
    assert list(inspect.signature(AttentionS2).parameters) == [
        "in_channels",
        "num_heads",
        "in_shape",
        "out_shape",
        "grid_in",
        "grid_out",
        "scale",
        "use_qknorm",
        "bias",
        "k_channels",
        "out_channels",
        "drop_rate",
    ]


def test_parameters_have_the_public_names_shapes_and_order() -> None:
    built = layer(k_channels=6, out_channels=8, use_qknorm=True, scale=nn.Parameter(torch.tensor(0.5)))
    assert [(name, tuple(p.shape)) for name, p in built.state_dict().items()] == [
        ("scale", ()),
        ("q_weights", (6, 4, 1, 1)),
        ("k_weights", (6, 4, 1, 1)),
        ("v_weights", (8, 4, 1, 1)),
        ("proj_weights", (8, 8, 1, 1)),
        ("q_bias", (6,)),
        ("k_bias", (6,)),
        ("v_bias", (8,)),
        ("proj_bias", (8,)),
        ("q_norm_weights", (3,)),
        ("k_norm_weights", (3,)),
    ]
    assert set(layer(bias=False).state_dict()) == {"q_weights", "k_weights", "v_weights", "proj_weights"}
    layer(k_channels=6, out_channels=8, use_qknorm=True, scale=nn.Parameter(torch.tensor(1.0))).load_state_dict(
        built.state_dict(), strict=True
    )


def test_self_attention_is_attention_to_oneself() -> None:
    built = layer()
    x = torch.randn(2, 4, 6, 12)
    torch.testing.assert_close(built(x), built(x, x, x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float16, 5e-3), (torch.bfloat16, 3e-2)], ids=str
)
def test_a_layer_in_another_dtype_stays_near_float64(dtype: torch.dtype, tolerance: float) -> None:
    built = layer(use_qknorm=True)
    converted = copy.deepcopy(built).to(dtype)
    x = torch.randn(2, 4, 6, 12).to(dtype)
    with torch.no_grad():
        y = converted(x)
        expected = local_twin(built, use_qknorm=True)(x.double())
    assert y.dtype == dtype
    assert float((y.double() - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("training", [True, False])
def test_stays_in_the_fused_kernel(training: bool) -> None:
    built = layer().train(training)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where it cannot run
        built(torch.randn(1, 4, 6, 12)).sum().backward()


def test_drops_only_while_training() -> None:
    built = layer(drop_rate=0.5)
    x = torch.randn(1, 4, 6, 12)
    assert not torch.equal(built(x), built(x))
    built.eval()
    torch.testing.assert_close(built(x), layer()(x), rtol=0, atol=0)


def test_the_weights_follow_the_layer_and_stay_out_of_its_state() -> None:
    built = layer()
    assert not any("log_weight" in name for name in built.state_dict())
    assert copy.deepcopy(built).to("meta")(torch.zeros(1, 4, 6, 12, device="meta")).shape == (1, 4, 6, 12)
    assert "drop_rate=0.0" in repr(built)
