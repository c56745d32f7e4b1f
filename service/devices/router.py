"""/devices and /workers."""

from __future__ import annotations

from fastapi import APIRouter

from service.auth import Reader
from service.context import Context
from service.devices import service
from service.devices.schemas import DeviceList, WorkerList

router = APIRouter(tags=["devices"])


@router.get("/devices")
def list_devices(context: Context, _reader: Reader) -> DeviceList:
    """List every CPU and GPU that a worker has reported."""
    with context.database.reading() as session:
        return service.list_devices(session)


@router.get("/workers")
def list_workers(context: Context, _reader: Reader) -> WorkerList:
    """List every worker with its devices."""
    with context.database.reading() as session:
        return service.list_workers(session)
