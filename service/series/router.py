"""/series and /overview."""

from __future__ import annotations

import hashlib
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, ConfigDict

from service.auth import Reader
from service.context import Context
from service.fields import CaseName, DeviceClass, RepositoryName
from service.paging import Cursor, Limit, cursor_id, decode_cursor
from service.series import service
from service.series.queries import SeriesFilter
from service.series.schemas import ChangePointList, Overview, PointList, SeriesList, SeriesOut

router = APIRouter(tags=["series"])


class SeriesQuery(BaseModel):
    """Which series to list."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None
    case: CaseName | None = None
    device_class: DeviceClass | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class OverviewQuery(BaseModel):
    """Which series to show."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None


@router.get("/series")
def list_series(query: Annotated[SeriesQuery, Query()], context: Context, _reader: Reader) -> SeriesList:
    """List series by case name."""
    after = None
    if query.cursor is not None:
        case, series_id = decode_cursor(query.cursor, 2)
        after = (case, cursor_id(series_id, query.cursor))
    wanted = SeriesFilter(query.repository, query.case, query.device_class)
    with context.database.reading() as session:
        return service.list_series(session, wanted, after, query.limit)


@router.get("/series/{series_id}")
def get_series(series_id: UUID, context: Context, _reader: Reader) -> SeriesOut:
    """Return a series."""
    with context.database.reading() as session:
        return service.get_series(session, series_id)


@router.get(
    "/series/{series_id}/points",
    response_model=PointList,
    responses={304: {"description": "Nothing has changed since the ETag in `If-None-Match`"}},
)
def list_points(
    series_id: UUID, context: Context, _reader: Reader, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Return the points of a series in the order of their commits; `ETag` names this very answer."""
    with context.database.reading() as session:
        body = service.list_points(session, series_id).model_dump_json().encode()
    # Of the body, not of row counts: points are corrected in place when a measurement is judged again.
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if if_none_match is not None and etag in (tag.strip() for tag in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


@router.get("/series/{series_id}/change-points")
def list_change_points(series_id: UUID, context: Context, _reader: Reader) -> ChangePointList:
    """Return where the level of a series moved, slow drift, and the jobs that look for a change right now."""
    with context.database.reading() as session:
        return service.list_change_points(session, series_id)


@router.get("/overview")
def overview(query: Annotated[OverviewQuery, Query()], context: Context, _reader: Reader) -> Overview:
    """Return one row per series: its last values, its last verdict, its last commit."""
    with context.database.reading() as session:
        return service.overview(session, query.repository)
