"""Identical code: what is stored of it and what is not, that it is in nobody's way, and when it is queued by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from worker_fixtures import (
    FORWARD_DOWN,
    FORWARD_SELF,
    FakeRepository,
    Jobs,
    RunningWorker,
    wait_until,
)

from service import engine
from service.calibration.queries import CalibrationFilter
from service.calibration.scheduling import IDLE_PRIORITY, IdleRule, schedule_idle
from service.calibration.service import running_rates
from service.db import Database
from service.models import (
    TERMINAL,
    Alert,
    Calibration,
    Case,
    Commit,
    Device,
    Job,
    JobEvent,
    KernelProfile,
    Measurement,
    Point,
    Series,
    State,
    Verdict,
    Worker,
    utc_now,
)

HOUR = timedelta(hours=1)


@pytest.fixture
def jobs(database: Database, repository: FakeRepository) -> Jobs:
    return Jobs(database, str(repository.path))


@pytest.fixture
def worker(database: Database, tmp_path: Path) -> Callable[..., RunningWorker]:
    return lambda **options: RunningWorker(database, tmp_path, **options)


def ended(jobs: Jobs, measurement_id: UUID) -> bool:
    return jobs.measurement(measurement_id).state in TERMINAL


def count(database: Database, model: Any, *conditions: Any) -> int:
    with database.reading() as session:
        return session.execute(select(func.count()).select_from(model).where(*conditions)).scalar_one()


def submit_last(jobs: Jobs, commit: str) -> UUID:
    """Queue a commit against itself, as it is done for an idle device."""
    measurement_id = jobs.submit(commit, commit, max_pairs=200, queue=False)
    with jobs.database.transaction() as session:
        session.get_one(Job, session.get_one(Measurement, measurement_id).job_id).priority = IDLE_PRIORITY
        engine.enqueue_measurement(session, measurement_id, "cpu", IDLE_PRIORITY)
    return measurement_id


def pairs_of(jobs: Jobs, measurement_id: UUID) -> int:
    return count(jobs.database, JobEvent, JobEvent.measurement_id == measurement_id, JobEvent.kind == "pair")


def log_of(jobs: Jobs, measurement_id: UUID) -> str:
    query = select(JobEvent.payload).where(JobEvent.measurement_id == measurement_id, JobEvent.kind == "log")
    with jobs.database.reading() as session:
        return "\n".join(payload["text"] for payload in session.execute(query).scalars())


# ---- what is stored --------------------------------------------------------------------------------------------------


def test_identical_code_is_calibration_and_neither_history_nor_alert(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    head = repository.commit("head", wrong_cases=[FORWARD_DOWN])
    measured = jobs.submit(head, head, max_pairs=8)
    with worker():
        wait_until(lambda: ended(jobs, measured), what="the measurement")
    database = jobs.database
    assert jobs.measurement(measured).state == State.DONE
    assert jobs.job(measured).is_calibration
    query = (
        select(Case.name, Verdict.verdict, Calibration.scatter, Calibration.series_id)
        .join(Verdict, Calibration.verdict_id == Verdict.id)
        .join(Case, Verdict.case_id == Case.id)
    )
    with database.reading() as session:
        found = {name: rest for name, *rest in session.execute(query).all()}
        rates = running_rates(session, CalibrationFilter(utc_now() - HOUR), 1)
        calibrations = session.execute(select(func.count()).where(Job.is_calibration).select_from(Job)).scalar_one()
    assert calibrations == 1
    assert len(found) == count(database, Verdict, Verdict.measurement_id == measured) == 3
    assert found[FORWARD_DOWN] == ["failed", None, None]
    verdict, scatter, series = found[FORWARD_SELF]
    assert verdict == "unchanged"
    assert 0 < scatter < 0.1
    assert series is not None
    for model in (Point, Alert, KernelProfile):
        assert count(database, model) == 0, model
    assert count(database, Series) == 2
    (device,) = rates.devices
    assert (device.false_alarms.count, device.false_alarms.trials) == (0, 2)
    assert device.verdicts == {"failed": 1, "unchanged": 2}
    assert device.noise_floor is not None
    assert rates.false_alarms == []


def test_a_false_alarm_is_counted_and_told_aloud_but_alerts_nobody(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    """A commit whose second arm is slower though it is the same code: what a broken procedure would look like."""
    repository.commit("root")
    head = repository.commit("head", slower_as_candidate={FORWARD_SELF: 1.2})
    measured = jobs.submit(head, head, cases=FORWARD_SELF, max_pairs=8)
    with worker():
        wait_until(lambda: ended(jobs, measured), what="the measurement")
    with jobs.database.reading() as session:
        rates = running_rates(session, CalibrationFilter(utc_now() - HOUR), 1)
    (alarm,) = rates.false_alarms
    assert (alarm.case, alarm.verdict) == (FORWARD_SELF, "regressed")
    assert alarm.effect == pytest.approx(0.2, abs=0.05)
    assert rates.devices[0].false_alarms.rate == 1.0
    assert f"FALSE ALARM: {FORWARD_SELF} regressed, +" in log_of(jobs, measured)
    assert count(jobs.database, Alert) == 0


def test_a_comparison_is_no_calibration(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    repository.commit("base")
    measured = jobs.submit(repository.commit("same code, another commit"), max_pairs=8)
    with worker():
        wait_until(lambda: ended(jobs, measured), what="the measurement")
    assert count(jobs.database, Calibration) == 0
    assert count(jobs.database, Point) > 0
    assert not jobs.job(measured).is_calibration


# ---- in nobody's way -------------------------------------------------------------------------------------------------


def test_a_calibration_ends_with_the_pair_in_progress_when_a_job_arrives(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    base = repository.commit("base")
    head = repository.commit("head", scatter=0.3, run_s=0.3)
    calibration = submit_last(jobs, head)
    with worker():
        wait_until(lambda: pairs_of(jobs, calibration) >= 2, what="two pairs")
        arrived = jobs.submit(head, base, max_pairs=2)
        seen = pairs_of(jobs, calibration)
        wait_until(lambda: ended(jobs, calibration), what="the end of the calibration")
        wait_until(lambda: ended(jobs, arrived), what="the job")
    assert jobs.measurement(calibration).state == State.DONE
    assert pairs_of(jobs, calibration) <= seen + 2  # the one in progress, and one that began as the job was stored
    finished, started = jobs.measurement(calibration).finished_at, jobs.measurement(arrived).started_at
    assert finished is not None
    assert started is not None
    assert finished <= started
    assert count(jobs.database, Calibration) == 3
    with jobs.database.reading() as session:
        rates = running_rates(session, CalibrationFilter(utc_now() - HOUR), 1)
    assert rates.devices[0].false_alarms.rate is None  # undecided, which is not 0 %


def test_a_calibration_that_builds_is_broken_off_when_a_job_arrives(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    base = repository.commit("base")
    head = repository.commit("head", build="hang")
    calibration = submit_last(jobs, head)
    with worker():
        wait_until(lambda: jobs.measurement(calibration).stage == "build", what="the build")
        arrived = jobs.submit(base, max_pairs=2)
        before = time.monotonic()
        wait_until(lambda: ended(jobs, calibration), 20, what="the end of the calibration")
        assert time.monotonic() - before < 10
        wait_until(lambda: ended(jobs, arrived), what="the job")
    assert jobs.measurement(calibration).state == State.CANCELED
    assert jobs.job(calibration).state == State.CANCELED
    assert count(jobs.database, Calibration) == 0


def test_equally_urgent_calibrations_wait_for_each_other(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    head = repository.commit("head")
    both = [jobs.submit(head, head, cases=FORWARD_SELF, max_pairs=8) for _ in range(2)]
    with worker():
        wait_until(lambda: all(ended(jobs, one) for one in both), what="both")
    assert [jobs.measurement(one).state for one in both] == [State.DONE] * 2
    assert count(jobs.database, Calibration) == 2


# ---- when a device is idle -------------------------------------------------------------------------------------------

CLASSES = {"cpu": {"cpu", "gpu:X"}, "gpu:X": {"cpu", "gpu:X"}}  # of a host with both, where no live worker serves a GPU
RULE = IdleRule(after=timedelta(minutes=15), every=timedelta(hours=6), cases="cpu/*", max_pairs=16)


@pytest.fixture
def idle(jobs: Jobs) -> Jobs:
    """A live worker whose CPU has measured two commits of the default branch, an hour ago."""
    long_ago = utc_now() - HOUR
    with jobs.database.transaction() as session:
        worker = Worker(executor_id="here", host="here", pid=1, version="1", sandbox="none")
        session.add(worker)
        session.flush()
        session.add(Device(worker_id=worker.id, device_class="cpu", uuid="c", name="c", status="ready", info={}))
        for position, sha in enumerate(("a" * 40, "b" * 40)):
            commit = Commit(repository_id=jobs.repository_id, sha=sha, first_parent_position=position)
            session.add(commit)
            session.flush()
            job = Job(
                repository_id=jobs.repository_id,
                requested_commit=sha,
                requested_baseline="auto",
                commit_sha=sha,
                devices=["cpu"],
                cases="*",
                policy={"max_pairs": 8},
                body_sha256="0" * 64,
                state=State.DONE,
            )
            session.add(job)
            session.flush()
            session.add(
                Measurement(
                    job_id=job.id, device_class="cpu", state=State.DONE, candidate_id=commit.id, finished_at=long_ago
                )
            )
    return jobs


def schedule(jobs: Jobs, **at: Any) -> list[UUID]:
    with jobs.database.transaction() as session:
        return schedule_idle(session, CLASSES, RULE, at.get("now", utc_now()))


def end_calibration(jobs: Jobs, job_id: UUID, state: State) -> None:
    with jobs.database.transaction() as session:
        session.get_one(Job, job_id).state = state
        measurement = session.execute(select(Measurement).where(Measurement.job_id == job_id)).scalar_one()
        measurement.state, measurement.finished_at = state, utc_now() - HOUR


def test_an_idle_device_is_given_one_calibration_per_time(idle: Jobs) -> None:
    now = utc_now()
    (job_id,) = schedule(idle, now=now)
    with idle.database.reading() as session:
        job = session.get_one(Job, job_id)
    assert job.is_calibration
    assert (job.commit_sha, job.devices, job.cases) == ("b" * 40, ["cpu"], "cpu/*")
    assert (job.priority, job.policy) == (IDLE_PRIORITY, {"max_pairs": 16})
    assert schedule(idle, now=now) == []  # it waits in the queue
    end_calibration(idle, job_id, State.DONE)
    assert schedule(idle, now=now) == []  # the budget of this time is spent
    assert len(schedule(idle, now=now + RULE.every)) == 1


def test_one_that_gave_way_is_made_up_for(idle: Jobs) -> None:
    now = utc_now()
    (first,) = schedule(idle, now=now)
    end_calibration(idle, first, State.CANCELED)
    (second,) = schedule(idle, now=now)
    assert second != first
    end_calibration(idle, second, State.DONE)
    assert schedule(idle, now=now) == []


def test_workers_that_ask_at_once_queue_one(idle: Jobs, database: Database) -> None:
    queued: list[UUID] = []
    barrier = threading.Barrier(4)

    def ask() -> None:
        barrier.wait()
        queued.extend(schedule(idle))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(queued) == 1
    assert count(database, Measurement, Measurement.state == State.QUEUED) == 1


@pytest.mark.parametrize("ago", [timedelta(0), timedelta(minutes=14)])
def test_a_device_that_was_at_work_just_now_is_left_alone(idle: Jobs, ago: timedelta) -> None:
    with idle.database.transaction() as session:
        measurement = session.execute(select(Measurement).limit(1)).scalar_one()
        measurement.finished_at = utc_now() - ago
    assert schedule(idle) == []


def test_a_queue_that_is_not_empty_is_left_alone(idle: Jobs) -> None:
    idle.submit("b" * 40, queue=False)
    assert schedule(idle) == []


def test_what_it_would_disturb_has_to_be_idle_too(idle: Jobs) -> None:
    waiting = idle.submit("b" * 40, queue=False)
    with idle.database.transaction() as session:
        session.get_one(Measurement, waiting).device_class = "gpu:X"
    assert schedule(idle) == []
    with idle.database.transaction() as session:
        session.get_one(Measurement, waiting).device_class = "gpu:of another host"
    assert len(schedule(idle)) == 1


def test_without_a_measured_commit_or_a_live_worker_nothing_is_queued(idle: Jobs, database: Database) -> None:
    with database.transaction() as session:
        for commit in session.execute(select(Commit)).scalars():
            commit.orphaned = True
    assert schedule(idle) == []
    with database.transaction() as session:
        for commit in session.execute(select(Commit)).scalars():
            commit.orphaned = False
        session.execute(select(Worker)).scalar_one().heartbeat_at = utc_now() - HOUR
    assert schedule(idle) == []


def test_a_worker_calibrates_by_itself_when_idle_and_not_when_switched_off(
    jobs: Jobs, repository: FakeRepository, worker: Callable[..., RunningWorker]
) -> None:
    repository.commit("root")
    measured = jobs.submit(repository.commit("head"), max_pairs=2)
    wanted = {"calibrate_after_s": 0.0, "max_pairs": 8, "idle_check_s": 0.2}
    with worker(**wanted, calibrate_idle=False):
        wait_until(lambda: ended(jobs, measured), what="the job")
        time.sleep(1.5)
    assert count(jobs.database, Job) == 1
    with worker(**wanted):
        wait_until(lambda: count(jobs.database, Calibration) == 3, what="a calibration")
        time.sleep(1.0)
    assert count(jobs.database, Job) == 2
    with jobs.database.reading() as session:
        rates = running_rates(session, CalibrationFilter(utc_now() - HOUR), 1)
    assert sum(rates.devices[0].verdicts.values()) == 3
    assert rates.devices[0].false_alarms.count == 0
