"""Says, in the transaction that changes something, what the outside world has to hear of it."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy.orm import Session

from service.models import Delivery, DeliveryKind
from service.models.upsert import insert_missing
from service.outbox import queries


def job_changed(session: Session, job_id: UUID, *, judged: bool) -> None:
    """Have the checks of a job brought up to date; once something was `judged`, or it ended, also the comment.

    A comment is made with its first result, not before: its making is what GitHub sends a mail about.
    """
    checks = queries.checks_of(session, job_id)
    if not checks:
        return
    queries.want(session, DeliveryKind.CHECK, [check_id for check_id, _ in checks])
    for pull_request_id in sorted({pull_id for _, pull_id in checks if pull_id is not None}):
        if judged:
            comment_wanted(session, pull_request_id)
        else:
            queries.want(session, DeliveryKind.COMMENT, [pull_request_id])


def comment_wanted(session: Session, pull_request_id: UUID) -> None:
    """Have the comment of a pull request brought up to date, or made."""
    key = {"kind": DeliveryKind.COMMENT, "subject_id": pull_request_id, "target": ""}
    insert_missing(session, Delivery, key, {"wanted": 0})
    queries.want(session, DeliveryKind.COMMENT, [pull_request_id])
