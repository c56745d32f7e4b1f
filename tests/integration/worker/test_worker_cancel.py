"""Stopping: cancel requests before and during processes, orderly ends of the worker, and troubles that pass."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select
from worker_fixtures import FakeRepository, Jobs, RunningWorker, processes_with, wait_until

from service import engine
from service.db import Database
from service.models import TERMINAL, ArmRun, JobEvent, Measurement, State


@pytest.fixture
def jobs(database: Database, repository: FakeRepository) -> Jobs:
    repository.commit("base")
    return Jobs(database, str(repository.path))


def reached(jobs: Jobs, measurement_id: UUID, stage: str) -> bool:
    return jobs.measurement(measurement_id).stage == stage


@pytest.mark.parametrize(
    ("stage", "behavior"), [("build", {"build": "hang"}), ("numerics", {"run": "hang"}), ("pairs", {"run_s": 0.2})]
)
def test_a_cancel_request_ends_the_running_process(
    jobs: Jobs, database: Database, repository: FakeRepository, tmp_path: Path, stage: str, behavior: dict[str, object]
) -> None:
    measurement_id = jobs.submit(repository.commit("long", **behavior))
    repository.commit("next")
    with RunningWorker(database, tmp_path):
        wait_until(lambda: reached(jobs, measurement_id, stage), 30, f"stage {stage}")
        time.sleep(0.3)
        jobs.request_cancel(measurement_id)
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 15, "the end")
        assert jobs.measurement(measurement_id).state == "canceled"
        assert jobs.job(measurement_id).state == "canceled"
        wait_until(lambda: not processes_with(str(tmp_path / "data")), 5, "the end of the children")
        following = jobs.submit("main", "main", max_pairs=2)
        wait_until(lambda: jobs.measurement(following).state in TERMINAL, 30, "the next job")
        assert jobs.measurement(following).state == "done"


def test_a_queued_measurement_is_canceled_without_a_worker(
    jobs: Jobs, database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    canceled, marked, kept = (jobs.submit("main", "main", max_pairs=2) for _ in range(3))
    with database.transaction() as session:
        session.get_one(Measurement, canceled).state = State.CANCELED
    engine.cancel_measurement(database.engine, canceled)
    jobs.request_cancel(marked)
    with RunningWorker(database, tmp_path):
        wait_until(lambda: jobs.measurement(kept).state in TERMINAL, 30, "the job that was kept")
    assert [jobs.measurement(one).state for one in (canceled, marked, kept)] == ["canceled", "canceled", "done"]
    with database.reading() as session:
        touched = session.execute(select(func.count()).where(JobEvent.measurement_id == canceled)).scalar_one()
    assert touched == 0


def test_the_engines_own_cancel_ends_a_running_measurement(
    jobs: Jobs, database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    measurement_id = jobs.submit(repository.commit("slow", run_s=0.1))
    with RunningWorker(database, tmp_path):
        wait_until(lambda: reached(jobs, measurement_id, "pairs"), 30, "pairs")
        engine.cancel_measurement(database.engine, measurement_id)
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 15, "the end")
    assert jobs.measurement(measurement_id).state == "canceled"


def test_a_worker_that_stops_gives_its_measurement_back(
    jobs: Jobs, database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    measurement_id = jobs.submit(repository.commit("slow", run_s=0.1), max_pairs=6)
    with RunningWorker(database, tmp_path):
        wait_until(lambda: reached(jobs, measurement_id, "pairs"), 30, "pairs")
    stopped = jobs.measurement(measurement_id)
    assert (stopped.state, stopped.worker_id) == ("queued", None)
    with RunningWorker(database, tmp_path, name="another name"):
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 30, "the end")
    assert jobs.measurement(measurement_id).state == "done"
    assert jobs.measurement(measurement_id).attempt == 1
    with database.reading() as session:
        runs = session.execute(select(ArmRun.pair_index, ArmRun.arm).where(ArmRun.purpose == "pair")).all()
        resumed = session.execute(select(JobEvent.payload).where(JobEvent.kind == "resumed")).scalars().all()
    assert sorted(tuple(run) for run in runs) == [(index, arm) for index in range(6) for arm in "AB"]
    assert [payload["after_crash"] for payload in resumed] == [False]


def test_a_passing_trouble_is_tried_again_and_then_named(database: Database, tmp_path: Path) -> None:
    jobs = Jobs(database, str(tmp_path / "nowhere"))
    measurement_id = jobs.submit("main", "main")
    with RunningWorker(database, tmp_path):
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 30, "the end")
    measurement = jobs.measurement(measurement_id)
    assert measurement.error is not None
    assert (measurement.state, measurement.error["code"]) == ("failed", "checkout_failed")
    with database.reading() as session:
        query = select(JobEvent.payload).where(JobEvent.measurement_id == measurement_id, JobEvent.kind == "log")
        texts = [payload["text"] for payload in session.execute(query).scalars()]
    assert sum("trying again" in text for text in texts) == 3


def test_a_trouble_that_has_passed_leaves_no_trace(
    database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    sha = repository.commit("base")
    away = tmp_path / "moved"
    jobs = Jobs(database, str(away))
    measurement_id = jobs.submit(sha, sha, max_pairs=2)
    with RunningWorker(database, tmp_path):
        wait_until(lambda: reached(jobs, measurement_id, "checkout"), 30, "checkout")
        repository.path.rename(away)
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 30, "the end")
    assert jobs.measurement(measurement_id).state in ("done", "failed")
