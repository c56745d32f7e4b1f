"""HTML pages and the files they load. A page is an empty frame: its data comes through /api/v1 (flow B)."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

SOURCE_DASHBOARDS = Path(__file__).resolve().parent.parent / "dashboards"
PLOTLY_PATH = "/static/vendor/plotly.min.js"

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class PagesNotFoundError(RuntimeError):
    """The folder of the pages is not where it should be."""


class FreshFiles(StaticFiles):
    """Static files that a browser asks about each time (and is told 304): pages of two versions never mix."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or 304 where the browser has it."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def mount_static(app: FastAPI, dashboards_dir: Path | None = None) -> None:
    """Give `app` the templates that `router` renders, and serve /static.

    Parameters
    ----------
    app : FastAPI
        The application that includes `router`.
    dashboards_dir : Path, optional
        Folder that holds `web`; default: `dashboards` of the source tree.

    Raises
    ------
    PagesNotFoundError
        When the folder of templates or of static files is missing.
    """
    dashboards = dashboards_dir or SOURCE_DASHBOARDS
    folders = {name: dashboards / "web" / name for name in ("templates", "static")}
    for name, folder in folders.items():
        if not folder.is_dir():
            raise PagesNotFoundError(
                f"dashboards_dir: got {dashboards}, which has no folder web/{name}; expected the folder `dashboards` "
                "of the s2bench source tree (set S2BENCH_DASHBOARDS_DIR)"
            )
    templates = Jinja2Templates(directory=folders["templates"])
    templates.env.globals["version"] = metadata.version("s2bench")
    # Named by version, so that a browser keeps 5 MB for as long as they are the right ones.
    templates.env.globals["plotly_url"] = f"{PLOTLY_PATH}?v={metadata.version('plotly')}"
    app.state.templates = templates
    app.mount("/static", FreshFiles(directory=folders["static"]), name="static")


def render(request: Request, page: str, **context: Any) -> HTMLResponse:
    """Render the template of a page; every value is escaped there."""
    templates: Jinja2Templates = request.app.state.templates
    headers = {"Cache-Control": "no-cache"}
    return templates.TemplateResponse(request, f"{page}.html", {"page": page, **context}, headers=headers)


@router.get("/")
def overview(request: Request) -> HTMLResponse:
    """One row per case and device class, and the newest jobs."""
    return render(request, "overview")


@router.get("/series/{series_id}")
def series(request: Request, series_id: str) -> HTMLResponse:
    """The trend of one series."""
    return render(request, "series", series_id=series_id)


@router.get("/compare")
def compare(request: Request) -> HTMLResponse:
    """Two commits that were measured against each other; the script reads the query."""
    return render(request, "compare")


@router.get("/jobs")
def jobs(request: Request) -> HTMLResponse:
    """The list of jobs."""
    return render(request, "jobs")


@router.get("/jobs/{job_id}")
def job(request: Request, job_id: str) -> HTMLResponse:
    """One job, live."""
    return render(request, "job", job_id=job_id)


@router.get("/alerts")
def alerts(request: Request) -> HTMLResponse:
    """The list of alerts."""
    return render(request, "alerts")


@router.get("/alerts/{alert_id}")
def alert(request: Request, alert_id: str) -> HTMLResponse:
    """One alert, with its cases and its history."""
    return render(request, "alert", alert_id=alert_id)


@router.get("/calibration")
def calibration(request: Request) -> HTMLResponse:
    """What identical code measured against itself says of the devices."""
    return render(request, "calibration")
