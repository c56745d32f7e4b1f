"""Which workers and devices there are, and which device classes are served right now."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.devices import queries
from service.devices.schemas import DeviceList, DeviceOut, WorkerList, WorkerOut
from service.models import Device, Worker, utc_now

HEARTBEAT_TIMEOUT = timedelta(seconds=60)


def served_classes(session: Session) -> list[str]:
    """Return the device classes that a live worker serves, in order."""
    return queries.live_classes(session, utc_now() - HEARTBEAT_TIMEOUT)


def list_devices(session: Session) -> DeviceList:
    """Return every device."""
    now = utc_now()
    return DeviceList(items=[_device_out(device, worker, now) for device, worker in queries.devices(session)])


def list_workers(session: Session) -> WorkerList:
    """Return every worker with its devices."""
    now = utc_now()
    rows = queries.devices(session)
    return WorkerList(
        items=[
            WorkerOut(
                id=worker.id,
                executor_id=worker.executor_id,
                host=worker.host,
                pid=worker.pid,
                version=worker.version,
                sandbox=worker.sandbox,
                alive=_alive(worker, now),
                heartbeat_at=worker.heartbeat_at,
                devices=[_device_out(device, owner, now) for device, owner in rows if owner.id == worker.id],
            )
            for worker in queries.workers(session)
        ]
    )


def _alive(worker: Worker, now: datetime) -> bool:
    return now - worker.heartbeat_at <= HEARTBEAT_TIMEOUT


def _device_out(device: Device, worker: Worker, now: datetime) -> DeviceOut:
    return DeviceOut(
        id=device.id,
        worker_id=worker.id,
        worker=worker.executor_id,
        device_class=device.device_class,
        uuid=device.uuid,
        name=device.name,
        status=device.status,
        status_reason=device.status_reason,
        served=_alive(worker, now) and device.status in queries.WORKING,
        info=device.info,
        seen_at=device.seen_at,
    )
