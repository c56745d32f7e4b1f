"""What a worker writes about a measurement it owns: claim, stages, events, end. Every write checks the ownership.

A worker that was paused or cut off may find its measurement taken over by another one. It learns so at its next
write, which raises `OwnershipLost` instead of changing anything. While the database is away writes wait: each is an
upsert or is guarded by what is there already, so that repeating one whose answer got lost is harmless.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from service.db import Database
from service.engine import WorkerStopping, enqueue_measurements
from service.history.feeding import give_up
from service.history.rebuilding import follow_refs
from service.jobs.states import combined
from service.logs import logger
from service.models import TERMINAL, Device, Job, JobEvent, Measurement, Repository, State, utc_now
from service.outbox.service import job_changed
from service.repositories.placing import is_orphaned
from service.worker.checkout import CommitInfo, Standing
from service.worker.errors import JobError
from service.worker.storing import save_commit

T = TypeVar("T")
MAX_FRUITLESS_STARTS = 3
_WAITS_S = (0.1, 0.5, 1.0, 2.0, 5.0)


class OwnershipLost(WorkerStopping):
    """Another worker owns the measurement now; nothing of it is this worker's business any more."""


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to know of a measurement it has claimed."""

    measurement_id: UUID
    job_id: UUID
    repository_id: UUID
    repository_url: str
    default_branch: str
    commit: str
    baseline: str
    cases: str
    policy: dict[str, Any]
    attempt: int
    device_class: str
    kind: str


@dataclass(frozen=True)
class Claimant:
    """Who claims: worker and device rows, and how children are confined there."""

    worker_id: UUID
    device_id: UUID
    sandbox: str


class Records:
    """Writes of one worker process. `stopping` ends the waiting for a database that is away."""

    def __init__(self, database: Database, worker_id: UUID, stopping: threading.Event) -> None:
        self.database = database
        self.worker_id = worker_id
        self._stopping = stopping

    def run(self, work: Callable[[Session], T]) -> T:
        """Do `work` in a transaction, again and again while the database is away."""
        tries = 0
        while True:
            try:
                with self.database.transaction() as session:
                    return work(session)
            except (OperationalError, InterfaceError, PoolTimeout, DBAPIError) as error:
                if not _is_connection_trouble(error):
                    raise
                wait_s = _WAITS_S[min(tries, len(_WAITS_S) - 1)]
                logger.warning("database_away", error=str(error).splitlines()[0], retry_in_s=wait_s)
                tries += 1
                if self._stopping.wait(wait_s):
                    raise WorkerStopping from error

    def write(self, measurement_id: UUID, work: Callable[[Session, Job, Measurement], T]) -> T:
        """Do `work` on a measurement that this worker owns and that has not ended; both rows are locked."""

        def guarded(session: Session) -> T:
            job, measurement = lock(session, measurement_id)
            if measurement.worker_id != self.worker_id or measurement.state in TERMINAL:
                raise OwnershipLost
            return work(session, job, measurement)

        return self.run(guarded)

    def device_class(self, measurement_id: UUID) -> str | None:
        """Return a measurement's device class, None when it has ended or was deleted."""

        def read(session: Session) -> str | None:
            measurement = session.get(Measurement, measurement_id)
            return None if measurement is None or measurement.state in TERMINAL else measurement.device_class

        return self.run(read)

    def claim(self, measurement_id: UUID, claimant: Claimant) -> Assignment | None:
        """Become the owner of a measurement; None when there is nothing to do for it (it ended, or is canceled now).

        Pairs go on where they stopped when the device is the same one. On another device they begin again, as a
        new attempt, because times of two devices are not compared.
        """

        def work(session: Session) -> Assignment | None:
            job, measurement = lock(session, measurement_id)
            if measurement.state in TERMINAL:
                return None
            if job.cancel_requested:
                _end(session, job, measurement, State.CANCELED, None)
                return None
            last_stage = measurement.stage or "prepare"
            self._take(session, job, measurement, claimant)
            if self._is_poisonous(session, measurement):
                message = f"the worker ended {MAX_FRUITLESS_STARTS} times in a row while at this measurement"
                error = JobError("worker_lost", message, stage=last_stage)
                _end(session, job, measurement, State.FAILED, error)
                return None
            return _assignment(session, job, measurement)

        return self.run(work)

    def _take(self, session: Session, job: Job, measurement: Measurement, claimant: Claimant) -> None:
        if measurement.started_at is not None:
            crashed = measurement.worker_id is not None
            _event(session, job, "resumed", {"worker": str(claimant.worker_id), "after_crash": crashed}, measurement)
            if measurement.device_id is not None and _uuid(session, measurement.device_id) != _uuid(
                session, claimant.device_id
            ):
                measurement.attempt += 1
        measurement.worker_id = claimant.worker_id
        measurement.device_id = claimant.device_id
        measurement.sandbox = claimant.sandbox
        measurement.started_at = measurement.started_at or utc_now()
        _enter(session, job, measurement, State.PREPARING, "prepare")

    def _is_poisonous(self, session: Session, measurement: Measurement) -> bool:
        """Say whether too many crashes lie between now and the last sign of progress."""
        query = (
            select(JobEvent.kind, JobEvent.payload)
            .where(JobEvent.measurement_id == measurement.id, JobEvent.kind.in_(("resumed", "pair", "log")))
            .order_by(JobEvent.id.desc())
            .limit(MAX_FRUITLESS_STARTS)
        )
        last = session.execute(query).all()
        crashes = [kind == "resumed" and payload.get("after_crash", False) for kind, payload in last]
        return len(crashes) == MAX_FRUITLESS_STARTS and all(crashes)

    def release_all(self) -> int:
        """Put what this worker has not ended back among the queued; its next owner knows that nothing crashed."""
        query = select(Measurement.id).where(
            Measurement.worker_id == self.worker_id, Measurement.state.not_in(TERMINAL)
        )

        def work(session: Session) -> int:
            unfinished = list(session.execute(query).scalars())
            for measurement_id in unfinished:
                job, measurement = lock(session, measurement_id)
                measurement.worker_id = None
                _enter(session, job, measurement, State.QUEUED, None)
            return len(unfinished)

        return self.run(work)

    def enter(self, measurement_id: UUID, state: State, stage: str, detail: str = "") -> None:
        """Record the stage at work."""
        self.write(measurement_id, lambda session, job, row: _enter(session, job, row, state, stage, detail))

    def log(self, measurement_id: UUID, text: str) -> None:
        """Add a piece of log to the job's events."""
        self.write(measurement_id, lambda session, job, row: _event(session, job, "log", {"text": text}, row))

    def event(self, measurement_id: UUID, kind: str, payload: dict[str, Any]) -> None:
        """Add an event about the measurement."""
        self.write(measurement_id, lambda session, job, row: _event(session, job, kind, payload, row))

    def events(self, measurement_id: UUID, kind: str) -> list[dict[str, Any]]:
        """Return the payloads of a measurement's events of one kind, oldest first."""
        query = select(JobEvent.payload).where(JobEvent.measurement_id == measurement_id, JobEvent.kind == kind)
        return self.run(lambda session: list(session.execute(query.order_by(JobEvent.id)).scalars()))

    def finish(self, measurement_id: UUID, state: State, error: JobError | None = None) -> None:
        """End a measurement and, with the last one, its job."""
        self.write(measurement_id, lambda session, job, row: _end(session, job, row, state, error))

    def finish_canceled(self, measurement_id: UUID) -> None:
        """End a measurement that the engine itself canceled, whoever owns it, unless it has ended."""

        def work(session: Session) -> None:
            job, measurement = lock(session, measurement_id)
            if measurement.state not in TERMINAL:
                _end(session, job, measurement, State.CANCELED, None)

        self.run(work)

    def cancel_requested(self, job_id: UUID) -> bool | None:
        """Return whether somebody asked to stop; None while the database does not answer."""
        return self._ask(select(Job.cancel_requested).where(Job.id == job_id))

    def is_in_the_way(self, job_id: UUID, device_classes: Collection[str]) -> bool | None:
        """Return whether something more urgent than a job waits for a device of these classes; None as above.

        One that another device is about to take counts for a moment too: better a calibration given up in vain.
        """
        own = select(Job.priority).where(Job.id == job_id).scalar_subquery()
        waiting = (
            select(Measurement.id)
            .join(Job, Measurement.job_id == Job.id)
            .where(Measurement.device_class.in_(device_classes), Measurement.state == State.QUEUED, Job.priority < own)
        )
        return self._ask(waiting.limit(1))

    def _ask(self, query: Select[Any]) -> bool | None:
        """Return whether a query finds something true; None while the database does not answer."""
        try:
            with self.database.reading() as session:
                return bool(session.execute(query).scalar())
        except (OperationalError, InterfaceError, PoolTimeout, DBAPIError) as error:
            if not _is_connection_trouble(error):
                raise
            return None

    def follow_refs(self, measurement_id: UUID, repository_id: UUID, standing: Standing) -> None:
        """Bring commits and histories in line with the refs that were fetched."""

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            for commit in follow_refs(session, enqueue_measurements, repository_id, standing):
                text = f"no branch, tag or pull request holds {commit.sha[:10]} any more"
                _event(session, job, "log", {"text": text}, measurement)

        self.write(measurement_id, work)

    def is_orphaned(self, repository_id: UUID, sha: str) -> bool:
        """Say whether a commit is known as one that no ref holds any more."""
        return self.run(lambda session: is_orphaned(session, repository_id, sha))

    def save_commits(
        self, measurement_id: UUID, repository_id: UUID, candidate: CommitInfo, baseline: CommitInfo | None
    ) -> tuple[UUID, UUID | None]:
        """Store both commits and pin them to the measurement and its job; return their ids."""

        def work(session: Session, job: Job, measurement: Measurement) -> tuple[UUID, UUID | None]:
            measurement.candidate_id = save_commit(session, repository_id, candidate)
            job.commit_sha = candidate.sha
            if baseline is not None:
                measurement.baseline_id = save_commit(session, repository_id, baseline)
                job.baseline_sha = baseline.sha
            return measurement.candidate_id, measurement.baseline_id

        return self.write(measurement_id, work)


def lock(session: Session, measurement_id: UUID) -> tuple[Job, Measurement]:
    """Return a measurement and its job, locked in the order that everybody takes: the job first."""
    job_id = session.execute(select(Measurement.job_id).where(Measurement.id == measurement_id)).scalar_one()
    job = session.execute(select(Job).where(Job.id == job_id).with_for_update()).scalar_one()
    locked = select(Measurement).where(Measurement.id == measurement_id).with_for_update()
    return job, session.execute(locked.execution_options(populate_existing=True)).scalar_one()


def end_in_transaction(session: Session, job: Job, measurement: Measurement) -> None:
    """End a measurement as done, in the transaction that stores its verdicts."""
    _end(session, job, measurement, State.DONE, None)


def add_event(session: Session, job: Job, kind: str, payload: dict[str, Any], measurement: Measurement) -> None:
    """Add an event in the transaction that it tells of."""
    _event(session, job, kind, payload, measurement)


def _event(
    session: Session, job: Job, kind: str, payload: dict[str, Any], measurement: Measurement | None = None
) -> None:
    measurement_id = measurement.id if measurement is not None else None
    session.add(JobEvent(job_id=job.id, measurement_id=measurement_id, kind=kind, payload=payload))
    session.flush()  # an event's id is made now, so that ids follow the order of what happened


def _enter(
    session: Session, job: Job, measurement: Measurement, state: State, stage: str | None, detail: str = ""
) -> None:
    if measurement.state == state and measurement.stage == stage and not detail:
        return
    measurement.state = state
    measurement.stage = stage
    _event(session, job, "stage", {"state": str(state), "stage": stage, "detail": detail}, measurement)
    _combine(session, job)


def _end(session: Session, job: Job, measurement: Measurement, state: State, error: JobError | None) -> None:
    measurement.state = state
    measurement.finished_at = utc_now()
    if error is not None:
        measurement.error = error.to_dict()
        measurement.stage = error.stage
        job.error = job.error or error.to_dict()
    else:
        measurement.stage = None
    payload = {"state": str(state), "error": measurement.error}
    _event(session, job, "end", payload, measurement)
    _combine(session, job)
    give_up(session, enqueue_measurements, job, measurement)
    job_changed(session, job.id, judged=True)


def _combine(session: Session, job: Job) -> None:
    session.flush()
    query = select(Measurement.state).where(Measurement.job_id == job.id)
    state = combined(session.execute(query).scalars())
    if state == job.state:
        return
    job.state = state
    if state in TERMINAL:
        job.finished_at = utc_now()
        _event(session, job, "end", {"state": str(state)})
    else:
        job_changed(session, job.id, judged=False)


def _assignment(session: Session, job: Job, measurement: Measurement) -> Assignment:
    repository = session.execute(select(Repository).where(Repository.id == job.repository_id)).scalar_one()
    return Assignment(
        measurement_id=measurement.id,
        job_id=job.id,
        repository_id=repository.id,
        repository_url=repository.url,
        default_branch=repository.default_branch,
        commit=job.commit_sha or job.requested_commit,
        baseline=job.baseline_sha or job.requested_baseline,
        cases=job.cases,
        policy=job.policy,
        attempt=measurement.attempt,
        device_class=measurement.device_class,
        kind=job.kind,
    )


def _uuid(session: Session, device_id: UUID) -> str:
    return session.execute(select(Device.uuid).where(Device.id == device_id)).scalar_one()


def _is_connection_trouble(error: Exception) -> bool:
    if isinstance(error, (PoolTimeout, InterfaceError)):
        return True
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return isinstance(error, DBAPIError)
    # sqlite3 reports a busy file and a missing table alike as OperationalError.
    defect = any(sign in str(error.orig) for sign in ("no such", "syntax error", "has no column"))
    return isinstance(error, OperationalError) and not defect
