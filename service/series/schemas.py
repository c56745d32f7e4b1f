"""Answers about series, their points and the overview."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field


class SeriesOut(BaseModel):
    """History of one case version and metric on one device class with one backend."""

    id: UUID
    repository: str
    case: str
    case_version: str
    group: str
    metric: str
    unit: str
    device_class: str
    backend: str
    points: int
    last_at: datetime | None


class SeriesList(BaseModel):
    """Series by case name."""

    items: list[SeriesOut]
    next_cursor: str | None


class PointOut(BaseModel):
    """A commit's value. `status` is ok, throttled or sparse; `verdict` is that of the measurement when `arm` is B.

    `history` is what the history made of a candidate's point: ok, or why it left it out.
    """

    commit: str
    subject: str | None
    author: str | None
    committed_at: datetime | None
    orphaned: bool = Field(description="Whether a force push or a deleted branch has dropped the commit")
    measured_at: datetime
    value: float
    low: float
    high: float
    processes: int
    status: str
    history: str | None
    gpu_uuid: str | None
    job_id: UUID
    measurement_id: UUID
    arm: str
    verdict: str | None
    effect: float | None


class PointList(BaseModel):
    """Points of a series in the order of their commits."""

    series: SeriesOut
    unit: str
    points: list[PointOut]


class ChangeBrief(BaseModel):
    """A change point: the level moved by `effect` at a commit after `low_commit`, up to `commit`.

    `status` is confirmed (by a job), unconfirmed (no job could decide) or surroundings (jobs cleared the commits).
    `named` says whether `commit` alone is meant; `alert_id` is the alert that it opened.
    """

    status: str
    effect: float
    commit: str
    low_commit: str
    named: bool
    alert_id: UUID | None
    alert_state: str | None


class ChangePointOut(ChangeBrief):
    """A change point with its evidence. It holds unless `replaced_by` another one or withdrawn.

    The interval is that of the job; without a job there is none.
    """

    id: UUID
    subject: str | None
    author: str | None
    committed_at: datetime | None
    position: int
    low: int
    interval_low: float | None
    interval_high: float | None
    device: str
    said_at: datetime
    job_id: UUID | None
    replaced_by: UUID | None
    withdrawn_at: datetime | None


class DriftNoticeOut(BaseModel):
    """The level moved by `effect` between two commits, in no single step."""

    since_commit: str
    commit: str
    effect: float
    device: str
    said_at: datetime


class SearchOut(BaseModel):
    """A job that the history waits for: it looks for a change after the commit at `low`, up to that at `high`."""

    job_id: UUID
    low: int
    high: int
    asked_at: datetime


class ChangePointList(BaseModel):
    """What the history of a series says, oldest first, and what it is finding out."""

    change_points: list[ChangePointOut]
    drift: list[DriftNoticeOut]
    searches: list[SearchOut]


class OverviewRow(BaseModel):
    """A series at a glance; `sparkline` holds the last values in `unit`, oldest first.

    `open_change` is the newest change point while its alert is not settled or, without an alert, while its commit is
    among those of the sparkline.
    """

    series_id: UUID
    repository: str
    case: str
    case_version: str
    group: str
    device_class: str
    unit: str
    last_value: float | None
    sparkline: list[float]
    last_verdict: str | None
    last_effect: float | None
    last_interval_low: float | None
    last_interval_high: float | None
    last_commit: str | None
    last_subject: str | None
    last_job_id: UUID | None
    last_at: datetime | None
    open_change: ChangeBrief | None


class Overview(BaseModel):
    """One row per series that has points, by case and device class."""

    rows: list[OverviewRow]
