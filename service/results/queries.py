"""Reads of measurements, builds, processes and raw samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, aliased

from service.models import (
    ArmRun,
    Build,
    Case,
    Commit,
    Device,
    Job,
    JobEvent,
    KernelProfile,
    Measurement,
    Repository,
    SampleBlock,
    Verdict,
    Worker,
)

Candidate = aliased(Commit)
Baseline = aliased(Commit)

MeasurementRow = tuple[Measurement, Job, str, str | None, str | None, Commit | None, Commit | None]
RunRow = tuple[int, str, str, str | None, dict[str, Any]]
BlockRow = tuple[str, int, str, str, str | None, str, str, str, bytes]
PAIRED = ("pair", "confirm")  # purposes of processes whose samples are compared; beside them run the canaries
CANARY = "canary"
MEASURED = (*PAIRED, CANARY, "round")


def measurement(session: Session, measurement_id: UUID) -> MeasurementRow | None:
    """Return a measurement with its job, repository, worker, device, candidate and baseline."""
    query = (
        select(Measurement, Job, Repository.name, Worker.executor_id, Device.name, Candidate, Baseline)
        .join(Job, Measurement.job_id == Job.id)
        .join(Repository, Job.repository_id == Repository.id)
        .outerjoin(Worker, Measurement.worker_id == Worker.id)
        .outerjoin(Device, Measurement.device_id == Device.id)
        .outerjoin(Candidate, Measurement.candidate_id == Candidate.id)
        .outerjoin(Baseline, Measurement.baseline_id == Baseline.id)
        .where(Measurement.id == measurement_id)
    )
    return session.execute(query).one_or_none()


def exists(session: Session, measurement_id: UUID) -> bool:
    """Say whether a measurement exists."""
    return session.execute(select(Measurement.id).where(Measurement.id == measurement_id)).first() is not None


def runs(session: Session, measurement_id: UUID) -> Sequence[RunRow]:
    """Return pair index, purpose, arm, GPU and environment of each process of the last attempt, in the order taken.

    Canaries are no process of an arm.
    """
    query = (
        select(ArmRun.pair_index, ArmRun.purpose, ArmRun.arm, ArmRun.gpu_uuid, ArmRun.environment)
        .join(Measurement, (Measurement.id == ArmRun.measurement_id) & (Measurement.attempt == ArmRun.attempt))
        .where(ArmRun.measurement_id == measurement_id, ArmRun.purpose != CANARY)
        .order_by(ArmRun.id)
    )
    return session.execute(query).all()


def builds(session: Session, keys: Iterable[str], commit_ids: Iterable[UUID], device_class: str) -> Sequence[Build]:
    """Return builds by key, and the builds of some commits for a device class, newest first."""
    query = (
        select(Build)
        .where(
            or_(
                Build.key.in_(list(keys)),
                (Build.commit_id.in_(list(commit_ids))) & (Build.device_class == device_class),
            )
        )
        .order_by(Build.id.desc())
    )
    return session.execute(query).scalars().all()


def commits(session: Session, ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return the SHAs of commits by id."""
    return dict(session.execute(select(Commit.id, Commit.sha).where(Commit.id.in_(list(ids)))).all())


def sample_blocks(
    session: Session,
    measurement_id: UUID,
    metric: str,
    case: str | None = None,
    *,
    purposes: Sequence[str] = (*PAIRED, CANARY),
) -> Sequence[BlockRow]:
    """Return the samples of a measurement: purpose, index, order, arm, GPU, case, version, unit and bytes.

    Without `purposes` those of pairs, the canaries among them as cases of their own. Only the last attempt counts: a
    measurement that moves to another device begins again.
    """
    query = (
        select(
            ArmRun.purpose,
            ArmRun.pair_index,
            ArmRun.order,
            ArmRun.arm,
            ArmRun.gpu_uuid,
            Case.name,
            Case.version,
            SampleBlock.unit,
            SampleBlock.samples,
        )
        .join(ArmRun, SampleBlock.arm_run_id == ArmRun.id)
        .join(Case, SampleBlock.case_id == Case.id)
        .join(Measurement, (Measurement.id == ArmRun.measurement_id) & (Measurement.attempt == ArmRun.attempt))
        .where(ArmRun.measurement_id == measurement_id, ArmRun.purpose.in_(purposes), SampleBlock.metric == metric)
        .order_by(ArmRun.pair_index, Case.name, ArmRun.arm)
    )
    if case is not None:
        query = query.where(Case.name == case)
    return session.execute(query).all()


def evidence(session: Session, measurement_id: UUID) -> Sequence[tuple[str, dict[str, Any]]]:
    """Return the evidence of each verdict of a measurement by case name."""
    query = (
        select(Case.name, Verdict.evidence)
        .join(Case, Verdict.case_id == Case.id)
        .where(Verdict.measurement_id == measurement_id)
    )
    return session.execute(query).all()


def pair_events(session: Session, measurement_id: UUID) -> Sequence[dict[str, Any]]:
    """Return what was reported of each pair when it had been measured, in order."""
    query = (
        select(JobEvent.payload)
        .where(JobEvent.measurement_id == measurement_id, JobEvent.kind == "pair")
        .order_by(JobEvent.id)
    )
    return session.execute(query).scalars().all()


def profiles(session: Session, measurement_id: UUID) -> Sequence[tuple[KernelProfile, str]]:
    """Return the profiles of a measurement's last attempt with the SHA of their commit, A before B."""
    query = (
        select(KernelProfile, Commit.sha)
        .join(Commit, KernelProfile.commit_id == Commit.id)
        .join(
            Measurement,
            (Measurement.id == KernelProfile.measurement_id) & (Measurement.attempt == KernelProfile.attempt),
        )
        .where(KernelProfile.measurement_id == measurement_id)
        .order_by(KernelProfile.arm)
    )
    return session.execute(query).all()
