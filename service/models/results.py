"""What was measured: builds, processes, raw samples, telemetry, cases, series, points and verdicts."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class Build(Identified, Base):
    """Compiled kernels by key: hash of sources, compiler, torch, architecture and flags."""

    __tablename__ = "build"

    key: Mapped[str] = mapped_column(String(64), unique=True)
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    device_class: Mapped[str] = mapped_column(String(120))
    status: Mapped[str] = mapped_column(String(20))
    elapsed_s: Mapped[float]
    log: Mapped[str] = mapped_column(Text)
    resources: Mapped[dict[str, Any] | None]


class ArmRun(Identified, Base):
    """One fresh process of one arm. `document` is the whole versioned document as written, zlib-compressed."""

    __tablename__ = "arm_run"
    __table_args__ = (UniqueConstraint("measurement_id", "attempt", "purpose", "pair_index", "arm"),)

    measurement_id: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"), index=True)
    attempt: Mapped[int]
    purpose: Mapped[str] = mapped_column(String(20))  # numerics | pair | confirm | round | canary (before the arm's)
    pair_index: Mapped[int]
    arm: Mapped[str] = mapped_column(String(1))  # A = baseline, B = candidate; of a stack A, B, C, ... by position
    order: Mapped[str] = mapped_column("pair_order", String(2))  # AB | BA; of a round: forward | backward
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    protocol: Mapped[int]
    document_sha256: Mapped[str] = mapped_column(String(64))
    document: Mapped[bytes] = mapped_column(LargeBinary)
    environment: Mapped[dict[str, Any]]
    gpu_uuid: Mapped[str | None] = mapped_column(String(80))
    wall_s: Mapped[float]
    log: Mapped[str] = mapped_column(Text)


class Case(Identified, Base):
    """A benchmark case: its name and the hash of its definition. A changed workload is a new case."""

    __tablename__ = "case"
    __table_args__ = (UniqueConstraint("name", "version"),)

    name: Mapped[str] = mapped_column(String(250), index=True)
    version: Mapped[str] = mapped_column(String(64))
    group: Mapped[str] = mapped_column("kernel_group", String(120))
    definition: Mapped[dict[str, Any]]


class SampleBlock(Identified, Base):
    """Raw samples of one case in one process: float64 little-endian, in `unit`, in the order taken."""

    __tablename__ = "sample_block"
    __table_args__ = (UniqueConstraint("arm_run_id", "case_id", "metric"),)

    arm_run_id: Mapped[UUID] = mapped_column(ForeignKey("arm_run.id"), index=True)
    case_id: Mapped[UUID] = mapped_column(ForeignKey("case.id"), index=True)
    metric: Mapped[str] = mapped_column(String(40))  # time | host_enqueue
    unit: Mapped[str] = mapped_column(String(10))
    count: Mapped[int] = mapped_column("sample_count")
    samples: Mapped[bytes] = mapped_column(LargeBinary)


class TelemetryBlock(Identified, Base):
    """Clock, temperature, power and load readings of one process: zlib-compressed JSON rows under `columns`."""

    __tablename__ = "telemetry_block"

    arm_run_id: Mapped[UUID] = mapped_column(ForeignKey("arm_run.id"), unique=True)
    source: Mapped[str] = mapped_column(String(20))  # nvml | proc
    columns: Mapped[list[str]]
    rows: Mapped[bytes] = mapped_column(LargeBinary)


class KernelProfile(Identified, Base):
    """The kernels of one arm, profiled once after the pairs. `document` is what `service.worker.profile` read, or null.

    `status` is done, unsupported (the commit has no such command) or failed; the last two have a `reason`.
    """

    __tablename__ = "kernel_profile"
    __table_args__ = (UniqueConstraint("measurement_id", "attempt", "arm"),)

    measurement_id: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"), index=True)
    attempt: Mapped[int]
    arm: Mapped[str] = mapped_column(String(1))
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    status: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(Text)
    wall_s: Mapped[float]
    document: Mapped[dict[str, Any] | None]


class Series(Identified, Base):
    """History of one case version and metric on one device model with one backend."""

    __tablename__ = "series"
    __table_args__ = (UniqueConstraint("repository_id", "case_id", "metric", "device_class", "backend"),)

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    case_id: Mapped[UUID] = mapped_column(ForeignKey("case.id"), index=True)
    metric: Mapped[str] = mapped_column(String(40))
    unit: Mapped[str] = mapped_column(String(10))
    device_class: Mapped[str] = mapped_column(String(120))
    backend: Mapped[str] = mapped_column(String(40))


class Point(Identified, Base):
    """A commit's value in a series, from the admitted processes of one arm of one measurement.

    `status` is ok, throttled (under half of the pairs admitted) or sparse (fewer processes than a look needs). `clock`
    is the median SM clock in MHz, None where there is no reading. `history` is what the history made of a candidate's
    point: ok, or why it left it out (`service.stats.history_state.Excluded`); None until it has seen it.
    """

    __tablename__ = "point"
    __table_args__ = (
        UniqueConstraint("series_id", "measurement_id", "arm"),
        Index("ix_point_series_commit", "series_id", "commit_id"),
    )

    series_id: Mapped[UUID] = mapped_column(ForeignKey("series.id"))
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    measurement_id: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"), index=True)
    arm: Mapped[str] = mapped_column(String(1))
    gpu_uuid: Mapped[str | None] = mapped_column(String(80))
    value: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    processes: Mapped[int]
    status: Mapped[str] = mapped_column(String(20))
    clock: Mapped[float | None]
    history: Mapped[str | None] = mapped_column(String(20))


class Verdict(Identified, Base):
    """What a measurement says of one case, with the evidence to replot it. `effect` = ratio - 1, positive is slower."""

    __tablename__ = "verdict"
    __table_args__ = (UniqueConstraint("measurement_id", "case_id"),)

    measurement_id: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"), index=True)
    case_id: Mapped[UUID] = mapped_column(ForeignKey("case.id"), index=True)
    verdict: Mapped[str] = mapped_column(String(20), index=True)
    reasons: Mapped[list[Any]]  # [{"code", "detail"}]
    unit: Mapped[str] = mapped_column(String(10))
    before: Mapped[float | None]
    after: Mapped[float | None]
    effect: Mapped[float | None]
    interval_low: Mapped[float | None]
    interval_high: Mapped[float | None]
    minimum_detectable_effect: Mapped[float | None]
    pairs_used: Mapped[int]
    pairs_rejected: Mapped[int]
    numerics: Mapped[dict[str, Any] | None]
    evidence: Mapped[dict[str, Any]]
    gpu_uuid: Mapped[str | None] = mapped_column(String(80))
    judged_at: Mapped[datetime]


class Calibration(Identified, Base):
    """A verdict on identical code, apart from those on changes. `scatter` is the noise floor of its pairs (log units).

    Verdict, effect, detectable effect and pairs are those of the verdict's row; statistics are recomputed from both.
    A case that failed has no series.
    """

    __tablename__ = "calibration"

    verdict_id: Mapped[UUID] = mapped_column(ForeignKey("verdict.id"), unique=True)
    series_id: Mapped[UUID | None] = mapped_column(ForeignKey("series.id"), index=True)
    scatter: Mapped[float | None]
