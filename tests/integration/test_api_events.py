"""Server-sent events of a job through a real server, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy import select
from uuid_utils.compat import uuid7

from service.db import Database
from service.models import Job, JobEvent, Repository, State, utc_now
from service.settings import Settings

BODY = {"repository": "kernels", "commit": "main", "devices": ["cpu"]}

pytestmark = pytest.mark.usefixtures("repository")


@pytest.fixture
def job_id(server: str) -> UUID:
    return UUID(httpx2.post(f"{server}/api/v1/jobs", json=BODY).json()["id"])


def add(database: Database, job_id: UUID, kind: str, ends: State | None = None, **payload: Any) -> UUID:
    with database.transaction() as session:
        event = JobEvent(job_id=job_id, kind=kind, payload=payload)
        session.add(event)
        if ends is not None:
            session.get_one(Job, job_id).state = ends
    return event.id


def events(server: str, job_id: UUID, last: UUID | None = None) -> Iterator[dict[str, str]]:
    """Yield the fields of each event until the server ends the stream."""
    headers = {"Last-Event-ID": str(last)} if last else {}
    with httpx2.stream("GET", f"{server}/api/v1/jobs/{job_id}/events", headers=headers, timeout=30) as response:
        if response.status_code == 204:
            return
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and fields:
                yield fields
                fields = {}


def test_events_arrive_as_they_are_written_and_end_with_the_job(server: str, database: Database, job_id: UUID) -> None:
    def work() -> None:
        for index in range(3):
            time.sleep(0.2)
            add(database, job_id, "pair", pair=index)
        add(database, job_id, "end", State.DONE)

    worker = threading.Thread(target=work)
    worker.start()
    found = list(events(server, job_id))
    worker.join()
    assert [one["event"] for one in found] == ["stage", "pair", "pair", "pair", "end"]
    data = [json.loads(one["data"]) for one in found]
    assert [one["id"] for one in data] == [one["id"] for one in found]
    assert data[0]["payload"] == {"state": "queued", "stage": None}
    assert [one["payload"]["pair"] for one in data[1:4]] == [0, 1, 2]
    assert all(one["job_id"] == str(job_id) and one["at"].endswith("Z") for one in data)


def test_a_listener_that_comes_back_misses_nothing_and_hears_nothing_twice(
    server: str, database: Database, job_id: UUID
) -> None:
    first = add(database, job_id, "pair", pair=0)
    second = add(database, job_id, "pair", pair=1)
    end = add(database, job_id, "end", State.FAILED)
    everything = [one["event"] for one in events(server, job_id)]
    assert everything == ["stage", "pair", "pair", "end"]
    assert [one["id"] for one in events(server, job_id, first)] == [str(second), str(end)]
    assert list(events(server, job_id, end)) == []
    response = httpx2.get(f"{server}/api/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(end)})
    assert response.status_code == 204  # tells a browser not to come again


def test_an_event_that_appears_late_is_sent_all_the_same(server: str, database: Database, job_id: UUID) -> None:
    """Its id was made before that of one already sent: another host's clock, or a transaction that took long."""
    early = uuid7()
    time.sleep(0.01)
    later = add(database, job_id, "pair", pair=1)
    stream = events(server, job_id)
    assert [next(stream)["event"] for _ in range(2)] == ["stage", "pair"]
    with database.transaction() as session:
        session.add(JobEvent(id=early, job_id=job_id, kind="pair", payload={"pair": 0}))
    assert next(stream)["id"] == str(early)
    add(database, job_id, "end", State.DONE)
    assert [one["event"] for one in stream] == ["end"]
    assert early < later


def test_a_job_that_ended_without_an_event_ends_its_stream(server: str, database: Database, job_id: UUID) -> None:
    with database.transaction() as session:
        session.get_one(Job, job_id).state = State.EXPIRED
    found = list(events(server, job_id))
    assert [one["event"] for one in found] == ["stage", "end"]
    assert "id" not in found[1]
    assert json.loads(found[1]["data"])["payload"] == {"state": "expired"}


def test_many_idle_listeners_hold_nothing(server: str, database: Database, job_id: UUID) -> None:
    """Sixty listeners wait on the 16 connections and 40 threads that there are, and the service stays quick."""
    started = threading.Barrier(61)

    def listen(_number: int) -> list[str]:
        stream = events(server, job_id)
        kinds = [next(stream)["event"]]
        started.wait(60)
        return kinds + [one["event"] for one in stream]

    with ThreadPoolExecutor(60) as pool:
        listening = pool.map(listen, range(60))
        started.wait(60)
        time.sleep(1.2)  # long enough for every listener to be idle
        assert database.engine.pool.checkedout() <= 1  # type: ignore[attr-defined]
        for _ in range(20):
            assert httpx2.get(f"{server}/healthz", timeout=10).status_code == 200
        add(database, job_id, "end", State.DONE)
        assert list(listening) == [["stage", "end"]] * 60


def test_what_cannot_be_listened_to(server: str, job_id: UUID) -> None:
    assert httpx2.get(f"{server}/api/v1/jobs/{uuid4()}/events").json()["code"] == "unknown_job"
    response = httpx2.get(f"{server}/api/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "yesterday"})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "last-event-id")


def test_old_events_come_first_and_once(server: str, database: Database, job_id: UUID) -> None:
    old = UUID(int=((int((utc_now() - timedelta(hours=1)).timestamp() * 1000) << 80) | (7 << 76) | (2 << 62)))
    with database.transaction() as session:
        session.add(JobEvent(id=old, job_id=job_id, kind="log", payload={"text": "long ago"}))
    stream = events(server, job_id)
    assert next(stream)["event"] == "log"
    assert next(stream)["event"] == "stage"
    add(database, job_id, "end", State.DONE)
    assert [one["event"] for one in stream] == ["end"]


def test_the_server_stops_while_somebody_listens(settings: Settings, database: Database) -> None:
    with database.reading() as session:
        repository_id = session.execute(select(Repository.id)).scalar_one()
    with database.transaction() as session:
        job = Job(
            repository_id=repository_id,
            requested_commit="main",
            requested_baseline="auto",
            devices=[],
            cases="*",
            policy={},
            body_sha256="",
        )
        session.add(job)
    add(database, job.id, "stage", state="queued")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = {"database_url": settings.database_url, "data_dir": str(settings.data_dir), "port": port}
    program = f"from service.main import serve; from service.settings import Settings; serve(Settings(**{values!r}))"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/healthz")
                break
            except httpx2.ConnectError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.05)
        stream = events(f"http://127.0.0.1:{port}", job.id)
        assert next(stream)["event"] == "stage"
        process.terminate()
        with suppress(httpx2.HTTPError):
            assert list(stream) == []
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode in {0, -signal.SIGTERM}
    assert b"Traceback" not in log
