"""Answers about measurements, their pairs and their raw samples."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from service.fields import CommitBrief, FailureOut
from service.models.jobs import State


class BuildOut(BaseModel):
    """The kernels of one arm: A is the baseline, B the candidate."""

    arm: str
    commit: str
    key: str
    status: str
    elapsed_s: float
    log: str
    resources: dict[str, Any] | None


class EnvironmentOut(BaseModel):
    """Where an arm ran, as the first of its processes reported it."""

    arm: str
    gpu_uuid: str | None
    environment: dict[str, Any]


class MeasurementOut(BaseModel):
    """A job on one device class, with everything that was recorded around the numbers."""

    id: UUID
    job_id: UUID
    repository: str
    device_class: str
    state: State
    stage: str | None
    attempt: int
    candidate: CommitBrief | None
    baseline: CommitBrief | None
    sandbox: str | None
    worker: str | None
    device: str | None
    error: FailureOut | None
    pairs_done: int
    builds: list[BuildOut]
    environments: list[EnvironmentOut]
    started_at: datetime | None
    finished_at: datetime | None


class PairCase(BaseModel):
    """One case in one pair: medians of both processes. `log_ratio` = log(after / before), positive is slower.

    `admitted` is null until the pair has been judged.
    """

    case: str
    before_ms: float | None
    after_ms: float | None
    log_ratio: float | None
    admitted: bool | None
    reasons: list[str]


class PairOut(BaseModel):
    """A pair of fresh processes; `order` is AB or BA, `purpose` pair or confirm (of cases that had changed).

    `canaries` are fixed code, measured before each process: they tell what the surroundings did.
    """

    index: int
    purpose: str
    order: str
    cases: list[PairCase]
    canaries: list[PairCase]


class PairList(BaseModel):
    """Pairs of a measurement's last attempt, in the order taken."""

    measurement_id: UUID
    pairs: list[PairOut]


class EvidenceOut(BaseModel):
    """What a verdict rests on, enough to draw it again.

    `evidence` has the policy, every pair (log ratios, clocks, admission), every look (mean, interval, also in cycles),
    the `confirmation` of a change, and the `canaries`; ratios, means and intervals are natural logarithms.
    """

    measurement_id: UUID
    case: str
    evidence: dict[str, Any]


class SampleBlockOut(BaseModel):
    """Raw samples of one case in one process, in the order taken."""

    pair: int
    arm: str
    order: str
    case_version: str
    unit: str
    gpu_uuid: str | None
    samples: list[float]


class SampleList(BaseModel):
    """Every raw sample of one case in a measurement."""

    measurement_id: UUID
    case: str
    metric: str
    blocks: list[SampleBlockOut]


class ProfileOut(BaseModel):
    """The profiling of one arm: `status` is done, unsupported (the commit has no such command) or failed."""

    arm: str
    commit: str
    status: str
    reason: str | None
    source: str | None
    calls: int | None
    counters_cases: int | None
    counters_reason: str | None
    wall_s: float


class KernelSide(BaseModel):
    """A kernel in one commit: launches and milliseconds per call of the case, launch and resources (bytes).

    `occupancy` is theoretical (0 to 1); null stands for what is not known, such as registers of an operator on a CPU.
    """

    calls: float
    time_ms: float
    share: float
    grid: list[int] | None = None
    block: list[int] | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    sass_bytes: int | None = None
    occupancy: float | None = None
    occupancy_limit: str | None = None
    counters: dict[str, float] | None = None


class KernelRow(BaseModel):
    """One kernel of one case before and after; a missing side is null. `effect` = after / before - 1, not judged."""

    case: str
    kernel: str
    kind: str
    before: KernelSide | None
    after: KernelSide | None
    effect: float | None


class KernelList(BaseModel):
    """Kernels of a measurement's last attempt."""

    measurement_id: UUID
    profiles: list[ProfileOut]
    rows: list[KernelRow]
