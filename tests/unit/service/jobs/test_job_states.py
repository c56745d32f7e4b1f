"""How measurements' states combine."""

from __future__ import annotations

import itertools

import pytest

from service.jobs.states import combined
from service.models.jobs import TERMINAL, State


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["queued"], "queued"),
        (["queued", "done"], "queued"),
        (["preparing", "measuring", "done"], "measuring"),
        (["judging", "measuring"], "judging"),
        (["preparing", "queued"], "preparing"),
        (["done", "done"], "done"),
        (["done", "canceled"], "canceled"),
        (["canceled", "failed", "expired"], "failed"),
        (["expired", "canceled"], "expired"),
    ],
)
def test_combinations(states: list[str], expected: str) -> None:
    assert combined(states) == expected


def test_a_job_has_ended_exactly_when_all_of_it_has() -> None:
    for states in itertools.combinations_with_replacement(State, 3):
        assert (combined(states) in TERMINAL) == all(state in TERMINAL for state in states)
        assert len({combined(order) for order in itertools.permutations(states)}) == 1


def test_there_must_be_a_state() -> None:
    with pytest.raises(ValueError, match="states"):
        combined([])
    with pytest.raises(ValueError, match="asleep"):
        combined(["asleep"])
