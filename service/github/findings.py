"""Gathers from the database what a check or a comment says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.alerts.queries import accepted_cases
from service.github.conclusion import Conclusion, conclude, is_failure
from service.github.report import DeviceFindings, Findings, Links
from service.judging.service import job_attribution, job_verdicts
from service.models import CheckRun, Job, Measurement, Repository
from service.results.schemas import MeasurementOut
from service.results.service import get_measurement, list_kernels
from service.settings import Settings

SUPERSEDED = Conclusion("completed", "neutral", "Superseded")
WAITING = Conclusion("completed", "action_required", "A maintainer has to let a fork's code run")


def links_of(settings: Settings, repository: Repository) -> Links:
    """Return where the repository and this server are."""
    return Links(f"{settings.github_url}/{repository.github}", settings.public_url)


def job_findings(session: Session, settings: Settings, repository: Repository, job: Job, name: str) -> Findings:
    """Return what a job has found so far, under the name of its check."""
    rows = [row.model_dump(mode="json") for row in job_verdicts(session, job.id).rows]
    accepted = accepted_cases(session, job)
    known = [accepted.get((row["case"], row["case_version"], row["device_class"])) for row in rows]
    ids = session.execute(select(Measurement.id).where(Measurement.job_id == job.id).order_by(Measurement.device_class))
    measurements = [get_measurement(session, measurement_id) for measurement_id in ids.scalars().all()]
    errors = [one.error.model_dump() for one in measurements if one.error is not None]
    reasons = sorted({text for row, text in zip(rows, known, strict=True) if text is not None and is_failure(row)})
    head, baseline = job.commit_sha or job.requested_commit, job.baseline_sha or job.requested_baseline
    query = f"repository={quote(repository.name, safe='')}&base={quote(baseline, safe='')}&head={quote(head, safe='')}"
    return Findings(
        name=name,
        job_url=f"{settings.public_url}/jobs/{job.id}",
        compare_url=f"{settings.public_url}/compare?{query}",
        head=head,
        baseline=baseline,
        cases=job.cases,
        conclusion=conclude(job.state, rows, errors, [text is not None for text in known]),
        devices=[_device(session, one, rows) for one in measurements],
        max_pairs=int(job.policy["max_pairs"]),
        kind=job.kind,
        commit_rows=[row.model_dump(mode="json") for row in job_attribution(session, job.id).rows],
        accepted="; ".join(reasons) or None,
    )


def _device(session: Session, measurement: MeasurementOut, rows: Sequence[dict[str, Any]]) -> DeviceFindings:
    resources = {build.arm: build.resources for build in measurement.builds}
    kernels = list_kernels(session, measurement.id).rows
    environments = {item.arm: item.environment for item in measurement.environments}
    return DeviceFindings(
        device_class=measurement.device_class,
        state=str(measurement.state),
        rows=[row for row in rows if row["device_class"] == measurement.device_class],
        error=measurement.error.model_dump() if measurement.error is not None else None,
        environment=environments.get("B", {}),
        sandbox=measurement.sandbox,
        before_resources=resources.get("A"),
        after_resources=resources.get("B"),
        kernels=[row.model_dump(mode="json") for row in kernels],
    )


def jobs_of_head(session: Session, pull_request_id: UUID, head_sha: str) -> Sequence[tuple[CheckRun, Job]]:
    """Return the current checks of a pull request's head with their jobs, by name."""
    query = (
        select(CheckRun, Job)
        .join(Job, CheckRun.job_id == Job.id)
        .where(
            CheckRun.pull_request_id == pull_request_id,
            CheckRun.head_sha == head_sha,
            CheckRun.superseded_by.is_(None),
        )
        .order_by(CheckRun.name, CheckRun.id)
    )
    return [(check, job) for check, job in session.execute(query)]
