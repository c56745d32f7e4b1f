"""Shows verdicts: of a job, over jobs, and of one commit against another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.context import AppContext
from service.fields import CommitBrief
from service.jobs.service import unknown_job
from service.judging import queries
from service.judging.schemas import (
    AttributionRow,
    ComparisonOut,
    JobAttribution,
    JobVerdicts,
    LinkedVerdictRow,
    Reason,
    VerdictList,
    VerdictOut,
    VerdictRow,
)
from service.models import Attribution, Case, Job, State, Verdict
from service.paging import encode_cursor
from service.repositories.queries import commits
from service.repositories.service import find_commit
from service.repositories.service import get as get_repository


def job_verdicts(session: Session, job_id: UUID) -> JobVerdicts:
    """Return the verdict table of a job, as far as it has been judged."""
    job = session.get(Job, job_id)
    if job is None:
        raise unknown_job(job_id)
    rows = [LinkedVerdictRow(**_row_fields(parts)) for parts in queries.of_job(session, job_id)]
    return JobVerdicts(job_id=job_id, state=State(job.state), rows=rows)


def job_attribution(session: Session, job_id: UUID) -> JobAttribution:
    """Return what each commit of a job's stack did; no rows for a job of another kind, or before it was judged."""
    job = session.get(Job, job_id)
    if job is None:
        raise unknown_job(job_id)
    rows = [
        AttributionRow(
            **_values(row, case, device_class), position=row.position, commit=commit, baseline=before, subject=subject
        )
        for row, case, device_class, commit, before, subject in queries.attributions(session, job_id)
    ]
    return JobAttribution(job_id=job_id, state=State(job.state), rows=rows)


def list_verdicts(session: Session, wanted: queries.VerdictFilter, before: UUID | None, limit: int) -> VerdictList:
    """Return a page of verdicts, newest first."""
    found = queries.page(session, wanted, before, limit + 1)
    items = [_verdict_out(parts) for parts in found[:limit]]
    return VerdictList(items=items, next_cursor=encode_cursor(str(items[-1].id)) if len(found) > limit else None)


def compare(context: AppContext, session: Session, repository_name: str, base: str, head: str) -> ComparisonOut:
    """Return what was found for one commit against another; both may be any ref."""
    repository = get_repository(session, repository_name)
    base_sha = find_commit(context, session, repository, base, "base")
    head_sha = find_commit(context, session, repository, head, "head")
    seen = commits(session, repository.id, (base_sha, head_sha))
    found = queries.comparison(session, repository.id, base_sha, head_sha)

    judged = {(parts[1].id, parts[2]) for parts in found}

    def brief(sha: str) -> CommitBrief:
        return CommitBrief.model_validate(seen[sha]) if sha in seen else CommitBrief(sha=sha)

    return ComparisonOut(
        repository=repository.name,
        base=brief(base_sha),
        head=brief(head_sha),
        job_ids=sorted({parts[3].id for parts in found}, reverse=True),
        rows=[LinkedVerdictRow(**_row_fields(parts)) for parts in found],
        apart=[row for key, row in _apart(session, repository.id, base_sha, head_sha) if key not in judged],
    )


def _apart(
    session: Session, repository_id: UUID, base: str, head: str
) -> Iterator[tuple[tuple[UUID, str], VerdictRow]]:
    """Yield what was measured at both commits, by case and device class; it says nothing of a change."""
    before = queries.newest_points(session, repository_id, base)
    detail = "each was measured, but never against the other: submit the one with the other as its baseline"
    for series_id, (point, series, case) in queries.newest_points(session, repository_id, head).items():
        if series_id not in before:
            continue
        yield (
            (case.id, series.device_class),
            VerdictRow(
                case=case.name,
                case_version=case.version,
                group=case.group,
                device_class=series.device_class,
                gpu_uuid=point.gpu_uuid,
                unit=series.unit,
                before=before[series_id][0].value,
                after=point.value,
                effect=None,
                interval_low=None,
                interval_high=None,
                verdict="not_comparable",
                reasons=[Reason(code="measured_apart", detail=detail)],
                pairs_used=0,
                pairs_rejected=0,
                minimum_detectable_effect=None,
                numerics=None,
            ),
        )


def _verdict_out(parts: queries.VerdictParts) -> VerdictOut:
    verdict, _, _, job, repository, subject, _ = parts
    return VerdictOut(
        **_row_fields(parts),
        id=verdict.id,
        job_id=job.id,
        repository=repository,
        commit=job.commit_sha,
        baseline=job.baseline_sha,
        subject=subject,
    )


def _row_fields(parts: queries.VerdictParts) -> dict[str, Any]:
    verdict, case, device_class, _, _, _, series_id = parts
    return _values(verdict, case, device_class) | {"series_id": series_id, "judged_at": verdict.judged_at}


def _values(found: Verdict | Attribution, case: Case, device_class: str) -> dict[str, Any]:
    """Return what a verdict and a commit's part of one have in common."""
    return {
        "case": case.name,
        "case_version": case.version,
        "group": case.group,
        "device_class": device_class,
        "gpu_uuid": found.gpu_uuid,
        "unit": found.unit,
        "before": found.before,
        "after": found.after,
        "effect": found.effect,
        "interval_low": found.interval_low,
        "interval_high": found.interval_high,
        "verdict": found.verdict,
        "reasons": found.reasons,
        "pairs_used": found.pairs_used,
        "pairs_rejected": found.pairs_rejected,
        "minimum_detectable_effect": found.minimum_detectable_effect,
        "numerics": found.numerics,
        "measurement_id": found.measurement_id,
    }
