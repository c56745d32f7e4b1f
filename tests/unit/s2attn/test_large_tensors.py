"""More elements than 32 bits count: right where memory allows it, refused where a kernel's own counts would not fit.

The backward and tensors that are all that large are tried on a GPU (tests/gpu/test_large_tensors_cuda.py).
"""

import numpy as np
import pytest
import torch

from s2attn import AttentionProblem, AttentionS2, InvalidProblem, neighborhood
from s2attn.ops import registration


def test_queries_beyond_the_range_of_32_bits_are_read_right() -> None:
    registration.load()
    channels = 535_000
    # keys at the poles, and queries that see them near the poles only: the last ones lie beyond 2^31 elements
    problem = AttentionProblem((2, 16), (256, 16), "equiangular", "legendre-gauss", 0.07, channels_in=channels)
    # memory of zeros takes no room until it is written to: a dozen MB of these 4.4 GB are
    zeros = np.zeros(problem.query_tensor_shape(1), dtype=np.float16)
    q = torch.from_numpy(zeros)
    assert q[:, :250].numel() < 2**31 < q[:, :251].numel()
    generator = torch.Generator().manual_seed(2)
    k = torch.randn(problem.key_tensor_shape(1), generator=generator).half()
    v = torch.randn(problem.value_tensor_shape(1), generator=generator).half()
    for row in (0, 251, 255):
        q[0, row] = torch.randn(16, channels, generator=generator) * channels**-0.5
    y, _ = torch.ops.s2attn.neighborhood_attention(q, k, v, *neighborhood(problem).tensors("cpu"), 1)
    for row, pole in ((0, 0), (1, 0), (251, 1), (254, 1), (255, 1)):
        p = torch.softmax(q[0, row].double() @ k[0, pole].double().T, dim=-1)
        torch.testing.assert_close(y[0, row].double(), p @ v[0, pole].double(), rtol=2e-3, atol=2e-3)
    assert (y[0, 128] == 0).all()


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_extents_beyond_the_counts_of_a_kernel_are_refused(axis: int) -> None:
    registration.load()
    shape = [1, 1, 1, 1]
    shape[axis] = 2**28 + 1
    q = torch.zeros(1, dtype=torch.float16).expand(shape)  # a single element in memory
    tables = neighborhood(AttentionProblem((1, 1), (1, 1), *2 * ["legendre-gauss"], 1.0)).tensors("cpu")
    with pytest.raises(RuntimeError, match=rf"q: got shape .+, expected 1 .. 2\^28 in dimension {axis}"):
        torch.ops.s2attn.neighborhood_attention(q, q, q, *tables, 1)


@pytest.mark.parametrize("shape", [(2**28 + 1, 4), (4, 2**28 + 1)])
def test_grids_beyond_the_counts_of_a_kernel_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidProblem, match=r"^in_shape: got .+, expected extents up to 2\^28"):
        AttentionProblem(shape, shape)
    with pytest.raises(InvalidProblem, match=r"^in_shape: got .+, expected extents up to 2\^28"):
        AttentionS2(4, 1, shape, shape)
