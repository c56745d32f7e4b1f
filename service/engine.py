"""Durable execution of measurements: the only module that imports DBOS.

A measurement is one DBOS workflow whose id is the measurement's id, on one queue per device class. What is durable
here is small: which steps of a measurement finished, and who owns it. Results live in the service's own tables.

Choices that are not DBOS's defaults, each because the default bit in trials: JSON instead of pickle (a row must not
become code in another process), a constant application version (a newer one makes older workers stop taking jobs),
stable executor ids (a restarted worker takes its own jobs back), WAL on SQLite, and errors instead of endless
waiting where a request handler waits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, Serializer
from dbos import error as dbos_error
from sqlalchemy.orm import Session

APPLICATION = "s2bench"
APPLICATION_VERSION = "1"
WORKFLOW = "s2bench.measure"
LOWEST_PRIORITY = 2**31 - 1

# DBOS reports every start, queue and version at INFO, and that SQLite is "for development and testing".
logging.getLogger("dbos").setLevel(logging.WARNING)


class StepRunner(Protocol):
    """Runs a named step once: its result is recorded, and returned unrun when the measurement is taken up again."""

    def __call__(self, name: str, body: Callable[[], dict[str, Any]]) -> dict[str, Any]: ...


class MeasurementRunner(Protocol):
    """What a worker does with a measurement; must itself record every failure, an exception here is a defect."""

    def __call__(self, measurement_id: UUID, step: StepRunner) -> None: ...


class WorkerStopping(BaseException):
    """Leaves a measurement without an outcome, so that its next owner takes it up again.

    Not an `Exception`: it must pass every handler between a child process and the engine, like KeyboardInterrupt.
    """


class JsonSerializer(Serializer):
    """Values of DBOS's tables as JSON; an exception becomes its type's name and message."""

    def serialize(self, data: Any) -> str:
        return json.dumps(data, default=_describe_exception)

    def deserialize(self, serialized_data: str) -> Any:
        data = json.loads(serialized_data)
        if isinstance(data, dict) and data.keys() == {"exception", "message"}:
            return RuntimeError(f"{data['exception']}: {data['message']}")
        return data

    def name(self) -> str:
        return "json"


def _describe_exception(value: Any) -> dict[str, str]:
    if isinstance(value, BaseException):
        return {"exception": type(value).__name__, "message": str(value)}
    raise TypeError(f"engine values must be JSON, got {type(value).__name__}")


# One client per database engine: a client reads the schema's tables once and owns no connection of its own.
_clients: WeakKeyDictionary[sa.Engine, DBOSClient] = WeakKeyDictionary()
_clients_lock = Lock()


def _client(database: sa.Engine) -> DBOSClient:
    with _clients_lock:
        client = _clients.get(database)
        if client is None:
            client = DBOSClient(
                system_database_engine=database,
                serializer=JsonSerializer(),
                application_name=APPLICATION,
                lazy=True,
                retry_connection_errors=False,
            )
            _clients[database] = client
        return client


def install(database_url: str) -> None:
    """Create or migrate the engine's own tables (`dbos` schema on Postgres) and set WAL on a SQLite file."""
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url)
        try:
            with engine.connect() as connection:
                connection.execute(sa.text("PRAGMA journal_mode=WAL"))
        finally:
            engine.dispose()
    DBOS.migrate(url.render_as_string(hide_password=False))


def enqueue_measurement(session: Session, measurement_id: UUID, device_class: str, priority: int) -> None:
    """Queue a measurement in the session's transaction: it exists exactly when the rows beside it do.

    A lower `priority` is taken first. Enqueuing the same measurement again changes nothing.
    """
    _check_priority(priority)
    options: EnqueueOptions = {
        "workflow_name": WORKFLOW,
        "queue_name": device_class,
        "workflow_id": str(measurement_id),
        "app_version": APPLICATION_VERSION,
        "priority": priority,
    }
    _client(session.get_bind().engine).enqueue_in_transaction(session, options, str(measurement_id))


# The engine's own function of its PostgreSQL schema, for many at once: one round trip instead of two for each.
_ENQUEUE_MANY = sa.text(
    """
    SELECT dbos.enqueue_workflow(
        workflow_name => :workflow, queue_name => queue, positional_args => ARRAY[to_json(id)], workflow_id => id,
        app_version => :version, priority => priority, application_name => :application)
    FROM unnest(CAST(:ids AS text[]), CAST(:queues AS text[]), CAST(:priorities AS integer[]))
        AS place(id, queue, priority)
    """
)


def enqueue_measurements(session: Session, places: Sequence[tuple[UUID, str, int]]) -> None:
    """Queue measurements (id, device class, priority) in the session's transaction, as `enqueue_measurement` does."""
    if session.get_bind().dialect.name != "postgresql":
        for measurement_id, device_class, priority in places:
            enqueue_measurement(session, measurement_id, device_class, priority)
        return
    for _, _, priority in places:
        _check_priority(priority)
    values = {
        "workflow": WORKFLOW,
        "version": APPLICATION_VERSION,
        "application": APPLICATION,
        "ids": [str(measurement_id) for measurement_id, _, _ in places],
        "queues": [device_class for _, device_class, _ in places],
        "priorities": [priority for _, _, priority in places],
    }
    session.execute(_ENQUEUE_MANY, values)


def _check_priority(priority: int) -> None:
    if not 1 <= priority <= LOWEST_PRIORITY:
        raise ValueError(f"priority: expected 1 to {LOWEST_PRIORITY}, got {priority}")


def cancel_measurement(database: sa.Engine, measurement_id: UUID) -> None:
    """Take a measurement off its queue. Call it after the commit that marked the rows: it opens a transaction itself.

    For a running measurement the mark in the rows (`Job.cancel_requested`) is what stops the work; calling this too
    does no harm. A measurement that is finished or unknown to the engine is left as it is.
    """
    try:
        _client(database).cancel_workflow(str(measurement_id))
    except dbos_error.DBOSNonExistentWorkflowError:
        logging.getLogger(__name__).info("measurement %s is not known to the engine", measurement_id)


def is_canceled(database: sa.Engine, measurement_id: UUID) -> bool:
    """Return whether the engine itself has canceled a measurement."""
    found = _client(database).list_workflows(workflow_ids=[str(measurement_id)], load_input=False, load_output=False)
    return any(workflow.status == "CANCELLED" for workflow in found)


def recover_dead(database: sa.Engine, executor_ids: Iterable[str], device_class: str) -> list[UUID]:
    """Put the unfinished measurements of dead workers back on their queue, and return their ids.

    The engine fences the former owner: should it come back, its next step ends with an error instead of a result.
    Each measurement's owner is read again right before the hand-over, because another worker may do the same.
    """
    client = _client(database)
    recovered = []
    for executor_id in executor_ids:
        pending = client.list_workflows(
            status="PENDING", executor_id=executor_id, queue_name=device_class, load_input=False, load_output=False
        )
        for workflow in pending:
            now = client.retrieve_workflow(workflow.workflow_id).get_status()
            if now.status == "PENDING" and now.executor_id == executor_id:
                client.resume_workflow(workflow.workflow_id, queue_name=device_class)
                recovered.append(UUID(workflow.workflow_id))
    return recovered


def forget_finished(database: sa.Engine, before: datetime, limit: int = 500) -> int:
    """Delete the engine's own rows of measurements that were queued before a time and have ended; return how many."""
    client = _client(database)
    finished = client.list_workflows(
        status=["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"],
        end_time=before.astimezone(UTC).isoformat(),
        limit=limit,
        load_input=False,
        load_output=False,
    )
    ids = [workflow.workflow_id for workflow in finished]
    if ids:
        client.delete_workflows(ids)
    return len(ids)


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker process joins the queues: `devices` is the number of devices per device class."""

    database_url: str
    executor_id: str
    devices: Mapping[str, int]
    poll_s: float = 1.0


def launch_worker(options: WorkerOptions, run_measurement: MeasurementRunner, lost: Callable[[UUID], None]) -> None:
    """Start taking measurements from the queues in threads of this process, beginning with its own unfinished ones.

    The caller holds the locks of its devices and of its executor id: a second process with the same id would run
    the first one's measurements in parallel. `lost` is called when the engine refuses a step of a measurement, because
    it was canceled there or belongs to another worker now.
    """
    config: DBOSConfig = {
        "name": APPLICATION,
        "system_database_url": sa.make_url(options.database_url).render_as_string(hide_password=False),
        "application_version": APPLICATION_VERSION,
        "executor_id": options.executor_id,
        "serializer": JsonSerializer(),
        "run_migrations": False,
        "log_level": "WARNING",
        "sys_db_pool_size": 5,
        "notification_coalesce_sec": 1.0,
        "notification_listener_polling_interval_sec": 1.0,
    }
    DBOS(config=config)

    def measure(measurement_id: str) -> None:
        try:
            run_measurement(UUID(measurement_id), _run_step)
        except (dbos_error.DBOSWorkflowCancelledError, dbos_error.DBOSWorkflowConflictIDError):
            lost(UUID(measurement_id))
            raise

    DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(measure)
    DBOS.listen_queues(list(options.devices))
    with _connected_client(options.database_url) as client:
        for device_class, count in options.devices.items():
            client.register_queue(device_class, worker_concurrency=count, polling_interval_sec=options.poll_s)
    DBOS.launch()


def stop_worker() -> None:
    """Stop taking measurements. Running ones keep no outcome when they leave by `WorkerStopping`."""
    DBOS.destroy(destroy_registry=True)


@contextmanager
def _connected_client(database_url: str) -> Iterator[DBOSClient]:
    client = DBOSClient(
        system_database_url=sa.make_url(database_url).render_as_string(hide_password=False),
        serializer=JsonSerializer(),
        application_name=APPLICATION,
        system_database_pool_size=1,
    )
    try:
        yield client
    finally:
        client.destroy()


def _run_step(name: str, body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return DBOS.run_step({"name": name}, body)
