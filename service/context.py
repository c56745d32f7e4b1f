"""What every request handler may use, made once when the application starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol
from uuid import UUID

from fastapi import Depends, Request
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from service.db import Database
from service.rates import WriteRate
from service.repositories.refs import RefResolver
from service.settings import Settings


class MeasurementQueue(Protocol):
    """The queue of measurements; the module `service.engine` is one."""

    def enqueue_measurements(self, session: Session, places: Sequence[tuple[UUID, str, int]]) -> None:
        """Queue measurements (id, device class, priority) in the session's transaction."""

    def cancel_measurement(self, database: Engine, measurement_id: UUID) -> None:
        """Take a measurement off its queue, in a transaction of its own."""


@dataclass(frozen=True)
class AppContext:
    """Settings and the shared, thread-safe objects of an application."""

    settings: Settings
    database: Database
    refs: RefResolver
    queue: MeasurementQueue
    write_rate: WriteRate


async def _context_of(request: Request) -> AppContext:  # async: a plain function would cost a thread per request
    context: AppContext = request.app.state.context
    return context


Context = Annotated[AppContext, Depends(_context_of)]
