"""Stores new jobs with their measurements and their places in the queue, whoever asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.models import Job, JobEvent, Measurement, State

DEFAULT_CLASSES = ("cpu",)  # for "all" while no worker has reported a device

# `enqueue_measurements` of `service.engine`, or what stands in for it.
Enqueue = Callable[[Session, Sequence[tuple[UUID, str, int]]], None]


class NewJob(Protocol):
    """The values of a job and of its measurements, not yet stored."""

    job: dict[str, Any]
    measurements: list[dict[str, Any]]


@dataclass
class JobRows:
    """A new job that nobody waits for."""

    job: dict[str, Any]
    measurements: list[dict[str, Any]] = field(default_factory=list)


def fill_measurements(new: NewJob, device_classes: Sequence[str]) -> None:
    """Give a job one measurement for each device class; where there is none, for the CPU."""
    new.job["devices"] = sorted(set(device_classes or DEFAULT_CLASSES))
    new.measurements = [
        {"id": uuid7(), "job_id": new.job["id"], "device_class": name, "state": State.QUEUED, "attempt": 1}
        for name in new.job["devices"]
    ]


def insert_jobs(enqueue: Enqueue, session: Session, new: Sequence[NewJob]) -> None:
    """Store jobs, their measurements and their places in the queue in the session's transaction."""
    if not new:
        return
    payload = {"state": State.QUEUED, "stage": None}
    events = [{"job_id": one.job["id"], "kind": "stage", "payload": payload} for one in new]
    session.execute(insert(Job), [one.job for one in new])
    session.execute(insert(Measurement), [row for one in new for row in one.measurements])
    session.execute(insert(JobEvent), events)
    enqueue(session, [(row["id"], row["device_class"], one.job["priority"]) for one in new for row in one.measurements])
