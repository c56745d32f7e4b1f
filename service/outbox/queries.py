"""Reads and conditional updates of deliveries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Select, case, or_, select, update
from sqlalchemy.orm import Session

from service.models import CheckRun, Delivery, DeliveryKind

LEASE = timedelta(minutes=5)


@dataclass(frozen=True)
class Claimed:
    """A delivery that this process alone works on until its lease ends."""

    id: UUID
    kind: str
    subject_id: UUID
    target: str
    version: int
    attempts: int


def _is_due(now: datetime) -> ColumnElement[bool]:
    free = or_(Delivery.leased_until.is_(None), Delivery.leased_until < now)
    return (Delivery.wanted > Delivery.delivered) & (Delivery.due_at <= now) & ~Delivery.parked & free


def due(session: Session, kinds: Collection[str], now: datetime, limit: int) -> Sequence[UUID]:
    """Return deliveries whose time has come, the longest waiting first."""
    query = select(Delivery.id).where(_is_due(now), Delivery.kind.in_(kinds))
    return session.execute(query.order_by(Delivery.due_at, Delivery.id).limit(limit)).scalars().all()


def claim(session: Session, delivery_id: UUID, now: datetime) -> Claimed | None:
    """Take a delivery for this process; None when another one was faster."""
    statement = (
        update(Delivery)
        .where(Delivery.id == delivery_id, _is_due(now))
        .values(leased_until=now + LEASE, attempts=Delivery.attempts + 1)
        .returning(
            Delivery.id,
            Delivery.kind,
            Delivery.subject_id,
            Delivery.target,
            Delivery.wanted,
            Delivery.attempts,
        )
        .execution_options(synchronize_session=False)
    )
    row = session.execute(statement).one_or_none()
    return None if row is None else Claimed(*row)


def settle(session: Session, claimed: Claimed, now: datetime) -> None:
    """Record that the outside world has what was wanted when the delivery was claimed."""
    values = {"delivered": claimed.version, "attempts": 0, "leased_until": None, "last_error": None, "due_at": now}
    session.execute(update(Delivery).where(Delivery.id == claimed.id).values(**values))


def postpone(session: Session, claimed: Claimed, due_at: datetime, error: str, *, park: bool) -> None:
    """Record a failed try and when the next one is due; a parked one waits for a change of its subject."""
    values = {"leased_until": None, "due_at": due_at, "last_error": error, "parked": park}
    session.execute(update(Delivery).where(Delivery.id == claimed.id).values(**values))


def give_back(session: Session, claimed: Claimed, due_at: datetime, error: str) -> None:
    """Record that nothing was tried, because a limit has to end first: that counts for no attempt."""
    values = {"leased_until": None, "due_at": due_at, "last_error": error, "attempts": claimed.attempts - 1}
    session.execute(update(Delivery).where(Delivery.id == claimed.id).values(**values))


def want(session: Session, kind: DeliveryKind, subjects: Select[tuple[UUID]] | Collection[UUID]) -> None:
    """Say in the session's transaction that the subjects have changed; those without a delivery stay without."""
    statement = (
        update(Delivery)
        .where(Delivery.kind == kind, Delivery.subject_id.in_(subjects))
        .values(wanted=Delivery.wanted + 1, parked=False, attempts=case((Delivery.parked, 0), else_=Delivery.attempts))
        .execution_options(synchronize_session=False)
    )
    session.execute(statement)


def checks_of(session: Session, job_id: UUID) -> Sequence[tuple[UUID, UUID | None]]:
    """Return the checks that show a job, and the pull requests they belong to."""
    query = select(CheckRun.id, CheckRun.pull_request_id).where(CheckRun.job_id == job_id).order_by(CheckRun.id)
    return [(check_id, pull_id) for check_id, pull_id in session.execute(query)]
