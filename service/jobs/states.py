"""How the states of a job's measurements combine into the state of the job."""

from __future__ import annotations

from collections.abc import Iterable

from service.models.jobs import TERMINAL, State

_WORKING = (State.JUDGING, State.MEASURING, State.PREPARING)
_WORST_FIRST = (State.FAILED, State.EXPIRED, State.CANCELED, State.DONE)


def combined(states: Iterable[State | str]) -> State:
    """Return the state of a job: the furthest work under way, else queued, else the worst end of all.

    Raises
    ------
    ValueError
        When there is no measurement, or a state is unknown.
    """
    found = {State(state) for state in states}
    if not found:
        raise ValueError("states: got none, expected one per measurement")
    if found <= TERMINAL:
        return next(state for state in _WORST_FIRST if state in found)
    return next((state for state in _WORKING if state in found), State.QUEUED)
