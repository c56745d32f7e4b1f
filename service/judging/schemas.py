"""Answers about verdicts. `VerdictRow` is the one shape that table, API, pages and Markdown share."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from service.fields import CommitBrief
from service.models.jobs import State


class Reason(BaseModel):
    """Why a verdict is what it is: a code for programs, a sentence for people."""

    code: str
    detail: str


class VerdictRow(BaseModel):
    """What was found for one case on one device class; `effect` = after / before - 1, positive is slower."""

    model_config = ConfigDict(from_attributes=True)

    case: str
    case_version: str
    group: str
    device_class: str
    gpu_uuid: str | None
    unit: str
    before: float | None
    after: float | None
    effect: float | None
    interval_low: float | None
    interval_high: float | None
    verdict: str
    reasons: list[Reason]
    pairs_used: int
    pairs_rejected: int
    minimum_detectable_effect: float | None
    numerics: dict[str, Any] | None


class LinkedVerdictRow(VerdictRow):
    """A verdict row and where it comes from."""

    measurement_id: UUID
    series_id: UUID | None = Field(description="The case's series on this device class; null when it has no point")
    judged_at: datetime


class JobVerdicts(BaseModel):
    """The verdict table of a job: complete when `state` is terminal."""

    job_id: UUID
    state: State
    rows: list[LinkedVerdictRow]


class AttributionRow(VerdictRow):
    """What one commit of a stack did: `effect` is its time over that of `baseline`, the last commit measured before it.

    A commit whose measured files equal those of the commit before has effect 0 and no interval (reason `same_sources`);
    one that could not be measured is `failed`, and the next line stands for both (reason `combined`).
    """

    measurement_id: UUID
    position: int = Field(description="From 1, the oldest commit of the stack")
    commit: str
    baseline: str
    subject: str | None


class JobAttribution(BaseModel):
    """What each commit of a stack did: the `1 + effect` of a case multiply to that of its row in the verdicts."""

    job_id: UUID
    state: State
    rows: list[AttributionRow]


class VerdictOut(LinkedVerdictRow):
    """A verdict among those of other jobs."""

    id: UUID
    job_id: UUID
    repository: str
    commit: str | None
    baseline: str | None
    subject: str | None


class VerdictList(BaseModel):
    """Verdicts, newest first."""

    items: list[VerdictOut]
    next_cursor: str | None


class ComparisonOut(BaseModel):
    """Verdicts of the newest measurements of `head` against `base`, one row per case and device class.

    `apart` has the cases that were measured at both commits, but never against each other: their two values, and no
    effect, because values of different hours are not compared.
    """

    repository: str
    base: CommitBrief
    head: CommitBrief
    job_ids: list[UUID]
    rows: list[LinkedVerdictRow]
    apart: list[VerdictRow]
