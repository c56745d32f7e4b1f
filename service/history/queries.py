"""Reads of what histories are made of, and the locks under which they change."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session, aliased

from service.models import (
    Case,
    ChangePoint,
    Commit,
    Device,
    DriftNotice,
    HistoryRequest,
    Measurement,
    Point,
    Series,
    SeriesHistory,
    Verdict,
)
from service.models.upsert import insert_missing
from service.stats.history_state import HistoryPoint, SeriesState
from service.stats.investigation import Outcome
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict as VerdictName


@dataclass(frozen=True)
class Entry:
    """What a measurement says of a series: its candidate's point, and the outcome if both commits are on the line."""

    series_id: UUID
    point_id: UUID
    measurement_id: UUID
    job_id: UUID
    commit_id: UUID
    at: datetime
    point: HistoryPoint
    outcome: Outcome | None


SeriesParts = tuple[UUID, str]  # repository and case name of a series


def entries(session: Session, *conditions: ColumnElement[bool]) -> list[Entry]:
    """Return what measurements say of series, in the order in which they were judged."""
    candidate, baseline = aliased(Commit), aliased(Commit)
    query = (
        select(
            Point.series_id,
            Point.id.label("point_id"),
            Point.measurement_id,
            Measurement.job_id,
            Point.commit_id,
            Point.created_at,
            Point.value,
            Point.status,
            Point.clock,
            func.coalesce(Point.gpu_uuid, Device.uuid, "").label("device"),
            candidate.first_parent_position.label("position"),
            candidate.orphaned,
            baseline.first_parent_position.label("baseline_position"),
            baseline.orphaned.label("baseline_orphaned"),
            Verdict.verdict,
            Verdict.effect,
            Verdict.interval_low,
            Verdict.interval_high,
        )
        .join(Series, Point.series_id == Series.id)
        .join(Measurement, Point.measurement_id == Measurement.id)
        .join(candidate, Point.commit_id == candidate.id)
        .outerjoin(baseline, Measurement.baseline_id == baseline.id)
        .outerjoin(Verdict, and_(Verdict.measurement_id == Point.measurement_id, Verdict.case_id == Series.case_id))
        .outerjoin(Device, Measurement.device_id == Device.id)
        .where(Point.arm == "B", *conditions)
        .order_by(Point.created_at, Point.id)
    )
    return [_entry(row) for row in session.execute(query)]


def on_or_after(position: int) -> ColumnElement[bool]:
    """Return the condition that a point's commit is on the line, at a position or after it."""
    later = select(Commit.id).where(Commit.first_parent_position >= position, Commit.orphaned.is_(False))
    return Point.commit_id.in_(later)


def off_line() -> ColumnElement[bool]:
    """Return the condition that a point's commit has left the line."""
    gone = select(Commit.id).where(or_(Commit.orphaned.is_(True), Commit.first_parent_position.is_(None)))
    return Point.commit_id.in_(gone)


def _entry(row: Any) -> Entry:
    on_line = row.position is not None and not row.orphaned
    clock = row.clock if row.clock is not None and math.isfinite(row.clock) and row.clock > 0.0 else None
    position = row.position if on_line else 0
    point = HistoryPoint(position, row.value, row.device, row.status, clock, on_line)
    outcome = _outcome(row) if on_line else None
    ids = (row.series_id, row.point_id, row.measurement_id, row.job_id, row.commit_id)
    return Entry(*ids, row.created_at, point, outcome)


def _outcome(row: Any) -> Outcome | None:
    """Return what a verdict says of a range of the line; None where it is about no such range."""
    if row.verdict is None or row.baseline_position is None or row.baseline_orphaned:
        return None
    if not row.baseline_position < row.position:
        return None
    verdict = VerdictName(row.verdict)
    known = None not in (row.effect, row.interval_low, row.interval_high)
    if verdict in CHANGES and not known:
        return None
    interval = (row.interval_low, row.interval_high) if known else None
    return Outcome(row.position, row.baseline_position, verdict, row.effect, interval)


def lock(session: Session, series_ids: Collection[UUID]) -> dict[UUID, SeriesHistory]:
    """Return the histories of series, begun where there is none; no other transaction changes them until this one ends.

    Everybody locks in the order of ids.
    """
    found = _locked(session, series_ids)
    missing = sorted(set(series_ids) - set(found))
    for series_id in missing:
        insert_missing(
            session, SeriesHistory, {"series_id": series_id}, {"state": SeriesState().to_dict(), "version": 1}
        )
    return _locked(session, series_ids) if missing else found


def _locked(session: Session, series_ids: Collection[UUID]) -> dict[UUID, SeriesHistory]:
    query = select(SeriesHistory).where(SeriesHistory.series_id.in_(series_ids)).order_by(SeriesHistory.series_id)
    rows = session.execute(query.with_for_update().execution_options(populate_existing=True)).scalars()
    return {row.series_id: row for row in rows}


def parts(session: Session, series_ids: Collection[UUID]) -> dict[UUID, SeriesParts]:
    """Return repository and case name of some series."""
    query = select(Series.id, Series.repository_id, Case.name).join(Case, Series.case_id == Case.id)
    rows = session.execute(query.where(Series.id.in_(series_ids)))
    return {series_id: (repository_id, name) for series_id, repository_id, name in rows}


def of_repository(session: Session, repository_id: UUID | None) -> list[UUID]:
    """Return the series of a repository, or of all, that have points."""
    query = select(Series.id).where(select(Point.id).where(Point.series_id == Series.id).exists()).order_by(Series.id)
    if repository_id is not None:
        query = query.where(Series.repository_id == repository_id)
    return list(session.execute(query).scalars())


def with_history(session: Session, repository_id: UUID) -> list[UUID]:
    """Return the series of a repository that have a history."""
    query = select(SeriesHistory.series_id).join(Series, SeriesHistory.series_id == Series.id)
    return list(session.execute(query.where(Series.repository_id == repository_id)).scalars())


def waiting(session: Session, *conditions: ColumnElement[bool]) -> Sequence[HistoryRequest]:
    """Return the requests whose job is out."""
    query = select(HistoryRequest).where(HistoryRequest.outcome.is_(None), *conditions).order_by(HistoryRequest.id)
    return session.execute(query).scalars().all()


def answered(session: Session, series_id: UUID) -> Sequence[HistoryRequest]:
    """Return the requests of a series whose job has ended."""
    query = select(HistoryRequest).where(HistoryRequest.series_id == series_id, HistoryRequest.outcome.is_not(None))
    return session.execute(query.order_by(HistoryRequest.answered_at, HistoryRequest.id)).scalars().all()


def revision(session: Session, repository_id: UUID, position: int) -> tuple[str, int] | None:
    """Return a commit of the line, as near as one is known, and how many first parents before it a position lies."""
    query = (
        select(Commit.sha, Commit.first_parent_position)
        .where(
            Commit.repository_id == repository_id,
            Commit.first_parent_position >= position,
            Commit.orphaned.is_(False),
        )
        .order_by(Commit.first_parent_position, Commit.id.desc())
        .limit(1)
    )
    found = session.execute(query).one_or_none()
    return None if found is None else (found.sha, (found.first_parent_position or 0) - position)


def commits_at(session: Session, repository_id: UUID, positions: Collection[int]) -> Mapping[int, UUID]:
    """Return the commits at some positions of the line; an orphaned one only where no other has its place."""
    query = (
        select(Commit.first_parent_position, Commit.id)
        .where(Commit.repository_id == repository_id, Commit.first_parent_position.in_(positions))
        .order_by(Commit.orphaned.desc(), Commit.id)
    )
    return {position: commit_id for position, commit_id in session.execute(query) if position is not None}


def changes(session: Session, *conditions: ColumnElement[bool]) -> Sequence[ChangePoint]:
    """Return change points that were not taken back, oldest first."""
    query = select(ChangePoint).where(ChangePoint.withdrawn_at.is_(None), *conditions).order_by(ChangePoint.id)
    return session.execute(query).scalars().all()


def notices(session: Session, *conditions: ColumnElement[bool]) -> Sequence[DriftNotice]:
    """Return drift notices that were not taken back, oldest first."""
    query = select(DriftNotice).where(DriftNotice.withdrawn_at.is_(None), *conditions).order_by(DriftNotice.id)
    return session.execute(query).scalars().all()


def showing_job(session: Session, series_id: UUID, position: int, low: int) -> UUID | None:
    """Return the job that has shown a change in a range of the line, if a series asked for one."""
    query = (
        select(HistoryRequest.job_id)
        .where(
            HistoryRequest.series_id == series_id,
            HistoryRequest.candidate == position,
            HistoryRequest.baseline == low,
            HistoryRequest.outcome.in_(sorted(CHANGES)),
        )
        .order_by(HistoryRequest.id.desc())
        .limit(1)
    )
    return session.execute(query).scalar_one_or_none()


def waves_begun(session: Session, commit_id: UUID) -> int:
    """Return how many measurements of a commit have begun searches; the commit is locked for the transaction.

    The lock lets rows that refer to the commit be written, which other transactions do before they come here.
    """
    session.execute(select(Commit.id).where(Commit.id == commit_id).with_for_update(key_share=True))
    query = select(func.count(HistoryRequest.raised_by.distinct()))
    return session.execute(query.where(HistoryRequest.cause_id == commit_id, HistoryRequest.wave == 0)).scalar_one()
