"""The worker process of a host: owns its devices, answers for being alive, and runs measurements from the queues.

Order of a start: device locks, worker row, engine. The locks come first because the engine hands a worker's
unfinished measurements back to whoever starts under its name. A worker that stops by SIGTERM or Ctrl-C ends its
children and gives its measurements back; one that is killed leaves no child either (`guardian`), and its
measurements are taken up by its successor, or after a minute by any other worker of the device class.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from uuid import UUID

import structlog
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service import engine
from service.calibration.scheduling import IdleRule, schedule_idle
from service.db import Database
from service.logs import configure, logger
from service.models import TERMINAL, Device, JobKind, Measurement, Worker, utc_now
from service.worker.access import Access, anonymous
from service.worker.bisect import BisectRun
from service.worker.devicepool import DevicePool
from service.worker.devices import DeviceLock, MeasuringDevice, find_devices
from service.worker.errors import JobError
from service.worker.host import Host, Limits
from service.worker.pipeline import MeasurementRun, Pace, Pipeline, RunFactory
from service.worker.records import Records
from service.worker.sandbox import choose_sandbox
from service.worker.stack import StackRun

if TYPE_CHECKING:
    from service.settings import Settings

STOP_GRACE_S = 20.0
LEFTOVER_AGE_S = 86400.0
CLEANING_INTERVAL_S = 3600.0
KEPT_BY_ENGINE = timedelta(days=7)


@dataclass(frozen=True)
class SupervisorOptions:
    """Intervals of a worker, its name (default: host and data directory), where device locks lie, how it may fetch."""

    name: str | None = None
    lock_dir: Path | None = None
    poll_s: float = 1.0
    heartbeat_s: float = 10.0
    dead_after_s: float = 60.0
    busy_retry_s: float = 2.0
    idle_check_s: float = 60.0
    pace: Pace = field(default_factory=Pace)
    access: Access = anonymous


def run_worker(
    settings: Settings, device_classes: Sequence[str] | None = None, options: SupervisorOptions | None = None
) -> int:
    """Serve the queues of this host's devices until SIGTERM or Ctrl-C; return the exit code.

    Without `device_classes` every device that no other worker holds is served.
    """
    configure(settings.log_level, as_json=settings.log_json)
    supervisor = Supervisor(settings, options or SupervisorOptions())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.on_signal)
    try:
        supervisor.run(device_classes)
    except JobError as error:
        print(f"s2bench worker: {error.code}: {error.message}", file=sys.stderr)
        return 3
    return 0


class Supervisor:
    """One worker process."""

    def __init__(self, settings: Settings, options: SupervisorOptions) -> None:
        self._settings = settings
        self._options = options
        self._stopping = threading.Event()
        self._running: set[UUID] = set()
        self._running_changed = threading.Condition()
        self.executor_id = options.name or ""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        self._stopping.set()

    def run(self, device_classes: Sequence[str] | None) -> None:
        """Run until stopped."""
        sandbox = choose_sandbox(self._settings.sandbox, fall_back=False)
        locks = self._lock_devices(device_classes)
        if not locks:
            return
        devices = [lock.device for lock in locks]
        self.executor_id = self.executor_id or _executor_id(self._settings.data_dir, devices)
        settings = self._settings
        limits = Limits(settings.build_timeout_s, settings.process_timeout_s, settings.profile_timeout_s)
        share = self._settings.share_compiler_cache
        host = Host(self._settings.data_dir, sandbox, limits, share_compiler_cache=share)
        database = Database(self._settings.database_url)
        worker_id, device_ids = self._register(database, devices, str(sandbox.mode))
        structlog.contextvars.bind_contextvars(worker=self.executor_id)
        records = Records(database, worker_id, self._stopping)
        self._remove_leftovers()
        pool = DevicePool(devices, self._stopping, self._options.lock_dir)
        runs: dict[str, RunFactory] = {
            JobKind.COMPARE: MeasurementRun,
            JobKind.STACK: StackRun,
            JobKind.BISECT: BisectRun,
        }
        pace, access = self._options.pace, self._options.access
        pipeline = Pipeline(records, host, pool, device_ids, self._stopping, runs, pace, access=access)
        try:
            with host.off_measuring_cpus():
                self._serve(pipeline)
        finally:
            self._stopping.set()
            pipeline.canaries.close()
            self._mark_gone(records)
            database.dispose()
            for lock in locks:
                lock.release()

    # ---- serving ----

    def _serve(self, pipeline: Pipeline) -> None:
        classes = pipeline.devices.classes()
        options = engine.WorkerOptions(
            self._settings.database_url, self.executor_id, classes, poll_s=self._options.poll_s
        )

        def run_measurement(measurement_id: UUID, step: engine.StepRunner) -> None:
            with self._counted(measurement_id):
                pipeline.run_measurement(measurement_id, step)

        def lost(measurement_id: UUID) -> None:
            with _database_may_be_away():
                if engine.is_canceled(pipeline.records.database.engine, measurement_id):
                    pipeline.records.finish_canceled(measurement_id)

        engine.launch_worker(options, run_measurement, lost)
        logger.info("worker_ready", devices=sorted(classes), sandbox=str(pipeline.host.sandbox.mode))
        try:
            self._beat_until_stopped(pipeline, list(classes))
        finally:
            self._stop(pipeline, list(classes))

    def _beat_until_stopped(self, pipeline: Pipeline, classes: list[str]) -> None:
        next_cleaning = next_idle_check = time.monotonic()
        while not self._stopping.wait(self._options.heartbeat_s):
            self._heartbeat(pipeline)
            self._recover_dead(pipeline.records, classes)
            if time.monotonic() >= next_cleaning:
                next_cleaning = time.monotonic() + CLEANING_INTERVAL_S
                with _database_may_be_away():
                    engine.forget_finished(pipeline.records.database.engine, utc_now() - KEPT_BY_ENGINE)
            if self._settings.calibrate_idle and time.monotonic() >= next_idle_check:
                next_idle_check = time.monotonic() + self._options.idle_check_s
                self._calibrate_idle(pipeline)

    def _heartbeat(self, pipeline: Pipeline) -> None:
        now = utc_now()
        statuses = pipeline.devices.statuses()

        def work(session: Session) -> None:
            session.execute(update(Worker).where(Worker.id == pipeline.records.worker_id).values(heartbeat_at=now))
            for uuid, (status, reason) in statuses.items():
                session.execute(
                    update(Device)
                    .where(Device.id == pipeline.device_ids[uuid])
                    .values(status=status, status_reason=reason, seen_at=now)
                )

        with suppress(engine.WorkerStopping):
            pipeline.records.run(work)

    def _recover_dead(self, records: Records, classes: list[str]) -> None:
        """Hand the measurements of workers that have not been heard of to the queues that this one serves."""
        horizon = utc_now() - timedelta(seconds=self._options.dead_after_s)
        query = (
            select(Worker.executor_id)
            .join(Measurement, Measurement.worker_id == Worker.id)
            .where(
                Worker.heartbeat_at < horizon,
                Worker.id != records.worker_id,
                Measurement.state.not_in(TERMINAL),
                Measurement.device_class.in_(classes),
            )
            .distinct()
        )
        with suppress(engine.WorkerStopping), _database_may_be_away():
            dead = records.run(lambda session: list(session.execute(query).scalars()))
            for device_class in classes if dead else ():
                for measurement_id in engine.recover_dead(records.database.engine, dead, device_class):
                    logger.warning("measurement_taken_over", measurement=str(measurement_id), of=dead)

    def _calibrate_idle(self, pipeline: Pipeline) -> None:
        """Queue a calibration for each of this worker's device classes that has been idle for a while."""
        classes = {name: pipeline.devices.held_up_by(name) for name in pipeline.devices.classes()}
        settings = self._settings
        rule = IdleRule(
            after=timedelta(seconds=settings.calibrate_after_s),
            every=timedelta(seconds=settings.calibrate_every_s),
            cases=settings.calibrate_cases,
            max_pairs=settings.max_pairs,
        )
        with suppress(engine.WorkerStopping), _database_may_be_away():
            queued = pipeline.records.run(lambda session: schedule_idle(session, classes, rule, utc_now()))
            for job_id in queued:
                logger.info("calibration_queued", job=str(job_id))

    # ---- start and stop ----

    def _lock_devices(self, device_classes: Sequence[str] | None) -> list[DeviceLock]:
        """Lock this host's devices; wait while all of them belong to others, or one that was asked for by name."""
        found = find_devices()
        wanted = [device for device in found if device_classes is None or device.device_class in device_classes]
        missing = set(device_classes or ()) - {device.device_class for device in wanted}
        if missing:
            here = sorted({device.device_class for device in found})
            message = f"device class: expected one of {here} on this host, got {sorted(missing)}"
            raise JobError("device_unfit", message, stage="prepare")
        locks = [DeviceLock(device, self._options.lock_dir, use="serve") for device in wanted]
        said = False
        while not self._stopping.is_set():
            taken = [lock for lock in locks if lock.try_acquire()]
            if len(taken) == len(locks) or (taken and device_classes is None):
                return taken
            for lock in taken:
                lock.release()
            if not said:
                logger.warning("devices_in_use", devices=[lock.device.name for lock in locks])
                said = True
            self._stopping.wait(self._options.busy_retry_s)
        return []

    def _register(
        self, database: Database, devices: Sequence[MeasuringDevice], sandbox: str
    ) -> tuple[UUID, dict[str, UUID]]:
        """Write the worker's and its devices' rows; devices of an earlier start that are not here are gone."""

        def work(session: Session) -> tuple[UUID, dict[str, UUID]]:
            query = select(Worker).where(Worker.executor_id == self.executor_id)
            worker = session.execute(query).scalar_one_or_none()
            if worker is None:
                worker = Worker(executor_id=self.executor_id)
                session.add(worker)
            worker.host, worker.pid, worker.version = socket.gethostname(), os.getpid(), version("s2bench")
            worker.sandbox, worker.heartbeat_at = sandbox, utc_now()
            session.flush()
            session.execute(update(Device).where(Device.worker_id == worker.id).values(status="gone"))
            return worker.id, {device.uuid: _save_device(session, worker.id, device) for device in devices}

        return Records(database, UUID(int=0), self._stopping).run(work)

    def _mark_gone(self, records: Records) -> None:
        """Say that this worker's devices are not served any more; a database that is away will notice by itself."""

        def work(session: Session) -> None:
            session.execute(update(Device).where(Device.worker_id == records.worker_id).values(status="gone"))

        with suppress(engine.WorkerStopping):
            records.run(work)

    def _stop(self, pipeline: Pipeline, classes: list[str]) -> None:
        """End the children, let the measurements' threads leave, and give the measurements back."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_GRACE_S
        with self._running_changed:
            while self._running and time.monotonic() < deadline:
                self._running_changed.wait(0.5)
        engine.stop_worker()
        given_back = 0
        with suppress(engine.WorkerStopping), _database_may_be_away():
            given_back = pipeline.records.release_all()
            for device_class in classes:
                engine.recover_dead(pipeline.records.database.engine, [self.executor_id], device_class)
        logger.info("worker_stopped", given_back=given_back)

    def _remove_leftovers(self) -> None:
        """Remove output folders that killed workers left behind; younger ones may be in use by another process."""
        horizon = time.time() - LEFTOVER_AGE_S
        for folder in (self._settings.data_dir / "runs").glob("*"):
            with suppress(FileNotFoundError):
                if folder.stat().st_mtime < horizon:
                    shutil.rmtree(folder)

    @contextmanager
    def _counted(self, measurement_id: UUID) -> Iterator[None]:
        """Keep a measurement in the set of running ones while its thread is at it."""
        with self._running_changed:
            self._running.add(measurement_id)
        try:
            yield
        finally:
            with self._running_changed:
                self._running.discard(measurement_id)
                self._running_changed.notify_all()


@contextmanager
def _database_may_be_away() -> Iterator[None]:
    """Go on without what the database was asked for: it is asked again later, by this worker or by another."""
    try:
        yield
    except DBAPIError as error:
        logger.warning("database_away", error=str(error).splitlines()[0])


def _save_device(session: Session, worker_id: UUID, device: MeasuringDevice) -> UUID:
    query = select(Device).where(Device.worker_id == worker_id, Device.uuid == device.uuid)
    row = session.execute(query).scalar_one_or_none()
    if row is None:
        row = Device(worker_id=worker_id, uuid=device.uuid)
        session.add(row)
    row.device_class, row.name, row.info = device.device_class, device.name, dict(device.info)
    row.status, row.status_reason, row.seen_at = "ready", None, utc_now()
    session.flush()
    return row.id


def _executor_id(data_dir: Path, devices: Sequence[MeasuringDevice]) -> str:
    """Return a name that a worker with this data directory and these devices has again after a restart.

    The devices are part of it because their locks make sure that no two running workers have the same name.
    """
    parts = [str(data_dir.resolve()), *sorted(device.uuid for device in devices)]
    return f"{socket.gethostname()}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"
