"""A database that goes away and comes back: the worker waits for it and goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fault_fixtures import PAIRS, PostgresServer, Scene, WorkerProcesses
from sqlalchemy.exc import OperationalError
from worker_fixtures import FakeRepository, prepared, wait_until

from service.db import Database


def test_a_measurement_survives_a_stop_of_the_database(
    postgres_server: PostgresServer, repository: FakeRepository, tmp_path: Path
) -> None:
    database = Database(prepared(postgres_server.url))
    scene = Scene(database, repository, tmp_path)
    workers = WorkerProcesses(tmp_path, postgres_server.url)
    repository.commit("base")
    measurement_id = scene.jobs.submit(repository.commit("candidate", run_s=0.05), max_pairs=PAIRS)
    worker = workers.start()
    try:
        wait_until(lambda: len(scene.runs(measurement_id)) >= 4, 60, "two pairs")
        before = scene.runs(measurement_id)
        postgres_server.stop()
        time.sleep(4)
        with pytest.raises(OperationalError):
            database.ping()
        assert worker.poll() is None
        postgres_server.start()
        wait_until(lambda: scene.ended(measurement_id), 90, "the end")
        scene.check_complete(measurement_id)
        assert before.items() <= scene.runs(measurement_id).items()
        following = scene.jobs.submit("main", "main", max_pairs=2)
        wait_until(lambda: scene.ended(following), 60, "the next job")
        assert scene.builds() == {"candidate": 1, "base": 1}
        assert worker.poll() is None
    finally:
        workers.end_all()
        database.dispose()
