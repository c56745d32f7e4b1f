"""Reads of workers and their devices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.models import Device, Worker

WORKING = ("ready", "busy")

# Made once, because making a statement costs more than running it, and this one runs for every new job.
_LIVE_CLASSES = (
    select(Device.device_class)
    .join(Worker, Device.worker_id == Worker.id)
    .where(Worker.heartbeat_at >= bindparam("since"), Device.status.in_(WORKING))
    .distinct()
    .order_by(Device.device_class)
)


def live_classes(session: Session, since: datetime) -> list[str]:
    """Return the device classes with a working device whose worker has been heard of since a time."""
    return list(session.execute(_LIVE_CLASSES, {"since": since}).scalars())


def devices(session: Session) -> Sequence[tuple[Device, Worker]]:
    """Return every device with its worker."""
    query = (
        select(Device, Worker)
        .join(Worker, Device.worker_id == Worker.id)
        .order_by(Worker.executor_id, Device.device_class, Device.uuid)
    )
    return session.execute(query).all()


def workers(session: Session) -> Sequence[Worker]:
    """Return every worker."""
    return session.execute(select(Worker).order_by(Worker.executor_id)).scalars().all()
