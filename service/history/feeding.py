"""Takes each judged measurement into the histories of its series, in the transaction that stores its verdicts.

A point counts once: it carries what became of it (`Point.history`). So does an answer: the request that waited for
it carries it. The state of a series changes under a lock, and is written with both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.history import queries
from service.history.asking import Question, ask
from service.history.queries import Entry
from service.history.recording import Recorder
from service.history.replaying import current_state
from service.history.steps import answer, code_of, taken, without_answer
from service.jobs.placing import Enqueue
from service.models import HistoryRequest, Job, Measurement, Point, utc_now
from service.stats.history_state import Action, SeriesState
from service.stats.investigation import Request

OFF_LINE = "off_line"
MOST_PARAMETERS = 10_000  # of one statement: SQLite takes 32,766, PostgreSQL 65,535
UNSYNCHRONIZED = {"synchronize_session": False}  # no point is loaded as an object here


def feed(session: Session, enqueue: Enqueue, job: Job, measurement: Measurement) -> None:
    """Take a measurement that has just been judged into the histories of its series, and queue the jobs they ask for.

    Its candidate's points count where the candidate is on the default branch; a baseline's point was taken in the same
    hour as its candidate's, so what it adds is the verdict, which is told as an outcome.
    """
    entries = queries.entries(session, Point.measurement_id == measurement.id, Point.history.is_(None))
    Feeding(session, enqueue, job, measurement).take(entries)


def give_up(session: Session, enqueue: Enqueue, job: Job, measurement: Measurement) -> None:
    """Answer the series that wait for a measurement which has ended without verdicts."""
    Feeding(session, enqueue, job, measurement).take(())


@dataclass(frozen=True)
class Feeding:
    """What a measurement does to histories."""

    session: Session
    enqueue: Enqueue
    job: Job
    measurement: Measurement

    def take(self, entries: Sequence[Entry]) -> None:
        """Take entries, at most one per series, and tell the series that wait for this job what came of it."""
        waiting = {one.series_id: one for one in queries.waiting(self.session, HistoryRequest.job_id == self.job.id)}
        mark(self.session, {entry.point_id: OFF_LINE for entry in entries if not entry.point.on_line})
        on_line = {entry.series_id: entry for entry in entries if entry.point.on_line}
        touched = waiting.keys() | on_line.keys()
        if not touched:
            return
        parts = queries.parts(self.session, touched)
        codes, questions = {}, []
        for series_id, row in queries.lock(self.session, touched).items():
            entry, asked = on_line.get(series_id), waiting.get(series_id)
            repository_id, case = parts[series_id]
            before = current_state(self.session, row, self.measurement.id)
            state, actions = taken(before, entry, asked)
            state, actions = settled(self.session, repository_id, state, actions)
            row.state = state.to_dict()
            device = entry.point.device if entry is not None else ""
            Recorder(self.session, series_id, repository_id).record(actions, self.job.id, device)
            if entry is not None:
                codes[entry.point_id] = code_of(actions)
            if asked is not None:
                asked.outcome, asked.answered_at = answer(entry, asked), utc_now()
            if asks(state, actions):
                assert state.search is not None
                questions.append(Question(series_id, case, state.search.request, asked))
        mark(self.session, codes)
        self.session.flush()
        ask(self.session, self.enqueue, self.measurement, self.job.repository_id, questions)


def asks(state: SeriesState, actions: Iterable[Action]) -> bool:
    """Say whether a step has left a request for a job that is not out yet."""
    return state.search is not None and any(isinstance(action, Request) for action in actions)


def settled(
    session: Session, repository_id: UUID, state: SeriesState, actions: tuple[Action, ...]
) -> tuple[SeriesState, tuple[Action, ...]]:
    """Return a step without requests about commits that the line has lost: nobody can measure those."""
    while asks(state, actions) and state.search is not None:
        if queries.revision(session, repository_id, state.search.high) is not None:
            break
        state, more = without_answer(state)
        actions += more
    return state, actions


def mark(session: Session, codes: Mapping[UUID, str]) -> None:
    """Note at points what became of them."""
    of_code: defaultdict[str, list[UUID]] = defaultdict(list)
    for point_id, code in codes.items():
        of_code[code].append(point_id)
    for code, ids in of_code.items():
        for start in range(0, len(ids), MOST_PARAMETERS):
            part = Point.id.in_(ids[start : start + MOST_PARAMETERS])
            session.execute(update(Point).where(part).values(history=code), execution_options=UNSYNCHRONIZED)
