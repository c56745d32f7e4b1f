"""Reads of series and points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from service.models import (
    Alert,
    Case,
    ChangePoint,
    Commit,
    DriftNotice,
    HistoryRequest,
    Job,
    JobKind,
    Measurement,
    Point,
    Repository,
    Series,
    Verdict,
)


@dataclass(frozen=True)
class SeriesFilter:
    """Which series to list; None does not filter."""

    repository: str | None = None
    case: str | None = None
    device_class: str | None = None


@dataclass(frozen=True)
class LastVerdict:
    """The newest verdict on a case: nothing is known where there is none."""

    verdict: str | None = None
    effect: float | None = None
    interval_low: float | None = None
    interval_high: float | None = None


SeriesParts = tuple[Series, str, Case, int, datetime | None]
LastPoint = tuple[UUID, float, str, datetime, str, str | None, UUID]
ChangeParts = tuple[ChangePoint, Commit, str, UUID | None, str | None]
PointParts = tuple[Point, Commit, UUID, str | None, float | None]


def _series() -> Select[Series, str, Case, int, datetime | None]:
    """Series, repository, case, number of points and time of the newest."""
    count = select(func.count(Point.id)).where(Point.series_id == Series.id).scalar_subquery()
    newest = select(func.max(Point.created_at)).where(Point.series_id == Series.id).scalar_subquery()
    return (
        select(Series, Repository.name, Case, count, newest)
        .join(Repository, Series.repository_id == Repository.id)
        .join(Case, Series.case_id == Case.id)
    )


def series(session: Session, series_id: UUID) -> SeriesParts | None:
    """Return a series."""
    return session.execute(_series().where(Series.id == series_id)).one_or_none()


def page(session: Session, wanted: SeriesFilter, after: tuple[str, UUID] | None, limit: int) -> Sequence[SeriesParts]:
    """Return series after one in the order of case names."""
    query = _series().order_by(Case.name, Series.id).limit(limit)
    if wanted.repository is not None:
        query = query.where(Repository.name == wanted.repository)
    if wanted.case is not None:
        query = query.where(Case.name == wanted.case)
    if wanted.device_class is not None:
        query = query.where(Series.device_class == wanted.device_class)
    if after is not None:
        name, series_id = after
        query = query.where(or_(Case.name > name, and_(Case.name == name, Series.id > series_id)))
    return session.execute(query).all()


def points(session: Session, series_id: UUID, case_id: UUID) -> Sequence[PointParts]:
    """Return the points of a series in the order of their commits, with job, verdict and effect of the measurement."""
    query = (
        select(Point, Commit, Measurement.job_id, Verdict.verdict, Verdict.effect)
        .join(Commit, Point.commit_id == Commit.id)
        .join(Measurement, Point.measurement_id == Measurement.id)
        .outerjoin(Verdict, and_(Verdict.measurement_id == Point.measurement_id, Verdict.case_id == case_id))
        .where(Point.series_id == series_id)
        .order_by(Commit.committed_at.asc().nulls_last(), Commit.sha, Point.id)
    )
    return session.execute(query).all()


def overview(session: Session, repository: str | None) -> Sequence[tuple[Series, str, Case]]:
    """Return the series that have points, by case and device class."""
    query = (
        select(Series, Repository.name, Case)
        .join(Repository, Series.repository_id == Repository.id)
        .join(Case, Series.case_id == Case.id)
        .where(select(Point.id).where(Point.series_id == Series.id).exists())
        .order_by(Repository.name, Case.name, Series.device_class, Series.id)
    )
    if repository is not None:
        query = query.where(Repository.name == repository)
    return session.execute(query).all()


def last_points(session: Session, count: int) -> Sequence[LastPoint]:
    """Return of each series the last points, newest first: series, value, status, time, SHA, subject and job."""
    ranked = select(
        Point.id,
        func.row_number()
        .over(
            partition_by=Point.series_id,
            order_by=(Commit.committed_at.desc().nulls_last(), Point.id.desc()),
        )
        .label("recency"),
    ).join(Commit, Point.commit_id == Commit.id)
    newest = ranked.subquery()
    query = (
        select(
            Point.series_id,
            Point.value,
            Point.status,
            Point.created_at,
            Commit.sha,
            Commit.subject,
            Measurement.job_id,
        )
        .join(newest, newest.c.id == Point.id)
        .join(Commit, Point.commit_id == Commit.id)
        .join(Measurement, Point.measurement_id == Measurement.id)
        .where(newest.c.recency <= count)
        .order_by(newest.c.recency)
    )
    return session.execute(query).all()


def last_verdicts(session: Session) -> dict[tuple[UUID, UUID, str], LastVerdict]:
    """Return the newest verdict on a change per repository, case and device class."""
    ranked = (
        select(
            Job.repository_id,
            Verdict.case_id,
            Measurement.device_class,
            Verdict.verdict,
            Verdict.effect,
            Verdict.interval_low,
            Verdict.interval_high,
            func.row_number()
            .over(
                partition_by=(Job.repository_id, Verdict.case_id, Measurement.device_class),
                order_by=Verdict.id.desc(),
            )
            .label("recency"),
        )
        .join(Measurement, Verdict.measurement_id == Measurement.id)
        .join(Job, Measurement.job_id == Job.id)
        .where(~Job.is_calibration, Job.kind == JobKind.COMPARE)
        .subquery()
    )
    rows = session.execute(select(ranked).where(ranked.c.recency == 1)).all()
    return {
        (row.repository_id, row.case_id, row.device_class): LastVerdict(
            row.verdict, row.effect, row.interval_low, row.interval_high
        )
        for row in rows
    }


def _changes() -> Select[ChangePoint, Commit, str, UUID | None, str | None]:
    """Change points with commit, the SHA before the range, and the alert about the same change."""
    low = aliased(Commit)
    same_change = and_(
        Alert.repository_id == Series.repository_id,
        Alert.base_sha == low.sha,
        Alert.head_sha == Commit.sha,
        Alert.kind == "speed",
        Alert.group == Case.group,
        Alert.pull_request.is_(None),
    )
    return (
        select(ChangePoint, Commit, low.sha, Alert.id, Alert.state)
        .join(Series, ChangePoint.series_id == Series.id)
        .join(Case, Series.case_id == Case.id)
        .join(Commit, ChangePoint.commit_id == Commit.id)
        .join(low, ChangePoint.low_commit_id == low.id)
        .outerjoin(Alert, same_change)
    )


def change_points(session: Session, series_id: UUID) -> Sequence[ChangeParts]:
    """Return every change point of a series, oldest first."""
    query = _changes().where(ChangePoint.series_id == series_id).order_by(ChangePoint.position, ChangePoint.id)
    return session.execute(query).all()


def newest_changes(session: Session) -> Sequence[ChangeParts]:
    """Return the newest change point of each series that holds."""
    ranked = (
        select(
            ChangePoint.id,
            func.row_number()
            .over(partition_by=ChangePoint.series_id, order_by=(ChangePoint.position.desc(), ChangePoint.id.desc()))
            .label("recency"),
        )
        .where(ChangePoint.withdrawn_at.is_(None), ChangePoint.replaced_by.is_(None))
        .subquery()
    )
    query = _changes().join(ranked, ranked.c.id == ChangePoint.id).where(ranked.c.recency == 1)
    return session.execute(query).all()


def drift_notices(session: Session, series_id: UUID) -> Sequence[tuple[DriftNotice, str, str]]:
    """Return the drift notices of a series that hold, with the SHAs of both ends."""
    since = aliased(Commit)
    query = (
        select(DriftNotice, since.sha, Commit.sha)
        .join(since, DriftNotice.since_commit_id == since.id)
        .join(Commit, DriftNotice.commit_id == Commit.id)
        .where(DriftNotice.series_id == series_id, DriftNotice.withdrawn_at.is_(None))
        .order_by(DriftNotice.position, DriftNotice.id)
    )
    return session.execute(query).all()


def searches(session: Session, series_id: UUID) -> Sequence[HistoryRequest]:
    """Return the jobs that a series waits for."""
    query = select(HistoryRequest).where(HistoryRequest.series_id == series_id, HistoryRequest.outcome.is_(None))
    return session.execute(query.order_by(HistoryRequest.id)).scalars().all()
