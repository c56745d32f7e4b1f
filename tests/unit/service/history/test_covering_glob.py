"""The glob by which a job measures the cases that several series suspect."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.history.asking import MAX_CASES_LENGTH, covering_glob

NAMES = st.lists(st.text("ab[]*?!-/", min_size=1, max_size=12), min_size=1, max_size=5, unique=True)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["cuda/forward/self/tc0.03"], "cuda/forward/self/tc0.03"),
        (["cuda/forward/self/24", "cuda/backward/self/24"], "cuda/*/self/24"),
        (["cuda/a[1]/x", "cuda/a[1]/y"], "cuda/a[[]1]/*"),
        (["cuda/a", "cuda/a/b"], "*"),
        (["[" * 250], "*"),
    ],
)
def test_it_is_as_narrow_as_one_glob_can_be(names: list[str], pattern: str) -> None:
    assert covering_glob(names) == pattern


@given(NAMES)
def test_it_matches_every_name(names: list[str]) -> None:
    pattern = covering_glob(names)
    assert len(pattern) <= MAX_CASES_LENGTH
    assert all(fnmatch.fnmatchcase(name, pattern) for name in names)


@given(st.text("ab[]*?!-/", min_size=1, max_size=12), st.text("ab[]*?!-/", min_size=1, max_size=12))
def test_that_of_one_name_matches_no_other(name: str, other: str) -> None:
    assert fnmatch.fnmatchcase(other, covering_glob([name])) == (other == name)
