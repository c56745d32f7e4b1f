"""The compiled operators on CUDA: values, gradients, opcheck, determinism, streams, and what they refuse."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from s2attn import AttentionProblem, neighborhood, neighborhood_attention
from s2attn.backends import choose
from s2attn.ops import registration
from s2attn.ops.reference import reference_attention

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
GOLDEN_CASES = json.loads((GOLDEN / "attention_fp64.json").read_text())

# relative to float64; the lower types round inputs and outputs to 2^-11 and 2^-8
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}

SHAPES = {"self": ((12, 24), (12, 24)), "down": ((12, 24), (8, 8)), "up": ((8, 8), (12, 24))}
DIRECTIONS = pytest.mark.parametrize("direction", SHAPES)


class Call(NamedTuple):
    """A problem with inputs on the GPU."""

    problem: AttentionProblem
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dy: torch.Tensor

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        return tuple(neighborhood(self.problem).tensors(self.q.device))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.s2attn.neighborhood_attention(self.q, self.k, self.v, *self.tables, self.problem.heads)

    def backward(self, needs: tuple[bool, bool, bool] = (True, True, True)) -> tuple[torch.Tensor, ...]:
        y, lse = self.forward()
        return torch.ops.s2attn.neighborhood_attention_backward(
            self.dy, self.q, self.k, self.v, y, lse, *self.tables, self.problem.heads, needs
        )

    def expected(self) -> dict[str, torch.Tensor]:
        """Values and gradients in float64 on the CPU, of the inputs as they are."""
        q, k, v = (x.cpu().double().requires_grad_() for x in (self.q, self.k, self.v))
        y, _ = reference_attention(q, k, v, neighborhood(self.problem), heads=self.problem.heads)
        gradients = torch.autograd.grad(y, (q, k, v), self.dy.cpu().double())
        return dict(zip(("y", "dq", "dk", "dv"), (y.detach(), *gradients), strict=True))

    def got(self) -> dict[str, torch.Tensor]:
        return dict(zip(("y", "dq", "dk", "dv"), (self.forward()[0], *self.backward()), strict=True))


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    assert torch.cuda.is_available(), "these tests need a GPU"
    registration.load("cuda")


def draw(problem: AttentionProblem, dtype: torch.dtype = torch.float32, batch: int = 2) -> Call:
    generator = torch.Generator().manual_seed(11)
    shapes = (
        problem.query_tensor_shape(batch),
        problem.key_tensor_shape(batch),
        problem.value_tensor_shape(batch),
        problem.output_tensor_shape(batch),
    )
    q, k, v, dy = (torch.randn(shape, generator=generator) for shape in shapes)
    # scores of about 1 for any number of channels
    q = q * (problem.channels_in // problem.heads) ** -0.5
    return Call(problem, *(x.to("cuda", dtype) for x in (q, k, v, dy)))


def make(direction: str, channels: int = 8, channels_out: int | None = None, heads: int = 2) -> AttentionProblem:
    return AttentionProblem(
        *SHAPES[direction],
        theta_cutoff=0.6,
        heads=heads,
        channels_in=heads * channels,
        channels_out=heads * (channels_out or channels),
    )


def errors(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    return {
        name: float((got[name].cpu().double() - expected[name]).norm() / expected[name].norm()) for name in expected
    }


def formed(shape: tuple[int, ...], a: float, b: float) -> torch.Tensor:
    """Golden input: a fixed formula of the flat index."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return torch.tensor(np.sin(a * i + np.mod(b * i * i, 7.0)), dtype=torch.float32, device="cuda").reshape(shape)


@pytest.mark.parametrize("entry", GOLDEN_CASES, ids=[entry["name"] for entry in GOLDEN_CASES])
def test_equals_golden_values_and_gradients(entry: dict) -> None:
    problem = AttentionProblem(
        tuple(entry["in_shape"]),
        tuple(entry["out_shape"]),
        entry["grid"],
        entry["grid"],
        entry["theta_cutoff"],
        heads=entry["heads"],
        channels_in=entry["channels"],
        channels_out=entry["channels_out"],
    )
    batch = entry["batch"]
    call = Call(
        problem,
        formed(problem.query_tensor_shape(batch), 1.3, 0.011),
        formed(problem.key_tensor_shape(batch), 0.7, 0.013),
        formed(problem.value_tensor_shape(batch), 1.1, 0.017),
        formed(problem.output_tensor_shape(batch), 0.9, 0.019),
    )
    got = call.got()
    with np.load(GOLDEN / "attention_fp64.npz") as arrays:
        expected = {name: torch.tensor(arrays[f"{entry['name']}/{name}"]).reshape(got[name].shape) for name in got}
    assert max(errors(got, expected).values()) < TOLERANCE[torch.float32], errors(got, expected)


@DIRECTIONS
@pytest.mark.parametrize("channels", [1, 6, 8, 16, 32, 33, 64, 96, 128, 130, 256])
def test_any_number_of_channels_in_every_direction(direction: str, channels: int) -> None:
    call = draw(make(direction, channels))
    found = errors(call.got(), call.expected())
    assert max(found.values()) < TOLERANCE[torch.float32], found


@DIRECTIONS
@pytest.mark.parametrize(("channels", "channels_out"), [(4, 64), (128, 8), (3, 70), (300, 2)])
def test_values_may_have_other_channels_than_keys(direction: str, channels: int, channels_out: int) -> None:
    call = draw(make(direction, channels, channels_out, heads=3))
    found = errors(call.got(), call.expected())
    assert max(found.values()) < TOLERANCE[torch.float32], found


@DIRECTIONS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [6, 32, 200])
def test_lower_precision_computes_in_float32(direction: str, dtype: torch.dtype, channels: int) -> None:
    call = draw(make(direction, channels), dtype)
    found = errors(call.got(), call.expected())
    assert max(found.values()) < TOLERANCE[dtype], found
    assert all(got.dtype == dtype for got in call.got().values())


def test_more_channels_than_the_default_shared_memory_holds() -> None:
    problem = AttentionProblem((3, 4), (3, 4), channels_in=4000, channels_out=4000)
    call = draw(problem, batch=1)
    found = errors(call.got(), call.expected())
    assert max(found.values()) < TOLERANCE[torch.float32], found


def test_more_channels_than_any_shared_memory_holds_is_an_error() -> None:
    call = draw(AttentionProblem((3, 4), (3, 4), channels_in=40000, channels_out=40000), batch=1)
    with pytest.raises(ValueError, match="channels per head: got 320000 bytes of sums per point, expected at most"):
        call.forward()


def test_tensors_that_begin_anywhere_are_read_right() -> None:
    call = draw(make("self", 16))
    shifted = call._replace(
        **{
            name: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
            for name, x in (("q", call.q), ("k", call.k), ("v", call.v), ("dy", call.dy))
        }
    )
    assert shifted.q.data_ptr() % 16
    found = errors(shifted.got(), call.expected())
    assert max(found.values()) < TOLERANCE[torch.float32], found


@pytest.mark.parametrize(
    "problem",
    [
        AttentionProblem((1, 8), (1, 8), "legendre-gauss", "legendre-gauss", 0.9),
        AttentionProblem((4, 1), (4, 1), theta_cutoff=1.2, channels_in=3, channels_out=2),
        AttentionProblem((8, 16), (8, 16), theta_cutoff=1.4, channels_in=5, channels_out=3),
        AttentionProblem((5, 3), (7, 9), heads=3, channels_in=6, channels_out=33),
        AttentionProblem((5, 4), (9, 12), theta_cutoff=3.141592653589793, channels_in=4, channels_out=4),
    ],
    ids=["one_latitude", "one_longitude", "wrapping_arc", "odd_upsample", "whole_sphere"],
)
def test_degenerate_problems(problem: AttentionProblem) -> None:
    call = draw(problem)
    got, expected = call.got(), call.expected()
    for name in got:
        assert float((got[name].cpu() - expected[name]).abs().max()) < 1e-5, name


def test_a_query_without_keys_yields_zero_and_has_no_gradient() -> None:
    problem = AttentionProblem((6, 16), (13, 16), "legendre-gauss", "legendre-gauss", channels_in=4, channels_out=4)
    call = draw(problem)
    y, lse = call.forward()
    empty = torch.isinf(lse[..., 0])
    assert int(empty[0].sum()) == 16
    assert (y[empty] == 0).all()
    dq, dk, dv = call.backward()
    assert (dq[empty] == 0).all()
    assert all(torch.isfinite(gradient).all() for gradient in (dq, dk, dv))


@DIRECTIONS
@pytest.mark.parametrize("channels", [6, 32, 130])
def test_results_are_bitwise_the_same_in_every_run(direction: str, channels: int) -> None:
    call = draw(make(direction, channels))
    first = call.got()
    for _ in range(3):
        assert all(torch.equal(first[name], again) for name, again in call.got().items())


@DIRECTIONS
@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_asked_for_are_computed(direction: str, wanted: int) -> None:
    call = draw(make(direction))
    everything = call.backward()
    only = call.backward(tuple(i == wanted for i in range(3)))
    for i in range(3):
        assert torch.equal(only[i], everything[i]) if i == wanted else only[i].shape == (0,)


@DIRECTIONS
def test_opcheck_accepts_both_operators(direction: str) -> None:
    call = draw(make(direction))
    y, lse = call.forward()
    heads = call.problem.heads
    backward = (call.dy, call.q, call.k, call.v, y, lse, *call.tables, heads, [True, True, True])
    torch.library.opcheck(torch.ops.s2attn.neighborhood_attention_backward, backward)
    inputs = tuple(x.requires_grad_() for x in (call.q, call.k, call.v))
    torch.library.opcheck(torch.ops.s2attn.neighborhood_attention, (*inputs, *call.tables, heads))


@DIRECTIONS
def test_the_public_function_runs_the_cuda_kernels(direction: str) -> None:
    call = draw(make(direction))
    assert choose(call.q) == "cuda"
    q, k, v = (x.requires_grad_() for x in (call.q, call.k, call.v))
    y = neighborhood_attention(q, k, v, neighborhood(call.problem), heads=call.problem.heads)
    y.backward(call.dy)
    got = {"y": y.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    assert max(errors(got, call._replace(q=q.detach(), k=k.detach(), v=v.detach()).expected()).values()) < 2e-6


def test_the_build_is_recorded_and_is_for_this_gpu() -> None:
    record = registration.loaded()["cuda"]
    major, minor = torch.cuda.get_device_capability()
    assert record.devices == ("cuda",)
    assert f"sm_{major}{minor}" in record.arch
    # The CUDA runtime that is linked in brings code of its own for older architectures.
    assert set(record.arch) <= set(record.resources["machine_code"])
    kernels = record.resources["kernels"]
    assert {kernel["arch"] for kernel in kernels} == set(record.arch)
    assert len(kernels) == 66
    assert not any(kernel["spill_store_bytes"] or kernel["spill_load_bytes"] for kernel in kernels)


def test_kernels_run_on_the_current_stream() -> None:
    call = draw(make("self", 64))
    expected = call.forward()[0]
    stream = torch.cuda.Stream()
    late = torch.zeros_like(call.q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(call.q)  # on another stream, the kernel would read zeros
        y, _ = call._replace(q=late).forward()
    stream.synchronize()
    assert torch.equal(y, expected)


def test_a_graph_captures_forward_and_backward() -> None:
    call = draw(make("up", 32))
    expected = call.got()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call.got()
    for tensor in captured.values():
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(captured[name], expected[name]) for name in expected)


def test_wrong_arguments_are_named() -> None:
    call = draw(make("self"))
    heads = call.problem.heads
    forward = torch.ops.s2attn.neighborhood_attention
    with pytest.raises(RuntimeError, match="q: got dtype Double, expected float32, float16 or bfloat16 on CUDA"):
        forward(call.q.double(), call.k, call.v, *call.tables, heads)
    with pytest.raises(RuntimeError, match="k: got dtype Half, expected Float"):
        forward(call.q, call.k.half(), call.v, *call.tables, heads)
    weights, *tables = call.tables
    with pytest.raises(RuntimeError, match="quad_weights: got device cpu, expected that of q, cuda:0"):
        forward(call.q, call.k, call.v, weights.cpu(), *tables, heads)
