"""Pull requests, the checks shown at commits, webhooks as they came, and what waits to be delivered."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified, utc_now


class PullRequest(Identified, Base):
    """A pull request as its newest event told; `changed_at` is GitHub's time of it, by which older events are known.

    `approved_sha` is the one commit of a fork whose code a maintainer let run. `comment_id` is GitHub's id of the
    comment that carries the results.
    """

    __tablename__ = "pull_request"
    __table_args__ = (UniqueConstraint("repository_id", "number"),)

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    number: Mapped[int]
    title: Mapped[str] = mapped_column(Text)
    author: Mapped[str] = mapped_column(String(250))
    head_sha: Mapped[str] = mapped_column(String(40))
    base_ref: Mapped[str] = mapped_column(String(250))
    is_fork: Mapped[bool]
    is_open: Mapped[bool]
    changed_at: Mapped[datetime]
    approved_sha: Mapped[str | None] = mapped_column(String(40))
    comment_id: Mapped[int | None] = mapped_column(BigInteger)


class CheckRun(Identified, Base):
    """A check at a commit; without a job it waits for the approval of a fork's code.

    `cause` says what asked for it ("push", "pull/7@<id>/main", "rerun/<delivery>/main") and ends in the base branch:
    the same cause makes one check, however often it is told. `superseded_by` is the commit or the cause that took its
    place. `remote_id` is GitHub's id of it.
    """

    __tablename__ = "check_run"
    __table_args__ = (UniqueConstraint("repository_id", "name", "head_sha", "cause"),)

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    pull_request_id: Mapped[UUID | None] = mapped_column(ForeignKey("pull_request.id"), index=True)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("job.id"), index=True)
    name: Mapped[str] = mapped_column(String(120))
    head_sha: Mapped[str] = mapped_column(String(40), index=True)
    cause: Mapped[str] = mapped_column(String(500))
    superseded_by: Mapped[str | None] = mapped_column(String(500))
    remote_id: Mapped[int | None] = mapped_column(BigInteger)


class WebhookDelivery(Identified, Base):
    """A webhook whose signature was right, reduced to what is used of it; kept so that a replay is known.

    GitHub's delivery id is not signed, the body is: so a body counts once, under whatever id it comes.
    """

    __tablename__ = "webhook_delivery"

    delivery_id: Mapped[str] = mapped_column(String(100), unique=True)
    body_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    event: Mapped[str] = mapped_column(String(60))
    payload: Mapped[dict[str, Any]]
    outcome: Mapped[str | None] = mapped_column(String(250))
    processed_at: Mapped[datetime | None]


class DeliveryKind(StrEnum):
    """What a delivery is: a webhook to work on, or a check, a comment or a notice to bring to the outside world."""

    WEBHOOK = "webhook"
    CHECK = "check"
    COMMENT = "comment"
    NOTICE = "notice"


class Delivery(Identified, Base):
    """Work towards the outside world, one row per thing that has to be brought up to date.

    The row holds no text: who delivers renders what the database says then, so repeating it is harmless, and changes
    that come fast become one. It is due while `wanted` > `delivered`; whoever changes the thing raises `wanted` in the
    same transaction. `parked` ones are not tried again until the thing changes.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        UniqueConstraint("kind", "subject_id", "target"),
        Index("ix_delivery_due", "parked", "due_at"),
    )

    kind: Mapped[str] = mapped_column(String(20))
    subject_id: Mapped[UUID]
    target: Mapped[str] = mapped_column(String(120), default="")
    wanted: Mapped[int] = mapped_column(default=1)
    delivered: Mapped[int] = mapped_column(default=0)
    attempts: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[datetime] = mapped_column(default=utc_now)
    leased_until: Mapped[datetime | None]
    parked: Mapped[bool] = mapped_column(default=False)
    last_error: Mapped[str | None] = mapped_column(Text)
