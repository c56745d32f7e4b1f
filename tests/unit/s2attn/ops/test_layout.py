import itertools

import pytest
import torch

from s2attn import InvalidProblem
from s2attn.ops.layout import to_channels_first, to_channels_last

# extents of 1 make torch call almost any stride contiguous
SHAPES = list(itertools.product((1, 2), (1, 3), (1, 4), (1, 5)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_element_moves_and_none_changes(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    batch, channels, nlat, nlon = shape
    x = torch.randn(shape).to(dtype)
    for start in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        last = to_channels_last(start)
        assert last.shape == (batch, nlat, nlon, channels)
        assert last.is_contiguous()
        for b, c, h, w in itertools.product(*map(range, shape)):
            assert last[b, h, w, c].item() == x[b, c, h, w].item()
        assert torch.equal(last.reshape(-1), x.permute(0, 2, 3, 1).reshape(-1))
        back = to_channels_first(last)
        assert back.is_contiguous()
        assert torch.equal(back, x)


def test_gradients_move_back() -> None:
    x = torch.randn(2, 3, 4, 5, requires_grad=True)
    upstream = torch.randn(2, 4, 5, 3)
    to_channels_last(x).backward(upstream)
    assert torch.equal(x.grad, upstream.permute(0, 3, 1, 2))


@pytest.mark.parametrize("move", [to_channels_last, to_channels_first])
def test_other_dimensions_are_refused(move: object) -> None:
    with pytest.raises(InvalidProblem, match=r"^x: got \(2, 3, 4\), expected four dimensions"):
        move(torch.zeros(2, 3, 4))  # type: ignore[operator]
