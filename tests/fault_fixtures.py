"""Workers as processes that can be killed, a PostgreSQL server that can be stopped, and eyes on what is stored.

pytest puts this folder on the module path (pyproject.toml): `from fault_fixtures import ...`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from worker_fixtures import FakeRepository, Jobs, processes_with, wait_until

from service.db import Database
from service.models import TERMINAL, ArmRun, JobEvent, Measurement, Verdict, Worker

ROOT = Path(__file__).parents[1]

WORKER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from service.settings import Settings
from service.worker.pipeline import Pace
from service.worker.supervisor import SupervisorOptions, run_worker
settings = Settings(
    data_dir=Path({data_dir!r}), database_url={database_url!r}, sandbox={sandbox!r}, share_compiler_cache=True
)
options = SupervisorOptions(
    name={name!r}, lock_dir=Path({lock_dir!r}), poll_s=0.1, heartbeat_s=0.2, dead_after_s={dead_after_s!r},
    busy_retry_s=0.1, pace=Pace(cancel_poll_s=0.05, retry_s=0.05, rest_s=0.01),
)
sys.exit(run_worker(settings, {classes!r}, options))
"""


class WorkerProcesses:
    """Starts workers and ends what is left of them after the test."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._database_url = database_url
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, **settings: Any) -> subprocess.Popen[bytes]:
        """Start a worker; its log goes to a file that `log` returns."""
        values = {
            "root": str(ROOT),
            "data_dir": str(self._folder / "data"),
            "database_url": self._database_url,
            "sandbox": "required",
            "name": "worker",
            "classes": ["cpu"],
            "lock_dir": str(self._folder / "locks"),
            "dead_after_s": 60.0,
        } | settings
        with (self._folder / "worker.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-c", WORKER.format(**values)], stdout=log, stderr=log)
        self._started.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker as the kernel does when memory is short, and see that no child of it is left."""
        process.kill()
        process.wait()
        wait_until(lambda: not self.children(), 5, "the end of the worker's children")

    def children(self) -> list[int]:
        """Return the processes that work in the data directory."""
        own = {process.pid for process in self._started}
        return [pid for pid in processes_with(str(self._folder / "data")) if pid not in own]

    def log(self) -> str:
        """Return what all workers have logged."""
        return (self._folder / "worker.log").read_text()

    def end_all(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


@pytest.fixture
def workers(tmp_path: Path, database_url: str) -> Iterator[WorkerProcesses]:
    """Starts workers on the test's database."""
    processes = WorkerProcesses(tmp_path, database_url)
    yield processes
    processes.end_all()


class PostgresServer:
    """A PostgreSQL server of its own on a free loopback port, run by an unprivileged user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        assert binaries, "PostgreSQL's programs are needed in /usr/lib/postgresql"
        self._programs = binaries[-1]
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            self._as_user = ["setpriv", "--reuid=nobody", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run("initdb", "--username=s2bench", "--auth=trust", "--no-sync")
        self.start()
        self.url = f"postgresql+psycopg://s2bench@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self._folder}"
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", f"{options} -c fsync=off", "start")

    def stop(self) -> None:
        """Stop the server as an administrator does who does not wait for clients."""
        self._run("pg_ctl", "-w", "-m", "fast", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=60)


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    folder = Path(tempfile.mkdtemp(prefix="s2bench-postgres-"))
    server = PostgresServer(folder)
    try:
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder)


PAIRS = 8


class Scene:
    """A repository with a baseline, jobs on it, and eyes on what is stored."""

    def __init__(self, database: Database, repository: FakeRepository, folder: Path) -> None:
        self.database = database
        self.repository = repository
        self.jobs = Jobs(database, str(repository.path))
        self._builds = folder / "data" / "ccache" / "fake_builds"

    def runs(self, measurement_id: UUID, purpose: str = "pair") -> dict[tuple[int, str], UUID]:
        """Return the ids of the stored processes by pair and arm."""
        query = select(ArmRun).where(ArmRun.measurement_id == measurement_id, ArmRun.purpose == purpose)
        with self.database.reading() as session:
            found = list(session.execute(query).scalars())
        assert len({(run.pair_index, run.arm, run.attempt) for run in found}) == len(found)
        return {(run.pair_index, run.arm): run.id for run in found}

    def ended(self, measurement_id: UUID) -> bool:
        """Return whether a measurement has ended."""
        return self.jobs.measurement(measurement_id).state in TERMINAL

    def builds(self) -> Counter[str]:
        """Return how often each commit's build was started."""
        return Counter(self._builds.read_text().split()) if self._builds.exists() else Counter()

    def owner(self, measurement_id: UUID) -> str | None:
        """Return the name of the worker that owns a measurement."""
        query = select(Worker.executor_id).join(Measurement, Measurement.worker_id == Worker.id)
        with self.database.reading() as session:
            return session.execute(query.where(Measurement.id == measurement_id)).scalar_one_or_none()

    def check_complete(self, measurement_id: UUID) -> None:
        """See that a measurement is done with each pair stored once and each case judged once."""
        measurement = self.jobs.measurement(measurement_id)
        assert (measurement.state, measurement.error) == ("done", None)
        runs = self.runs(measurement_id)
        count = len(runs) // 2
        assert sorted(runs) == [(index, arm) for index in range(count) for arm in "AB"]
        assert count >= PAIRS
        assert sorted(arm for _, arm in self.runs(measurement_id, "numerics")) == ["A", "B"]
        with self.database.reading() as session:
            query = select(JobEvent.payload).where(JobEvent.measurement_id == measurement_id, JobEvent.kind == "pair")
            told = [payload["pair"] for payload in session.execute(query).scalars()]
            verdicts = session.execute(select(Verdict.case_id).where(Verdict.measurement_id == measurement_id)).all()
        assert sorted(told) == list(range(count))
        assert len(verdicts) == len(set(verdicts)) == 3


@pytest.fixture
def scene(database: Database, repository: FakeRepository, tmp_path: Path) -> Scene:
    return Scene(database, repository, tmp_path)
