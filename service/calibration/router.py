"""/calibration."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from service.auth import Reader
from service.calibration import service
from service.calibration.queries import CalibrationFilter
from service.calibration.schemas import CalibrationOut
from service.context import Context
from service.fields import DeviceClass, RepositoryName
from service.models import utc_now

router = APIRouter(tags=["calibration"])


class CalibrationQuery(BaseModel):
    """Which calibrations to sum up."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None
    device_class: DeviceClass | None = None
    days: int = Field(default=90, ge=1, le=3650, description="Only those of the last days")


@router.get("/calibration")
def get_calibration(query: Annotated[CalibrationQuery, Query()], context: Context, _reader: Reader) -> CalibrationOut:
    """Return what identical code measured against itself says: false alarms, noise floor, detectable effect."""
    wanted = CalibrationFilter(utc_now() - timedelta(days=query.days), query.repository, query.device_class)
    with context.database.reading() as session:
        return service.running_rates(session, wanted, query.days)
