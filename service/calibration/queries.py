"""Reads of calibrations, and of what is idle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from service.models import TERMINAL, Calibration, Case, Commit, Job, Measurement, Repository, State, Verdict


@dataclass(frozen=True)
class CalibrationFilter:
    """Which calibrations to sum up: those judged since a time; None does not filter."""

    since: datetime
    repository: str | None = None
    device_class: str | None = None


@dataclass(frozen=True)
class CalibrationRow:
    """A verdict on identical code and where it comes from."""

    repository: str
    device_class: str
    case: str
    case_version: str
    group: str
    job_id: UUID
    series_id: UUID | None
    scatter: float | None
    verdict: str
    effect: float | None
    interval_low: float | None
    interval_high: float | None
    minimum_detectable_effect: float | None
    pairs_used: int
    gpu_uuid: str | None
    judged_at: datetime


def rows(session: Session, wanted: CalibrationFilter) -> list[CalibrationRow]:
    """Return the calibrations, the newest first."""
    query = (
        select(
            Repository.name.label("repository"),
            Measurement.device_class,
            Case.name.label("case"),
            Case.version.label("case_version"),
            Case.group.label("group"),
            Job.id.label("job_id"),
            Calibration.series_id,
            Calibration.scatter,
            Verdict.verdict,
            Verdict.effect,
            Verdict.interval_low,
            Verdict.interval_high,
            Verdict.minimum_detectable_effect,
            Verdict.pairs_used,
            Verdict.gpu_uuid,
            Verdict.judged_at,
        )
        .join(Verdict, Calibration.verdict_id == Verdict.id)
        .join(Case, Verdict.case_id == Case.id)
        .join(Measurement, Verdict.measurement_id == Measurement.id)
        .join(Job, Measurement.job_id == Job.id)
        .join(Repository, Job.repository_id == Repository.id)
        .where(Verdict.judged_at >= wanted.since)
        .order_by(Calibration.id.desc())
    )
    if wanted.repository is not None:
        query = query.where(Repository.name == wanted.repository)
    if wanted.device_class is not None:
        query = query.where(Measurement.device_class == wanted.device_class)
    return [CalibrationRow(**row) for row in session.execute(query).mappings()]


def is_busy(session: Session, device_classes: Collection[str], since: datetime) -> bool:
    """Return whether something waits or runs on one of the device classes, or has ended there since a time."""
    query = select(Measurement.id).where(
        Measurement.device_class.in_(device_classes),
        or_(Measurement.state.not_in(TERMINAL), Measurement.finished_at >= since),
    )
    return session.execute(query.limit(1)).first() is not None


def canceled_with_key(session: Session, beginning: str) -> int:
    """Return how many canceled jobs have an idempotency key that begins so."""
    query = select(func.count()).where(
        Job.idempotency_key.startswith(beginning, autoescape=True), Job.state == State.CANCELED
    )
    return session.execute(query.select_from(Job)).scalar_one()


def measured_repositories(session: Session, device_class: str) -> Sequence[UUID]:
    """Return the repositories of which a commit of the default branch was measured on a device class."""
    query = (
        select(Commit.repository_id)
        .join(Measurement, Measurement.candidate_id == Commit.id)
        .where(*_is_usable(device_class))
        .distinct()
        .order_by(Commit.repository_id)
    )
    return session.execute(query).scalars().all()


def newest_measured(session: Session, repository_id: UUID, device_class: str) -> Commit | None:
    """Return the furthest commit of a default branch that was measured on a device class."""
    query = (
        select(Commit)
        .join(Measurement, Measurement.candidate_id == Commit.id)
        .where(Commit.repository_id == repository_id, *_is_usable(device_class))
        .order_by(Commit.first_parent_position.desc())
    )
    return session.execute(query.limit(1)).scalar_one_or_none()


def _is_usable(device_class: str) -> tuple[Any, ...]:
    return (
        Commit.first_parent_position.is_not(None),
        Commit.orphaned.is_(False),
        Measurement.device_class == device_class,
        Measurement.state == State.DONE,
    )
