"""Takes new jobs: those that arrive while others are being stored are stored together, in the next transaction.

What costs most of taking a job is beginning, committing and being woken up, not writing its rows; and a database
commits one after the other anyway. One thread stores a batch at a time while the event loop reads further requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from uuid_utils.compat import uuid7

from service.auth import Caller, Principal, authenticate, authorized, note_use
from service.context import AppContext
from service.db import DATABASE_AWAY
from service.devices.service import served_classes
from service.errors import Conflict, ServiceError
from service.jobs import queries
from service.jobs.placing import fill_measurements, insert_jobs
from service.jobs.schemas import JobOut, JobRequest
from service.jobs.service import get_job, job_out
from service.models import Job, JobKind, Measurement, Repository, State, utc_now
from service.repositories.queries import by_names
from service.repositories.service import CommitFinder, pin, unknown_repository

MAX_BATCH = 64


@dataclass(eq=False)
class Ticket:
    """A request for a job on its way: `outcome` is the job, or the error that ended it."""

    request: JobRequest
    idempotency_key: str | None
    caller: Caller
    outcome: JobOut | Exception | None = None
    principal: Principal | None = None
    repository: Repository | None = None
    job: dict[str, Any] = field(default_factory=dict)
    measurements: list[dict[str, Any]] = field(default_factory=list)

    def fingerprint(self) -> str:
        """Return the hash by which two bodies that mean the same are the same."""
        # A kind that is not told is left out: bodies of before there were kinds keep their hashes.
        left_out = {"kind"} if self.request.kind is JobKind.COMPARE else None
        return hashlib.sha256(self.request.model_dump_json(exclude=left_out).encode()).hexdigest()


class Intake:
    """Takes tickets on the event loop and has them stored in batches, one batch at a time."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._waiting: list[tuple[Ticket, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def take(self, ticket: Ticket) -> JobOut:
        """Return the job of a ticket when it is committed; raises what stands against it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ticket, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name="job-intake")
        await done
        assert ticket.outcome is not None
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            await run_in_threadpool(process, self._context, [ticket for ticket, _ in batch])
            for _, done in batch:
                if not done.done():  # a client that went away has canceled it
                    done.set_result(None)


def process(context: AppContext, tickets: Sequence[Ticket]) -> None:
    """Give each ticket its outcome: store its job with its measurements and their places in the queue, or refuse it."""
    try:
        _identify(context, tickets)
        finders: dict[str, CommitFinder] = {}
        for ticket in _open(tickets):
            _prepare(context, ticket, finders)
        _store(context, _open(tickets))
    except Exception as error:  # of the whole batch: the database is away
        for ticket in _open(tickets):
            ticket.outcome = error


def _open(tickets: Iterable[Ticket]) -> list[Ticket]:
    return [ticket for ticket in tickets if ticket.outcome is None]


def _identify(context: AppContext, tickets: Sequence[Ticket]) -> None:
    """Find out who asks, refuse who may not, and answer requests that have been answered before."""
    with context.database.reading() as session:
        principals = authenticate(session, {ticket.caller for ticket in tickets})
        repositories = by_names(session, {ticket.request.repository for ticket in tickets})
        for ticket in tickets:
            try:
                ticket.principal = authorized(principals[ticket.caller], "submit")
                context.write_rate.count(ticket.caller.rate_key)
            except ServiceError as error:
                ticket.outcome = error
        _answer_known(session, _open(tickets))
    for ticket in _open(tickets):
        ticket.repository = repositories.get(ticket.request.repository)
        if ticket.repository is None:
            ticket.outcome = unknown_repository("repository", ticket.request.repository)
    note_use(context.database, [principal for principal in principals.values() if isinstance(principal, Principal)])


def _answer_known(session: Session, tickets: Sequence[Ticket]) -> None:
    """Give the tickets whose idempotency key was used before the job that was made then, or the conflict."""
    keys = {ticket.idempotency_key for ticket in tickets if ticket.idempotency_key is not None}
    known = queries.jobs_by_key(session, keys) if keys else {}
    for ticket in tickets:
        if ticket.idempotency_key in known:
            job_id, body_sha256 = known[ticket.idempotency_key]
            same = body_sha256 == ticket.fingerprint()
            ticket.outcome = get_job(session, job_id) if same else _conflict(ticket.idempotency_key)


def _conflict(idempotency_key: str | None) -> Conflict:
    expected = "the same body as before, or a new key for a new job"
    message = f"Idempotency-Key: got {idempotency_key!a} with another body than before, expected {expected}"
    return Conflict("idempotency_conflict", message)


def _prepare(context: AppContext, ticket: Ticket, finders: dict[str, CommitFinder]) -> None:
    """Resolve the refs of a ticket and put the values of its job together; `finders` are those of the batch by name."""
    request = ticket.request
    assert ticket.repository is not None
    assert ticket.principal is not None
    try:
        finder = finders.get(request.repository)
        if finder is None:
            finder = CommitFinder(context.refs, context.settings.data_dir, ticket.repository)
            finders[request.repository] = finder
        pinned = pin(finder, request.commit, request.baseline)
    except Exception as error:  # of this ticket alone
        ticket.outcome = error
        return
    ticket.job = {
        "id": uuid7(),
        "created_at": utc_now(),
        "kind": request.kind,
        "repository_id": ticket.repository.id,
        "requested_commit": request.commit,
        "requested_baseline": request.baseline,
        "commit_sha": pinned.commit,
        "baseline_sha": pinned.baseline,
        "cases": request.cases,
        "reason": request.reason,
        "pull_request": request.pull_request,
        "priority": request.priority,
        "policy": {"max_pairs": request.max_pairs or context.settings.max_pairs},
        "state": State.QUEUED,
        "cancel_requested": False,
        "idempotency_key": ticket.idempotency_key,
        "body_sha256": ticket.fingerprint(),
        "token_id": ticket.principal.token_id,
    }


def _store(context: AppContext, tickets: Sequence[Ticket]) -> None:
    """Store the jobs of tickets in one transaction; where one makes it fail, each in a transaction of its own."""
    if not tickets:
        return
    try:
        with context.database.transaction() as session:
            _answer_known(session, tickets)  # another process may have been faster
            new = _first_of_each_key(_open(tickets))
            served = served_classes(session)
            for ticket in new:
                fill_measurements(ticket, ticket.request.devices or served)
            insert_jobs(context.queue.enqueue_measurements, session, new)
    except DATABASE_AWAY:  # it would be away for each of them, and each would wait for it
        raise
    except Exception as error:
        _store_apart(context, _open(tickets), error)
        return
    for ticket in new:
        ticket.outcome = _stored(ticket, served)
    _store(context, _open(tickets))  # those with the key of another one in this batch, which is known now


def _store_apart(context: AppContext, tickets: Sequence[Ticket], error: Exception) -> None:
    if len(tickets) > 1:
        for ticket in tickets:
            _store(context, [ticket])
    elif isinstance(error, IntegrityError):  # another process was faster with the idempotency key; else it is a defect
        with context.database.reading() as session:
            _answer_known(session, tickets)
    for ticket in _open(tickets):
        ticket.outcome = error


def _first_of_each_key(tickets: Sequence[Ticket]) -> list[Ticket]:
    """Return one ticket per idempotency key and those without, in the order in which every process inserts keys.

    Two that inserted the same keys in different orders would wait for each other.
    """
    first: dict[str | Ticket, Ticket] = {}
    for ticket in tickets:
        first.setdefault(ticket.idempotency_key or ticket, ticket)
    return sorted(first.values(), key=lambda ticket: ticket.idempotency_key or "")


def _stored(ticket: Ticket, served: Sequence[str]) -> JobOut:
    assert ticket.repository is not None
    measurements = [(Measurement(**values), None, None) for values in ticket.measurements]
    return job_out((Job(**ticket.job), ticket.repository.name, None, None), measurements, served, {})
