"""Shows verdicts: of a job, over jobs, and of one commit against another."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.context import AppContext
from service.fields import CommitBrief
from service.jobs.service import unknown_job
from service.judging import queries
from service.judging.schemas import ComparisonOut, JobVerdicts, LinkedVerdictRow, VerdictList, VerdictOut
from service.models import Job, State
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

    def brief(sha: str) -> CommitBrief:
        return CommitBrief.model_validate(seen[sha]) if sha in seen else CommitBrief(sha=sha)

    return ComparisonOut(
        repository=repository.name,
        base=brief(base_sha),
        head=brief(head_sha),
        job_ids=sorted({parts[3].id for parts in found}, reverse=True),
        rows=[LinkedVerdictRow(**_row_fields(parts)) for parts in found],
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
    return {
        "case": case.name,
        "case_version": case.version,
        "group": case.group,
        "device_class": device_class,
        "gpu_uuid": verdict.gpu_uuid,
        "unit": verdict.unit,
        "before": verdict.before,
        "after": verdict.after,
        "effect": verdict.effect,
        "interval_low": verdict.interval_low,
        "interval_high": verdict.interval_high,
        "verdict": verdict.verdict,
        "reasons": verdict.reasons,
        "pairs_used": verdict.pairs_used,
        "pairs_rejected": verdict.pairs_rejected,
        "minimum_detectable_effect": verdict.minimum_detectable_effect,
        "numerics": verdict.numerics,
        "measurement_id": verdict.measurement_id,
        "series_id": series_id,
        "judged_at": verdict.judged_at,
    }
