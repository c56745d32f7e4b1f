"""Reads of what is known of GitHub's side."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.models import CheckRun, Job, PullRequest, WebhookDelivery


def webhook(session: Session, webhook_id: UUID) -> WebhookDelivery | None:
    """Return a stored webhook."""
    return session.get(WebhookDelivery, webhook_id)


def lock_pull(session: Session, repository_id: UUID, number: int) -> PullRequest | None:
    """Return a pull request that no other transaction changes until this one ends."""
    query = select(PullRequest).where(PullRequest.repository_id == repository_id, PullRequest.number == number)
    return session.execute(query.with_for_update()).scalar_one_or_none()


def current_checks(
    session: Session, repository_id: UUID, *, pull_request_id: UUID | None = None, head_sha: str | None = None
) -> Sequence[CheckRun]:
    """Return the checks that nothing has superseded, of a pull request or of a commit, oldest first."""
    query = select(CheckRun).where(CheckRun.repository_id == repository_id, CheckRun.superseded_by.is_(None))
    if pull_request_id is not None:
        query = query.where(CheckRun.pull_request_id == pull_request_id)
    if head_sha is not None:
        query = query.where(CheckRun.head_sha == head_sha)
    return session.execute(query.order_by(CheckRun.id)).scalars().all()


def check_exists(session: Session, check: CheckRun) -> bool:
    """Say whether the same check was made for the same cause before."""
    query = select(CheckRun.id).where(
        CheckRun.repository_id == check.repository_id,
        CheckRun.name == check.name,
        CheckRun.head_sha == check.head_sha,
        CheckRun.cause == check.cause,
    )
    return session.execute(query).first() is not None


def jobs_by_id(session: Session, ids: Sequence[UUID]) -> dict[UUID, Job]:
    """Return jobs by id."""
    return {job.id: job for job in session.execute(select(Job).where(Job.id.in_(ids))).scalars()}
