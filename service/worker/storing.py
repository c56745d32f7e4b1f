"""Stores what was measured: builds, processes with their samples and telemetry, cases, series, points and verdicts.

Every row is found by its natural key, so that storing the same thing again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.judging.rows import VerdictRow
from service.models import (
    ArmRun,
    Attribution,
    Build,
    Calibration,
    Case,
    Commit,
    Device,
    KernelProfile,
    Measurement,
    Point,
    SampleBlock,
    Series,
    TelemetryBlock,
    Verdict,
)
from service.models.base import utc_now
from service.models.upsert import insert_missing
from service.stats.admission import CaseHistory
from service.stats.calibration import pair_scatter
from service.stats.usual import usual_of
from service.worker.checkout import CommitInfo
from service.worker.document import CaseResult, Telemetry
from service.worker.errors import JobError
from service.worker.evidence import CaseSummary
from service.worker.measure import ProcessResult
from service.worker.profile import ProfileResult
from service.worker.stack_evidence import CaseStack

USUAL_DAYS = 30
USUAL_VERDICTS = 1000
_BELIEVED = ("improved", "regressed", "unchanged", "inconclusive")


@dataclass(frozen=True)
class RunKey:
    """Which process of a measurement a document came from."""

    measurement_id: UUID
    attempt: int
    purpose: str
    pair_index: int
    order: str


@dataclass(frozen=True)
class ArmKey:
    """One arm of an attempt at a measurement."""

    measurement_id: UUID
    attempt: int
    arm: str


@dataclass(frozen=True)
class StoredRun:
    """A process read back from the database."""

    purpose: str
    pair_index: int
    order: str
    arm: str
    raw: bytes
    log: str


def save_commit(session: Session, repository_id: UUID, info: CommitInfo) -> UUID:
    """Store what git says of a commit."""
    commit_id = insert_missing(session, Commit, {"repository_id": repository_id, "sha": info.sha}, {"orphaned": False})
    commit = session.get_one(Commit, commit_id)
    commit.tree_hash = info.tree_hash
    commit.parents = list(info.parents)
    commit.first_parent_position = info.first_parent_position
    commit.author = info.author
    commit.subject = info.subject
    commit.committed_at = info.committed_at
    return commit_id


def save_build(session: Session, commit_id: UUID, device_class: str, values: Mapping[str, Any]) -> None:
    """Store a finished or failed build; a later success replaces a failure of the same key."""
    row_id = insert_missing(
        session,
        Build,
        {"key": values["key"]},
        {"commit_id": commit_id, "device_class": device_class, **{k: values[k] for k in _BUILD_VALUES}},
    )
    row = session.get_one(Build, row_id)
    if row.status != "done":
        for name in _BUILD_VALUES:
            setattr(row, name, values[name])


_BUILD_VALUES = ("status", "elapsed_s", "log", "resources")


def save_run(session: Session, key: RunKey, arm: str, commit_id: UUID, result: ProcessResult) -> UUID:
    """Store one process: its document as written, its samples and its telemetry."""
    document = result.document
    run_id = insert_missing(
        session,
        ArmRun,
        {
            "measurement_id": key.measurement_id,
            "attempt": key.attempt,
            "purpose": key.purpose,
            "pair_index": key.pair_index,
            "arm": arm,
        },
        {
            "order": key.order,
            "commit_id": commit_id,
            "protocol": document.protocol,
            "document_sha256": hashlib.sha256(result.raw).hexdigest(),
            "document": zlib.compress(result.raw),
            "environment": document.environment.model_dump(mode="json"),
            "gpu_uuid": document.environment.gpu_uuid,
            "wall_s": result.wall_s,
            "log": result.log,
        },
    )
    for case in document.cases:
        if case.samples:
            _save_samples(session, run_id, save_case(session, case), case)
    _save_telemetry(session, run_id, document.telemetry)
    return run_id


def load_runs(session: Session, measurement_id: UUID, attempt: int) -> list[StoredRun]:
    """Return the processes of an attempt, numerics first, pairs in order."""
    query = (
        select(ArmRun)
        .where(ArmRun.measurement_id == measurement_id, ArmRun.attempt == attempt)
        .order_by(ArmRun.purpose, ArmRun.pair_index, ArmRun.arm)
    )
    return [
        StoredRun(row.purpose, row.pair_index, row.order, row.arm, zlib.decompress(row.document), row.log)
        for row in session.execute(query).scalars()
    ]


def usual_cases(session: Session, measurement_id: UUID, device_uuid: str) -> dict[tuple[str, str], CaseHistory]:
    """Return what case versions (name, version) usually show on a device, as of the start of a measurement.

    From the newest verdicts of the last `USUAL_DAYS`, so that a device which has changed is believed again after them.
    """
    until = session.get_one(Measurement, measurement_id).started_at or utc_now()
    query = (
        select(Case.name, Case.version, Verdict.evidence)
        .join(Case, Case.id == Verdict.case_id)
        .join(Measurement, Measurement.id == Verdict.measurement_id)
        .join(Device, Device.id == Measurement.device_id)
        .where(
            Device.uuid == device_uuid,
            Verdict.verdict.in_(_BELIEVED),
            Verdict.judged_at < until,
            Verdict.judged_at > until - timedelta(days=USUAL_DAYS),
        )
        .order_by(Verdict.id.desc())
        .limit(USUAL_VERDICTS)
    )
    evidences: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, version, evidence in session.execute(query):
        evidences.setdefault((name, version), []).append(evidence)
    found = {case: usual_of(given) for case, given in evidences.items()}
    return {case: usual for case, usual in found.items() if usual is not None}


def save_profile(session: Session, key: ArmKey, commit_id: UUID, result: ProfileResult) -> None:
    """Store the profile of an arm, or why there is none."""
    natural = {"measurement_id": key.measurement_id, "attempt": key.attempt, "arm": key.arm}
    insert_missing(session, KernelProfile, natural, {"commit_id": commit_id, **result.to_dict()})


def profiled_arms(session: Session, measurement_id: UUID, attempt: int) -> set[str]:
    """Return the arms of an attempt for which profiling was tried."""
    query = select(KernelProfile.arm).where(
        KernelProfile.measurement_id == measurement_id, KernelProfile.attempt == attempt
    )
    return set(session.execute(query).scalars())


def save_case(session: Session, case: CaseResult) -> UUID:
    """Store a case version."""
    key = {"name": case.name, "version": case.version}
    return insert_missing(session, Case, key, {"group": case.group, "definition": case.definition})


def _save_samples(session: Session, run_id: UUID, case_id: UUID, case: CaseResult) -> None:
    blocks = {case.metric: case.samples, "host_enqueue": case.host_enqueue_ms}
    for metric, samples in blocks.items():
        if samples:
            insert_missing(
                session,
                SampleBlock,
                {"arm_run_id": run_id, "case_id": case_id, "metric": metric},
                {"unit": case.unit, "count": len(samples), "samples": np.array(samples, dtype="<f8").tobytes()},
            )


def _save_telemetry(session: Session, run_id: UUID, telemetry: Telemetry) -> None:
    rows = zlib.compress(json.dumps(telemetry.rows, separators=(",", ":")).encode())
    insert_missing(
        session,
        TelemetryBlock,
        {"arm_run_id": run_id},
        {"source": telemetry.source, "columns": telemetry.columns, "rows": rows},
    )


@dataclass(frozen=True)
class Judged:
    """The measurement that verdicts and points belong to; `commits` maps the arms' letters to commit ids."""

    measurement_id: UUID
    repository_id: UUID
    device_class: str
    commits: Mapping[str, UUID]
    gpu_uuid: str | None

    @property
    def is_calibration(self) -> bool:
        """Whether both arms are one commit. What compares more than two (a stack, a bisection) gives no `commits`."""
        return "B" in self.commits and self.commits.get("A") == self.commits["B"]


def save_verdicts(session: Session, judged: Judged, summaries: Sequence[CaseSummary]) -> None:
    """Store one verdict per case, and one point per arm that was measured.

    Identical code adds no points, which would count its commit twice, but to what is known of the device's noise.
    """
    for summary in summaries:
        case_id = save_case(session, summary.case)
        row = summary.row
        verdict_id = insert_missing(
            session,
            Verdict,
            {"measurement_id": judged.measurement_id, "case_id": case_id},
            {
                **_row_values(row),
                "evidence": summary.evidence,
                "gpu_uuid": judged.gpu_uuid,
                "judged_at": utc_now(),
            },
        )
        if judged.is_calibration:
            _save_calibration(session, judged, summary, case_id, verdict_id)
        else:
            _save_points(session, judged, summary, case_id)


def _save_calibration(session: Session, judged: Judged, summary: CaseSummary, case_id: UUID, verdict_id: UUID) -> None:
    point = summary.points.get("B")
    series_id = None if point is None else _save_series(session, judged, summary.case, case_id, point.backend)
    values = {"series_id": series_id, "scatter": pair_scatter(summary.evidence)}
    insert_missing(session, Calibration, {"verdict_id": verdict_id}, values)


def _save_series(session: Session, judged: Judged, case: CaseResult, case_id: UUID, backend: str) -> UUID:
    key = {
        "repository_id": judged.repository_id,
        "case_id": case_id,
        "metric": case.metric,
        "device_class": judged.device_class,
        "backend": backend,
    }
    return insert_missing(session, Series, key, {"unit": case.unit})


def save_attributions(session: Session, judged: Judged, stacks: Sequence[CaseStack], ids: Mapping[str, UUID]) -> None:
    """Store what commits did to each case; `ids` are those of the commits by SHA."""
    for stack in stacks:
        case_id = save_case(session, stack.summary.case)
        for one in stack.commits:
            row = one.row
            insert_missing(
                session,
                Attribution,
                {"measurement_id": judged.measurement_id, "case_id": case_id, "position": one.position},
                {
                    "commit_id": ids[one.commit],
                    "baseline_id": ids[one.baseline],
                    **_row_values(row),
                    "gpu_uuid": judged.gpu_uuid,
                },
            )


def _row_values(row: VerdictRow) -> dict[str, Any]:
    return {
        "verdict": row.verdict,
        "reasons": [dict(reason) for reason in row.reasons],
        "unit": row.unit,
        "before": row.before,
        "after": row.after,
        "effect": row.effect,
        "interval_low": row.interval_low,
        "interval_high": row.interval_high,
        "minimum_detectable_effect": row.minimum_detectable_effect,
        "pairs_used": row.pairs_used,
        "pairs_rejected": row.pairs_rejected,
        "numerics": row.numerics,
    }


def _save_points(session: Session, judged: Judged, summary: CaseSummary, case_id: UUID) -> None:
    for letter, point in summary.points.items():
        if letter not in judged.commits:
            continue
        series_id = _save_series(session, judged, summary.case, case_id, point.backend)
        insert_missing(
            session,
            Point,
            {"series_id": series_id, "measurement_id": judged.measurement_id, "arm": letter},
            {
                "commit_id": judged.commits[letter],
                "gpu_uuid": judged.gpu_uuid,
                "value": point.value,
                "low": point.low,
                "high": point.high,
                "processes": point.processes,
                "status": point.status,
                "clock": point.clock,
            },
        )


def failed_build(key: str, error: JobError, elapsed_s: float) -> dict[str, Any]:
    """Return the values of a build that failed."""
    log = f"{error.message}\n{error.log_tail}"
    return {"key": key, "status": "failed", "elapsed_s": elapsed_s, "log": log, "resources": None}
