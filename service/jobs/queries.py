"""Reads and conditional updates of jobs, measurements and events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, and_, func, select, update
from sqlalchemy.orm import Session

from service.models import ArmRun, Commit, Device, Job, JobEvent, Measurement, Repository, State, Worker


@dataclass(frozen=True)
class JobFilter:
    """Which jobs to list; None does not filter."""

    repository: str | None = None
    state: State | None = None
    commit: str | None = None


JobRow = tuple[Job, str, str | None, bool | None]  # the job, its repository's name, its commit's subject and `orphaned`
MeasurementRow = tuple[Measurement, str | None, str | None]  # with its worker's and its device's name


def _jobs() -> Select[Job, str, str | None, bool | None]:
    return (
        select(Job, Repository.name, Commit.subject, Commit.orphaned)
        .join(Repository, Job.repository_id == Repository.id)
        .outerjoin(Commit, and_(Commit.repository_id == Job.repository_id, Commit.sha == Job.commit_sha))
    )


def job(session: Session, job_id: UUID) -> JobRow | None:
    """Return a job."""
    return session.execute(_jobs().where(Job.id == job_id)).one_or_none()


def jobs_by_key(session: Session, idempotency_keys: Collection[str]) -> dict[str | None, tuple[UUID, str]]:
    """Return id and body hash of the jobs that were posted with some idempotency keys, by key."""
    query = select(Job.idempotency_key, Job.id, Job.body_sha256).where(Job.idempotency_key.in_(idempotency_keys))
    return {key: (job_id, body_sha256) for key, job_id, body_sha256 in session.execute(query)}


def jobs(session: Session, wanted: JobFilter, before: UUID | None, limit: int) -> Sequence[JobRow]:
    """Return jobs that were made before one, newest first."""
    query = _jobs().order_by(Job.id.desc()).limit(limit)
    if wanted.repository is not None:
        query = query.where(Repository.name == wanted.repository)
    if wanted.state is not None:
        query = query.where(Job.state == wanted.state)
    if wanted.commit is not None:
        query = query.where(Job.commit_sha.startswith(wanted.commit))
    if before is not None:
        query = query.where(Job.id < before)
    return session.execute(query).all()


def lock_job(session: Session, job_id: UUID) -> Job | None:
    """Return a job that no other transaction changes until this one ends."""
    return session.execute(select(Job).where(Job.id == job_id).with_for_update()).scalar_one_or_none()


def measurements(session: Session, job_id: UUID) -> Sequence[MeasurementRow]:
    """Return the measurements of a job in the order of their device classes."""
    query = (
        select(Measurement, Worker.executor_id, Device.name)
        .outerjoin(Worker, Measurement.worker_id == Worker.id)
        .outerjoin(Device, Measurement.device_id == Device.id)
        .where(Measurement.job_id == job_id)
        .order_by(Measurement.device_class)
    )
    return session.execute(query).all()


def measurement_states(session: Session, job_id: UUID) -> list[str]:
    """Return the states of a job's measurements as they are in the database now."""
    return list(session.execute(select(Measurement.state).where(Measurement.job_id == job_id)).scalars())


def cancel_queued(session: Session, job_id: UUID, now: datetime) -> list[UUID]:
    """Cancel the measurements of a job that no worker has taken, and return their ids."""
    statement = (
        update(Measurement)
        .where(Measurement.job_id == job_id, Measurement.state == State.QUEUED)
        .values(state=State.CANCELED, stage=None, finished_at=now)
        .returning(Measurement.id)
        .execution_options(synchronize_session=False)
    )
    return list(session.execute(statement).scalars())


def finished_pairs(session: Session, measurement_ids: Iterable[UUID]) -> dict[UUID, int]:
    """Return the number of pairs (or rounds) of the last attempt of which all processes are stored, by measurement."""
    both = (
        select(ArmRun.measurement_id, ArmRun.pair_index)
        .join(Measurement, (Measurement.id == ArmRun.measurement_id) & (Measurement.attempt == ArmRun.attempt))
        .where(ArmRun.measurement_id.in_(list(measurement_ids)), ArmRun.purpose.in_(("pair", "round")))
        .group_by(ArmRun.measurement_id, ArmRun.pair_index)
        .having(func.count() >= 2)
        .subquery()
    )
    query = select(both.c.measurement_id, func.count()).group_by(both.c.measurement_id)
    return dict(session.execute(query).all())


def state_of(session: Session, job_id: UUID) -> str | None:
    """Return the state of a job."""
    return session.execute(select(Job.state).where(Job.id == job_id)).scalar_one_or_none()


def events_after(session: Session, job_id: UUID, floor: UUID | None) -> Sequence[JobEvent]:
    """Return the events of a job with an id above one, in order."""
    query = select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.id)
    if floor is not None:
        query = query.where(JobEvent.id > floor)
    return session.execute(query).scalars().all()


def event_marks(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, tuple[str, int]]:
    """Return for each job its state and its number of events: what changes when there is something to send."""
    query = (
        select(Job.id, Job.state, func.count(JobEvent.id))
        .outerjoin(JobEvent, JobEvent.job_id == Job.id)
        .where(Job.id.in_(list(job_ids)))
        .group_by(Job.id, Job.state)
    )
    return {job_id: (state, count) for job_id, state, count in session.execute(query)}
