"""Stacks through a worker, on SQLite and on PostgreSQL: stored per round, resumed, shown by the API's functions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from worker_fixtures import (
    BACKWARD_SELF,
    FORWARD_DOWN,
    FORWARD_SELF,
    FakeRepository,
    Jobs,
    RunningWorker,
    wait_until,
)

from service.db import Database
from service.jobs.service import get_job
from service.judging.service import job_attribution, job_verdicts
from service.models import TERMINAL, Alert, ArmRun, Attribution, JobEvent, Point
from service.results.service import get_measurement, list_samples
from service.stats.attribution import round_order


@pytest.fixture
def jobs(database: Database, repository: FakeRepository) -> Jobs:
    repository.commit("root")
    return Jobs(database, str(repository.path))


def ended(jobs: Jobs, measurement_id: UUID) -> bool:
    return jobs.measurement(measurement_id).state in TERMINAL


def run(jobs: Jobs, measurement_id: UUID, folder: Path) -> None:
    with RunningWorker(jobs.database, folder):
        wait_until(lambda: ended(jobs, measurement_id), 120, "the end")


def rows_of(jobs: Jobs, measurement_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """Return the commits' rows and, last, that of the whole, by case, as the API gives them."""
    job = jobs.job(measurement_id)
    with jobs.database.reading() as session:
        rows = [row.model_dump() for row in job_attribution(session, job.id).rows]
        wholes = {row.case: row.model_dump() for row in job_verdicts(session, job.id).rows}
    return {case: [row for row in rows if row["case"] == case] + [whole] for case, whole in wholes.items()}


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["verdict"] for row in rows]


def runs(jobs: Jobs, measurement_id: UUID, purpose: str = "round") -> list[ArmRun]:
    query = select(ArmRun).where(ArmRun.measurement_id == measurement_id, ArmRun.purpose == purpose)
    with jobs.database.reading() as session:
        return list(session.execute(query.order_by(ArmRun.pair_index, ArmRun.arm)).scalars())


def test_a_stack_is_stored_commit_by_commit(jobs: Jobs, repository: FakeRepository, tmp_path: Path) -> None:
    base = repository.commit("base")
    slow = repository.commit("slow", speed={FORWARD_SELF: 1.1})
    words = repository.commit_files("words only")
    repository.commit("broken", build="fail")
    fast = repository.commit("fast", speed={FORWARD_SELF: 1.1, BACKWARD_SELF: 0.9}, wrong_cases=[FORWARD_DOWN])
    measurement_id = jobs.submit(fast, base, kind="stack", max_pairs=12)
    run(jobs, measurement_id, tmp_path)
    assert jobs.measurement(measurement_id).error is None
    rows = rows_of(jobs, measurement_id)
    assert verdicts(rows[FORWARD_SELF]) == ["regressed", "unchanged", "failed", "unchanged", "regressed"]
    assert verdicts(rows[BACKWARD_SELF]) == ["unchanged", "unchanged", "failed", "improved", "improved"]
    assert verdicts(rows[FORWARD_DOWN]) == ["unchanged", "unchanged", "failed", "failed", "failed"]
    *steps, whole = rows[FORWARD_SELF]
    logs = [math.log1p(row["effect"]) for row in steps if row["effect"] is not None]
    assert sum(logs) == pytest.approx(math.log1p(whole["effect"]), abs=1e-12)
    assert [row["position"] for row in steps] == [1, 2, 3, 4]
    assert [row["subject"] for row in steps] == ["slow", "words only", "broken", "fast"]
    assert (steps[0]["commit"], steps[0]["baseline"]) == (slow, base)
    assert (steps[3]["commit"], steps[3]["baseline"]) == (fast, words)
    assert steps[3]["reasons"][-1]["code"] == "combined"
    with jobs.database.reading() as session:
        assert (
            session.execute(select(JobEvent).where(JobEvent.kind == "commit_failed")).scalar_one().payload["position"]
            == 3
        )
        assert session.execute(select(Point)).first() is None
        assert session.execute(select(Alert)).first() is None
        job = get_job(session, jobs.job(measurement_id).id)
        shown = get_measurement(session, measurement_id)
        samples = list_samples(session, measurement_id, FORWARD_SELF, "time")
    assert job.kind == "stack"
    stored = runs(jobs, measurement_id)
    count = max(one.pair_index for one in stored) + 1
    assert job.measurements[0].progress.pairs_done == shown.pairs_done == count
    assert [(one.pair, one.arm) for one in samples.blocks] == [(index, arm) for index in range(count) for arm in "ABE"]
    assert [(one.pair_index, one.arm) for one in stored] == [(index, arm) for index in range(count) for arm in "ABE"]
    watched = runs(jobs, measurement_id, "canary")
    assert [(one.pair_index, one.arm) for one in watched] == [(one.pair_index, one.arm) for one in stored]
    by_id = sorted(stored, key=lambda one: one.id)
    for index in range(count):
        ran = [one.arm for one in by_id if one.pair_index == index]
        assert ran == ["ABE"[place] for place in round_order(index, 3)]


def test_a_stack_goes_on_at_the_next_round(jobs: Jobs, repository: FakeRepository, tmp_path: Path) -> None:
    base = repository.commit("base", run_s=0.05)
    repository.commit("crash", run="crash", only_pairs=True)
    repository.commit_files("words: shares the arm that crashed")
    head = repository.commit("head", run_s=0.05)
    measurement_id = jobs.submit(head, base, kind="stack", cases=FORWARD_SELF, max_pairs=8)
    with RunningWorker(jobs.database, tmp_path):
        wait_until(lambda: len(runs(jobs, measurement_id)) >= 4, 60, "two rounds")
    before = {one.id for one in runs(jobs, measurement_id)}
    assert jobs.measurement(measurement_id).state == "queued"
    run(jobs, measurement_id, tmp_path)
    after = runs(jobs, measurement_id)
    assert before < {one.id for one in after}
    assert len(after) == 16
    assert len(runs(jobs, measurement_id, "numerics")) == 3
    assert verdicts(rows_of(jobs, measurement_id)[FORWARD_SELF]) == ["failed", "failed", "unchanged", "unchanged"]
    with jobs.database.reading() as session:
        assert len(session.execute(select(JobEvent).where(JobEvent.kind == "commit_failed")).all()) == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("commit", "baseline", "cases", "code"),
    [
        ("HEAD~2", "HEAD", "*", "bad_range"),
        ("HEAD", "HEAD", "*", "bad_range"),
        ("HEAD", "side", "*", "bad_range"),
        ("HEAD", "HEAD~21", "*", "bad_range"),
        ("nothing", "HEAD", "*", "unknown_ref"),
        ("HEAD", "HEAD~1", "gpu/*", "no_cases"),
        ("root", "auto", "*", "no_parent"),
    ],
)
def test_stacks_that_are_none_fail_by_name(
    jobs: Jobs, repository: FakeRepository, tmp_path: Path, commit: str, baseline: str, cases: str, code: str
) -> None:
    repository.git("tag", "root")
    repository.git("switch", "--quiet", "--create", "side")
    repository.commit("side")
    repository.git("switch", "--quiet", "main")
    for number in range(22):
        repository.git("commit", "--quiet", "--allow-empty", "--message", f"number {number}")
    names = [
        name if name in {"side", "nothing", "auto"} else repository.git("rev-parse", name)
        for name in (commit, baseline)
    ]
    measurement_id = jobs.submit(*names, kind="stack", cases=cases, max_pairs=2)
    run(jobs, measurement_id, tmp_path)
    error = jobs.measurement(measurement_id).error
    assert error is not None
    assert error["code"] == code
    with jobs.database.reading() as session:
        assert session.execute(select(Attribution)).first() is None
