"""/jobs."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool

from service.auth import Reader, Submitter, caller_of, token_scheme
from service.context import Context
from service.errors import InvalidInput
from service.fields import CommitPrefix, RepositoryName
from service.jobs import events, service
from service.jobs.intake import Intake, Ticket
from service.jobs.queries import JobFilter
from service.jobs.schemas import JobList, JobOut, JobRequest
from service.models import State
from service.paging import Cursor, Limit, decode_id_cursor
from service.problems import invalid_request

router = APIRouter(prefix="/jobs", tags=["jobs"])

IDEMPOTENCY_KEY: TypeAdapter[str] = TypeAdapter(
    Annotated[str, StringConstraints(min_length=1, max_length=250, pattern=r"^[\x21-\x7e]+$")]
)
LastEventId = Annotated[UUID | None, Header(description="Sent by a browser that reconnects")]


class JobQuery(BaseModel):
    """Which jobs to list."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None
    state: State | None = None
    commit: CommitPrefix | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


_SUBMIT_OPENAPI: dict[str, Any] = {
    "security": [{token_scheme.scheme_name: []}],
    "requestBody": {"required": True, "content": {"application/json": {"schema": JobRequest.model_json_schema()}}},
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same key with the same body makes one job, however often it is posted",
            "schema": IDEMPOTENCY_KEY.json_schema(),
        }
    ],
}


# It reads the request by itself, because the framework's resolving of parameters took 0.2 of 1.5 ms of CPU (20 clients
# on SQLite, 2 cores, 2026-11-30). So the OpenAPI document has to be told what it takes.
@router.post("", status_code=202, response_model=JobOut, openapi_extra=_SUBMIT_OPENAPI)
async def submit_job(request: Request) -> Response:
    """Take a commit to measure: it is queued for every device class, and `Location` is where to follow it."""
    ticket = Ticket(await _body_of(request), _idempotency_key_of(request), caller_of(request))
    intake: Intake = request.app.state.intake
    job = await intake.take(ticket)
    headers = {"Location": f"/api/v1/jobs/{job.id}"}
    return Response(job.model_dump_json(), 202, headers, "application/json")


async def _body_of(request: Request) -> JobRequest:
    # A web page may send a text to any server, but JSON only where it is allowed to: the type must be told.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidInput.of("invalid_request", "Content-Type", kind, "application/json")
    try:
        return JobRequest.model_validate_json(await request.body())
    except ValidationError as error:
        raise _refused(error, "body") from None


def _idempotency_key_of(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    try:
        return None if key is None else IDEMPOTENCY_KEY.validate_python(key)
    except ValidationError as error:
        raise _refused(error, "header", "idempotency-key") from None


def _refused(error: ValidationError, *place: str) -> InvalidInput:
    found = error.errors(include_url=False, include_context=False)
    return invalid_request([{**item, "loc": (*place, *item["loc"])} for item in found])


@router.get("")
def list_jobs(query: Annotated[JobQuery, Query()], context: Context, _reader: Reader) -> JobList:
    """List jobs, newest first."""
    wanted = JobFilter(query.repository, query.state, query.commit)
    with context.database.reading() as session:
        return service.list_jobs(session, wanted, decode_id_cursor(query.cursor), query.limit)


@router.get("/{job_id}")
def get_job(job_id: UUID, context: Context, _reader: Reader) -> JobOut:
    """Return a job with its measurements: stage, progress, and the error of one that failed."""
    with context.database.reading() as session:
        return service.get_job(session, job_id)


@router.post("/{job_id}/cancel")
def cancel_job(job_id: UUID, context: Context, _submitter: Submitter) -> JobOut:
    """Cancel a job: what is queued at once, what runs as soon as its worker sees it. One that has ended stays as is."""
    return service.cancel(context, job_id)


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses={204: {"description": "The job has ended and `Last-Event-ID` was its last event"}},
)
async def follow_job(
    job_id: UUID, request: Request, context: Context, _reader: Reader, last_event_id: LastEventId = None
) -> Response:
    """Send what happened to a job and then what happens, as server-sent events; ends with its `end`."""
    reader = events.EventReader(context.database, job_id, last_event_id)
    first = await run_in_threadpool(reader.read)
    if reader.ended and not first:
        return Response(status_code=204)  # tells a browser to reconnect no more
    feed: events.EventFeed = request.app.state.feed
    return EventSourceResponse(events.stream(feed, reader, first))
