"""The outbox as it runs: in a thread beside the API, by itself, and gone when it is told to stop."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from github_fake import FakeGitHub, deliver
from serving import serving
from worker_fixtures import wait_until

from service import delivery
from service.db import Database
from service.delivery import delivering_beside
from service.embedded import worker_environment
from service.main import create_app
from service.models import Repository
from service.settings import Settings


@pytest.fixture
def server(settings: Settings, database: Database, repository: Repository) -> Any:
    with serving(create_app(settings, database=database)) as url:
        yield url


def test_it_works_by_itself(server: str, settings: Settings, fake: FakeGitHub, source: Any) -> None:
    topic, three = (source.git("rev-parse", ref) for ref in ("topic", "main"))
    fake.push_event(three)  # its webhook is lost
    with delivering_beside(settings):
        wait_until(lambda: any(run["head_sha"] == three for run in fake.checks.values()), 20, "the poll")
        fake.pull(7, topic)
        assert deliver(server, "pull_request", fake.pull_event("opened", 7)).status_code == 202
        wait_until(lambda: any(run["head_sha"] == topic for run in fake.checks.values()), 20, "the check")
    assert fake.count("POST", "/check-runs") == 2


def test_a_defect_does_not_end_it(
    server: str, settings: Settings, fake: FakeGitHub, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "AFTER_DEFECT_S", 0.05)
    monkeypatch.setattr(delivery, "poll", lambda *_: 1 / 0)
    topic = source.git("rev-parse", "topic")
    with delivering_beside(settings):
        fake.pull(7, topic)
        deliver(server, "pull_request", fake.pull_event("opened", 7))
        wait_until(lambda: any(run["head_sha"] == topic for run in fake.checks.values()), 20, "the check")


def test_it_stops_while_github_hangs(server: str, settings: Settings, fake: FakeGitHub, source: Any) -> None:
    fake.plant("timeout", times=100, wait_s=1.0)
    started = time.monotonic()
    with delivering_beside(settings):
        time.sleep(0.3)
    assert time.monotonic() - started < 10


def test_a_worker_does_not_inherit_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("S2BENCH_GITHUB_TOKEN", "S2BENCH_GITHUB_WEBHOOK_SECRET", "S2BENCH_NOTIFY_TARGETS", "s2bench_github_x"):
        monkeypatch.setenv(name, "a secret")
    monkeypatch.setenv("S2BENCH_DATA_DIR", "/data")
    found = worker_environment()
    assert "a secret" not in found.values()
    assert found["S2BENCH_DATA_DIR"] == "/data"
    assert found["PATH"] == os.environ["PATH"]
