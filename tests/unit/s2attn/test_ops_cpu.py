"""The compiled operators on the CPU: values, gradients, opcheck, determinism, and what they refuse."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch

from s2attn import AttentionProblem, NeighborhoodAttentionS2, neighborhood, neighborhood_attention
from s2attn.ops import registration
from s2attn.ops.reference import reference_attention


class Tolerance(NamedTuple):
    """Largest errors against float64 on the same inputs, which are rounded already."""

    relative: float  # L2, of a whole tensor
    absolute: float  # of an element of a gradient; those of a query with one key are differences that should vanish
    lse: float  # absolute and relative


TOLERANCES = {
    # sums of float32; rounding of the inputs alone gave 1e-7
    torch.float32: Tolerance(2e-6, 1e-5, 1e-5),
    # outputs are rounded (half a place is 2^-12 to 2^-11), and delta is that of the rounded y; lse is never rounded
    torch.float16: Tolerance(6e-4, 1e-2, 1e-5),
    # the same, with 2^-9 to 2^-8
    torch.bfloat16: Tolerance(5e-3, 6e-2, 1e-5),
}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda dtype: str(dtype).removeprefix("torch."))
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


class Call(NamedTuple):
    """A problem with inputs on the CPU."""

    problem: AttentionProblem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dy: torch.Tensor

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        return tuple(neighborhood(self.problem).tensors("cpu"))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.s2attn.neighborhood_attention(self.q, self.k, self.v, *self.tables, self.problem.heads)

    def backward(self, needs: tuple[bool, bool, bool] = (True, True, True)) -> tuple[torch.Tensor, ...]:
        y, lse = self.forward()
        return torch.ops.s2attn.neighborhood_attention_backward(
            self.dy, self.q, self.k, self.v, y, lse, *self.tables, self.problem.heads, needs
        )

    def expected(self) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Values and gradients in float64 of the inputs as they are, and the log-sum-exp."""
        q, k, v = (x.double().requires_grad_() for x in (self.q, self.k, self.v))
        y, lse = reference_attention(q, k, v, neighborhood(self.problem), heads=self.problem.heads)
        gradients = torch.autograd.grad(y, (q, k, v), self.dy.double())
        return dict(zip(("y", "dq", "dk", "dv"), (y.detach(), *gradients), strict=True)), lse.detach()

    def got(self) -> dict[str, torch.Tensor]:
        return dict(zip(("y", "dq", "dk", "dv"), (self.forward()[0], *self.backward()), strict=True))


def draw(problem: AttentionProblem, batch: int = 2, dtype: torch.dtype = torch.float32) -> Call:
    generator = torch.Generator().manual_seed(7)
    shapes = (
        problem.query_tensor_shape(batch),
        problem.key_tensor_shape(batch),
        problem.value_tensor_shape(batch),
        problem.output_tensor_shape(batch),
    )
    return Call(problem, *(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))


SELF = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=8, channels_out=4)
DOWN = AttentionProblem((12, 24), (6, 12), theta_cutoff=0.5, heads=2, channels_in=8, channels_out=4)
UP = AttentionProblem((6, 12), (12, 36), heads=2, channels_in=8, channels_out=4)
DIRECTIONS = pytest.mark.parametrize("problem", [SELF, DOWN, UP], ids=["self", "down", "up"])


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    registration.load()


@pytest.fixture
def _restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    scale = float(expected.double().norm())
    difference = float((got.double() - expected.double()).norm())
    return difference / scale if scale else difference


@DTYPES
def test_equals_golden_values_and_gradients(golden_attention: object, dtype: torch.dtype) -> None:
    problem, inputs, expected = golden_attention.problem, golden_attention.inputs, golden_attention.expected
    call = Call(problem, *(inputs[name].to(dtype) for name in ("q", "k", "v", "dy")))
    if dtype != torch.float32:  # golden are the values of inputs that are not rounded
        expected, _ = call.expected()
    got = call.got()
    assert all(x.dtype == dtype for x in got.values())
    errors = {name: relative_error(got[name], expected[name]) for name in expected}
    assert max(errors.values()) < TOLERANCES[dtype].relative, errors


@DTYPES
def test_equals_the_reference_on_degenerate_problems(degenerate_problem: AttentionProblem, dtype: torch.dtype) -> None:
    call, tolerance = draw(degenerate_problem, dtype=dtype), TOLERANCES[dtype]
    expected, expected_lse = call.expected()
    y, lse = call.forward()
    assert (y.dtype, lse.dtype) == (dtype, torch.float32)
    assert relative_error(y, expected["y"]) < tolerance.relative
    torch.testing.assert_close(lse.double(), expected_lse, rtol=tolerance.lse, atol=tolerance.lse)
    got = call.got()
    assert all(torch.isfinite(x).all() for x in got.values())
    errors = {name: float((got[name] - expected[name]).abs().max()) for name in ("dq", "dk", "dv")}
    assert max(errors.values()) < tolerance.absolute, errors


def patterns(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 values of a type of two bytes."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


# two longitudes are converted one by one, four of them together
@pytest.mark.parametrize("nlon", [2, 4])
@HALVES
def test_every_value_of_a_type_is_read_and_written_as_it_is(dtype: torch.dtype, nlon: int) -> None:
    values = patterns(dtype)
    channels = values.numel() // nlon
    problem = AttentionProblem((1, nlon), (1, nlon), *2 * ["legendre-gauss"], 1e-3, channels_out=channels)
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
    problem = AttentionProblem((1, nlon), (1, nlon), *2 * ["legendre-gauss"], 3.2, channels_out=a.numel())
    dy = torch.zeros(problem.output_tensor_shape(1), dtype=dtype)
    dy[0, 0, 0], dy[0, 0, 1] = a, b
    call = draw(problem, batch=1, dtype=dtype)._replace(dy=dy)
    call = call._replace(q=torch.zeros_like(call.q))
    q, k, v, _, *tables_and_heads = _changed(call)
    # p = 1 with these statistics, so dv is the sum of all dy
    lse = torch.zeros(1, 1, nlon, 1)
    dv = torch.ops.s2attn.neighborhood_attention_backward(
        dy, q, k, v, torch.zeros_like(dy), lse, torch.ones(1), *tables_and_heads, [False, False, True]
    )[2]
    expected = (a.float() + b.float()).to(dtype)
    assert expected.isinf().any()
    for key in range(nlon):
        torch.testing.assert_close(dv[0, 0, key], expected, rtol=0, atol=0, equal_nan=True)


def test_a_query_without_keys_yields_zero_and_has_no_gradient() -> None:
    problem = AttentionProblem((6, 16), (13, 16), "legendre-gauss", "legendre-gauss", channels_in=4, channels_out=4)
    call = draw(problem)
    y, lse = call.forward()
    empty = torch.isinf(lse[..., 0])
    assert int(empty[0].sum()) == neighborhood(problem).empty_queries == 16
    assert (lse[..., 0][empty] < 0).all()
    assert (y[empty] == 0).all()
    assert (call.backward()[0][empty] == 0).all()


@DIRECTIONS
@DTYPES
def test_opcheck_accepts_the_forward(problem: AttentionProblem, dtype: torch.dtype) -> None:
    call = draw(problem, dtype=dtype)
    inputs = tuple(x.requires_grad_() for x in (call.q, call.k, call.v))
    torch.library.opcheck(torch.ops.s2attn.neighborhood_attention, (*inputs, *call.tables, problem.heads))


@pytest.mark.parametrize("needs", [(True, True, True), (True, False, False), (False, True, False)])
@DTYPES
def test_opcheck_accepts_the_backward(needs: tuple[bool, bool, bool], dtype: torch.dtype) -> None:
    call = draw(UP, dtype=dtype)
    arguments = (call.dy, call.q, call.k, call.v, *call.forward(), *call.tables, UP.heads, list(needs))
    torch.library.opcheck(torch.ops.s2attn.neighborhood_attention_backward, arguments)


@DIRECTIONS
@DTYPES
@pytest.mark.usefixtures("_restored_threads")
def test_results_are_bitwise_the_same_in_every_run_and_for_every_number_of_threads(
    problem: AttentionProblem, dtype: torch.dtype
) -> None:
    call = draw(problem, dtype=dtype)
    torch.set_num_threads(1)
    expected = (*call.forward(), *call.backward())
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for got, one_thread in zip((*call.forward(), *call.backward()), expected, strict=True):
            assert torch.equal(got, one_thread)


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


def test_an_empty_batch_is_no_error() -> None:
    call = draw(SELF, batch=0)
    assert call.forward()[0].shape == (0, 6, 12, 4)
    assert call.backward()[2].shape == (0, 6, 12, 4)


def _changed(call: Call, **changes: object) -> list[object]:
    names = ("q", "k", "v", "quad_weights", "query_arcs", "query_arc_off", "key_arcs", "key_arc_off", "heads")
    arguments = dict(zip(names, (call.q, call.k, call.v, *call.tables, call.problem.heads), strict=True))
    return list((arguments | changes).values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, r"heads: got 0, expected a positive number"),
        ({"heads": 3}, r"q: got 8 channels, expected a multiple of the number of heads, 3"),
        ({"q": torch.zeros(2, 6, 12)}, r"q: got shape \[2, 6, 12\], expected \[batch, nlat, nlon, channels\]"),
        ({"q": torch.zeros(2, 0, 12, 8)}, r"q: got shape .*, expected 1 .. 2\^31 - 1 in dimension 1"),
        (
            {"q": torch.zeros(2, 6, 12, 8).double()},
            r"q: got dtype Double, expected float32, float16 or bfloat16 on a CPU",
        ),
        ({"k": torch.zeros(2, 6, 12, 8).half()}, r"k: got dtype Half, expected Float"),
        ({"q": torch.zeros(2, 6, 12, 8).bfloat16()}, r"k: got dtype Float, expected BFloat16"),
        ({"k": torch.zeros(2, 6, 12, 6)}, r"k: got shape \[2, 6, 12, 6\], expected \[2, 6, 12, 8\]"),
        ({"v": torch.zeros(1, 6, 12, 4)}, r"v: got shape \[1, 6, 12, 4\], expected \[2, 6, 12, 4\]"),
        ({"v": torch.zeros(2, 12, 6, 4).transpose(1, 2)}, r"v: got strides .*, expected a contiguous tensor"),
        ({"q": torch.zeros(2, 6, 7, 8)}, r"q: got 7 longitudes, expected a divisor or a multiple of the 12"),
        ({"quad_weights": torch.zeros(5)}, r"quad_weights: got shape \[5\], expected \[6\]"),
        ({"quad_weights": torch.zeros(6).double()}, r"quad_weights: got dtype Double, expected Float"),
        (
            {"query_arcs": torch.zeros(4, 2, dtype=torch.int32)},
            r"query_arcs: got shape \[4, 2\], expected \[count, 3\]",
        ),
        ({"query_arcs": torch.zeros(4, 3)}, r"query_arcs: got dtype Float, expected Int"),
        ({"query_arc_off": torch.zeros(6, dtype=torch.int32)}, r"query_arc_off: got shape \[6\], expected \[7\]"),
        ({"key_arc_off": torch.zeros(7, dtype=torch.int32)}, r"key_arc_off: got first and last entries 0 and 0"),
    ],
)
def test_a_wrong_argument_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.ops.s2attn.neighborhood_attention(*_changed(draw(SELF), **changes))


@pytest.mark.parametrize("field", range(3))
@pytest.mark.parametrize("value", [-1, 1000])
def test_a_table_that_leads_out_of_the_grid_is_refused(field: int, value: int) -> None:
    call = draw(SELF)
    arcs = call.tables[1].clone()
    arcs[2, field] = value
    with pytest.raises(RuntimeError, match=r"query_arcs: got \(.*\) in row 2, expected latitude < 6"):
        torch.ops.s2attn.neighborhood_attention(*_changed(call, query_arcs=arcs))


def test_offsets_that_decrease_are_refused() -> None:
    call = draw(SELF)
    offsets = call.tables[2].clone()
    offsets[1:3] = offsets[1:3].flip(0)
    with pytest.raises(RuntimeError, match="query_arc_off: got a decrease after row 1, expected ascending offsets"):
        torch.ops.s2attn.neighborhood_attention(*_changed(call, query_arc_off=offsets))


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (0, torch.zeros(2, 6, 12, 8), r"dy: got shape \[2, 6, 12, 8\], expected \[2, 6, 12, 4\]"),
        (0, torch.zeros(2, 6, 12, 4).half(), r"dy: got dtype Half, expected Float"),
        (0, torch.zeros(1).expand(2, 6, 12, 4), r"dy: got strides \[0, 0, 0, 0\]"),
        (4, torch.zeros(2, 6, 12, 2), r"y: got shape \[2, 6, 12, 2\]"),
        (5, torch.zeros(2, 6, 12, 4), r"lse: got shape \[2, 6, 12, 4\], expected \[2, 6, 12, 2\]"),
        (5, torch.zeros(2, 6, 12, 2).double(), r"lse: got dtype Double, expected Float"),
    ],
)
def test_a_wrong_argument_of_the_backward_is_named(position: int, wrong: torch.Tensor, message: str) -> None:
    call = draw(SELF)
    arguments = [call.dy, call.q, call.k, call.v, *call.forward(), *call.tables, SELF.heads, [True] * 3]
    arguments[position] = wrong
    with pytest.raises(RuntimeError, match=message):
        torch.ops.s2attn.neighborhood_attention_backward(*arguments)
