"""The engine's client half: enqueuing inside the caller's transaction, canceling, handing over. On both databases."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from service import engine
from service.db import Database
from service.models import utc_now


def statuses(database: Database) -> dict[UUID, tuple[str, str | None, int]]:
    found = engine._client(database.engine).list_workflows()
    return {UUID(one.workflow_id): (one.status, one.queue_name, one.priority) for one in found}


def test_a_measurement_is_queued_exactly_when_the_transaction_commits(database: Database) -> None:
    kept, undone = uuid4(), uuid4()
    with database.transaction() as session:
        engine.enqueue_measurement(session, kept, "gpu:NVIDIA H200", 7)
    with database.transaction() as session:
        engine.enqueue_measurement(session, undone, "cpu", 100)
        session.rollback()
    assert statuses(database) == {kept: ("ENQUEUED", "gpu:NVIDIA H200", 7)}


def test_queuing_twice_is_queuing_once(database: Database) -> None:
    measurement_id = uuid4()
    for _ in range(2):
        with database.transaction() as session:
            engine.enqueue_measurement(session, measurement_id, "cpu", 100)
    assert list(statuses(database)) == [measurement_id]


@pytest.mark.parametrize("priority", [0, -1, 2**31])
def test_a_priority_out_of_range_is_refused(database: Database, priority: int) -> None:
    with database.transaction() as session, pytest.raises(ValueError, match="priority: expected 1 to"):
        engine.enqueue_measurement(session, uuid4(), "cpu", priority)


def test_canceling_takes_a_measurement_off_its_queue(database: Database) -> None:
    measurement_id = uuid4()
    with database.transaction() as session:
        engine.enqueue_measurement(session, measurement_id, "cpu", 100)
    engine.cancel_measurement(database.engine, measurement_id)
    engine.cancel_measurement(database.engine, uuid4())
    assert statuses(database)[measurement_id][:2] == ("CANCELLED", None)


def test_rows_of_the_engine_are_json(database: Database) -> None:
    measurement_id = uuid4()
    with database.transaction() as session:
        engine.enqueue_measurement(session, measurement_id, "cpu", 100)
        schema = "" if database.engine.dialect.name == "sqlite" else "dbos."
        inputs = session.execute(sa.text(f"SELECT inputs FROM {schema}workflow_input")).scalar_one()
        name = session.execute(sa.text(f"SELECT serialization FROM {schema}workflow_status")).scalar_one()
    assert json.loads(inputs)["args"] == [str(measurement_id)]
    assert name == "json"


def test_a_database_that_is_away_is_an_error_at_once() -> None:
    away = sa.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none", connect_args={"connect_timeout": 2})
    with pytest.raises(sa.exc.OperationalError):
        engine.cancel_measurement(away, uuid4())
    away.dispose()


def test_ended_measurements_are_forgotten_in_time(database: Database) -> None:
    ended, waiting = uuid4(), uuid4()
    with database.transaction() as session:
        for measurement_id in (ended, waiting):
            engine.enqueue_measurement(session, measurement_id, "cpu", 100)
    engine.cancel_measurement(database.engine, ended)
    assert engine.forget_finished(database.engine, utc_now() - timedelta(days=1)) == 0
    assert engine.forget_finished(database.engine, utc_now() + timedelta(days=1)) == 1
    assert list(statuses(database)) == [waiting]


def test_exceptions_travel_as_text() -> None:
    serializer = engine.JsonSerializer()
    error = serializer.deserialize(serializer.serialize(ValueError("bad")))
    assert isinstance(error, RuntimeError)
    assert str(error) == "ValueError: bad"
    assert serializer.deserialize(serializer.serialize({"done": True})) == {"done": True}
    with pytest.raises(TypeError, match="must be JSON"):
        serializer.serialize({"x": object()})


def test_installing_again_changes_nothing(database_url: str) -> None:
    engine.install(database_url)
    if database_url.startswith("sqlite"):
        with Database(database_url).reading() as session:
            assert session.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
