"""The HTTP application: routes, limits and error answers around the shared context."""

from __future__ import annotations

import contextlib
import functools
import gc
import gzip
import importlib.util
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from service import db, logs, pages, problems
from service.alerts.router import router as alerts
from service.badges.router import router as badges
from service.calibration.router import router as calibration
from service.context import AppContext, Context, MeasurementQueue
from service.devices.router import router as devices
from service.errors import NotFound, Unavailable
from service.github.router import MAX_WEBHOOK_BYTES, WEBHOOK_PATH
from service.github.router import router as github
from service.jobs.events import EventFeed
from service.jobs.intake import Intake
from service.jobs.router import router as jobs
from service.judging.router import router as judging
from service.middleware import BodyLimit, RequestLog
from service.rates import WriteRate
from service.repositories.refs import RefResolver
from service.repositories.router import router as repositories
from service.results.router import router as results
from service.series.router import router as series
from service.settings import Settings

API = "/api/v1"
GZIP_FROM_BYTES = 2048

_ERRORS: dict[int | str, dict[str, object]] = {
    status: {"model": problems.Problem, "description": description, "content": {problems.MEDIA_TYPE: {}}}
    for status, description in {
        401: "A token is needed",
        403: "The token lacks a scope",
        404: "Not found",
        409: "The idempotency key was used with another body",
        413: "The body is over the limit",
        422: "The request cannot be accepted: `errors` says which field and why",
        429: "Too many writes",
    }.items()
}


def create_app(
    settings: Settings, *, database: db.Database | None = None, queue: MeasurementQueue | None = None
) -> FastAPI:
    """Return the application.

    Parameters
    ----------
    settings
        Where things live, and limits.
    database, queue
        Taken instead of those that the settings name; a database that is passed in is left open.
    """
    is_ours = database is None
    context = make_context(settings, database=database, queue=queue)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        require_current_schema(context.database)
        yield
        await app.state.feed.close()
        context.refs.close()
        if is_ours:
            context.database.dispose()

    app = FastAPI(
        title="s2bench",
        version=metadata.version("s2bench"),
        summary="What did this commit do to speed and to correctness?",
        openapi_url=f"{API}/openapi.json",
        docs_url=None,  # its page loads scripts from a public host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.context = context
    app.state.feed = EventFeed(context.database)
    app.state.intake = Intake(context)
    problems.install(app)
    app.add_middleware(GZipMiddleware, minimum_size=GZIP_FROM_BYTES, compresslevel=5)
    others = {f"{API}{WEBHOOK_PATH}": MAX_WEBHOOK_BYTES}
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, others=others)
    app.add_middleware(RequestLog, verbose=settings.log_requests)
    app.router.routes.extend(_routes())
    pages.mount_static(app, settings.dashboards_dir)
    return app


def make_context(
    settings: Settings, *, database: db.Database | None = None, queue: MeasurementQueue | None = None
) -> AppContext:
    """Return what handlers and the outbox share, from settings where it is not passed in."""
    return AppContext(
        settings=settings,
        database=database or db.Database(settings.database_url),
        refs=RefResolver(),
        queue=queue or _engine(),
        write_rate=WriteRate(settings.write_rate_limit),
    )


def serve(settings: Settings) -> None:
    """Serve the application until SIGTERM or Ctrl-C."""
    import uvicorn

    logs.configure(settings.log_level, as_json=settings.log_json)
    database = db.Database(settings.database_url)
    require_current_schema(database)
    database.dispose()
    app = create_app(settings)
    # What is loaded stays: without this a full collection walks all of it and holds every request for 50 to 150 ms.
    gc.collect()
    gc.freeze()
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        # A header must not make a request look as if it came from this machine: see service/auth.py.
        proxy_headers=False,
        # An open event stream would otherwise hold the process for ever.
        timeout_graceful_shutdown=3,
    )


def _engine() -> MeasurementQueue:
    from service import engine

    return engine


def require_current_schema(database: db.Database) -> None:
    """Raise when the database is not at the newest schema: every request would fail in its own way."""
    current, newest = db.current_revision(database), db.head_revision()
    if current != newest:
        message = f"database: got schema {current or 'none'}, expected {newest}: run `s2bench db upgrade`"
        raise Unavailable("schema_outdated", message)


@functools.cache
def _routes() -> list[BaseRoute]:
    """Return the routes that every application has: they know nothing of it, and making them takes 0.2 s."""
    api = APIRouter(prefix=API, responses=_ERRORS)
    for router in (jobs, repositories, results, judging, series, devices, alerts, badges, calibration, github):
        api.include_router(router)
    whole = APIRouter()
    for router in (api, site, pages.router):
        whole.include_router(router)
    return whole.routes


site = APIRouter()


@site.get("/healthz", tags=["health"])
def healthz(context: Context) -> dict[str, str]:
    """Say that the service answers and its database does too."""
    context.database.ping()
    return {"status": "ok", "database": "ok"}


@functools.cache
def _plotly_script() -> tuple[Path, bytes, str]:
    """Return the path of Plotly's script, its gzip form, and its ETag. Plotly itself is not imported: it is large."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        raise NotFound("no_plotly", "the Python package plotly is not installed on the server")
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    compressed = gzip.compress(path.read_bytes(), compresslevel=6, mtime=0)
    return path, compressed, f'W/"plotly-{metadata.version("plotly")}"'


@site.get("/static/vendor/plotly.min.js", include_in_schema=False)
def plotly_script(request: Request) -> Response:
    """Return Plotly's script from its installed package."""
    path, compressed, etag = _plotly_script()
    age = "max-age=31536000, immutable" if "v" in request.query_params else "max-age=86400"
    headers = {"ETag": etag, "Cache-Control": f"public, {age}", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type="text/javascript")
    return FileResponse(path, headers=headers, media_type="text/javascript")
