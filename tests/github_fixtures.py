"""The application with credentials of a fake GitHub, and an outbox that works when told to, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from github_fake import REPOSITORY, FakeGitHub, app_settings, deliver, fake_github
from serving import serving
from sqlalchemy import delete, select, update
from worker_fixtures import FakeRepository

from service.alerts.raising import update_alerts
from service.context import AppContext
from service.db import Database
from service.delivery import opened_outbox
from service.github.intake import Intake
from service.github.polling import poll
from service.main import create_app
from service.models import (
    TERMINAL,
    Case,
    CheckRun,
    Commit,
    Delivery,
    Job,
    Measurement,
    PullRequest,
    Repository,
    Verdict,
    WebhookDelivery,
    utc_now,
)
from service.models.upsert import insert_missing
from service.outbox.runner import Outbox
from service.settings import Settings
from service.worker.records import end_in_transaction, lock

HOSTILE = "<img src=x onerror=alert(1)> [x](javascript:1) @everyone #1 | `" + "long " * 2000


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> Iterator[FakeGitHub]:
    """A fake of github.com, or of an Enterprise server where a test asks for its path."""
    with fake_github(getattr(request, "param", "")) as running:
        yield running


@pytest.fixture
def settings(database_url: str, tmp_path: Path, fake: FakeGitHub) -> Settings:
    return Settings(database_url=database_url, data_dir=tmp_path / "data", **app_settings(fake, tmp_path))


@pytest.fixture
def repository(database: Database, source: Any) -> Repository:
    """The git repository of `source`, registered as that of the fake."""
    with database.transaction() as session:
        row = Repository(name="kernels", url=str(source.path), default_branch="main", github=REPOSITORY)
        session.add(row)
    return row


class Loop:
    """A running server and an outbox that works when told to."""

    def __init__(self, context: AppContext, server: str, fake: FakeGitHub, outbox: Outbox, github: Any) -> None:
        self.context, self.server, self.fake, self.outbox, self.github = context, server, fake, outbox, github

    def send(self, event: str, payload: dict[str, Any], delivery_id: str | None = None) -> str:
        """Deliver a webhook and return what the server made of it."""
        answer = deliver(self.server, event, payload, delivery_id)
        assert answer.status_code == 202, answer.text
        outcome: str = answer.json()["outcome"]
        return outcome

    def work(self, rounds: int = 20) -> None:
        """Work until nothing is due."""
        for _ in range(rounds):
            if self.outbox.work() == 0:
                return
        raise AssertionError("the outbox does not come to rest")

    def make_due(self) -> None:
        """Let the time of every postponed delivery have come, and every pause be over."""
        with self.context.database.transaction() as session:
            session.execute(update(Delivery).values(due_at=utc_now() - timedelta(seconds=1)))
        self.github._pause = type(self.github._pause)()

    def poll(self) -> int:
        """Look for commits without a webhook."""
        return poll(Intake(self.context, self.github), self.github)

    def rows(self, model: Any, *conditions: Any) -> list[Any]:
        """Return rows, oldest first."""
        with self.context.database.reading() as session:
            return list(session.execute(select(model).where(*conditions).order_by(model.id)).scalars())

    def outcomes(self) -> list[str]:
        """Return what became of the webhooks."""
        return [row.outcome for row in self.rows(WebhookDelivery)]

    def jobs(self) -> list[Job]:
        """Return the jobs."""
        return self.rows(Job)

    def checks(self) -> list[CheckRun]:
        """Return the checks."""
        return self.rows(CheckRun)

    def judge(self, job: Job, found: dict[str, tuple[str, float | None]], device_class: str = "cpu") -> None:
        """End a job's measurement on a device class with verdicts."""
        (row,) = self.rows(Measurement, Measurement.job_id == job.id, Measurement.device_class == device_class)
        judge(self.context.database, row.id, found)

    def pull(self) -> PullRequest:
        """Return the only pull request."""
        (row,) = self.rows(PullRequest)
        found: PullRequest = row
        return found

    def forget(self, model: Any) -> None:
        """Delete every row."""
        with self.context.database.transaction() as session:
            session.execute(delete(model))


def judge(database: Database, measurement_id: UUID, found: dict[str, tuple[str, float | None]]) -> None:
    """End a measurement as a worker does, with verdicts by case name: (verdict, effect); one transaction."""
    with database.transaction() as session:
        job, measurement = lock(session, measurement_id)
        assert job.commit_sha is not None
        key = {"repository_id": job.repository_id, "sha": job.commit_sha}
        on_main = None if job.pull_request is not None else session.query(Commit).count() + 1
        insert_missing(session, Commit, key, {"first_parent_position": on_main, "orphaned": False})
        for case, (verdict, effect) in found.items():
            group = case.rpartition("/")[0].replace("/", ".")
            case_id = insert_missing(session, Case, {"name": case, "version": "1"}, {"group": group, "definition": {}})
            session.add(_verdict(measurement_id, case_id, verdict, effect))
        session.flush()
        update_alerts(session, job, measurement)
        end_in_transaction(session, job, measurement)


def _verdict(measurement_id: UUID, case_id: UUID, verdict: str, effect: float | None) -> Verdict:
    code = "numerics_failed" if verdict == "failed" else "slower"
    return Verdict(
        measurement_id=measurement_id,
        case_id=case_id,
        verdict=verdict,
        reasons=[{"code": code, "detail": "a reason <script> `"}],
        unit="ms",
        before=1.0,
        after=None if effect is None else 1.0 + effect,
        effect=effect,
        interval_low=None if effect is None else effect - 0.01,
        interval_high=None if effect is None else effect + 0.01,
        pairs_used=8,
        pairs_rejected=0,
        numerics={"status": "failed" if verdict == "failed" else "ok"},
        evidence={},
        judged_at=utc_now(),
    )


@pytest.fixture
def loop(settings: Settings, database: Database, repository: Repository, fake: FakeGitHub) -> Iterator[Loop]:
    app = create_app(settings, database=database)
    context: AppContext = app.state.context
    with serving(app) as server, opened_outbox(context) as (outbox, github):
        yield Loop(context, server, fake, outbox, github)


def registered(loop: Loop, folder: Path) -> FakeRepository:
    """Return a work tree with two commits; the bare repository that it pushes to is registered instead of `source`."""
    work = FakeRepository(folder / "work")
    bare = folder / "remote.git"
    work.git("init", "--quiet", "--bare", "--initial-branch=main", str(bare))
    work.git("remote", "add", "origin", str(bare))
    work.commit("root")
    work.commit("base", profile={"gather<64>": 1.0, "fill": 0.25})
    work.git("push", "--quiet", "origin", "main")
    with loop.context.database.transaction() as session:
        row = session.query(Repository).filter(Repository.github == REPOSITORY).one()
        row.url = str(bare)
    return work


def all_ended(loop: Loop) -> bool:
    """Let the outbox work, and say whether every job has ended."""
    loop.outbox.work()
    return all(job.state in TERMINAL for job in loop.jobs())
