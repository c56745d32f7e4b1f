"""Derives histories again from points and outcomes, and takes them back where a force push changed the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import or_, update
from sqlalchemy.orm import Session

from service.alerts.raising import withdraw
from service.history import queries
from service.history.asking import Question, ask
from service.history.feeding import OFF_LINE, UNSYNCHRONIZED, Feeding, mark
from service.history.queries import Entry
from service.history.recording import Recorder, withdraw_from
from service.history.replaying import replayed
from service.history.steps import code_of
from service.jobs.placing import Enqueue
from service.models import Commit, HistoryRequest, Job, Measurement, Point, Series, SeriesHistory, utc_now
from service.repositories.placing import place_commits
from service.stats import history
from service.stats.history_state import PROTOCOL, SeriesState

if TYPE_CHECKING:
    from service.worker.checkout import Standing

WITHDRAWN = "withdrawn"


def rebuild(session: Session, enqueue: Enqueue, series_id: UUID) -> SeriesState:
    """Derive the state of a series from all that is stored; what it has said stays where it is said again.

    Points from before there were histories are taken in by this. Of the jobs that the past would have asked for, only
    one that the newest measurement asks for is queued.
    """
    row = queries.lock(session, [series_id])[series_id]
    repository_id, case = queries.parts(session, [series_id])[series_id]
    recorder = Recorder.again(session, series_id, repository_id)
    state, last = SeriesState(), None
    job_id, device = None, ""
    codes: dict[UUID, str] = {}
    for told in replayed(session, series_id):
        state, last = told.state, told.entry or last
        if told.entry is not None:
            codes[told.entry.point_id] = code_of(told.actions)
            job_id, device = told.entry.job_id, told.entry.point.device
        recorder.record(told.actions, job_id, device)
    recorder.withdraw_rest()
    every = update(Point).where(Point.series_id == series_id, Point.arm == "B").values(history=OFF_LINE)
    session.execute(every, execution_options=UNSYNCHRONIZED)
    mark(session, codes)
    row.state = state.to_dict()
    session.flush()
    if state.search is not None and last is not None and not _is_out(session, series_id, state):
        measurement = session.get_one(Measurement, last.measurement_id)
        ask(session, enqueue, measurement, repository_id, [Question(series_id, case, state.search.request, None)])
    return state


def follow_refs(session: Session, enqueue: Enqueue, repository_id: UUID, standing: Standing) -> Sequence[Commit]:
    """Bring commits, histories and alerts in line with refs right after a fetch; return commits that became orphans."""
    placed = place_commits(session, repository_id, standing)
    withdraw(session, repository_id, [commit.sha for commit in placed.orphans])
    if placed.moved_from is not None:
        rewind_series(session, enqueue, repository_id, placed.moved_from)
    return placed.orphans


def rewind_series(session: Session, enqueue: Enqueue, repository_id: UUID, position: int) -> int:
    """Bring the histories of a repository in line with a default branch that has changed from a position on.

    To be called in the transaction that gives the repository's commits their new places, after that. What was said of
    commits that have left the branch is taken back; commits that have come to it and were measured already are taken
    in. Return how many histories had seen the position.
    """
    found = queries.lock(session, queries.with_history(session, repository_id))
    held = [series_id for series_id, row in found.items() if _rewound(row, position)]
    session.flush()
    withdraw_from(session, held, position)
    for one in queries.waiting(session, HistoryRequest.series_id.in_(held), HistoryRequest.candidate >= position):
        one.outcome, one.answered_at = WITHDRAWN, utc_now()
    lost = update(Point).where(Point.series_id.in_(held), Point.history.is_not(None), queries.off_line())
    session.execute(lost.values(history=OFF_LINE), execution_options=UNSYNCHRONIZED)
    anew = or_(Point.series_id.in_(held), Point.history == OFF_LINE)
    placed = (Series.repository_id == repository_id, Point.history.is_not(None), queries.on_or_after(position))
    for entry in queries.entries(session, *placed, anew):
        _take_again(session, enqueue, entry)
    return len(held)


def _rewound(row: SeriesHistory, position: int) -> bool:
    """Rewind a history that has seen a position; return whether it has."""
    if row.state["protocol"] != PROTOCOL:  # derived again by the next point anyway
        return False
    state = SeriesState.from_dict(row.state)
    if state.last < position:
        return False
    row.state = history.rewind(state, position)[0].to_dict()
    return True


def _take_again(session: Session, enqueue: Enqueue, entry: Entry) -> None:
    measurement = session.get_one(Measurement, entry.measurement_id)
    Feeding(session, enqueue, session.get_one(Job, entry.job_id), measurement).take([entry])


def _is_out(session: Session, series_id: UUID, state: SeriesState) -> bool:
    assert state.search is not None
    asked = (state.search.high, state.search.low)
    waiting = queries.waiting(session, HistoryRequest.series_id == series_id)
    return asked in {(one.candidate, one.baseline) for one in waiting}
