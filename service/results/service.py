"""Shows measurements: what was built, where it ran, its pairs and its raw samples."""

from __future__ import annotations

import math
import statistics
import sys
from array import array
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.errors import NotFound
from service.fields import CommitBrief, FailureOut
from service.kernels import pair_kernels
from service.models import Build, KernelProfile, Measurement, State
from service.results import queries
from service.results.schemas import (
    BuildOut,
    EnvironmentOut,
    EvidenceOut,
    KernelList,
    KernelRow,
    MeasurementOut,
    PairCase,
    PairList,
    PairOut,
    ProfileOut,
    SampleBlockOut,
    SampleList,
)

Admission = tuple[bool, list[str]]


def get_measurement(session: Session, measurement_id: UUID) -> MeasurementOut:
    """Return a measurement with its builds and environments."""
    row = queries.measurement(session, measurement_id)
    if row is None:
        raise unknown_measurement(measurement_id)
    measurement, job, repository, worker, device, candidate, baseline = row
    runs = queries.runs(session, measurement_id)
    environments = {
        arm: EnvironmentOut(arm=arm, gpu_uuid=gpu_uuid, environment=environment)
        for _, _, arm, gpu_uuid, environment in reversed(runs)
    }
    return MeasurementOut(
        id=measurement.id,
        job_id=job.id,
        repository=repository,
        device_class=measurement.device_class,
        state=State(measurement.state),
        stage=measurement.stage,
        attempt=measurement.attempt,
        candidate=CommitBrief.model_validate(candidate) if candidate else _pinned(job.commit_sha),
        baseline=CommitBrief.model_validate(baseline) if baseline else _pinned(job.baseline_sha),
        sandbox=measurement.sandbox,
        worker=worker,
        device=device,
        error=FailureOut.model_validate(measurement.error) if measurement.error else None,
        pairs_done=_finished_pairs(runs),
        builds=_builds(session, measurement, environments),
        environments=[environments[arm] for arm in sorted(environments)],
        started_at=measurement.started_at,
        finished_at=measurement.finished_at,
    )


def list_pairs(session: Session, measurement_id: UUID) -> PairList:
    """Return the pairs of a measurement with the medians of both processes, case by case."""
    _check_exists(session, measurement_id)
    admissions = _admissions(session, measurement_id)
    pairs: dict[int, PairOut] = {}
    medians: dict[tuple[int, bool, str], dict[str, float]] = {}
    for purpose, index, order, arm, _, case, _, _, samples in queries.sample_blocks(session, measurement_id, "time"):
        canary = purpose == queries.CANARY
        if not canary:
            pairs.setdefault(index, PairOut(index=index, purpose=purpose, order=order, cases=[], canaries=[]))
        values = unpack(samples)
        if values:
            medians.setdefault((index, canary, case), {})[arm] = statistics.median(values)
    for (index, canary, case), arms in medians.items():
        if index in pairs:
            shown = _pair_case(case, arms, admissions.get((index, case)))
            (pairs[index].canaries if canary else pairs[index].cases).append(shown)
    return PairList(measurement_id=measurement_id, pairs=list(pairs.values()))


def list_samples(session: Session, measurement_id: UUID, case: str, metric: str) -> SampleList:
    """Return every raw sample of a case in a measurement."""
    _check_exists(session, measurement_id)
    rows = queries.sample_blocks(session, measurement_id, metric, case, purposes=queries.MEASURED)
    if not rows:
        expected = "a case of this measurement that has samples (see its pairs)"
        raise NotFound("unknown_case", f"case: got {case[:80]!a}, expected {expected}")
    return SampleList(
        measurement_id=measurement_id,
        case=case,
        metric=metric,
        blocks=[
            SampleBlockOut(
                pair=index,
                arm=arm,
                order=order,
                case_version=version,
                unit=unit,
                gpu_uuid=gpu_uuid,
                samples=unpack(samples),
            )
            for _, index, order, arm, gpu_uuid, _, version, unit, samples in rows
        ],
    )


def get_evidence(session: Session, measurement_id: UUID, case: str) -> EvidenceOut:
    """Return what a verdict rests on."""
    _check_exists(session, measurement_id)
    found = dict(queries.evidence(session, measurement_id))
    if case not in found:
        raise NotFound("unknown_case", f"case: got {case[:80]!a}, expected a case of this measurement with a verdict")
    return EvidenceOut(measurement_id=measurement_id, case=case, evidence=found[case])


def list_kernels(session: Session, measurement_id: UUID) -> KernelList:
    """Return the kernels of both arms of a measurement side by side."""
    _check_exists(session, measurement_id)
    found = queries.profiles(session, measurement_id)
    cases = {profile.arm: (profile.document or {}).get("cases") for profile, _ in found}
    return KernelList(
        measurement_id=measurement_id,
        profiles=[_profile_out(profile, sha) for profile, sha in found],
        rows=[KernelRow.model_validate(row) for row in pair_kernels(cases.get("A"), cases.get("B"))],
    )


def unpack(samples: bytes) -> list[float]:
    """Return the numbers of a sample block: float64, little-endian."""
    values = array("d")
    values.frombytes(samples)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def unknown_measurement(measurement_id: UUID) -> NotFound:
    """Return the error for a measurement that does not exist."""
    expected = "the id of a measurement (GET /api/v1/jobs/{job_id} lists those of a job)"
    return NotFound("unknown_measurement", f"measurement_id: got {measurement_id}, expected {expected}")


def _check_exists(session: Session, measurement_id: UUID) -> None:
    if not queries.exists(session, measurement_id):
        raise unknown_measurement(measurement_id)


def _pinned(sha: str | None) -> CommitBrief | None:
    return CommitBrief(sha=sha) if sha else None


def _finished_pairs(runs: Any) -> int:
    arms: dict[int, set[str]] = {}
    for index, purpose, arm, _, _ in runs:
        if purpose in {"pair", "round"}:
            arms.setdefault(index, set()).add(arm)
    return sum(len(found) >= 2 for found in arms.values())


def _builds(session: Session, measurement: Measurement, environments: Mapping[str, EnvironmentOut]) -> list[BuildOut]:
    """Return one build per arm: the one its processes named (trees may share it), else the newest of its commit."""
    keys = {arm: str(item.environment.get("build_key")) for arm, item in environments.items()}
    owners = {"A": measurement.baseline_id, "B": measurement.candidate_id}
    found = queries.builds(session, keys.values(), [id_ for id_ in owners.values() if id_], measurement.device_class)
    shas = queries.commits(session, {build.commit_id for build in found})
    builds = []
    for arm, owner in owners.items():
        named = next((build for build in found if build.key == keys.get(arm)), None)
        build = named or next((build for build in found if build.commit_id == owner), None)
        if build is not None:
            builds.append(_build_out(arm, build, shas[build.commit_id]))
    return builds


def _build_out(arm: str, build: Build, sha: str) -> BuildOut:
    return BuildOut(
        arm=arm,
        commit=sha,
        key=build.key,
        status=build.status,
        elapsed_s=build.elapsed_s,
        log=build.log,
        resources=build.resources,
    )


def _profile_out(profile: KernelProfile, sha: str) -> ProfileOut:
    document = profile.document or {}
    counters = document.get("counters") or {}
    return ProfileOut(
        arm=profile.arm,
        commit=sha,
        status=profile.status,
        reason=profile.reason,
        source=document.get("source"),
        calls=document.get("calls"),
        counters_cases=counters.get("cases"),
        counters_reason=counters.get("reason"),
        wall_s=profile.wall_s,
    )


def _pair_case(case: str, medians: Mapping[str, float], admission: Admission | None) -> PairCase:
    before, after = medians.get("A"), medians.get("B")
    return PairCase(
        case=case,
        before_ms=before,
        after_ms=after,
        log_ratio=math.log(after / before) if before and after else None,
        admitted=None if admission is None else admission[0],
        reasons=[] if admission is None else admission[1],
    )


def _admissions(session: Session, measurement_id: UUID) -> dict[tuple[int, str], Admission]:
    """Return whether each pair counts for each case: as judged, and before that as reported when it was measured."""
    found: dict[tuple[int, str], Admission] = {}
    for payload in queries.pair_events(session, measurement_id):
        for case, admitted in dict(payload.get("admitted") or {}).items():
            found[int(payload["pair"]), case] = (bool(admitted), [])
    for case, evidence in queries.evidence(session, measurement_id):
        confirmed = evidence.get("confirmation") or {}
        for pair in (*(evidence.get("pairs") or ()), *(confirmed.get("pairs") or ())):
            found[pair["index"], case] = (pair["admitted"], list(pair["reasons"]))
    return found
