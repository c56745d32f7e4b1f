"""The compiled operators on the CPU: values, gradients, opcheck, determinism, and what they refuse."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from attention_cases import EACH_DIRECTION, TOLERANCES, Call, Expected, draw, each_dtype, errors, expected_of

from s2attn import AttentionProblem, NeighborhoodAttentionS2, neighborhood, neighborhood_attention
from s2attn.ops import registration

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
SELF = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=8, channels_out=4)
DOWN = AttentionProblem((12, 24), (6, 12), theta_cutoff=0.5, heads=2, channels_in=8, channels_out=4)
UP = AttentionProblem((6, 12), (12, 36), heads=2, channels_in=8, channels_out=4)
DIRECTIONS = pytest.mark.parametrize("problem", [SELF, DOWN, UP], ids=["self", "down", "up"])
# a forward of these reads keys where they lie
FEW_KEYS = ("few_keys", "few_keys_down", "few_keys_up")


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    registration.load()


@pytest.fixture
def _restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@each_dtype
def test_equals_golden_values_and_gradients(golden_attention: object, dtype: torch.dtype) -> None:
    problem, inputs, expected = golden_attention.problem, golden_attention.inputs, golden_attention.expected
    call = Call(problem, *(inputs[name].to(dtype) for name in ("q", "k", "v", "dy")))
    if dtype != torch.float32:  # golden are the values of inputs that are not rounded
        expected = call.expected().values
    # relative to the values themselves: none of these vanishes
    found = errors(call.got(), Expected.of(expected))
    assert max(found.values()) < TOLERANCES[dtype].relative, found


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 values of a type of two bytes."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


# two longitudes are converted one by one, four of them together; with 16 channels sixteen values of a key are
@pytest.mark.parametrize(("nlon", "channels_in"), [(2, 1), (4, 1), (2, 16)])
@HALVES
def test_every_value_of_a_type_is_read_and_written_as_it_is(dtype: torch.dtype, nlon: int, channels_in: int) -> None:
    values = patterns(dtype)
    channels = values.numel() // nlon
    grid = ((1, nlon), (1, nlon), *2 * ["legendre-gauss"])
    problem = AttentionProblem(*grid, 1e-3, channels_in=channels_in, channels_out=channels)
    call = draw(problem, batch=1, dtype=dtype)._replace(v=values.view(1, 1, nlon, channels))
    call = call._replace(q=torch.zeros_like(call.q))
    arguments = _changed(call, quad_weights=torch.ones(1))  # so that y = v, without rounding
    y, _ = torch.ops.s2attn.neighborhood_attention(*arguments)
    torch.testing.assert_close(y, call.v, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("nlon", [2, 4])
@HALVES
def test_results_are_rounded_to_nearest_even(dtype: torch.dtype, nlon: int) -> None:
    values = patterns(dtype)
    scattered = values[torch.randperm(values.numel(), generator=torch.Generator().manual_seed(5))]
    # halves of neighbors are ties; 16 and 2^119 are half of the last place of the largest values: the first to overflow
    half_a_place = torch.full_like(values, 16.0 if dtype == torch.float16 else 2.0**119)
    a = torch.cat([values, values, values, values])
    b = torch.cat([values.roll(-1), scattered, half_a_place, values / 256])
    # a query north and one south of each key, which is the only one that they see
    problem = AttentionProblem((1, nlon), (2, nlon), *2 * ["legendre-gauss"], 0.7, channels_out=a.numel())
    dy = torch.stack((a, b))[None, :, None].expand(problem.output_tensor_shape(1)).contiguous()
    call = draw(problem, batch=1, dtype=dtype)._replace(dy=dy)
    call = call._replace(q=torch.zeros_like(call.q))
    q, k, v, _, *tables_and_heads = _changed(call)
    # so p = 1, and dv is the sum of both dy
    lse = torch.zeros(1, 2, nlon, 1)
    dv = torch.ops.s2attn.neighborhood_attention_backward(
        dy, q, k, v, torch.zeros_like(dy), lse, torch.ones(1), *tables_and_heads, [False, False, True]
    )[2]
    expected = (a.float() + b.float()).to(dtype)
    assert expected.isinf().any()
    for key in range(nlon):
        torch.testing.assert_close(dv[0, 0, key], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", FEW_KEYS)
def test_large_scores_do_not_overflow(name: str) -> None:
    call = draw(name)
    call = call._replace(q=400 * call.q)
    expected = call.expected()
    y, lse = call.forward()
    assert expected.lse.max() > 500
    torch.testing.assert_close(lse.double(), expected.lse, rtol=1e-5, atol=1e-3)
    assert errors({"y": y}, expected)["y"] < 1e-3


@pytest.mark.parametrize("given", [SELF, DOWN, UP, *FEW_KEYS], ids=["self", "down", "up", *FEW_KEYS])
@each_dtype
@pytest.mark.usefixtures("_restored_threads")
def test_results_are_bitwise_the_same_in_every_run_and_for_every_number_of_threads(
    given: AttentionProblem | str, dtype: torch.dtype
) -> None:
    call = draw(given, dtype=dtype)
    torch.set_num_threads(1)
    expected = (*call.forward(), *call.backward())
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for got, one_thread in zip((*call.forward(), *call.backward()), expected, strict=True):
            assert torch.equal(got, one_thread)


@pytest.mark.parametrize("name", [*EACH_DIRECTION, "wide_values"])
def test_roundings_of_the_saved_lse_and_y_do_not_reach_the_gradients(name: str) -> None:
    call = draw(name)
    dy, q, k, v, y, lse, *rest = call.backward_arguments()
    noise = torch.rand(y.shape, generator=torch.Generator().manual_seed(3)) - 0.5
    inexact = (y * (1.0 + 1e-2 * noise), lse + 1e-2)
    found = torch.ops.s2attn.neighborhood_attention_backward(dy, q, k, v, *inexact, *rest)
    got = dict(zip(("dq", "dk", "dv"), found, strict=True))
    assert max(errors(got, expected_of(name, torch.float32)).values()) < TOLERANCES[torch.float32].relative


@DIRECTIONS
@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_asked_for_are_computed(problem: AttentionProblem, wanted: int) -> None:
    call = draw(problem)
    everything = call.backward()
    only = call.backward(tuple(i == wanted for i in range(3)))
    for i in range(3):
        assert torch.equal(only[i], everything[i]) if i == wanted else only[i].shape == (0,)


@HALVES
def test_autograd_yields_gradients_of_the_dtype_of_its_inputs(dtype: torch.dtype) -> None:
    call = draw(UP, dtype=dtype)
    q, k, v = (x.clone().requires_grad_() for x in (call.q, call.k, call.v))
    y = neighborhood_attention(q, k, v, neighborhood(UP), heads=UP.heads)
    for got, expected in zip(torch.autograd.grad(y, (q, k, v), call.dy), call.backward(), strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, expected)


def test_autograd_asks_for_what_is_needed_and_takes_any_strides() -> None:
    call = draw(DOWN)
    k = call.k.clone().requires_grad_()
    y = neighborhood_attention(call.q, k, call.v, neighborhood(DOWN), heads=DOWN.heads)
    y.sum().backward()  # the gradient of a sum is an expanded scalar: strides 0
    expected = call._replace(dy=torch.ones_like(call.dy)).backward()[1]
    assert torch.equal(k.grad, expected)


def test_the_log_sum_exp_has_no_gradient_and_there_is_no_second_derivative() -> None:
    call = draw(SELF)
    q = call.q.clone().requires_grad_()
    y, lse = call._replace(q=q).forward()
    assert y.requires_grad
    assert not lse.requires_grad
    (dq,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dq.sum().backward()


@DIRECTIONS
def test_compiles_as_one_graph(problem: AttentionProblem) -> None:
    torch._dynamo.reset()
    geometry = neighborhood(problem)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return 2 * neighborhood_attention(q, k, v, geometry, heads=problem.heads)

    call = draw(problem)
    q, k, v = (x.requires_grad_() for x in (call.q, call.k, call.v))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    eager_y, compiled_y = attend(q, k, v), compiled(q, k, v)
    assert torch.equal(eager_y, compiled_y)
    for got, expected in zip(
        torch.autograd.grad(compiled_y, (q, k, v), call.dy),
        torch.autograd.grad(eager_y, (q, k, v), call.dy),
        strict=True,
    ):
        assert torch.equal(got, expected)


def test_the_module_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    module = NeighborhoodAttentionS2(8, (12, 24), (6, 12), num_heads=2)
    x = torch.randn(2, 8, 12, 24)
    query = torch.randn(2, 8, 6, 12)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(query, x, x), module(query, x, x))


def test_large_and_constant_scores_stay_exact() -> None:
    call = draw(SELF)
    q = torch.full_like(call.q, 100.0)
    k = torch.full_like(call.k, 100.0)  # every score is 40000: no exponential of it exists
    v = torch.ones_like(call.v)
    y, lse = call._replace(q=q, k=k, v=v).forward()
    torch.testing.assert_close(y, torch.ones_like(y))
    assert torch.isfinite(lse).all()


def test_a_nan_reaches_every_query_that_sees_it_and_no_other() -> None:
    call = draw(SELF, batch=1)
    k = call.k.clone()
    k[0, 3, 5] = float("nan")
    y, _ = call._replace(k=k).forward()
    clean, _ = call.forward()
    touched = torch.isnan(y).all(-1)
    assert touched[0, 3, 5]
    assert torch.equal(y[~touched], clean[~touched])


def test_calls_at_a_time_and_in_turns_share_no_memory() -> None:
    # packed tensors of more than 1 MiB, whose memory serves one call after another
    calls = [
        draw(AttentionProblem((32, 64), (32, 64), channels_in=channels, channels_out=channels), batch=1)
        for channels in (128, 136)
    ]
    expected = [(*call.forward(), *call.backward()) for call in calls]
    with ThreadPoolExecutor(4) as threads:
        for index, got in enumerate(
            threads.map(lambda i: (*calls[i % 2].forward(), *calls[i % 2].backward()), range(12))
        ):
            assert all(torch.equal(x, y) for x, y in zip(got, expected[index % 2], strict=True))


def _changed(call: Call, **changes: object) -> list[object]:
    names = ("q", "k", "v", "quad_weights", "query_arcs", "query_arc_off", "key_arcs", "key_arc_off", "heads")
    arguments = dict(zip(names, (call.q, call.k, call.v, *call.tables, call.problem.heads), strict=True))
    return list((arguments | changes).values())
