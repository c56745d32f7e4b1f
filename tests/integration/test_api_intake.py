"""Batches of new jobs: one that fails takes no other with it, and one idempotency key makes one job."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from service import engine
from service.auth import Caller
from service.context import AppContext
from service.db import Database
from service.errors import Conflict, InvalidInput
from service.jobs import intake
from service.jobs.intake import Ticket, process
from service.jobs.schemas import JobOut, JobRequest
from service.models import Job, Measurement
from service.rates import WriteRate
from service.repositories.refs import RefResolver
from service.settings import Settings

HERE = Caller(None, True, "127.0.0.1")

pytestmark = pytest.mark.usefixtures("repository")


class PickyQueue:
    """The queue of the engine, but it takes no measurement for one device class."""

    def enqueue_measurements(self, session: Session, places: Sequence[tuple[UUID, str, int]]) -> None:
        """Queue measurements unless one is for `gpu:broken`."""
        if any(device_class == "gpu:broken" for _, device_class, _ in places):
            raise ZeroDivisionError("no place")
        engine.enqueue_measurements(session, places)

    def cancel_measurement(self, database: Engine, measurement_id: UUID) -> None:
        """Take a measurement off its queue."""
        engine.cancel_measurement(database, measurement_id)


@pytest.fixture
def contexts(settings: Settings, database: Database) -> Iterator[list[AppContext]]:
    """What two API processes on one database have."""
    databases = [database, Database(settings.database_url)]
    found = [AppContext(settings, one, RefResolver(), PickyQueue(), WriteRate(None)) for one in databases]
    yield found
    for context in found:
        context.refs.close()
    databases[1].dispose()


def ticket(key: str | None = None, **changes: Any) -> Ticket:
    body = {"repository": "kernels", "commit": "main", "devices": ["cpu"]} | changes
    return Ticket(JobRequest.model_validate(body), key, HERE)


def jobs(database: Database) -> list[int]:
    with database.reading() as session:
        return [session.execute(select(func.count()).select_from(model)).scalar_one() for model in (Job, Measurement)]


def test_each_ticket_of_a_batch_has_its_own_outcome(contexts: list[AppContext], database: Database) -> None:
    tickets = [
        ticket(reason="first"),
        ticket(commit="nowhere"),
        ticket(devices=["cpu", "gpu:broken"]),
        ticket(repository="unknown"),
        ticket(reason="last"),
    ]
    process(contexts[0], tickets)
    kinds = [type(one.outcome) for one in tickets]
    assert kinds == [JobOut, InvalidInput, ZeroDivisionError, InvalidInput, JobOut]
    assert jobs(database) == [2, 2]  # nothing is left of the one whose measurements could not be queued


def test_one_key_within_a_batch(contexts: list[AppContext], database: Database) -> None:
    tickets = [ticket("key"), ticket("key"), ticket("key", reason="another"), ticket("other key"), ticket()]
    process(contexts[0], tickets)
    outcomes = [one.outcome for one in tickets]
    assert isinstance(outcomes[0], JobOut)
    assert outcomes[1] == outcomes[0]
    assert isinstance(outcomes[2], Conflict)
    assert jobs(database) == [3, 3]


def test_one_key_in_two_processes(
    contexts: list[AppContext], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that the key is new when they store their job; on SQLite the second waits before it looks."""
    both = threading.Barrier(2)
    served_classes = intake.served_classes

    def wait_for_the_other(session: Session) -> list[str]:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        return served_classes(session)

    monkeypatch.setattr(intake, "served_classes", wait_for_the_other)
    tickets = [ticket("key"), ticket("key")]
    threads = [
        threading.Thread(target=process, args=(context, [one])) for context, one in zip(contexts, tickets, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(tickets[0].outcome, JobOut)
    assert isinstance(tickets[1].outcome, JobOut)
    assert tickets[0].outcome.id == tickets[1].outcome.id
    assert jobs(database) == [1, 1]
