"""Shows jobs and cancels them; `service.jobs.intake` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.context import AppContext
from service.devices.service import served_classes
from service.errors import NotFound
from service.fields import FailureOut
from service.history.feeding import give_up
from service.jobs import queries
from service.jobs.schemas import JobBrief, JobList, JobOut, MeasurementBrief, Progress
from service.jobs.states import combined
from service.models import TERMINAL, Job, JobEvent, Measurement, State, utc_now
from service.outbox.service import job_changed
from service.paging import encode_cursor


def get_job(session: Session, job_id: UUID) -> JobOut:
    """Return a job with its measurements."""
    row = queries.job(session, job_id)
    if row is None:
        raise unknown_job(job_id)
    rows = queries.measurements(session, job_id)
    pairs = queries.finished_pairs(session, [measurement.id for measurement, _, _ in rows])
    return job_out(row, rows, served_classes(session), pairs)


def list_jobs(session: Session, wanted: queries.JobFilter, before: UUID | None, limit: int) -> JobList:
    """Return a page of jobs, newest first."""
    rows = queries.jobs(session, wanted, before, limit + 1)
    page = rows[:limit]
    cursor = encode_cursor(str(page[-1][0].id)) if len(rows) > limit else None
    return JobList(items=[JobBrief(**_job_fields(row)) for row in page], next_cursor=cursor)


def cancel(context: AppContext, job_id: UUID) -> JobOut:
    """Cancel what no worker has taken at once and ask for the rest; a job that has ended stays as it is."""
    with context.database.transaction() as session:
        job = queries.lock_job(session, job_id)
        if job is None:
            raise unknown_job(job_id)
        canceled = [] if job.state in TERMINAL else _cancel_rows(session, job)
        for measurement_id in canceled:
            measurement = session.get_one(Measurement, measurement_id)
            give_up(session, context.queue.enqueue_measurements, job, measurement)
    for measurement_id in canceled:
        context.queue.cancel_measurement(context.database.engine, measurement_id)
    with context.database.reading() as session:
        return get_job(session, job_id)


def job_out(
    row: queries.JobRow,
    measurements: Sequence[queries.MeasurementRow],
    served: Sequence[str],
    pairs: Mapping[UUID, int],
) -> JobOut:
    """Put a job and its measurements together: `served` are device classes, `pairs` finished pairs by measurement."""
    budget = int(row[0].policy["max_pairs"])
    return JobOut(
        **_job_fields(row),
        max_pairs=budget,
        measurements=[
            MeasurementBrief(
                id=measurement.id,
                device_class=measurement.device_class,
                served=measurement.device_class in served,
                state=State(measurement.state),
                stage=measurement.stage,
                attempt=measurement.attempt,
                progress=Progress(pairs_done=pairs.get(measurement.id, 0), budget=budget),
                sandbox=measurement.sandbox,
                worker=worker,
                device=device,
                error=FailureOut.model_validate(measurement.error) if measurement.error else None,
                started_at=measurement.started_at,
                finished_at=measurement.finished_at,
            )
            for measurement, worker, device in measurements
        ],
    )


def unknown_job(job_id: UUID) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound("unknown_job", f"job_id: got {job_id}, expected the id of a job (GET /api/v1/jobs lists them)")


def _cancel_rows(session: Session, job: Job) -> list[UUID]:
    now = utc_now()
    if not job.cancel_requested:
        job.cancel_requested = True
        session.add(_event(job, "cancel_requested", {}))
    canceled = queries.cancel_queued(session, job.id, now)
    for measurement_id in canceled:
        session.add(_event(job, "end", {"state": State.CANCELED, "error": None}, measurement_id))
    state = combined(queries.measurement_states(session, job.id))
    if state in TERMINAL:
        job.finished_at = now
        session.add(_event(job, "end", {"state": state}))
    job.state = state
    job_changed(session, job.id, judged=False)
    return canceled


def _event(job: Job, kind: str, payload: dict[str, Any], measurement_id: UUID | None = None) -> JobEvent:
    return JobEvent(job_id=job.id, measurement_id=measurement_id, kind=kind, payload=payload)


def _job_fields(row: queries.JobRow) -> dict[str, Any]:
    job, repository, subject, orphaned = row
    return {
        "id": job.id,
        "kind": job.kind,
        "repository": repository,
        "requested_commit": job.requested_commit,
        "requested_baseline": job.requested_baseline,
        "commit": job.commit_sha,
        "baseline": job.baseline_sha,
        "subject": subject,
        "orphaned": bool(orphaned),
        "devices": job.devices,
        "cases": job.cases,
        "reason": job.reason,
        "pull_request": job.pull_request,
        "priority": job.priority,
        "state": job.state,
        "cancel_requested": job.cancel_requested,
        "error": FailureOut.model_validate(job.error) if job.error else None,
        "created_at": job.created_at,
        "finished_at": job.finished_at,
    }
