"""Server-sent events of jobs: one poll for all listeners together, and nothing held for a listener that waits.

The rows may be written by other processes on other hosts, on a database without notifications; so a single task per
process asks, twice a second and only while somebody listens, for the number of events of the jobs listened to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sse_starlette import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from service.db import Database
from service.jobs import queries
from service.jobs.schemas import JobEventOut
from service.jobs.service import unknown_job
from service.logs import logger
from service.models import TERMINAL, utc_now

POLL_INTERVAL_S = 0.5
AWAY_INTERVAL_S = 5.0  # while the database does not answer
# Ids are ordered by the clock of whoever made them, and visible only once committed: an event may appear below one
# that was already sent. Anything this much older than the newest is looked at again.
OVERLAP_MS = 60_000


class EventFeed:
    """Wakes listeners when a job has something new."""

    def __init__(self, database: Database, interval_s: float = POLL_INTERVAL_S) -> None:
        self._database = database
        self._interval_s = interval_s
        self._listeners: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._marks: dict[UUID, tuple[str, int]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def listening(self, job_id: UUID) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the job may have something new."""
        changed = asyncio.Event()
        self._listeners[job_id].add(changed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll(), name="job-event-feed")
        try:
            yield changed
        finally:
            self._listeners[job_id].discard(changed)
            if not self._listeners[job_id]:
                del self._listeners[job_id]
                self._marks.pop(job_id, None)

    async def close(self) -> None:
        """End the polling task."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _poll(self) -> None:
        while self._listeners:
            try:
                marks = await run_in_threadpool(self._read_marks, tuple(self._listeners))
            except SQLAlchemyError as error:  # listeners wait until it is back
                logger.warning("event_feed_waits", error=str(error).splitlines()[0])
                await asyncio.sleep(AWAY_INTERVAL_S)
                continue
            for job_id, mark in marks.items():
                if self._marks.get(job_id) != mark:
                    self._marks[job_id] = mark
                    for changed in self._listeners.get(job_id, ()):
                        changed.set()
            await asyncio.sleep(self._interval_s)

    def _read_marks(self, job_ids: tuple[UUID, ...]) -> dict[UUID, tuple[str, int]]:
        with self._database.reading() as session:
            return queries.event_marks(session, job_ids)


@dataclass
class EventReader:
    """Reads the events of one job that its listener has not had; `last` is the id of the newest it has."""

    database: Database
    job_id: UUID
    last: UUID | None
    _sent: set[UUID] = field(default_factory=set)
    _closed: bool = False
    ended: bool = False

    def read(self) -> list[JobEventOut]:
        """Return the new events; sets `ended` when the job has ended and these are its last."""
        resumed_at = self.last if not self._sent else None
        with self.database.reading() as session:
            state = queries.state_of(session, self.job_id)  # before the events: the end is committed with its event
            rows = queries.events_after(session, self.job_id, _floor(self.last))
        if state is None:
            raise unknown_job(self.job_id)
        events = []
        for row in rows:
            known = row.id in self._sent or (resumed_at is not None and row.id <= resumed_at)
            self._sent.add(row.id)
            self._closed = self._closed or (row.kind == "end" and row.measurement_id is None)
            self.last = row.id if self.last is None else max(self.last, row.id)
            if not known:
                events.append(
                    JobEventOut(
                        id=row.id,
                        job_id=row.job_id,
                        measurement_id=row.measurement_id,
                        kind=row.kind,
                        at=row.created_at,
                        payload=row.payload,
                    )
                )
        self.ended = state in TERMINAL
        if self.ended and not self._closed:
            self._closed = True
            events.append(
                JobEventOut(
                    id=None, job_id=self.job_id, measurement_id=None, kind="end", at=utc_now(), payload={"state": state}
                )
            )
        return events


def _floor(last: UUID | None) -> UUID | None:
    if last is None:
        return None
    milliseconds = max(0, (last.int >> 80) - OVERLAP_MS)  # the first 48 bits of a UUIDv7
    return UUID(int=milliseconds << 80)


async def stream(feed: EventFeed, reader: EventReader, events: list[JobEventOut]) -> AsyncIterator[ServerSentEvent]:
    """Yield events already read, then new ones as they appear, until the job has ended."""
    with feed.listening(reader.job_id) as changed:
        while True:
            for event in events:
                identity = str(event.id) if event.id else None
                yield ServerSentEvent(event.model_dump_json(), event=event.kind, id=identity)
            if reader.ended:
                return
            await changed.wait()
            changed.clear()
            try:
                events = await run_in_threadpool(reader.read)
            except SQLAlchemyError:
                await asyncio.sleep(AWAY_INTERVAL_S)
                changed.set()
                events = []
