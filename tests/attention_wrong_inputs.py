"""Everything a caller can get wrong, at the level of operators, function and layers, on any device.

A wrong call raises an error that names the argument, what was got and what is expected, and leaves the process able to
run the next call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_cases import Call, draw
from torch import nn

from s2attn import (
    AttentionProblem,
    AttentionS2,
    InvalidProblem,
    NeighborhoodAttentionS2,
    UnsupportedProblem,
    neighborhood,
    neighborhood_attention,
)
from s2attn.ops import registration

PROBLEM = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=8, channels_out=4)
GEOMETRY = neighborhood(PROBLEM)
OPERANDS = ("q", "k", "v", "quad_weights", "query_arcs", "query_arc_off", "key_arcs", "key_arc_off", "heads")
LAYERS = pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])

Arguments = dict[str, Any]
Change = Callable[[Arguments, str], Any]  # from the right arguments and a device other than theirs to a wrong value


def changed(x: torch.Tensor, index: Any, value: int) -> torch.Tensor:
    x = x.clone()
    x[index] = value
    return x


# (argument to change, its wrong value, what the error says)
OPERATOR: list[tuple[str, Change, str]] = [
    ("heads", lambda a, _: 0, r"heads: got 0, expected a positive number"),
    ("heads", lambda a, _: -2, r"heads: got -2, expected a positive number"),
    ("heads", lambda a, _: 3, r"q: got 8 channels, expected a multiple of the number of heads, 3"),
    ("heads", lambda a, _: 2**40, r"q: got 8 channels, expected a multiple of the number of heads, 1099511627776"),
    ("heads", lambda a, _: 2.0, r"Expected a value of type 'int' for argument 'heads' but instead found type 'float'"),
    ("q", lambda a, _: [1.0], r"Expected a value of type 'Tensor' for argument 'q' but instead found type 'list'"),
    ("q", lambda a, _: a["q"][0], r"q: got shape \[6, 12, 8\], expected \[batch, nlat, nlon, channels\]"),
    ("q", lambda a, _: a["q"][:, :0], r"q: got shape \[2, 0, 12, 8\], expected 1 .. 2\^28 in dimension 1"),
    ("q", lambda a, _: a["q"][:, :, :0], r"q: got shape \[2, 6, 0, 8\], expected 1 .. 2\^28 in dimension 2"),
    ("q", lambda a, _: a["q"][..., :0], r"q: got shape \[2, 6, 12, 0\], expected 1 .. 2\^28 in dimension 3"),
    ("q", lambda a, _: a["q"].double(), r"q: got dtype Double, expected float32, float16 or bfloat16 on"),
    ("q", lambda a, _: a["q"].int(), r"q: got dtype Int, expected float32, float16 or bfloat16 on"),
    ("q", lambda a, _: a["q"].bool(), r"q: got dtype Bool, expected float32, float16 or bfloat16 on"),
    ("q", lambda a, _: a["q"].bfloat16(), r"k: got dtype Float, expected BFloat16"),
    ("q", lambda a, _: a["q"][:1], r"k: got shape \[2, 6, 12, 8\], expected \[1, 6, 12, 8\]"),
    (
        "q",
        lambda a, _: a["q"][:, :, :7].contiguous(),
        r"q: got 7 longitudes, expected a divisor or a multiple of the 12",
    ),
    ("q", lambda a, _: a["q"].mT, r"q: got .+, expected a multiple of the number of heads|q: got strides|k: got shape"),
    ("k", lambda a, _: a["k"].half(), r"k: got dtype Half, expected Float"),
    ("k", lambda a, _: a["k"][..., :6].contiguous(), r"k: got shape \[2, 6, 12, 6\], expected \[2, 6, 12, 8\]"),
    ("k", lambda a, other: a["k"].to(other), r"k: got device .+, expected that of q, "),
    ("q", lambda a, other: a["q"].to(other), r": got device .+, expected that of q, "),
    ("v", lambda a, _: a["v"][:1], r"v: got shape \[1, 6, 12, 4\], expected \[2, 6, 12, 4\]"),
    (
        "v",
        lambda a, _: a["v"].transpose(1, 2).contiguous().transpose(1, 2),
        r"v: got strides .+, expected a contiguous",
    ),
    ("v", lambda a, _: a["v"][:1].expand(2, -1, -1, -1), r"v: got strides \[0, .+, expected a contiguous"),
    ("v", lambda a, _: a["v"].int(), r"v: got dtype Int, expected Float"),
    ("quad_weights", lambda a, _: a["quad_weights"][:5], r"quad_weights: got shape \[5\], expected \[6\]"),
    ("quad_weights", lambda a, _: a["quad_weights"].double(), r"quad_weights: got dtype Double, expected Float"),
    ("quad_weights", lambda a, other: a["quad_weights"].to(other), r"quad_weights: got device .+, expected that of q"),
    ("query_arcs", lambda a, _: a["query_arcs"][:, :2], r"query_arcs: got shape \[\d+, 2\], expected \[count, 3\]"),
    ("query_arcs", lambda a, _: a["query_arcs"].float(), r"query_arcs: got dtype Float, expected Int"),
    (
        "query_arcs",
        lambda a, _: a["query_arcs"].mT.contiguous().mT,
        r"query_arcs: got strides .+, expected a contiguous",
    ),
    ("query_arc_off", lambda a, _: a["query_arc_off"][:6], r"query_arc_off: got shape \[6\], expected \[7\], one more"),
    ("query_arc_off", lambda a, _: a["query_arc_off"].long(), r"query_arc_off: got dtype Long, expected Int"),
    ("key_arcs", lambda a, other: a["key_arcs"].to(other), r"key_arcs: got device .+, expected that of q"),
    (
        "key_arc_off",
        lambda a, _: a["key_arc_off"].repeat(2),
        r"key_arc_off: got shape \[14\], expected \[7\], one more",
    ),
]

# contents of tables: on a CPU only, where they are looked at (csrc/bindings.cpp)
TABLES: list[tuple[str, Change, str]] = [
    ("key_arc_off", lambda a, _: 0 * a["key_arc_off"], r"key_arc_off: got first and last entries 0 and 0, expected 0"),
    (
        "query_arcs",
        lambda a, _: a["query_arcs"][:0],
        r"query_arc_off: got first and last entries 0 and \d+, expected 0",
    ),
    ("query_arc_off", lambda a, _: changed(a["query_arc_off"], 1, 99), r"query_arc_off: got a decrease after row 1"),
    *(
        (
            table,
            lambda a, _, table=table, field=field, value=value: changed(a[table], (2, field), value),
            rf"{table}: got \(.+\) in row 2, expected latitude < 6, first longitude < 12 and length 1 .. 12",
        )
        for table in ("query_arcs", "key_arcs")
        for field in range(3)
        for value in (-1, 1000)
    ),
]

BACKWARD: list[tuple[int, Callable[[torch.Tensor], Any], str]] = [
    (0, lambda dy: dy.repeat(1, 1, 1, 2), r"dy: got shape \[2, 6, 12, 8\], expected \[2, 6, 12, 4\]"),
    (0, lambda dy: dy.half(), r"dy: got dtype Half, expected Float"),
    (0, lambda dy: dy[:1, :1, :1, :1].expand(2, 6, 12, 4), r"dy: got strides .+, expected a contiguous tensor"),
    (4, lambda y: y[..., :2].contiguous(), r"y: got shape \[2, 6, 12, 2\], expected \[2, 6, 12, 4\]"),
    (5, lambda lse: lse.repeat(1, 1, 1, 2), r"lse: got shape \[2, 6, 12, 4\], expected \[2, 6, 12, 2\]"),
    (5, lambda lse: lse.double(), r"lse: got dtype Double, expected Float"),
    (12, lambda needs: needs[:2], r"List with 2 elements to a fixed-size array of size 3"),
]

# (keywords to change, exception, what the error says)
FUNCTION: list[tuple[Callable[[Arguments, str], Arguments], type[Exception], str]] = [
    (lambda a, _: {"q": None}, InvalidProblem, r"^q: got 'NoneType', expected a tensor"),
    (lambda a, _: {"k": a["k"].tolist()}, InvalidProblem, r"^k: got 'list', expected a tensor"),
    (lambda a, _: {"v": a["v"].to_sparse()}, InvalidProblem, r"^v: got torch.sparse_coo, expected a dense tensor"),
    (
        lambda a, _: {"neighborhood": PROBLEM},
        InvalidProblem,
        r"^neighborhood: got 'AttentionProblem', expected a Neigh",
    ),
    (lambda a, _: {"q": a["q"][:, :-1]}, InvalidProblem, r"^q: got \(2, 5, 12, 8\), expected \[B, 6, 12, channels\]"),
    (lambda a, _: {"q": a["q"].permute(0, 3, 1, 2)}, InvalidProblem, r"^q: got \(2, 8, 6, 12\), expected \[B, 6, 12"),
    (lambda a, _: {"q": a["q"][0]}, InvalidProblem, r"^q: got \(6, 12, 8\), expected \[B, 6, 12, channels\]"),
    (
        lambda a, _: {n: a[n].int() for n in "qkv"},
        InvalidProblem,
        r"^q: got torch.int32, expected one of torch.float32",
    ),
    (
        lambda a, _: {"k": a["k"][:, :, :-1]},
        InvalidProblem,
        r"^k: got \(2, 6, 11, 8\), expected \[B, 6, 12, channels\]",
    ),
    (lambda a, _: {"k": a["k"].double()}, InvalidProblem, r"^k: got torch.float64, expected the dtype of q"),
    (lambda a, _: {"k": a["k"][:1]}, InvalidProblem, r"^k: got \(1, 6, 12, 8\), expected the batch of q, 2"),
    (lambda a, _: {"k": a["k"].repeat(1, 1, 1, 2)}, InvalidProblem, r"^k: got .+, expected as many channels as q, 8"),
    (lambda a, other: {"k": a["k"].to(other)}, InvalidProblem, r"^k: got .+, expected the device of q"),
    (lambda a, _: {"v": a["v"].half()}, InvalidProblem, r"^v: got torch.float16, expected the dtype of q"),
    (lambda a, _: {"v": a["v"].transpose(1, 2)}, InvalidProblem, r"^v: got \(2, 12, 6, 4\), expected \[B, 6, 12"),
    (lambda a, other: {"v": a["v"].to(other)}, InvalidProblem, r"^v: got .+, expected the device of q"),
    (lambda a, _: {"q": a["q"][..., :3]}, InvalidProblem, r"^channels of q: got 3, expected a multiple of the number"),
    (lambda a, _: {"v": a["v"][..., :0]}, InvalidProblem, r"^channels of v: got 0, expected a positive integer"),
    (
        lambda a, _: {"heads": 3},
        InvalidProblem,
        r"^channels of q: got 8, expected a multiple of the number of heads, 3",
    ),
    *(
        (lambda a, _, heads=heads: {"heads": heads}, InvalidProblem, r"^heads: got .+, expected a positive integer")
        for heads in (0, -1, 2.0, True, None)
    ),
    (lambda a, _: {"backend": "tpu"}, InvalidProblem, r"^backend: got 'tpu', expected auto or one of cpu, cuda"),
    (lambda a, _: {n: a[n].double() for n in "qkv"}, UnsupportedProblem, r"float64 on .+:\n.*cpu: runs .+, q is"),
    (lambda a, _: {n: a[n].to("meta") for n in "qkv"}, UnsupportedProblem, r"on meta:\n  cpu: runs tensors on cpu"),
    (
        lambda a, _: {"backend": {"cpu": "cuda", "cuda": "cpu"}[a["q"].device.type]},
        UnsupportedProblem,
        r"(?s)^backend='.+' for torch.float32 on .+:.+runs tensors on .+, q is on .+",
    ),
]

# of both layers
CONSTRUCTION: list[tuple[str, object]] = [
    *(("in_channels", value) for value in (0, -4, 4.0, True, None)),
    *(("num_heads", value) for value in (0, -2, 2.0, True, None)),
    *(("k_channels", value) for value in (5, 0, -2, 4.0, True)),
    *(("out_channels", value) for value in (7, 0, -2, 4.0, True)),
    *(
        (shape, value)
        for shape in ("in_shape", "out_shape")
        for value in ((1, 12), (6, 0), (6, -12), (6, 12, 1), (6.0, 12), (True, 12), (6, 2**40), 6, None)
    ),
    *((grid, value) for grid in ("grid_in", "grid_out") for value in ("healpix", None)),
    *(("scale", value) for value in (math.nan, math.inf, "large", True, torch.ones(2), torch.tensor(1j))),
    ("scale", torch.tensor(math.nan)),
    ("scale", nn.Parameter(torch.tensor(math.inf))),
    ("bias", None),
    ("use_qknorm", "no"),
]
OWN_CONSTRUCTION: list[tuple[type, str, object]] = [
    *((NeighborhoodAttentionS2, "theta_cutoff", value) for value in (0, 0.0, -1, math.nan, math.inf, "0.1", True)),
    *((NeighborhoodAttentionS2, "out_shape", value) for value in ((6, 7), (6, 8))),
    *((NeighborhoodAttentionS2, "backend", value) for value in ("tpu", None)),
    (NeighborhoodAttentionS2, "optimized_kernel", "no"),
    *((AttentionS2, "drop_rate", value) for value in (1.0, True, -0.1, math.nan, "half", None)),
]

# (argument to blame, signals made of a right one and another device)
SIGNALS: list[tuple[str, Callable[[torch.Tensor, str], tuple[Any, ...]]]] = [
    ("query", lambda x, _: (None,)),
    ("query", lambda x, _: (x.tolist(),)),
    ("query", lambda x, _: (x.to_sparse(),)),
    ("query", lambda x, _: (x[..., :-1],)),
    ("query", lambda x, _: (x.permute(0, 2, 3, 1),)),
    ("query", lambda x, _: (x[0],)),
    ("query", lambda x, _: (x.repeat(1, 2, 1, 1),)),
    ("query", lambda x, _: (x.double(),)),
    ("query", lambda x, _: (x.int(),)),
    ("query", lambda x, other: (x.to(other),)),
    ("value", lambda x, _: (x, x)),
    ("key", lambda x, _: (x, None, x)),
    ("key", lambda x, _: (x, x.mT, x)),
    ("key", lambda x, _: (x, x[:1], x[:1])),
    ("key", lambda x, _: (x, 3.0, x)),
    ("key", lambda x, other: (x, x.to(other), x)),
    ("value", lambda x, _: (x, x, x[:, :3])),
    ("value", lambda x, _: (x, x, x.half())),
    ("value", lambda x, other: (x, x, x.to(other))),
]


def layer(kind: type, **changes: object) -> nn.Module:
    return kind(**({"in_channels": 4, "num_heads": 2, "in_shape": (6, 12), "out_shape": (6, 12)} | changes))


class WrongInputs:
    """The tests; ``device`` comes from the derived class, ``other`` is a device that tensors do not belong on."""

    device: str
    other: str

    @classmethod
    def setup_class(cls) -> None:
        registration.load(cls.device)

    def call(self) -> Call:
        return draw(PROBLEM, device=self.device)

    def operands(self) -> Arguments:
        call = self.call()
        return dict(zip(OPERANDS, (call.q, call.k, call.v, *call.tables, PROBLEM.heads), strict=True))

    def lives_on(self) -> None:
        """Whatever was refused, the next call is right."""
        y, _ = self.call().forward()
        assert torch.isfinite(y).all()

    @pytest.mark.parametrize(("argument", "change", "message"), OPERATOR)
    def test_operator(self, argument: str, change: Change, message: str) -> None:
        operands = self.operands()
        with pytest.raises(RuntimeError, match=message):
            torch.ops.s2attn.neighborhood_attention(*(operands | {argument: change(operands, self.other)}).values())
        self.lives_on()

    @pytest.mark.parametrize(("position", "change", "message"), BACKWARD)
    def test_operator_of_the_backward(self, position: int, change: Callable[[Any], Any], message: str) -> None:
        arguments = list(self.call().backward_arguments())
        arguments[position] = change(arguments[position])
        with pytest.raises(RuntimeError, match=message):
            torch.ops.s2attn.neighborhood_attention_backward(*arguments)
        self.lives_on()

    @pytest.mark.parametrize("position", [0, 2, 4, 5, 6, 9])
    def test_operator_of_the_backward_on_two_devices(self, position: int) -> None:
        arguments = list(self.call().backward_arguments())
        arguments[position] = arguments[position].to(self.other)
        with pytest.raises(RuntimeError, match=r": got device .+, expected that of q, "):
            torch.ops.s2attn.neighborhood_attention_backward(*arguments)
        self.lives_on()

    @pytest.mark.parametrize(("change", "error", "message"), FUNCTION)
    @pytest.mark.parametrize("backend", ["auto", "reference"])
    def test_function(self, backend: str, change: Change, error: type[Exception], message: str) -> None:
        call = self.call()
        # the reference runs what kernels cannot: there is nothing to refuse
        backend = "auto" if error is UnsupportedProblem else backend
        arguments = {"q": call.q, "k": call.k, "v": call.v, "neighborhood": GEOMETRY, "heads": 2, "backend": backend}
        arguments |= change(arguments, self.other)
        with pytest.raises(error, match=message):
            neighborhood_attention(**arguments)
        self.lives_on()

    @LAYERS
    @pytest.mark.parametrize(("argument", "value"), CONSTRUCTION)
    def test_construction(self, kind: type, argument: str, value: object) -> None:
        with pytest.raises(InvalidProblem, match=rf"(?s)^{argument}: got .+, expected .+"):
            layer(kind, **{argument: value})

    @pytest.mark.parametrize(("kind", "argument", "value"), OWN_CONSTRUCTION)
    def test_construction_of_one_layer(self, kind: type, argument: str, value: object) -> None:
        with pytest.raises(InvalidProblem, match=rf"(?s)^{argument}: got .+, expected .+"):
            layer(kind, **{argument: value})

    @LAYERS
    def test_heads_that_divide_no_channels(self, kind: type) -> None:
        with pytest.raises(InvalidProblem, match=r"^k_channels: got 4, expected a multiple of the number of heads, 3"):
            layer(kind, num_heads=3)

    @LAYERS
    @pytest.mark.parametrize(("argument", "change"), SIGNALS)
    def test_signals(self, kind: type, argument: str, change: Callable[[torch.Tensor, str], tuple[Any, ...]]) -> None:
        built = layer(kind).to(self.device)
        x = torch.ones(2, 4, 6, 12, device=self.device)
        with pytest.raises(InvalidProblem, match=rf"(?s)^{argument}: got .+, expected .+"):
            built(*change(x, self.other))
        assert torch.isfinite(built(x)).all()

    @LAYERS
    def test_gradients_of_integers_are_refused_by_torch(self, kind: type) -> None:
        x = torch.ones(2, 4, 6, 12, device=self.device, dtype=torch.int32)
        with pytest.raises(RuntimeError, match="only Tensors of floating point dtype can require gradients"):
            layer(kind).to(self.device)(x.requires_grad_())

    @LAYERS
    def test_an_empty_batch_is_right_and_yields_an_empty_batch(self, kind: type) -> None:
        built = layer(kind).to(self.device)
        x = torch.ones(0, 4, 6, 12, device=self.device, requires_grad=True)
        y = built(x)
        assert y.shape == (0, 4, 6, 12)
        (dx, dw) = torch.autograd.grad(y.sum(), (x, built.q_weights))
        assert dx.shape == x.shape
        assert (dw == 0).all()

    def test_an_empty_batch_is_right_for_operators_and_function(self) -> None:
        call = draw(PROBLEM, device=self.device, batch=0)
        assert call.forward()[0].shape == (0, 6, 12, 4)
        assert [x.shape[0] for x in call.backward()] == [0, 0, 0]
        assert neighborhood_attention(call.q, call.k, call.v, GEOMETRY, heads=2).shape == (0, 6, 12, 4)
