import pickle

import pytest

import s2attn
from s2attn import InvalidProblem, KernelsNotBuilt, S2AttnError, UnsupportedProblem


def test_the_tree_is_the_one_drawn() -> None:
    assert InvalidProblem.__mro__[1:3] == (S2AttnError, ValueError)
    assert UnsupportedProblem.__mro__[1:3] == (S2AttnError, NotImplementedError)
    assert KernelsNotBuilt.__mro__[1:3] == (S2AttnError, ImportError)


def test_invalid_problem_names_argument_got_and_expected() -> None:
    error = InvalidProblem("heads", 0, "a positive integer")
    assert str(error) == "heads: got 0, expected a positive integer"
    assert (error.argument, error.got, error.expected) == ("heads", 0, "a positive integer")


def test_unsupported_problem_names_every_backend() -> None:
    error = UnsupportedProblem("float64 attention", {"cpu": "float32 only", "cuda": "no device"})
    assert str(error) == "float64 attention:\n  cpu: float32 only\n  cuda: no device"


@pytest.mark.parametrize(
    "error",
    [InvalidProblem("k", (1, 2), "four dimensions"), UnsupportedProblem("x", {"cpu": "y"}), KernelsNotBuilt("z")],
)
def test_errors_survive_a_process_border(error: S2AttnError) -> None:
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)


def test_everything_exported_exists() -> None:
    for name in s2attn.__all__:
        assert getattr(s2attn, name) is not None
    assert sorted(s2attn.__all__) == s2attn.__all__
