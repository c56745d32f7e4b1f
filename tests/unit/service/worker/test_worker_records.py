"""Writes of a worker: claims, ownership, ends, and what happens while the database is away. On both databases."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from worker_fixtures import Jobs

from service.db import Database
from service.engine import WorkerStopping
from service.models import Device, Job, JobEvent, Measurement, State, Worker
from service.worker.errors import JobError
from service.worker.records import Claimant, OwnershipLost, Records


def new_worker(database: Database, name: str, device: str = "CPU-1") -> Claimant:
    """Store a worker with a device."""
    with database.transaction() as session:
        worker = Worker(executor_id=name, host="h", pid=1, version="0", sandbox="none")
        session.add(worker)
        session.flush()
        row = Device(worker_id=worker.id, device_class="cpu", uuid=device, name="x", status="ready", info={})
        session.add(row)
        session.flush()
        return Claimant(worker.id, row.id, "none")


@pytest.fixture
def jobs(database: Database, tmp_path: Path) -> Jobs:
    return Jobs(database, str(tmp_path))


def records_of(database: Database, claimant: Claimant) -> Records:
    return Records(database, claimant.worker_id, threading.Event())


def events(database: Database, measurement_id: UUID) -> list[JobEvent]:
    with database.reading() as session:
        job_id = session.get_one(Measurement, measurement_id).job_id
        query = select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.id)
        return list(session.execute(query).scalars())


def test_a_claim_gives_what_is_needed_and_shows_in_rows_and_events(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    measurement_id = jobs.submit("main", queue=False)
    assignment = records_of(database, worker).claim(measurement_id, worker)
    assert assignment is not None
    assert (assignment.commit, assignment.baseline, assignment.cases, assignment.attempt) == ("main", "auto", "*", 1)
    measurement = jobs.measurement(measurement_id)
    assert (measurement.state, measurement.worker_id, measurement.sandbox) == ("preparing", worker.worker_id, "none")
    assert measurement.started_at is not None
    assert jobs.job(measurement_id).state == "preparing"
    (event,) = events(database, measurement_id)
    assert event.kind == "stage"
    assert event.payload["state"] == "preparing"


def test_an_end_ends_the_job_once(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    records = records_of(database, worker)
    measurement_id = jobs.submit("main", queue=False)
    records.claim(measurement_id, worker)
    error = JobError("build_failed", "it does not build", stage="build", log_tail="error: x")
    records.finish(measurement_id, State.FAILED, error)
    job = jobs.job(measurement_id)
    assert (job.state, job.error and job.error["code"]) == ("failed", "build_failed")
    assert job.finished_at is not None
    assert [(event.kind, event.measurement_id is None) for event in events(database, measurement_id)][-2:] == [
        ("end", False),
        ("end", True),
    ]
    with pytest.raises(OwnershipLost):
        records.finish(measurement_id, State.DONE)
    with pytest.raises(OwnershipLost):
        records.enter(measurement_id, State.MEASURING, "pairs")
    assert records.claim(measurement_id, worker) is None
    assert jobs.measurement(measurement_id).state == "failed"


def test_a_former_owner_cannot_write(database: Database, jobs: Jobs) -> None:
    first, second = new_worker(database, "one"), new_worker(database, "two")
    measurement_id = jobs.submit("main", queue=False)
    records_of(database, first).claim(measurement_id, first)
    records_of(database, second).claim(measurement_id, second)
    for write in (
        lambda: records_of(database, first).log(measurement_id, "late"),
        lambda: records_of(database, first).finish(measurement_id, State.DONE),
        lambda: records_of(database, first).enter(measurement_id, State.MEASURING, "pairs"),
    ):
        with pytest.raises(OwnershipLost):
            write()
    assert records_of(database, first).release_all() == 0
    records_of(database, second).finish(measurement_id, State.DONE)


def test_the_same_device_goes_on_and_another_begins_anew(database: Database, jobs: Jobs) -> None:
    first, twin = new_worker(database, "one"), new_worker(database, "two")
    other = new_worker(database, "three", "CPU-2")
    measurement_id = jobs.submit("main", queue=False)
    attempts = []
    for claimant in (first, twin, other):
        assignment = records_of(database, claimant).claim(measurement_id, claimant)
        assert assignment is not None
        attempts.append(assignment.attempt)
    assert attempts == [1, 1, 2]


def test_three_crashes_without_progress_end_a_measurement(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    records = records_of(database, worker)
    measurement_id = jobs.submit("main", queue=False)
    for _ in range(3):
        assert records.claim(measurement_id, worker) is not None
    records.log(measurement_id, "progress")
    for _ in range(2):
        assert records.claim(measurement_id, worker) is not None
    assert records.release_all() == 1
    assert jobs.measurement(measurement_id).state == "queued"
    assert records.claim(measurement_id, worker) is not None, "an orderly stop is no crash"
    for _ in range(2):
        assert records.claim(measurement_id, worker) is not None
    assert records.claim(measurement_id, worker) is None
    measurement = jobs.measurement(measurement_id)
    assert measurement.state == "failed"
    assert measurement.error is not None
    assert measurement.error["code"] == "worker_lost"


def test_a_canceled_job_is_not_begun(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    measurement_id = jobs.submit("main", queue=False)
    jobs.request_cancel(measurement_id)
    assert records_of(database, worker).claim(measurement_id, worker) is None
    assert jobs.measurement(measurement_id).state == "canceled"
    assert jobs.job(measurement_id).state == "canceled"


def test_the_engines_cancel_ends_a_measurement_whoever_owns_it(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    records = records_of(database, worker)
    measurement_id = jobs.submit("main", queue=False)
    records.finish_canceled(measurement_id)
    records.finish_canceled(measurement_id)
    assert jobs.measurement(measurement_id).state == "canceled"


def test_a_job_ends_with_its_last_measurement(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    records = records_of(database, worker)
    first = jobs.submit("main", queue=False)
    with database.transaction() as session:
        second = Measurement(job_id=session.get_one(Measurement, first).job_id, device_class="gpu:X")
        session.add(second)
        session.flush()
    for measurement_id, state in ((first, "queued"), (second.id, "done")):
        records.claim(measurement_id, replace(worker))
        records.finish(measurement_id, State.DONE)
        assert jobs.job(first).state == state


class Flaky(Database):
    """A database that is away for the first transactions."""

    failures = 3

    def transaction(self):  # type: ignore[no-untyped-def]
        if self.failures > 0:
            self.failures -= 1
            raise OperationalError("SELECT 1", {}, Exception("connection refused"))
        return super().transaction()


def test_writes_wait_for_a_database_that_is_away(
    database: Database, database_url: str, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.worker.records._WAITS_S", (0.01,))
    worker = new_worker(database, "one")
    flaky = Flaky(database_url)
    try:
        measurement_id = jobs.submit("main", queue=False)
        assert records_of(flaky, worker).claim(measurement_id, worker) is not None
        assert flaky.failures == 0
    finally:
        flaky.dispose()


def test_waiting_for_a_database_ends_with_the_worker(database: Database, database_url: str) -> None:
    worker = new_worker(database, "one")
    flaky = Flaky(database_url)
    flaky.failures = 1_000_000
    stopping = threading.Event()
    stopping.set()
    try:
        with pytest.raises(WorkerStopping):
            Records(flaky, worker.worker_id, stopping).events(UUID(int=1), "log")
    finally:
        flaky.dispose()


def test_a_defect_is_not_waited_for(database: Database) -> None:
    worker = new_worker(database, "one")

    def defective(session):  # type: ignore[no-untyped-def]
        from sqlalchemy import text

        session.execute(text("SELECT * FROM no_such_table"))

    with pytest.raises(Exception, match="no_such_table"):
        records_of(database, worker).run(defective)


def test_what_is_more_urgent_and_waits_is_in_the_way_of_nothing_else(database: Database, jobs: Jobs) -> None:
    worker = new_worker(database, "one")
    records = records_of(database, worker)
    own, other = jobs.submit("main", queue=False), jobs.submit("main", queue=False)
    job_id = jobs.job(own).id
    assert records.claim(own, worker) is not None

    def waits(priority: int, device_class: str = "cpu", state: State = State.QUEUED) -> bool | None:
        with database.transaction() as session:
            row = session.get_one(Measurement, other)
            row.device_class, row.state = device_class, state
            session.get_one(Job, row.job_id).priority = priority
        return records.is_in_the_way(job_id, {"cpu", "gpu:here"})

    assert waits(99)
    assert waits(99, "gpu:here")
    assert not waits(100)
    assert not waits(99, "gpu:elsewhere")
    assert not waits(99, state=State.MEASURING)
    assert not waits(99, state=State.CANCELED)
