"""Jobs, their measurements (one per device class) and their events."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, ForeignKey, String, Text, UniqueConstraint, false, func
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class State(StrEnum):
    """States of a job and of a measurement; the last four are terminal and never change."""

    QUEUED = "queued"
    PREPARING = "preparing"
    MEASURING = "measuring"
    JUDGING = "judging"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


TERMINAL = frozenset({State.DONE, State.FAILED, State.CANCELED, State.EXPIRED})


class JobKind(StrEnum):
    """What a job does with its two commits.

    It compares them, says what each commit between them did, or looks for the one between them that changed a case.
    """

    COMPARE = "compare"
    STACK = "stack"
    BISECT = "bisect"


class Job(Identified, Base):
    """One request to measure a commit. `baseline` is what was asked ("auto" or a ref); the SHAs are what was pinned."""

    __tablename__ = "job"

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    kind: Mapped[str] = mapped_column(String(20), default=JobKind.COMPARE, server_default=JobKind.COMPARE)
    requested_commit: Mapped[str] = mapped_column(String(250))
    requested_baseline: Mapped[str] = mapped_column(String(250))
    commit_sha: Mapped[str | None] = mapped_column(String(40), index=True)
    baseline_sha: Mapped[str | None] = mapped_column(String(40))
    devices: Mapped[list[str]]
    cases: Mapped[str] = mapped_column(String(500))
    reason: Mapped[str | None] = mapped_column(Text)
    pull_request: Mapped[int | None]
    priority: Mapped[int] = mapped_column(default=100)
    policy: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20), default=State.QUEUED, index=True)
    error: Mapped[dict[str, Any] | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    idempotency_key: Mapped[str | None] = mapped_column(String(250), unique=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    token_id: Mapped[UUID | None] = mapped_column(ForeignKey("token.id"))
    finished_at: Mapped[datetime | None]

    @hybrid_property
    def is_calibration(self) -> bool:
        """Whether a commit is measured against itself, whoever asked for it: what is found is the device, not code."""
        return self.commit_sha is not None and self.commit_sha == self.baseline_sha

    @is_calibration.inplace.expression
    @classmethod
    def _is_calibration(cls) -> ColumnElement[bool]:
        return func.coalesce(cls.commit_sha == cls.baseline_sha, false())


class Measurement(Identified, Base):
    """A job on one device class. `stage` names the step at work; `error` = {"code", "stage", "message", "log_tail"}."""

    __tablename__ = "measurement"
    __table_args__ = (UniqueConstraint("job_id", "device_class"),)

    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id"), index=True)
    device_class: Mapped[str] = mapped_column(String(120), index=True)
    state: Mapped[str] = mapped_column(String(20), default=State.QUEUED, index=True)
    stage: Mapped[str | None] = mapped_column(String(40))
    attempt: Mapped[int] = mapped_column(default=1)
    candidate_id: Mapped[UUID | None] = mapped_column(ForeignKey("commit.id"), index=True)
    baseline_id: Mapped[UUID | None] = mapped_column(ForeignKey("commit.id"))
    worker_id: Mapped[UUID | None] = mapped_column(ForeignKey("worker.id"))
    device_id: Mapped[UUID | None] = mapped_column(ForeignKey("device.id"))
    sandbox: Mapped[str | None] = mapped_column(String(20))
    error: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class JobEvent(Identified, Base):
    """What happened to a job, in order; server-sent events and the job page read these rows."""

    __tablename__ = "job_event"

    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id"), index=True)
    measurement_id: Mapped[UUID | None] = mapped_column(ForeignKey("measurement.id"))
    kind: Mapped[str] = mapped_column(String(40))
    payload: Mapped[dict[str, Any]]
