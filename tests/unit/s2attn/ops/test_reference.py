import numpy as np
import pytest
import torch
from attention_cases import CASES, DEGENERATE, ORDINARY
from hypothesis import given
from hypothesis import strategies as st

from s2attn import AttentionProblem, neighborhood
from s2attn.geometry import GRIDS
from s2attn.ops import reference
from s2attn.ops.reference import query_columns, reference_attention


def inputs(problem: AttentionProblem, *, batch: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (problem.query_tensor_shape(batch), problem.key_tensor_shape(batch), problem.value_tensor_shape(batch))
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def dense_attention(problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Masked softmax over all input points; the mask comes from psi's definition."""
    built, grids = neighborhood(problem), problem.grids
    mask = torch.zeros(*problem.out_shape, *problem.in_shape, dtype=torch.bool)
    rows = np.repeat(np.arange(grids.row_shape[0]), np.diff(built.psi.row_off))
    lat, lon = np.divmod(built.psi.col_idx, grids.column_shape[1])
    for shift in range(grids.row_shape[1]):
        moved = (lon + shift * grids.pscale) % grids.column_shape[1]
        if problem.direction == "downsample":
            mask[rows, shift, lat, moved] = True
        else:
            mask[lat, moved, rows, shift] = True
    mask = mask.reshape(problem.nlat_out * problem.nlon_out, -1)
    heads = problem.heads
    q, k, v = (x.reshape(x.shape[0], -1, heads, x.shape[-1] // heads).transpose(1, 2) for x in (q, k, v))
    log_weights = torch.tensor(built.quad_weights).log().repeat_interleave(problem.nlon_in)
    scores = (q @ k.transpose(-1, -2) + log_weights).masked_fill(~mask, -torch.inf)
    p = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)
    return (p @ v).transpose(1, 2).reshape(q.shape[0], *problem.out_shape, -1)


def test_equals_golden_values_and_gradients(golden_attention: object) -> None:
    problem, given_, expected = golden_attention.problem, golden_attention.inputs, golden_attention.expected
    q, k, v = (given_[name].clone().requires_grad_() for name in "qkv")
    y, _ = reference_attention(q, k, v, neighborhood(problem), heads=problem.heads)
    y.backward(given_["dy"])
    for name, found in {"y": y, "dq": q.grad, "dk": k.grad, "dv": v.grad}.items():
        error = (found - expected[name]).norm() / expected[name].norm()
        assert error < 2e-7, name


@pytest.mark.parametrize("name", DEGENERATE | ORDINARY)
def test_equals_a_dense_masked_softmax(name: str) -> None:
    problem, batch = CASES[name]
    q, k, v = inputs(problem, batch=batch)
    upstream = torch.randn(
        problem.output_tensor_shape(batch), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    y, lse = reference_attention(q, k, v, neighborhood(problem), heads=problem.heads)
    found = torch.autograd.grad(y, (q, k, v), upstream)
    empty = torch.isinf(lse)
    assert int(empty.sum()) == batch * problem.heads * neighborhood(problem).empty_queries
    assert (lse[empty] < 0).all()
    dense = dense_attention(problem, q, k, v)
    if empty.any():  # the dense gradient is NaN there; the reference must say 0
        empty_points = empty.all(dim=-1)
        assert (y[empty_points] == 0).all()
        assert (found[0][empty_points] == 0).all()
        assert all(torch.isfinite(gradient).all() for gradient in found)
        torch.testing.assert_close(y[~empty_points], dense[~empty_points], rtol=1e-12, atol=1e-13)
        return
    torch.testing.assert_close(y, dense, rtol=1e-12, atol=1e-13)
    for gradient, expected in zip(found, torch.autograd.grad(dense, (q, k, v), upstream), strict=True):
        # sums that cancel are rounded like the large ones beside them
        atol = 3e-14 * float(expected.abs().max())
        torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=max(atol, 1e-13))


def test_gradients_by_finite_differences() -> None:
    problem = AttentionProblem((3, 2), (4, 4), theta_cutoff=1.1, heads=2, channels_in=2, channels_out=2)
    q, k, v = inputs(problem)
    built = neighborhood(problem)
    assert torch.autograd.gradcheck(lambda *x: reference_attention(*x, built, heads=2), (q, k, v))


@given(grid=st.sampled_from(GRIDS), pscale=st.integers(1, 4), upsample=st.booleans(), constant=st.floats(-1e3, 1e3))
def test_constant_values_give_constant_output(grid: str, pscale: int, upsample: bool, constant: float) -> None:
    shapes = [(6, 4 * pscale), (4, 4)]
    in_shape, out_shape = reversed(shapes) if upsample else shapes
    problem = AttentionProblem(in_shape, out_shape, grid, grid, 1.5, heads=2, channels_in=4, channels_out=2)
    q, k, v = inputs(problem)
    y, _ = reference_attention(q, k, torch.full_like(v, constant), neighborhood(problem), heads=2)
    torch.testing.assert_close(y, torch.full_like(y, constant), rtol=1e-12, atol=1e-12)


@given(pscale=st.integers(1, 4), upsample=st.booleans(), shift=st.integers(1, 4), cutoff=st.floats(0.2, 3.3))
def test_turning_the_sphere_turns_the_output(pscale: int, upsample: bool, shift: int, cutoff: float) -> None:
    fine, coarse = (7, 5 * pscale), (5, 5)
    in_shape, out_shape = (coarse, fine) if upsample else (fine, coarse)
    problem = AttentionProblem(in_shape, out_shape, theta_cutoff=cutoff, channels_in=3, channels_out=2)
    q, k, v = inputs(problem)
    built = neighborhood(problem)
    by_in, by_out = shift * problem.nlon_in // 5, shift * problem.nlon_out // 5
    turned, _ = reference_attention(q.roll(by_out, 2), k.roll(by_in, 2), v.roll(by_in, 2), built)
    torch.testing.assert_close(turned, reference_attention(q, k, v, built)[0].roll(by_out, 2), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shapes", [((6, 8), (6, 8)), ((6, 8), (5, 4)), ((5, 4), (6, 8))])
def test_a_cutoff_of_pi_is_global_attention(shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    problem = AttentionProblem(*shapes, theta_cutoff=np.pi, heads=2, channels_in=6, channels_out=4)
    q, k, v = inputs(problem, batch=2)
    y, _ = reference_attention(q, k, v, neighborhood(problem), heads=2)
    weights = torch.tensor(neighborhood(problem).quad_weights).log().repeat_interleave(problem.nlon_in)
    split = [x.reshape(2, -1, 2, x.shape[-1] // 2).transpose(1, 2) for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *split, attn_mask=weights.expand(problem.nlat_out * problem.nlon_out, -1), scale=1.0
    )
    torch.testing.assert_close(y, expected.transpose(1, 2).reshape(y.shape), rtol=1e-12, atol=1e-13)


def test_log_sum_exp_is_that_of_the_weighted_scores() -> None:
    problem = AttentionProblem((4, 6), (4, 6), theta_cutoff=np.pi, channels_in=2, channels_out=1)
    q, k, v = inputs(problem)
    _, lse = reference_attention(q, k, v, neighborhood(problem))
    weights = torch.tensor(neighborhood(problem).quad_weights)
    scores = torch.einsum("bhwc,bijc->bhwij", q, k)
    torch.testing.assert_close(lse[..., 0], (scores.exp() * weights[:, None]).sum((-2, -1)).log())


def test_large_scores_do_not_overflow() -> None:
    problem = AttentionProblem((6, 12), (6, 12), channels_in=4, channels_out=4)
    q, k, v = (x.detach().float() for x in inputs(problem))
    y, lse = reference_attention(1e4 * q, k, v, neighborhood(problem))
    assert torch.isfinite(y).all()
    assert torch.isfinite(lse).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    problem = AttentionProblem((6, 12), (12, 24), channels_in=4, channels_out=4)
    q, k, v = (x.detach().to(dtype) for x in inputs(problem))
    y, lse = reference_attention(q, k, v, neighborhood(problem))
    assert (y.dtype, lse.dtype) == (dtype, torch.float32)
    exact, _ = reference_attention(q.double(), k.double(), v.double(), neighborhood(problem))
    torch.testing.assert_close(y, exact.to(dtype))


def test_blocks_of_longitudes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = AttentionProblem((9, 12), (5, 12), heads=2, channels_in=4, channels_out=6)
    q, k, v = inputs(problem)
    whole = reference_attention(q, k, v, neighborhood(problem), heads=2)
    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 600)
    for block, expected in zip(reference_attention(q, k, v, neighborhood(problem), heads=2), whole, strict=True):
        torch.testing.assert_close(block, expected, rtol=1e-14, atol=1e-14)


def test_an_empty_batch_stays_empty() -> None:
    problem = AttentionProblem((6, 4), (12, 8), heads=2, channels_in=4, channels_out=6)
    y, lse = reference_attention(*inputs(problem, batch=0), neighborhood(problem), heads=2)
    assert (y.shape, lse.shape) == ((0, 12, 8, 6), (0, 12, 8, 2))


def test_columns_of_upsampling_cover_every_pair_once() -> None:
    problem = AttentionProblem((5, 4), (9, 12))
    built = neighborhood(problem)
    columns = query_columns(built.psi, problem.grids)
    assert (columns.residues, columns.stride) == (3, 1)
    assert columns.row_off.shape == (9 * 3 + 1,)
    assert columns.row_off[-1] == built.psi.col_idx.size
