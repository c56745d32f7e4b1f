import pytest
import torch

from s2attn import AttentionProblem, InvalidProblem, neighborhood, neighborhood_attention

PROBLEM = AttentionProblem((6, 12), (12, 24), heads=2, channels_in=4, channels_out=6)


def inputs(problem: AttentionProblem = PROBLEM, *, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {"q": problem.query_tensor_shape(2), "k": problem.key_tensor_shape(2), "v": problem.value_tensor_shape(2)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def attend(tensors: dict[str, torch.Tensor], *, heads: int = 2, backend: str = "reference") -> torch.Tensor:
    return neighborhood_attention(**tensors, neighborhood=neighborhood(PROBLEM), heads=heads, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "cpu", "auto"])
def test_every_backend_gives_the_same_contiguous_output(backend: str) -> None:
    tensors = inputs()
    y = attend(tensors, backend=backend)
    assert y.shape == PROBLEM.output_tensor_shape(2)
    assert y.dtype == torch.float32
    assert y.is_contiguous()
    exact = attend({name: x.double() for name, x in tensors.items()})
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_strided_tensors_are_read_by_value(backend: str) -> None:
    tensors = inputs()
    expected = attend(tensors, backend=backend)
    strided = {
        "q": tensors["q"].permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
        "k": torch.stack((tensors["k"], tensors["k"] + 1), dim=-1)[..., 0],
        "v": tensors["v"].flip(1).flip(1).transpose(1, 2).contiguous().transpose(1, 2),
    }
    assert not any(x.is_contiguous() for x in strided.values())
    torch.testing.assert_close(attend(strided, backend=backend), expected, rtol=0, atol=0)
    one = {name: x[:1].expand(2, -1, -1, -1) for name, x in tensors.items()}
    y = attend(one, backend=backend)
    torch.testing.assert_close(y[0], y[1], rtol=0, atol=0)


def test_backends_agree_on_gradients() -> None:
    grads = {}
    for backend in ("cpu", "reference"):
        tensors = {name: x.requires_grad_() for name, x in inputs().items()}
        attend(tensors, backend=backend).square().sum().backward()
        grads[backend] = [x.grad for x in tensors.values()]
    for found, expected in zip(grads["cpu"], grads["reference"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_swapped_grids_are_noticed() -> None:
    tensors = inputs()
    with pytest.raises(InvalidProblem, match=r"^q: got \(2, 6, 12, 4\), expected \[B, 12, 24, channels\]"):
        attend({"q": tensors["k"], "k": tensors["q"], "v": tensors["v"]})
