import pytest
import torch

from s2attn import AttentionProblem, neighborhood
from s2attn.benchmarks import exact
from s2attn.benchmarks.exact import (
    ExactAttention,
    bands,
    blocks,
    by_point,
    columns_by_column,
    columns_by_row,
    count_pairs,
)
from s2attn.ops.reference import reference_attention

PROBLEMS = {
    "self": AttentionProblem((8, 16), (8, 16), theta_cutoff=0.6, heads=2, channels_in=4, channels_out=6),
    "down": AttentionProblem((13, 24), (6, 8), "legendre-gauss", "equiangular", 0.6, channels_in=3, channels_out=5),
    "up": AttentionProblem((6, 8), (13, 24), "equiangular", "lobatto", 0.6, heads=2, channels_in=4, channels_out=2),
    "up with empty queries": AttentionProblem((6, 8), (13, 24), theta_cutoff=0.2, channels_in=2, channels_out=2),
}


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS.keys())
def problem(request: pytest.FixtureRequest) -> AttentionProblem:
    return request.param


def test_values_and_gradients_equal_the_reference_under_autograd(
    problem: AttentionProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exact._BLOCK_ELEMENTS, "cpu", 1000)  # many blocks
    geometry = neighborhood(problem)
    torch.manual_seed(3)
    shapes = (problem.query_tensor_shape(2), problem.key_tensor_shape(2), problem.value_tensor_shape(2))
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    y, _ = reference_attention(q, k, v, geometry, heads=problem.heads)
    dy = torch.randn_like(y)
    expected = [by_point(x, problem.heads) for x in torch.autograd.grad(y, (q, k, v), dy)]
    attention = ExactAttention(q.detach(), k.detach(), v.detach(), geometry, heads=problem.heads)
    queries = torch.randperm(problem.nlat_out * problem.nlon_out)[:30]
    keys = torch.randperm(problem.nlat_in * problem.nlon_in)[:20]
    torch.testing.assert_close(attention.forward(queries)[0], by_point(y.detach(), problem.heads)[queries])
    dq, dk, dv = attention.backward(dy, queries, keys)
    torch.testing.assert_close(dq, expected[0][queries])
    torch.testing.assert_close(dk, expected[1][keys])
    torch.testing.assert_close(dv, expected[2][keys])


@pytest.mark.parametrize("fill", [0.0, 0.05, 2.0], ids=["bands only", "as it is", "pairs only"])
def test_bands_and_pairs_give_the_same(problem: AttentionProblem, fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact._BLOCK_ELEMENTS, "cpu", 1000)
    monkeypatch.setattr(exact, "_LEAST_FILL", fill)
    monkeypatch.setattr(exact, "_LEAST_OWNERS", 1)
    geometry = neighborhood(problem)
    torch.manual_seed(4)
    shapes = (problem.query_tensor_shape(2), problem.key_tensor_shape(2), problem.value_tensor_shape(2))
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    y, lse = reference_attention(q, k, v, geometry, heads=problem.heads)
    queries = torch.randperm(problem.nlat_out * problem.nlon_out)
    attention = ExactAttention(q, k, v, geometry, heads=problem.heads)
    got, total = attention.forward(queries)
    torch.testing.assert_close(got, by_point(y, problem.heads)[queries])
    torch.testing.assert_close(total.log(), by_point(lse, problem.heads)[queries].squeeze(-1))
    owners = sum(band.members.numel() for band in bands(attention._keys_of, queries, 100))
    assert owners == 0 if fill > 1 else owners > 0


def test_both_column_lists_hold_the_same_pairs(problem: AttentionProblem) -> None:
    geometry = neighborhood(problem)
    cpu = torch.device("cpu")
    pairs = []
    for columns, grid, reverse in (
        (columns_by_row(geometry.psi, geometry.grids, cpu), geometry.grids.row_shape, False),
        (columns_by_column(geometry.psi, geometry.grids, cpu), geometry.grids.column_shape, True),
    ):
        points = torch.arange(grid[0] * grid[1])
        found = set()
        for block in blocks(columns, points, max_pairs=50):
            ends = (points[block.first + block.owner].tolist(), block.partner.tolist())
            found |= set(zip(*(reversed(ends) if reverse else ends), strict=True))
        pairs.append(found)
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == count_pairs(geometry.psi, geometry.grids)
