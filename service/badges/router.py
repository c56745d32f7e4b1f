"""/badge.svg."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict

from service.auth import Reader
from service.badges import service
from service.context import Context
from service.fields import DeviceClass, RefName, RepositoryName

router = APIRouter(tags=["badges"])


class BadgeQuery(BaseModel):
    """Which branch on which device class; without a branch the default one."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName
    device_class: DeviceClass = "cpu"
    branch: RefName | None = None


@router.get("/badge.svg", response_class=Response, responses={200: {"content": {"image/svg+xml": {}}}})
def badge(query: Annotated[BadgeQuery, Query()], context: Context, _reader: Reader) -> Response:
    """Return a picture of a branch's last verdicts, for a README."""
    with context.database.reading() as session:
        svg = service.badge(context, session, query.repository, query.branch, query.device_class)
    # GitHub's image proxy keeps pictures for long unless it is told not to.
    return Response(svg, media_type="image/svg+xml", headers={"Cache-Control": "no-cache, max-age=0"})
