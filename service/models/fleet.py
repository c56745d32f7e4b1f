"""Workers, their devices, and access tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified, utc_now


class Worker(Identified, Base):
    """A supervisor on a host. `executor_id` is what the queue engine knows it by: stable across restarts."""

    __tablename__ = "worker"

    executor_id: Mapped[str] = mapped_column(String(120), unique=True)
    host: Mapped[str] = mapped_column(String(250))
    pid: Mapped[int]
    version: Mapped[str] = mapped_column(String(40))
    sandbox: Mapped[str] = mapped_column(String(20))  # bubblewrap | none
    heartbeat_at: Mapped[datetime] = mapped_column(default=utc_now)


class Device(Identified, Base):
    """A CPU or GPU that a worker owns. `status` is ready, busy, unfit or gone."""

    __tablename__ = "device"
    __table_args__ = (UniqueConstraint("worker_id", "uuid"),)

    worker_id: Mapped[UUID] = mapped_column(ForeignKey("worker.id"), index=True)
    device_class: Mapped[str] = mapped_column(String(120), index=True)
    uuid: Mapped[str] = mapped_column(String(80))
    name: Mapped[str] = mapped_column(String(250))
    status: Mapped[str] = mapped_column(String(20))
    status_reason: Mapped[str | None] = mapped_column(String(500))
    info: Mapped[dict[str, Any]]
    seen_at: Mapped[datetime] = mapped_column(default=utc_now)


class Token(Identified, Base):
    """An access token: only its sha256 is stored. Scopes: submit, triage, worker, admin."""

    __tablename__ = "token"

    name: Mapped[str] = mapped_column(String(120))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scopes: Mapped[list[str]]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
