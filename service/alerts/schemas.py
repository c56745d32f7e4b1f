"""Requests and answers about alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from service.fields import SingleLine, Text
from service.models.alerts import AlertState


class AlertCaseOut(BaseModel):
    """A case that an alert is about, with the effect that was shown last: after / before - 1, positive is slower."""

    case: str
    device_class: str
    effect: float | None
    interval_low: float | None
    interval_high: float | None
    recovered: bool


class AlertEventOut(BaseModel):
    """Something that happened to an alert."""

    kind: str
    actor: str
    at: datetime
    job_id: UUID | None
    payload: dict[str, Any]


class AlertBrief(BaseModel):
    """An alert as a list shows it; `base` and `head` are the range that was measured last."""

    id: UUID
    repository: str
    kind: str
    group: str
    pull_request: int | None
    base: str
    head: str
    base_url: str | None = Field(description="The commit on GitHub; null for a repository that is not there")
    head_url: str | None
    state: AlertState
    reason: str | None
    assignee: str | None
    created_at: datetime
    cases: list[AlertCaseOut]


class AlertOut(AlertBrief):
    """An alert with its history."""

    events: list[AlertEventOut]


class AlertList(BaseModel):
    """Alerts, newest first."""

    items: list[AlertBrief]
    next_cursor: str | None


class AlertChange(BaseModel):
    """What a person says of an alert; what is left out stays. To accept one, or to call it invalid, takes a reason."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"state": "acknowledged", "reason": "fixed by #12"}]}
    )

    state: AlertState | None = None
    reason: Text | None = Field(default=None, max_length=2000)
    assignee: SingleLine | None = Field(default=None, max_length=250)
