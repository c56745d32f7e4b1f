"""Reads for badges."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.models import Commit, Job, JobKind, Measurement, State, Verdict


def measurement_of(session: Session, repository_id: UUID, sha: str, device_class: str) -> UUID | None:
    """Return the newest finished measurement of a commit on a device class."""
    query = (
        select(Measurement.id)
        .join(Job, Measurement.job_id == Job.id)
        .where(
            Job.repository_id == repository_id,
            Job.kind == JobKind.COMPARE,
            Job.commit_sha == sha,
            ~Job.is_calibration,
            Measurement.device_class == device_class,
            Measurement.state == State.DONE,
        )
    )
    return session.execute(query.order_by(Measurement.id.desc()).limit(1)).scalar_one_or_none()


def newest_on_default_branch(session: Session, repository_id: UUID, device_class: str) -> UUID | None:
    """Return the newest finished measurement of the furthest commit of the default branch on a device class."""
    query = (
        select(Measurement.id)
        .join(Commit, Measurement.candidate_id == Commit.id)
        .join(Job, Measurement.job_id == Job.id)
        .where(
            Job.kind == JobKind.COMPARE,
            Commit.repository_id == repository_id,
            ~Job.is_calibration,
            Commit.first_parent_position.is_not(None),
            Commit.orphaned.is_(False),
            Measurement.device_class == device_class,
            Measurement.state == State.DONE,
        )
        .order_by(Commit.first_parent_position.desc(), Measurement.id.desc())
    )
    return session.execute(query.limit(1)).scalar_one_or_none()


def verdicts(session: Session, measurement_id: UUID) -> Sequence[tuple[str, list[dict[str, str]]]]:
    """Return the verdicts of a measurement with their reasons."""
    query = select(Verdict.verdict, Verdict.reasons).where(Verdict.measurement_id == measurement_id)
    return [(verdict, reasons) for verdict, reasons in session.execute(query)]
