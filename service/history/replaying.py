"""Goes through everything that was measured of a series again: what its state is derived from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from service.history import queries
from service.history.queries import Entry
from service.history.steps import taken, without_answer
from service.models import HistoryRequest, Point, SeriesHistory
from service.stats.history_state import Action, SeriesState
from service.stats.verdict import Verdict


@dataclass(frozen=True)
class Told:
    """One step of a replay."""

    state: SeriesState
    actions: tuple[Action, ...]
    entry: Entry | None


def current_state(session: Session, row: SeriesHistory, measurement_id: UUID) -> SeriesState:
    """Return the state of a history; one of another protocol is derived again, without a measurement still to come."""
    try:
        return SeriesState.from_dict(row.state)
    except ValueError:
        state = SeriesState()
        for step in replayed(session, row.series_id, without=measurement_id):
            state = step.state
        return state


def replayed(session: Session, series_id: UUID, without: UUID | None = None) -> Iterator[Told]:
    """Yield what each measurement of a series does to it, from the first on.

    A request that no stored job answers, and that waits for none, is answered like one that cannot be measured; one of
    the last step stays open.
    """
    conditions = [Point.series_id == series_id, *([] if without is None else [Point.measurement_id != without])]
    entries = queries.entries(session, *conditions)
    events: list[tuple[datetime, Entry | HistoryRequest]] = [
        *((entry.at, entry) for entry in entries if entry.point.on_line),
        *((one.answered_at, one) for one in queries.answered(session, series_id) if _is_lost(one) and one.answered_at),
    ]
    events.sort(key=lambda event: event[0])
    waiting = {(one.candidate, one.baseline) for one in queries.waiting(session, HistoryRequest.series_id == series_id)}
    to_come = Counter(_range(event) for _, event in events)
    state = SeriesState()
    for _, event in events:
        while state.search is not None and not _will_be_answered(state, waiting, to_come):
            state, said = without_answer(state)
            yield Told(state, said, None)
        to_come[_range(event)] -= 1
        if isinstance(event, Entry):
            state, said = taken(state, event, None)
            yield Told(state, said, event)
        else:
            state, said = taken(state, None, event)
            yield Told(state, said, None)


def _will_be_answered(state: SeriesState, waiting: set[tuple[int, int]], to_come: Counter[tuple[int, int]]) -> bool:
    assert state.search is not None
    asked = (state.search.high, state.search.low)
    return asked in waiting or to_come[asked] > 0


def _range(event: Entry | HistoryRequest) -> tuple[int, int]:
    """Return the range of the line that an event tells about; (0, 0) for none."""
    if isinstance(event, HistoryRequest):
        return event.candidate, event.baseline
    return (0, 0) if event.outcome is None else (event.outcome.candidate, event.outcome.baseline)


def _is_lost(asked: HistoryRequest) -> bool:
    return asked.outcome == Verdict.NOT_COMPARABLE
