"""/alerts."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from service.alerts import service
from service.alerts.queries import AlertFilter
from service.alerts.schemas import AlertChange, AlertList, AlertOut
from service.auth import Reader, Triager
from service.context import Context
from service.fields import RepositoryName
from service.models import AlertState
from service.paging import Cursor, Limit, decode_id_cursor

router = APIRouter(prefix="/alerts", tags=["alerts"])


class AlertQuery(BaseModel):
    """Which alerts to list."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None
    state: AlertState | None = None
    pull_request: int | None = Field(default=None, ge=1, le=2**31 - 1)
    cursor: Cursor | None = None
    limit: Limit = 50


@router.get("")
def list_alerts(query: Annotated[AlertQuery, Query()], context: Context, _reader: Reader) -> AlertList:
    """List alerts, newest first."""
    wanted = AlertFilter(query.repository, query.state, query.pull_request)
    with context.database.reading() as session:
        before = decode_id_cursor(query.cursor)
        return service.list_alerts(session, wanted, before, query.limit, github_url=context.settings.github_url)


@router.get("/{alert_id}")
def get_alert(alert_id: UUID, context: Context, _reader: Reader) -> AlertOut:
    """Return an alert with its cases and its history."""
    with context.database.reading() as session:
        return service.get_alert(session, alert_id, github_url=context.settings.github_url)


@router.patch("/{alert_id}")
def change_alert(alert_id: UUID, wanted: AlertChange, context: Context, triager: Triager) -> AlertOut:
    """Say what an alert is: acknowledged, expected, invalid, fixed or open, and who looks after it."""
    with context.database.transaction() as session:
        service.change(session, alert_id, wanted, triager.name)
    with context.database.reading() as session:
        return service.get_alert(session, alert_id, github_url=context.settings.github_url)
