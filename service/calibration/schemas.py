"""Answers about calibrations. Ratios are relative: 0.01 is 1 %."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field


class ProportionOut(BaseModel):
    """`count` of `trials` with the 95 % interval of the true rate; null without trials, which is not 0 %."""

    count: int
    trials: int
    rate: float | None
    low: float | None
    high: float | None


class CalibrationSum(BaseModel):
    """What verdicts on identical code come to."""

    device_class: str
    false_alarms: ProportionOut = Field(description="Changes among the verdicts that decided")
    verdicts: dict[str, int]
    noise_floor: float | None = Field(description="Median scatter of the log ratio of one pair")
    minimum_detectable_effect: float | None = Field(description="Median of the smallest effect that would have shown")
    jobs: int
    last_at: datetime


class GroupCalibration(CalibrationSum):
    """The same for one kernel group."""

    group: str


class SeriesCalibration(CalibrationSum):
    """The same for one series. `series_id` is null for a case that failed."""

    repository: str
    case: str
    case_version: str
    group: str
    series_id: UUID | None


class FalseAlarm(BaseModel):
    """Identical code that was called a change."""

    repository: str
    device_class: str
    case: str
    group: str
    verdict: str
    effect: float | None
    interval_low: float | None
    interval_high: float | None
    pairs_used: int
    gpu_uuid: str | None
    job_id: UUID
    judged_at: datetime


class CalibrationOut(BaseModel):
    """Running rates of the last `days`, by device class, by kernel group and by series; empty without a calibration."""

    days: int
    since: datetime
    devices: list[CalibrationSum]
    groups: list[GroupCalibration]
    series: list[SeriesCalibration]
    false_alarms: list[FalseAlarm]
