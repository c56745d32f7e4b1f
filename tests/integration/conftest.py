"""Databases of both kinds, a git repository, and the application on top of them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from serving import serving
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from service import db, engine
from service.db import Database
from service.main import create_app
from service.models import (
    ArmRun,
    Case,
    Commit,
    Job,
    Measurement,
    Point,
    Repository,
    SampleBlock,
    Series,
    State,
    Verdict,
    utc_now,
)
from service.settings import Settings

LOOPBACK = ("127.0.0.1", 50000)
GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "Grace",
    "GIT_AUTHOR_EMAIL": "grace@example.org",
    "GIT_COMMITTER_NAME": "Grace",
    "GIT_COMMITTER_EMAIL": "grace@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}


def install_schema(url: str) -> None:
    """Make the tables of the service and of the queue engine."""
    db.upgrade(url)
    engine.install(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all tables and no rows, to copy."""
    path = tmp_path_factory.mktemp("template") / "s2bench.db"
    install_schema(f"sqlite:///{path}")
    with create_engine(f"sqlite:///{path}").connect() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    return path


@pytest.fixture(scope="session")
def make_postgres_database() -> Iterator[Callable[[], str]]:
    """Makes empty databases on the PostgreSQL server for tests; they are dropped at the end."""
    server_url = os.environ.get("S2BENCH_TEST_POSTGRES_URL")
    assert server_url, "S2BENCH_TEST_POSTGRES_URL has to name a PostgreSQL server (tests/run starts one)"
    server = create_engine(db.make_engine(server_url).url, isolation_level="AUTOCOMMIT")
    names = []

    def make() -> str:
        name = f"api_{uuid4().hex[:12]}"
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        names.append(name)
        return make_url(server_url).set(database=name).render_as_string(hide_password=False)

    yield make
    with server.connect() as connection:
        for name in names:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture(scope="session")
def postgres_database(make_postgres_database: Callable[[], str]) -> str:
    """A PostgreSQL database with all tables; `database_url` empties it before each test."""
    url = make_postgres_database()
    install_schema(url)
    return url


def empty_tables(url: str) -> None:
    """Delete every row of the service and of the queue engine."""
    server = create_engine(url)
    with server.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # no foreign keys for the moment
        found = inspect(connection)
        for schema in ("public", "dbos"):
            for name in set(found.get_table_names(schema)) - {"alembic_version", "dbos_migrations"}:
                connection.execute(text(f'DELETE FROM "{schema}"."{name}"'))  # small tables: faster than TRUNCATE
    server.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database with all tables, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "s2bench.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"
    url: str = request.getfixturevalue("postgres_database")
    empty_tables(url)
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database with all tables."""
    opened = Database(database_url)
    yield opened
    opened.dispose()


class GitRepository:
    """A git repository in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, stdin: str | None = None) -> str:
        """Run git and return its output."""
        environment = {**os.environ, **GIT_IDENTITY}
        result = subprocess.run(
            ["git", "-C", str(self.path), *arguments],
            env=environment,
            input=stdin,
            check=True,
            capture_output=True,
            text=True,
        )
        return result.stdout.strip()

    def commit(self, subject: str) -> str:
        """Commit a changed file and return the SHA."""
        (self.path / "kernel.cpp").write_text(f"// {subject}\n")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> GitRepository:
    """main: one, two, three; branch `topic` off two with one commit; tags v1 (annotated), light, tree and blob.

    Branch `orphan` shares no history, and `crowd` holds so many commits that two begin with the same four digits.
    """
    repository = GitRepository(tmp_path_factory.mktemp("git") / "source")
    repository.commit("one")
    two = repository.commit("two")
    repository.git("tag", "light")
    repository.git("tag", "-a", "v1", "-m", "version 1")
    repository.git("tag", "tree", "HEAD^{tree}")
    repository.git("tag", "-a", "blob", "-m", "a file", "HEAD:kernel.cpp")
    repository.commit("three")
    repository.git("checkout", "--quiet", "-b", "topic", two)
    repository.commit("topic")
    repository.git("checkout", "--quiet", "--orphan", "orphan")
    repository.commit("another beginning")
    repository.git("checkout", "--quiet", "main")
    crowd = "".join(
        f"commit refs/heads/crowd\ncommitter Grace <grace@example.org> {number} +0000\ndata 0\n"
        for number in range(1500)
    )
    repository.git("fast-import", "--quiet", stdin=crowd)
    return repository


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=database_url, data_dir=tmp_path / "data")


@pytest.fixture
def client(settings: Settings, database: Database) -> Iterator[TestClient]:
    """The application as a client on the server's own machine sees it."""
    app = create_app(settings, database=database)
    with TestClient(app, base_url="http://127.0.0.1:8272", client=LOOPBACK) as opened:
        yield opened


@pytest.fixture
def repository(database: Database, source: GitRepository) -> Repository:
    """The git repository, registered as `kernels`."""
    with database.transaction() as session:
        row = Repository(name="kernels", url=str(source.path), default_branch="main")
        session.add(row)
    return row


@pytest.fixture
def server(settings: Settings, database: Database) -> Iterator[str]:
    """The application behind a real server on a free port; its URL."""
    app = create_app(settings, database=database)
    with serving(app) as url:
        yield url


class History:
    """A measured commit: three pairs of two cases on the CPU, judged; and an older measurement of the first case."""

    cases = ("cpu/forward/self", "cpu/backward/self")

    def __init__(self, session: Session, repository: Repository, shas: list[str]) -> None:
        self._session = session
        self.repository = repository
        self.commits = [
            self._add(
                Commit(
                    repository_id=repository.id,
                    sha=sha,
                    parents=[],
                    subject=f"subject {number} <b>",
                    author="Grace",
                    committed_at=datetime(2026, 11, 1 + number, tzinfo=UTC),
                )
            )
            for number, sha in enumerate(shas)
        ]
        self.case_rows = [
            self._add(Case(name=name, version="1" * 16, group=f"cpu.{name.split('/')[1]}", definition={"nlat": 24}))
            for name in self.cases
        ]
        self.series = [
            self._add(
                Series(
                    repository_id=repository.id,
                    case_id=case.id,
                    metric="time",
                    unit="ms",
                    device_class="cpu",
                    backend="cpu",
                )
            )
            for case in self.case_rows
        ]
        self.old_job, self.old = self._measurement(self.commits[1], self.commits[0], State.DONE)
        self._judge(self.old, self.case_rows[0], "unchanged", 0.001)
        self._points(self.old, self.series[0], self.commits[1], self.commits[0], 2.0)
        self.job, self.measurement = self._measurement(self.commits[2], self.commits[1], State.DONE)
        for index, order in enumerate(("AB", "BA", "AB")):
            for arm in order:
                self._run(index, order, arm)
        for number, case in enumerate(self.case_rows):
            self._judge(self.measurement, case, "regressed", 0.1)
            self._points(self.measurement, self.series[number], self.commits[2], self.commits[1], 2.0 + number)

    def _add(self, row: Any) -> Any:
        self._session.add(row)
        self._session.flush()
        return row

    def _measurement(self, candidate: Commit, baseline: Commit, state: State) -> tuple[Job, Measurement]:
        job = self._add(
            Job(
                repository_id=self.repository.id,
                requested_commit="main",
                requested_baseline="auto",
                commit_sha=candidate.sha,
                baseline_sha=baseline.sha,
                devices=["cpu"],
                cases="*",
                policy={"max_pairs": 12},
                state=state,
                body_sha256="0" * 64,
            )
        )
        measurement = self._add(
            Measurement(
                job_id=job.id,
                device_class="cpu",
                state=state,
                candidate_id=candidate.id,
                baseline_id=baseline.id,
                sandbox="bubblewrap",
            )
        )
        return job, measurement

    def _run(self, index: int, order: str, arm: str, attempt: int = 1, scale: float = 1.0) -> None:
        commit = self.commits[2] if arm == "B" else self.commits[1]
        run = self._add(
            ArmRun(
                measurement_id=self.measurement.id,
                attempt=attempt,
                purpose="pair",
                pair_index=index,
                arm=arm,
                order=order,
                commit_id=commit.id,
                protocol=1,
                document_sha256="0" * 64,
                document=b"",
                environment={"python": "3.11", "build_key": f"key-{arm}"},
                wall_s=1.0,
                log="",
            )
        )
        for number, case in enumerate(self.case_rows):
            times = [scale * (2.0 + number + (0.2 if arm == "B" else 0.0)) + 0.001 * sample for sample in range(5)]
            block = struct.pack("<5d", *times)
            self._add(SampleBlock(arm_run_id=run.id, case_id=case.id, metric="time", unit="ms", count=5, samples=block))

    def _judge(self, measurement: Measurement, case: Case, verdict: str, effect: float) -> None:
        pairs = [{"index": index, "admitted": index != 1, "reasons": ["steal"] * (index == 1)} for index in range(3)]
        self._add(
            Verdict(
                measurement_id=measurement.id,
                case_id=case.id,
                verdict=verdict,
                reasons=[{"code": "beyond_margin", "detail": "slower than the margin allows"}],
                unit="ms",
                before=2.0,
                after=2.2,
                effect=effect,
                interval_low=effect - 0.01,
                interval_high=effect + 0.01,
                pairs_used=2,
                pairs_rejected=1,
                numerics={"status": "ok"},
                evidence={"pairs": pairs},
                judged_at=utc_now(),
            )
        )

    def _points(
        self, measurement: Measurement, series: Series, candidate: Commit, baseline: Commit, value: float
    ) -> None:
        for arm, commit in (("A", baseline), ("B", candidate)):
            self._add(
                Point(
                    series_id=series.id,
                    commit_id=commit.id,
                    measurement_id=measurement.id,
                    arm=arm,
                    value=value if arm == "A" else 1.1 * value,
                    low=value,
                    high=1.2 * value,
                    processes=3,
                    status="ok",
                )
            )


@pytest.fixture
def history(database: Database, repository: Repository, source: GitRepository) -> History:
    """What was measured of the commits of `source`: one, two and three."""
    shas = source.git("rev-list", "--reverse", "main").split()
    with database.transaction() as session:
        return History(session, repository, shas)
