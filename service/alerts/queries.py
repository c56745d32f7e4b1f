"""Reads of alerts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Select, and_, select
from sqlalchemy.orm import Session

from service.models import (
    Alert,
    AlertCase,
    AlertEvent,
    AlertState,
    Case,
    CheckRun,
    Commit,
    HistoryRequest,
    Job,
    Repository,
    Verdict,
)

ACCEPTED = (AlertState.ACKNOWLEDGED, AlertState.EXPECTED, AlertState.INVALID)


@dataclass(frozen=True)
class AlertFilter:
    """Which alerts to list; None does not filter."""

    repository: str | None = None
    state: str | None = None
    pull_request: int | None = None


AlertRow = tuple[Alert, str, str | None]  # with the name of its repository here and on GitHub


def _alerts() -> Select[Alert, str, str | None]:
    return select(Alert, Repository.name, Repository.github).join(Repository, Alert.repository_id == Repository.id)


def alert(session: Session, alert_id: UUID) -> AlertRow | None:
    """Return an alert with its repository's names."""
    return session.execute(_alerts().where(Alert.id == alert_id)).one_or_none()


def page(session: Session, wanted: AlertFilter, before: UUID | None, limit: int) -> Sequence[AlertRow]:
    """Return alerts that were made before one, newest first."""
    query = _alerts().order_by(Alert.id.desc()).limit(limit)
    if wanted.repository is not None:
        query = query.where(Repository.name == wanted.repository)
    if wanted.state is not None:
        query = query.where(Alert.state == wanted.state)
    if wanted.pull_request is not None:
        query = query.where(Alert.pull_request == wanted.pull_request)
    if before is not None:
        query = query.where(Alert.id < before)
    return session.execute(query).all()


def cases(session: Session, alert_ids: Collection[UUID]) -> Sequence[tuple[AlertCase, str]]:
    """Return the cases of some alerts with their names, the largest effect first."""
    query = (
        select(AlertCase, Case.name)
        .join(Case, AlertCase.case_id == Case.id)
        .where(AlertCase.alert_id.in_(list(alert_ids)))
        .order_by(AlertCase.recovered, AlertCase.effect.desc(), Case.name)
    )
    return session.execute(query).all()


def events(session: Session, alert_id: UUID) -> Sequence[AlertEvent]:
    """Return what happened to an alert, oldest first."""
    query = select(AlertEvent).where(AlertEvent.alert_id == alert_id).order_by(AlertEvent.id)
    return session.execute(query).scalars().all()


def lock(session: Session, alert_id: UUID) -> Alert | None:
    """Return an alert that no other transaction changes until this one ends."""
    query = select(Alert).where(Alert.id == alert_id).with_for_update()
    return session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()


def open_of_pull(session: Session, repository_id: UUID, number: int) -> Sequence[UUID]:
    """Return the open alerts of a pull request, in the order in which everybody locks them."""
    query = select(Alert.id).where(
        Alert.repository_id == repository_id, Alert.pull_request == number, Alert.state == AlertState.OPEN
    )
    return session.execute(query.order_by(Alert.cause)).scalars().all()


def judged(session: Session, measurement_id: UUID) -> Sequence[tuple[Verdict, Case]]:
    """Return the verdicts of a measurement with their cases."""
    query = select(Verdict, Case).join(Case, Verdict.case_id == Case.id)
    return session.execute(query.where(Verdict.measurement_id == measurement_id)).all()


def unsettled_about(
    session: Session, repository_id: UUID, pull_request: int | None, case_ids: Collection[UUID], device_class: str
) -> Sequence[UUID]:
    """Return alerts that a recovery could close and that are about some of these cases, in the order of locking."""
    same_change = Alert.pull_request.is_(None) if pull_request is None else Alert.pull_request == pull_request
    query = (
        select(Alert.id, Alert.cause)
        .join(AlertCase, AlertCase.alert_id == Alert.id)
        .where(
            Alert.repository_id == repository_id,
            same_change,
            Alert.state.in_((AlertState.OPEN, AlertState.ACKNOWLEDGED)),
            AlertCase.case_id.in_(list(case_ids)),
            AlertCase.device_class == device_class,
        )
        .distinct()
        .order_by(Alert.cause)
    )
    return [alert_id for alert_id, _ in session.execute(query)]


def unsettled_of_commits(session: Session, repository_id: UUID, shas: Collection[str]) -> Sequence[UUID]:
    """Return the alerts about ranges of a branch that end at one of these commits, in the order of locking."""
    query = select(Alert.id).where(
        Alert.repository_id == repository_id,
        Alert.pull_request.is_(None),
        Alert.state.in_((AlertState.OPEN, AlertState.ACKNOWLEDGED)),
        Alert.head_sha.in_(list(shas)),
    )
    return session.scalars(query.order_by(Alert.cause)).all()


def alert_cases(session: Session, alert_id: UUID) -> dict[tuple[UUID, str], AlertCase]:
    """Return the cases of an alert by case and device class."""
    rows = session.execute(select(AlertCase).where(AlertCase.alert_id == alert_id)).scalars()
    return {(row.case_id, row.device_class): row for row in rows}


def position(session: Session, repository_id: UUID, sha: str) -> int | None:
    """Return a commit's place on the default branch."""
    query = select(Commit.first_parent_position).where(Commit.repository_id == repository_id, Commit.sha == sha)
    return session.execute(query).scalar_one_or_none()


def searches_range(session: Session, job_id: UUID) -> bool:
    """Say whether a job looks for a change among several commits, so that its verdicts name none of them."""
    wide = HistoryRequest.candidate - HistoryRequest.baseline > 1
    query = select(HistoryRequest.id).where(HistoryRequest.job_id == job_id, wide).limit(1)
    return session.execute(query).scalar_one_or_none() is not None


def accepted_cases(session: Session, job: Job) -> dict[tuple[str, str, str], str]:
    """Return what a person has accepted of a job's change: (case, version, device class) to the reason."""
    in_range = and_(Alert.base_sha == job.baseline_sha, Alert.head_sha == job.commit_sha, Alert.pull_request.is_(None))
    of_pull = Alert.pull_request == job.pull_request if job.pull_request is not None else in_range
    query = (
        select(Case.name, Case.version, AlertCase.device_class, Alert.state, Alert.reason)
        .join(AlertCase, AlertCase.case_id == Case.id)
        .join(Alert, AlertCase.alert_id == Alert.id)
        .where(Alert.repository_id == job.repository_id, of_pull, Alert.state.in_(ACCEPTED))
    )
    return {
        (name, version, kind): f"{state}: {reason}" for name, version, kind, state, reason in session.execute(query)
    }


def checks_about(session: Session, alert_row: Alert) -> Sequence[tuple[UUID, UUID | None]]:
    """Return the current checks that show what an alert is about, and their pull requests."""
    of_pull = and_(Job.pull_request == alert_row.pull_request, Job.pull_request.is_not(None))
    at_head = and_(Job.pull_request.is_(None), CheckRun.head_sha == alert_row.head_sha)
    query = (
        select(CheckRun.id, CheckRun.pull_request_id)
        .join(Job, CheckRun.job_id == Job.id)
        .where(
            CheckRun.repository_id == alert_row.repository_id,
            CheckRun.superseded_by.is_(None),
            at_head if alert_row.pull_request is None else of_pull,
        )
    )
    return [(check_id, pull_id) for check_id, pull_id in session.execute(query)]
