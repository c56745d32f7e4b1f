"""Answers about series, their points and the overview."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel


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
    """A commit's value. `status` is ok, throttled or sparse; `verdict` is that of the measurement when `arm` is B."""

    commit: str
    subject: str | None
    author: str | None
    committed_at: datetime | None
    measured_at: datetime
    value: float
    low: float
    high: float
    processes: int
    status: str
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


class OverviewRow(BaseModel):
    """A series at a glance; `sparkline` holds the last values in `unit`, oldest first."""

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


class Overview(BaseModel):
    """One row per series that has points, by case and device class."""

    rows: list[OverviewRow]
