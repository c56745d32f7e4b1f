"""What histories say: the state of each series, change points, drift notices, and the jobs that confirm."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class SeriesHistory(Identified, Base):
    """The document of `service.stats.history_state.SeriesState` for one series, derived from points and outcomes.

    `version` counts the changes: a writer that has not seen the last one is refused.
    """

    __tablename__ = "series_history"

    series_id: Mapped[UUID] = mapped_column(ForeignKey("series.id"), unique=True)
    state: Mapped[dict[str, Any]]
    version: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 (read by SQLAlchemy as a class attribute)


class ChangePoint(Identified, Base):
    """The level of a series moved at a commit in (low, position]; `effect` = ratio - 1, positive is slower.

    `status` is confirmed, unconfirmed or surroundings; `named` says whether `commit_id` alone is meant. `job_id` is the
    job that showed it, if one did. `raised_at` is the newest position when it was said. It holds until a confirmed one
    takes its place (`replaced_by`), or a force push or a rebuild takes it back (`withdrawn_at`).
    """

    __tablename__ = "change_point"

    series_id: Mapped[UUID] = mapped_column(ForeignKey("series.id"), index=True)
    position: Mapped[int]
    low: Mapped[int]
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    low_commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"))
    status: Mapped[str] = mapped_column(String(20))
    named: Mapped[bool]
    effect: Mapped[float]
    interval_low: Mapped[float | None]
    interval_high: Mapped[float | None]
    device: Mapped[str] = mapped_column(String(80))
    raised_at: Mapped[int]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("job.id"))
    replaced_by: Mapped[UUID | None] = mapped_column(ForeignKey("change_point.id"))
    withdrawn_at: Mapped[datetime | None]


class DriftNotice(Identified, Base):
    """The level of a series moved by `effect` between two commits, in no single step."""

    __tablename__ = "drift_notice"

    series_id: Mapped[UUID] = mapped_column(ForeignKey("series.id"), index=True)
    since: Mapped[int]
    position: Mapped[int]
    since_commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"))
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"))
    effect: Mapped[float]
    device: Mapped[str] = mapped_column(String(80))
    withdrawn_at: Mapped[datetime | None]


class HistoryRequest(Identified, Base):
    """A job that a series waits for: `candidate` against `baseline` (positions); several series may share a job.

    `cause_id` is the commit whose measurement began the search and `raised_by` the measurement that asked for this
    job; `wave` counts the jobs of the search before it. `level` is that at which the job is judged, `left` the expected
    false alarms that the jobs after it may still spend. `outcome` is the job's verdict on the series, not_comparable
    when it has none, or withdrawn; None while it is out.
    """

    __tablename__ = "history_request"
    __table_args__ = (UniqueConstraint("series_id", "job_id"),)

    series_id: Mapped[UUID] = mapped_column(ForeignKey("series.id"), index=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id"), index=True)
    candidate: Mapped[int]
    baseline: Mapped[int]
    cause_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    raised_by: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"))
    wave: Mapped[int]
    level: Mapped[float]
    left: Mapped[float] = mapped_column("budget_left")
    outcome: Mapped[str | None] = mapped_column(String(20))
    answered_at: Mapped[datetime | None]
