"""Requests and answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from service.fields import CaseGlob, DeviceClass, FailureOut, RefName, RepositoryName, Text, is_case_name
from service.models.jobs import JobKind, State

_REQUEST_EXAMPLE: JsonDict = {
    "repository": "s2bench",
    "commit": "main",
    "baseline": "auto",
    "devices": "all",
    "cases": "cpu/*",
    "reason": "push to main",
}


def _all_is_none(value: object) -> object:
    if value is None:
        raise ValueError("'all' or a list of device classes")
    return None if value == "all" else value


# A union with Literal["all"] would report every error once per branch.
DeviceChoice = Annotated[
    Annotated[list[DeviceClass], Field(min_length=1, max_length=16)] | None,
    BeforeValidator(_all_is_none),
    WithJsonSchema(
        {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 16}]}
    ),
]


class JobRequest(BaseModel):
    """A commit to measure against a baseline."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_REQUEST_EXAMPLE]})

    kind: JobKind = Field(
        default=JobKind.COMPARE,
        description="'compare' the commit with its baseline; 'stack': say what each commit after the baseline did;"
        " 'bisect': find the one of them that changed the case named by `cases`",
    )
    repository: RepositoryName = Field(description="Name of a registered repository")
    commit: RefName = Field(
        description="Branch, tag, full or unambiguous abbreviated SHA; resolved when the job is taken"
    )
    baseline: RefName = Field(
        default="auto",
        description="A ref, or 'auto': the merge base with the default branch, or the first parent of a commit on it; "
        "the commit itself makes it a calibration",
    )
    devices: DeviceChoice = Field(
        default=None,
        description="Device classes, or 'all' (the default): every class that a live worker serves, 'cpu' when none is",
    )
    cases: CaseGlob = Field(default="*", description="Glob over the names of the commit's own benchmark cases")
    reason: Text | None = Field(default=None, max_length=2000)
    pull_request: int | None = Field(default=None, ge=1, le=2**31 - 1)
    priority: int = Field(default=100, ge=1, le=1000, description="Lower runs earlier")
    max_pairs: int | None = Field(
        default=None, ge=2, le=200, description="Most pairs per device class; those that confirm changes come on top"
    )

    @model_validator(mode="after")
    def _one_case(self) -> Self:
        if self.kind is JobKind.BISECT and not is_case_name(self.cases):
            raise ValueError(f"cases: got {self.cases!a}, expected the name of one case for a bisection")
        return self


class Progress(BaseModel):
    """How far the pairs of a measurement are; `budget` is the most it may take."""

    pairs_done: int
    budget: int


class MeasurementBrief(BaseModel):
    """A job on one device class. `served` says whether a live worker takes this class."""

    id: UUID
    device_class: str
    served: bool
    state: State
    stage: str | None
    attempt: int
    progress: Progress
    sandbox: str | None
    worker: str | None
    device: str | None
    error: FailureOut | None
    started_at: datetime | None
    finished_at: datetime | None


class JobBrief(BaseModel):
    """A job as a list shows it."""

    id: UUID
    kind: JobKind
    repository: str
    requested_commit: str
    requested_baseline: str
    commit: str | None = Field(description="Full SHA; null until the ref has been resolved")
    baseline: str | None = Field(description="Full SHA; null until it has been pinned")
    subject: str | None = Field(description="First line of the commit's message; null until a worker has seen it")
    orphaned: bool = Field(description="Whether a force push or a deleted branch has dropped the commit")
    devices: list[str]
    cases: str
    reason: str | None
    pull_request: int | None
    priority: int
    state: State
    cancel_requested: bool
    error: FailureOut | None
    created_at: datetime
    finished_at: datetime | None


class JobOut(JobBrief):
    """A job with its measurements."""

    max_pairs: int
    measurements: list[MeasurementBrief]


class JobList(BaseModel):
    """Jobs, newest first."""

    items: list[JobBrief]
    next_cursor: str | None


class JobEventOut(BaseModel):
    """One event of a job: the `data` of a server-sent event whose `event` is `kind` and whose `id` is `id`."""

    id: UUID | None = Field(description="null in a closing event that is not stored")
    job_id: UUID
    measurement_id: UUID | None
    kind: str
    at: datetime
    payload: dict[str, Any]
