"""Alerts: one per cause, with the cases it moved and what happened to it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class AlertState(StrEnum):
    """States of an alert. Acknowledged: known and wanted gone; expected: accepted; invalid: it was no regression."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    EXPECTED = "expected"
    FIXED = "fixed"
    INVALID = "invalid"


class Alert(Identified, Base):
    """A regression or wrong numbers of one kernel group in one change: a pull request, or a range of commits.

    `cause` names kind, group and change, and is what makes an alert one; `base_sha` and `head_sha` are the range that
    was measured last.
    """

    __tablename__ = "alert"
    __table_args__ = (UniqueConstraint("repository_id", "cause"),)

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    cause: Mapped[str] = mapped_column(String(300))
    kind: Mapped[str] = mapped_column(String(20))  # speed | numerics
    group: Mapped[str] = mapped_column("kernel_group", String(120))
    pull_request: Mapped[int | None]
    base_sha: Mapped[str] = mapped_column(String(40))
    head_sha: Mapped[str] = mapped_column(String(40), index=True)
    state: Mapped[str] = mapped_column(String(20), default=AlertState.OPEN, index=True)
    reason: Mapped[str | None] = mapped_column(Text)
    assignee: Mapped[str | None] = mapped_column(String(250))


class AlertCase(Identified, Base):
    """A case on a device class that an alert is about, with the verdict that showed it last."""

    __tablename__ = "alert_case"
    __table_args__ = (UniqueConstraint("alert_id", "case_id", "device_class"),)

    alert_id: Mapped[UUID] = mapped_column(ForeignKey("alert.id"), index=True)
    case_id: Mapped[UUID] = mapped_column(ForeignKey("case.id"), index=True)
    device_class: Mapped[str] = mapped_column(String(120))
    verdict_id: Mapped[UUID] = mapped_column(ForeignKey("verdict.id"))
    effect: Mapped[float | None]
    interval_low: Mapped[float | None]
    interval_high: Mapped[float | None]
    recovered: Mapped[bool] = mapped_column(default=False)


class AlertEvent(Identified, Base):
    """What happened to an alert: opened, evidence, reopened, recovered, dropped, or what somebody set."""

    __tablename__ = "alert_event"

    alert_id: Mapped[UUID] = mapped_column(ForeignKey("alert.id"), index=True)
    kind: Mapped[str] = mapped_column(String(20))
    actor: Mapped[str] = mapped_column(String(250))
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("job.id"))
    payload: Mapped[dict[str, Any]]
