"""Makes the checks of a commit, each with its job, and has them take the place of older ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.context import AppContext
from service.devices.service import served_classes
from service.github import queries
from service.jobs.placing import JobRows, fill_measurements, insert_jobs
from service.models import TERMINAL, CheckRun, Delivery, DeliveryKind, JobKind, PullRequest, Repository, State, utc_now
from service.outbox.queries import want

PRIORITY = 50  # before jobs that nobody waits for in front of a pull request


@dataclass(frozen=True)
class Plan:
    """Checks to make: `suites` maps names to case globs; without a baseline they wait for a maintainer's approval."""

    head: str
    baseline: str | None
    cause: str
    suites: Mapping[str, str]
    reason: str
    pull: PullRequest | None = None
    max_pairs: int | None = None
    kind: str = JobKind.COMPARE


def make_checks(context: AppContext, session: Session, repository: Repository, plan: Plan) -> list[UUID]:
    """Store the checks of a plan that its cause has not made before; return unfinished jobs that they supersede."""
    checks = [_check(repository, plan, name) for name in plan.suites]
    checks = [check for check in checks if not queries.check_exists(session, check)]
    if not checks:
        return []
    canceled = _supersede(session, repository, plan, {check.name for check in checks})
    if plan.baseline is not None:
        served = served_classes(session)
        jobs = []
        for check in checks:
            new = JobRows(_job_values(context, repository, plan, check.name))
            fill_measurements(new, served)
            check.job_id = new.job["id"]
            jobs.append(new)
        insert_jobs(context.queue.enqueue_measurements, session, jobs)
    session.add_all(checks)
    session.flush()
    session.add_all(Delivery(kind=DeliveryKind.CHECK, subject_id=check.id) for check in checks)
    if plan.pull is not None:
        want(session, DeliveryKind.COMMENT, [plan.pull.id])
    return canceled


def drop_checks(session: Session, repository: Repository, pull: PullRequest, why: str) -> list[UUID]:
    """Supersede every check of a pull request that has been closed; return its unfinished jobs."""
    return _mark(session, queries.current_checks(session, repository.id, pull_request_id=pull.id), why)


def _check(repository: Repository, plan: Plan, name: str) -> CheckRun:
    return CheckRun(
        id=uuid7(),
        repository_id=repository.id,
        pull_request_id=plan.pull.id if plan.pull is not None else None,
        name=name,
        head_sha=plan.head,
        cause=plan.cause,
    )


def _supersede(session: Session, repository: Repository, plan: Plan, names: set[str]) -> list[UUID]:
    if plan.pull is not None:
        found = queries.current_checks(session, repository.id, pull_request_id=plan.pull.id)
    else:
        found = queries.current_checks(session, repository.id, head_sha=plan.head)
        found = [check for check in found if check.pull_request_id is None]
    older = [check for check in found if check.head_sha != plan.head]
    return _mark(session, older, plan.head) + _mark(
        session, [check for check in found if check.head_sha == plan.head and check.name in names], plan.cause
    )


def _mark(session: Session, checks: Sequence[CheckRun], by: str) -> list[UUID]:
    """Mark checks as superseded; those that have not ended are told so, and their jobs returned."""
    jobs = queries.jobs_by_id(session, [check.job_id for check in checks if check.job_id is not None])
    unfinished = []
    for check in checks:
        check.superseded_by = by
        job = jobs.get(check.job_id) if check.job_id is not None else None
        if job is not None and job.state in TERMINAL:
            continue
        want(session, DeliveryKind.CHECK, [check.id])
        if job is not None:
            unfinished.append(job.id)
    return unfinished


def _job_values(context: AppContext, repository: Repository, plan: Plan, name: str) -> dict[str, Any]:
    assert plan.baseline is not None
    cases = plan.suites[name]
    return {
        "id": uuid7(),
        "created_at": utc_now(),
        "kind": plan.kind,
        "repository_id": repository.id,
        "requested_commit": plan.head,
        "requested_baseline": plan.baseline,
        "commit_sha": plan.head,
        "baseline_sha": plan.baseline,
        "cases": cases,
        "reason": plan.reason,
        "pull_request": plan.pull.number if plan.pull is not None else None,
        "priority": PRIORITY,
        "policy": {"max_pairs": plan.max_pairs or context.settings.max_pairs},
        "state": State.QUEUED,
        "cancel_requested": False,
        "idempotency_key": None,
        "body_sha256": hashlib.sha256(f"{plan.cause} {name} {cases}".encode()).hexdigest(),
        "token_id": None,
    }
