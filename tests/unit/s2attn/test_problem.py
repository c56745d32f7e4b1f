import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
import torch

from s2attn import AttentionProblem, InvalidProblem


def test_shapes_of_all_tensors() -> None:
    problem = AttentionProblem((5, 4), (9, 12), heads=2, channels_in=6, channels_out=10)
    assert problem.query_tensor_shape(3) == (3, 9, 12, 6)
    assert problem.key_tensor_shape(3) == (3, 5, 4, 6)
    assert problem.value_tensor_shape(3) == (3, 5, 4, 10)
    assert problem.output_tensor_shape(3) == (3, 9, 12, 10)
    assert (problem.nlat_in, problem.nlon_in, problem.nlat_out, problem.nlon_out) == (5, 4, 9, 12)
    assert (problem.direction, problem.pscale, problem.column_shape) == ("upsample", 3, (9, 12))


def test_the_default_cutoff_is_the_gap_of_the_coarser_grid() -> None:
    assert AttentionProblem((12, 24), (6, 12)).cutoff == pytest.approx(math.pi / 5)
    assert AttentionProblem((6, 12), (12, 24)).cutoff == pytest.approx(math.pi / 5)
    given = AttentionProblem((6, 12), (12, 24), theta_cutoff=1)
    assert given.cutoff == 1.0
    assert isinstance(given.cutoff, float)


def test_is_a_value() -> None:
    problem = AttentionProblem((6, 12), (6, 12), heads=2, channels_in=2, channels_out=2)
    assert problem == AttentionProblem([6, 12], (6, 12), heads=2, channels_in=2, channels_out=2)  # type: ignore[arg-type]
    assert problem != AttentionProblem((6, 12), (6, 12))
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert len({problem, pickle.loads(pickle.dumps(problem))}) == 1
    with pytest.raises(FrozenInstanceError):
        problem.heads = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("in_shape", {"in_shape": (1, 12)}),
        ("in_shape", {"in_shape": (6, 0)}),
        ("in_shape", {"in_shape": (6, -12)}),
        ("in_shape", {"in_shape": (6, 12, 1)}),
        ("in_shape", {"in_shape": 6}),
        ("in_shape", {"in_shape": (6.0, 12)}),
        ("out_shape", {"out_shape": None}),
        ("out_shape", {"out_shape": (6, True)}),
        ("out_shape", {"out_shape": (6, 8)}),  # neither 12 % 8 nor 8 % 12
        ("grid_in", {"grid_in": "gauss"}),
        ("grid_out", {"grid_out": None}),
        ("theta_cutoff", {"theta_cutoff": 0.0}),
        ("theta_cutoff", {"theta_cutoff": -1}),
        ("theta_cutoff", {"theta_cutoff": math.nan}),
        ("theta_cutoff", {"theta_cutoff": math.inf}),
        ("theta_cutoff", {"theta_cutoff": "0.1"}),
        ("heads", {"heads": 0}),
        ("heads", {"heads": 2.0}),
        ("heads", {"heads": True}),
        ("channels_in", {"channels_in": 3}),
        ("channels_in", {"channels_in": 0}),
        ("channels_out", {"channels_out": 5}),
        ("channels_out", {"channels_out": -2}),
        ("dtype", {"dtype": torch.int32}),
        ("dtype", {"dtype": torch.complex64}),
        ("dtype", {"dtype": "float32"}),
    ],
)
def test_bad_arguments_are_named_with_what_was_got(argument: str, changes: dict) -> None:
    good = {"in_shape": (6, 12), "out_shape": (6, 12), "heads": 2, "channels_in": 4, "channels_out": 4}
    with pytest.raises(InvalidProblem, match=rf"^{argument}: got .+, expected .+") as caught:
        AttentionProblem(**(good | changes))
    assert caught.value.argument == argument
    got = changes[argument]
    named_extent = isinstance(got, tuple) and caught.value.got in got
    assert named_extent or caught.value.got is got or caught.value.got == got
