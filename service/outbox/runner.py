"""Works on what is due: at least once, with growing pauses, and without one thing standing in the way of another.

A delivery is claimed by a lease, so any number of processes may run this. One that dies in the middle leaves a lease
that ends; the next try finds out what the first one did.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from service.db import DATABASE_AWAY, Database
from service.logs import logger
from service.models import utc_now
from service.outbox import queries
from service.outbox.queries import Claimed

BATCH = 50
MAX_FRUITLESS_TRIES = 8
LONGEST_WAIT = timedelta(minutes=5)
AWAY_S = 5.0


class TryLater(Exception):  # noqa: N818 (says what to do)
    """A try that failed through no fault of what was to be delivered; `wait` is given when it is known.

    `untried` says that nothing was tried at all, because something has to end first.
    """

    def __init__(self, message: str, wait: timedelta | None = None, *, untried: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.untried = untried


class Refused(Exception):  # noqa: N818 (says what happened)
    """A try that will fail again unless something changes."""


Handler = Callable[[Claimed], None]


@dataclass
class Outbox:
    """`handlers` bring the subject of a delivery up to date, by kind; `first_wait` doubles with every failed try."""

    database: Database
    handlers: Mapping[str, Handler]
    first_wait: timedelta = timedelta(seconds=2)
    _random: random.Random = field(default_factory=random.Random)

    def run(self, stopping: threading.Event, poll_s: float = 1.0, until: float = math.inf) -> None:
        """Work until stopped, or until a time of the monotonic clock."""
        while not stopping.is_set() and time.monotonic() < until:
            try:
                worked = self.work(stopping)
            except DATABASE_AWAY as error:
                logger.warning("outbox_waits", error=str(error).splitlines()[0])
                stopping.wait(AWAY_S)
                continue
            if not worked:
                stopping.wait(poll_s)

    def work(self, stopping: threading.Event | None = None) -> int:
        """Work on everything that is due now, once; return how many tries there were."""
        with self.database.reading() as session:
            waiting = queries.due(session, list(self.handlers), utc_now(), BATCH)
        tried = 0
        for delivery_id in waiting:
            if stopping is not None and stopping.is_set():
                break
            with self.database.transaction() as session:
                claimed = queries.claim(session, delivery_id, utc_now())
            if claimed is not None:
                tried += 1
                self._deliver(claimed)
        return tried

    def _deliver(self, claimed: Claimed) -> None:
        log = logger.bind(delivery=str(claimed.id), kind=claimed.kind, attempt=claimed.attempts)
        try:
            self.handlers[claimed.kind](claimed)
        except DATABASE_AWAY:
            raise
        except TryLater as error:
            wait = error.wait or self._wait(claimed.attempts)
            log.warning("delivery_postponed", error=str(error), wait_s=round(wait.total_seconds(), 1))
            with self.database.transaction() as session:
                put = queries.give_back if error.untried else queries.postpone
                arguments = {} if error.untried else {"park": False}
                put(session, claimed, utc_now() + wait, str(error), **arguments)
        except Exception as error:
            self._fail(claimed, error)
        else:
            with self.database.transaction() as session:
                queries.settle(session, claimed, utc_now())

    def _fail(self, claimed: Claimed, error: Exception) -> None:
        park = claimed.attempts >= MAX_FRUITLESS_TRIES
        log = logger.bind(delivery=str(claimed.id), kind=claimed.kind, attempt=claimed.attempts, parked=park)
        if isinstance(error, Refused):
            log.warning("delivery_refused", error=str(error))
        else:
            log.exception("delivery_broke")
        message = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        with self.database.transaction() as session:
            queries.postpone(session, claimed, utc_now() + self._wait(claimed.attempts), message, park=park)

    def _wait(self, attempts: int) -> timedelta:
        longest = min(self.first_wait * 2 ** min(attempts - 1, 20), LONGEST_WAIT)
        wait: timedelta = longest * self._random.uniform(0.75, 1.0)
        return wait
