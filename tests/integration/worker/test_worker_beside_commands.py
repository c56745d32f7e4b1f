"""A worker and the commands of its machine measure on one device in turns."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from worker_fixtures import FakeRepository, Jobs, RunningWorker, wait_until

from service.db import Database
from service.models import TERMINAL
from service.worker.comparison import ComparisonOptions, compare_commits
from service.worker.devices import DeviceLock, cpu


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_comparison_needs_no_stop_of_the_worker_and_jobs_wait_for_its_end(
    database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    repository.commit("base")
    jobs = Jobs(database, str(repository.path))
    with RunningWorker(database, tmp_path):
        first = jobs.submit("main", "main", max_pairs=2)
        wait_until(lambda: jobs.measurement(first).state in TERMINAL, 30, "the first job")
        options = ComparisonOptions(
            repository=repository.path,
            data_dir=tmp_path / "of the command",
            lock_dir=tmp_path,
            lock_timeout_s=20.0,
            rest_s=0.01,
            max_pairs=2,
        )
        assert compare_commits("HEAD", "HEAD", options).pairs == 2
        command = DeviceLock(cpu(), tmp_path)
        command.acquire(5.0)
        waiting = jobs.submit("main", "main", max_pairs=2)
        time.sleep(1.5)
        assert jobs.measurement(waiting).state == "queued"
        command.release()
        wait_until(lambda: jobs.measurement(waiting).state in TERMINAL, 30, "the job that waited")
        assert jobs.measurement(waiting).state == "done"
