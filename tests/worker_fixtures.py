"""What tests of the worker share: fake commits in real git repositories, both ways to confine children, databases.

pytest puts this folder on the module path (pyproject.toml): `from worker_fixtures import ...`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from service import db, engine
from service.db import Database
from service.models import Job, Measurement, Repository
from service.settings import Settings
from service.worker.devices import cpu
from service.worker.host import Host, Limits
from service.worker.pipeline import Pace
from service.worker.sandbox import Mode, Sandbox, why_unusable
from service.worker.supervisor import Supervisor, SupervisorOptions

FAKE_CHECKOUT = Path(__file__).parent / "data" / "fake_checkout"
FORWARD_SELF, FORWARD_DOWN, BACKWARD_SELF = "cpu/forward/self", "cpu/forward/down", "cpu/backward/self"
QUICK = Pace(cancel_poll_s=0.05, retry_s=0.05, rest_s=0.01)
GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


class FakeRepository:
    """A git repository in `path` with a branch `main`, whose commits are the fake package with planted behavior."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git in the repository and return its output."""
        result = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env=os.environ | GIT_IDENTITY,
            check=True,
            capture_output=True,
            text=True,
        )
        return result.stdout.strip()

    def commit(self, name: str = "commit", **behavior: Any) -> str:
        """Commit the fake package with a behavior and return the SHA."""
        for folder in ("s2attn", "csrc"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(FAKE_CHECKOUT / folder, self.path / folder, dirs_exist_ok=True, ignore=ignored)
        (self.path / "s2attn" / "behavior.json").write_text(json.dumps({"name": name} | behavior))
        return self.commit_files(name)

    def commit_files(self, message: str) -> str:
        """Commit whatever is in the work tree and return the SHA."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> FakeRepository:
    """An empty repository."""
    return FakeRepository(tmp_path / "repository")


@pytest.fixture(params=[Mode.BUBBLEWRAP, Mode.NONE], ids=str)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Both ways to run children; without a working bubblewrap the first fails, since tests need it."""
    if request.param is Mode.BUBBLEWRAP:
        assert why_unusable() is None, f"bubblewrap is needed: {why_unusable()}"
    return Sandbox(request.param)


@pytest.fixture
def confined() -> Sandbox:
    """Bubblewrap."""
    assert why_unusable() is None, f"bubblewrap is needed: {why_unusable()}"
    return Sandbox(Mode.BUBBLEWRAP)


def make_host(folder: Path, sandbox: Sandbox, **limits: Any) -> Host:
    """Return this machine as a host with its data in `folder`."""
    return Host(folder, sandbox, Limits(**limits), share_compiler_cache=True)


def postgres_url() -> str:
    """Return the URL of the PostgreSQL server for tests."""
    url = os.environ.get("S2BENCH_TEST_POSTGRES_URL")
    assert url, "S2BENCH_TEST_POSTGRES_URL has to name a PostgreSQL server (tests/run starts one)"
    return url


def created_postgres_database(server_url: str) -> tuple[str, Callable[[], None]]:
    """Create an empty database on a server; return its URL and what removes it."""
    name = f"worker_{uuid4().hex[:12]}"
    server = sa.create_engine(server_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))

    def remove() -> None:
        with server.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()

    url = sa.make_url(server_url).set(database=name)
    return url.render_as_string(hide_password=False), remove


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with all tables, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield prepared(f"sqlite:///{tmp_path / 's2bench.db'}")
        return
    url, remove = created_postgres_database(postgres_url())
    try:
        yield prepared(url)
    finally:
        remove()


def prepared(url: str) -> str:
    """Make the service's and the engine's tables."""
    db.upgrade(url)
    engine.install(url)
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with all tables."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


class Jobs:
    """Submits jobs to a database as the API does, and waits for them."""

    def __init__(self, database: Database, url: str, default_branch: str = "main") -> None:
        self.database = database
        with database.transaction() as session:
            row = Repository(name=f"fake-{uuid4().hex[:6]}", url=url, default_branch=default_branch)
            session.add(row)
            session.flush()
            self.repository_id = row.id

    def submit(
        self,
        commit: str,
        baseline: str = "auto",
        *,
        cases: str = "*",
        max_pairs: int = 10,
        queue: bool = True,
        kind: str = "compare",
    ) -> UUID:
        """Store a job with one measurement on the CPU, queue it, and return the measurement's id."""
        with self.database.transaction() as session:
            job = Job(
                repository_id=self.repository_id,
                kind=kind,
                requested_commit=commit,
                requested_baseline=baseline,
                devices=["cpu"],
                cases=cases,
                policy={"max_pairs": max_pairs},
                body_sha256="0" * 64,
            )
            session.add(job)
            session.flush()
            measurement = Measurement(job_id=job.id, device_class=cpu().device_class)
            session.add(measurement)
            session.flush()
            if queue:
                engine.enqueue_measurement(session, measurement.id, measurement.device_class, 100)
            return measurement.id

    def measurement(self, measurement_id: UUID) -> Measurement:
        """Return a measurement as it is now."""
        with self.database.reading() as session:
            return session.get_one(Measurement, measurement_id)

    def job(self, measurement_id: UUID) -> Job:
        """Return a measurement's job as it is now."""
        with self.database.reading() as session:
            return session.get_one(Job, session.get_one(Measurement, measurement_id).job_id)

    def request_cancel(self, measurement_id: UUID) -> None:
        """Mark a measurement's job as the API does."""
        with self.database.transaction() as session:
            session.get_one(Job, session.get_one(Measurement, measurement_id).job_id).cancel_requested = True


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0, what: str = "it") -> None:
    """Return when the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.05)


def processes_with(marker: str) -> list[int]:
    """Return the processes whose command line holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in command:
                found.append(int(entry.name))
    return found


class RunningWorker:
    """A supervisor in a thread of the test process, stopped as SIGTERM stops it."""

    def __init__(self, database: Database, folder: Path, **options: Any) -> None:
        limits = {name: options.pop(name) for name in set(options) & set(Settings.model_fields)}
        # the compiler cache is where fake builds count themselves
        shared = {"sandbox": "required", "share_compiler_cache": True} | limits
        settings = Settings(data_dir=folder / "data", database_url=database.url, **shared)
        quick = {"lock_dir": folder, "poll_s": 0.1, "heartbeat_s": 0.2, "pace": QUICK}
        self.supervisor = Supervisor(settings, SupervisorOptions(**(quick | options)))
        self._thread = threading.Thread(target=self.supervisor.run, args=(["cpu"],))

    def __enter__(self) -> RunningWorker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.supervisor.on_signal(15, None)
        self._thread.join(30)
        assert not self._thread.is_alive(), "the worker did not stop"
