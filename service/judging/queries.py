"""Reads of verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session, aliased

from service.models import Attribution, Case, Commit, Job, JobKind, Measurement, Point, Repository, Series, Verdict

TIME = "time"


@dataclass(frozen=True)
class VerdictFilter:
    """Which verdicts to list; None does not filter."""

    repository: str | None = None
    commit: str | None = None
    case: str | None = None
    device_class: str | None = None
    verdict: str | None = None


Before = aliased(Commit)
AttributionParts = tuple[Attribution, Case, str, str, str, str | None]
VerdictParts = tuple[Verdict, Case, str, Job, str, str | None, UUID | None]


def _verdicts() -> Select[Verdict, Case, str, Job, str, str | None, UUID | None]:
    """Verdict, case, device class, job, repository, subject of the commit, and the id of the series."""
    series = (
        select(Series.id)
        .where(
            Series.repository_id == Job.repository_id,
            Series.case_id == Verdict.case_id,
            Series.metric == TIME,
            Series.device_class == Measurement.device_class,
        )
        .order_by(Series.id.desc())
        .limit(1)
        .correlate(Job, Verdict, Measurement)
        .scalar_subquery()
    )
    return (
        select(Verdict, Case, Measurement.device_class, Job, Repository.name, Commit.subject, series)
        .join(Case, Verdict.case_id == Case.id)
        .join(Measurement, Verdict.measurement_id == Measurement.id)
        .join(Job, Measurement.job_id == Job.id)
        .join(Repository, Job.repository_id == Repository.id)
        .outerjoin(Commit, and_(Commit.repository_id == Job.repository_id, Commit.sha == Job.commit_sha))
    )


def of_job(session: Session, job_id: UUID) -> Sequence[VerdictParts]:
    """Return the verdicts of a job by device class and case."""
    query = _verdicts().where(Job.id == job_id).order_by(Measurement.device_class, Case.name, Case.version)
    return session.execute(query).all()


def attributions(session: Session, job_id: UUID) -> Sequence[AttributionParts]:
    """Return what the commits of a job's stack did, by device class, case and position."""
    query = (
        select(Attribution, Case, Measurement.device_class, Commit.sha, Before.sha, Commit.subject)
        .join(Case, Attribution.case_id == Case.id)
        .join(Measurement, Attribution.measurement_id == Measurement.id)
        .join(Commit, Attribution.commit_id == Commit.id)
        .join(Before, Attribution.baseline_id == Before.id)
        .where(Measurement.job_id == job_id)
        .order_by(Measurement.device_class, Case.name, Case.version, Attribution.position)
    )
    return session.execute(query).all()


def page(session: Session, wanted: VerdictFilter, before: UUID | None, limit: int) -> Sequence[VerdictParts]:
    """Return verdicts that were made before one, newest first."""
    query = _verdicts().order_by(Verdict.id.desc()).limit(limit)
    if wanted.repository is not None:
        query = query.where(Repository.name == wanted.repository)
    if wanted.commit is not None:
        query = query.where(Job.commit_sha.startswith(wanted.commit))
    if wanted.case is not None:
        query = query.where(Case.name == wanted.case)
    if wanted.device_class is not None:
        query = query.where(Measurement.device_class == wanted.device_class)
    if wanted.verdict is not None:
        query = query.where(Verdict.verdict == wanted.verdict)
    if before is not None:
        query = query.where(Verdict.id < before)
    return session.execute(query).all()


def comparison(session: Session, repository_id: UUID, base: str, head: str) -> Sequence[VerdictParts]:
    """Return the newest verdict per case and device class on a commit against another."""
    newest = (
        select(
            Verdict.id,
            func.row_number()
            .over(partition_by=(Verdict.case_id, Measurement.device_class), order_by=Verdict.id.desc())
            .label("recency"),
        )
        .join(Measurement, Verdict.measurement_id == Measurement.id)
        .join(Job, Measurement.job_id == Job.id)
        .where(Job.repository_id == repository_id, Job.commit_sha == head, Job.baseline_sha == base)
        .where(Job.kind == JobKind.COMPARE)
        .subquery()
    )
    query = (
        _verdicts()
        .join(newest, newest.c.id == Verdict.id)
        .where(newest.c.recency == 1)
        .order_by(Measurement.device_class, Case.name, Case.version)
    )
    return session.execute(query).all()


def newest_points(session: Session, repository_id: UUID, sha: str) -> dict[UUID, tuple[Point, Series, Case]]:
    """Return a commit's newest well measured time of each series."""
    query = (
        select(Point, Series, Case)
        .join(Series, Point.series_id == Series.id)
        .join(Case, Series.case_id == Case.id)
        .join(Commit, Point.commit_id == Commit.id)
        .where(Commit.repository_id == repository_id, Commit.sha == sha, Series.metric == TIME, Point.status == "ok")
        .order_by(Series.device_class, Case.name, Series.id, Point.id)
    )
    return {series.id: (point, series, case) for point, series, case in session.execute(query)}
