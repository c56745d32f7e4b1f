"""Answers about workers and their devices."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel


class DeviceOut(BaseModel):
    """A CPU or GPU. `status` is ready, busy, unfit or gone; `served` says whether its worker is alive."""

    id: UUID
    worker_id: UUID
    worker: str
    device_class: str
    uuid: str
    name: str
    status: str
    status_reason: str | None
    served: bool
    info: dict[str, Any]
    seen_at: datetime


class DeviceList(BaseModel):
    """Every device that a worker has reported."""

    items: list[DeviceOut]


class WorkerOut(BaseModel):
    """A supervisor on a host; `alive` means that its heartbeat is younger than a minute."""

    id: UUID
    executor_id: str
    host: str
    pid: int
    version: str
    sandbox: str
    alive: bool
    heartbeat_at: datetime
    devices: list[DeviceOut]


class WorkerList(BaseModel):
    """Every worker that has reported."""

    items: list[WorkerOut]
