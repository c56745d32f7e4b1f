"""One step of a history: an answer and a point -> the new state and what follows. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from service.history.queries import Entry
from service.models import HistoryRequest
from service.stats import history
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import Action, Excluded, SeriesState
from service.stats.investigation import Outcome
from service.stats.verdict import Verdict

POLICY = HistoryPolicy()


def without_answer(state: SeriesState) -> tuple[SeriesState, tuple[Action, ...]]:
    """Return the state to whose open request no job will ever answer, and what follows."""
    assert state.search is not None
    request = state.search.request
    return history.resolve(state, Outcome(request.candidate, request.baseline, Verdict.NOT_COMPARABLE), POLICY)


def taken(
    state: SeriesState, entry: Entry | None, asked: HistoryRequest | None
) -> tuple[SeriesState, tuple[Action, ...]]:
    """Return the state that knows an answer and a point, and what follows. The answer comes first: it spares jobs."""
    said: tuple[Action, ...] = ()
    if asked is not None and not answers(entry, asked):
        nothing = Outcome(asked.candidate, asked.baseline, Verdict.NOT_COMPARABLE)
        state, said = history.resolve(state, nothing, POLICY)
    if entry is None:
        return state, said
    if entry.outcome is not None:
        state, more = history.resolve(state, entry.outcome, POLICY)
        said += more
    state, more = history.update(state, entry.point, POLICY)
    return state, said + more


def answers(entry: Entry | None, asked: HistoryRequest) -> bool:
    """Say whether an entry's outcome is about the range that a series has asked about."""
    outcome = None if entry is None else entry.outcome
    wanted = (asked.candidate, asked.baseline)
    return outcome is not None and (outcome.candidate, outcome.baseline) == wanted


def answer(entry: Entry | None, asked: HistoryRequest) -> str:
    """Return what a request has heard."""
    if entry is None or entry.outcome is None or not answers(entry, asked):
        return str(Verdict.NOT_COMPARABLE)
    return str(entry.outcome.verdict)


def code_of(actions: Iterable[Action]) -> str:
    """Return what became of a point: ok, or why it is left out."""
    return next((one.code for one in actions if isinstance(one, Excluded)), "ok")
