"""Turns what histories ask for into jobs: one for all series that suspect the same range, within the alarm budget."""

from __future__ import annotations

import glob
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.history import queries
from service.jobs.placing import Enqueue, JobRows, fill_measurements, insert_jobs
from service.models import HistoryRequest, Measurement, State, utc_now
from service.stats.alarm_budget import AlarmBudget
from service.stats.history_policy import HistoryPolicy
from service.stats.investigation import Request
from service.stats.policy import JudgingPolicy

REASON = "confirm"
PRIORITY = 200  # after everything that somebody waits for
MAX_CASES_LENGTH = 500


@dataclass(frozen=True)
class Question:
    """A job that a series asks for; `after` is the request whose answer made it ask, None for a new search."""

    series_id: UUID
    case: str
    request: Request
    after: HistoryRequest | None


def ask(
    session: Session, enqueue: Enqueue, raised_by: Measurement, repository_id: UUID, questions: Sequence[Question]
) -> None:
    """Queue the jobs for questions that a measurement has raised, in the session's transaction."""
    if not questions:
        return
    rows = _within_budget(session, raised_by, questions)
    ranges: defaultdict[Request, list[tuple[str, HistoryRequest]]] = defaultdict(list)
    for question, row in zip(questions, rows, strict=True):
        ranges[question.request].append((question.case, row))
    jobs = []
    for request, waiting in ranges.items():
        cases = covering_glob(sorted({case for case, _ in waiting}))
        level = min(row.level for _, row in waiting)
        new = JobRows(_job_values(session, repository_id, request, cases, level))
        fill_measurements(new, [raised_by.device_class])
        for _, row in waiting:
            row.job_id = new.job["id"]
        jobs.append(new)
    insert_jobs(enqueue, session, jobs)
    session.add_all(rows)
    session.flush()


def covering_glob(names: Sequence[str]) -> str:
    """Return a glob that matches these case names, and others only where no single glob matches just these.

    Commits of any age read it, and they know one glob.
    """
    apart = [name.split("/") for name in names]
    if len({len(parts) for parts in apart}) > 1:
        return "*"
    places = [glob.escape(column[0]) if len(set(column)) == 1 else "*" for column in zip(*apart, strict=True)]
    pattern = "/".join(places)
    return pattern if len(pattern) <= MAX_CASES_LENGTH else "*"


def _within_budget(session: Session, raised_by: Measurement, questions: Sequence[Question]) -> list[HistoryRequest]:
    """Return a row per question, with the level at which its job is judged.

    A measurement that begins searches spends half of what its commit has left on their first jobs; a quarter is kept
    for the jobs after them, in equal shares, and a quarter for further measurements of that commit. So all jobs that a
    commit ever causes spend no more than `alarm_level`.
    """
    alpha = JudgingPolicy.for_device(raised_by.device_class).told_alpha
    begun = sum(question.after is None for question in questions)
    first_level = share = 0.0
    if begun:
        assert raised_by.candidate_id is not None
        waves = queries.waves_begun(session, raised_by.candidate_id)
        first_level, rest = AlarmBudget(HistoryPolicy().alarm_level / 4.0**waves).wave(begun, alpha)
        share = rest.left / 2.0 / begun
    rows = []
    for question in questions:
        level, left, cause, wave = first_level, share, raised_by.candidate_id, 0
        if question.after is not None:
            level, rest = AlarmBudget(question.after.left).wave(1, alpha)
            left, cause, wave = rest.left, question.after.cause_id, question.after.wave + 1
        rows.append(
            HistoryRequest(
                series_id=question.series_id,
                candidate=question.request.candidate,
                baseline=question.request.baseline,
                cause_id=cause,
                raised_by=raised_by.id,
                wave=wave,
                level=level,
                left=left,
            )
        )
    return rows


def _job_values(session: Session, repository_id: UUID, request: Request, cases: str, level: float) -> dict[str, Any]:
    commit, baseline = (_ref(session, repository_id, place) for place in (request.candidate, request.baseline))
    return {
        "id": uuid7(),
        "created_at": utc_now(),
        "repository_id": repository_id,
        "requested_commit": commit,
        "requested_baseline": baseline,
        "commit_sha": None if "~" in commit else commit,
        "baseline_sha": None if "~" in baseline else baseline,
        "cases": cases,
        "reason": REASON,
        "pull_request": None,
        "priority": PRIORITY,
        "policy": {"max_pairs": JudgingPolicy().looks[-1], "level": level},
        "state": State.QUEUED,
        "cancel_requested": False,
        "idempotency_key": None,
        "body_sha256": hashlib.sha256(f"{REASON} {commit} {baseline} {cases}".encode()).hexdigest(),
        "token_id": None,
    }


def _ref(session: Session, repository_id: UUID, position: int) -> str:
    """Return a commit by its SHA, or one that nobody has measured by its distance from one that was: `SHA~3`."""
    found = queries.revision(session, repository_id, position)
    assert found is not None
    sha, distance = found
    return f"{sha}~{distance}" if distance else sha
