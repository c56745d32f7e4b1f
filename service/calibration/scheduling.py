"""Queues calibrations for idle device classes: a small budget, the last place in the queue, and each of them once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service import engine
from service.calibration import queries
from service.devices.service import served_classes
from service.models import Commit, Job, JobEvent, Measurement, State
from service.models.upsert import insert_if_new

IDLE_PRIORITY = 1001  # behind everything that anybody can ask for
REASON = "calibrate: the device was idle"


@dataclass(frozen=True)
class IdleRule:
    """How long a device class must have been idle, and of which time one calibration may be had.

    The times are cut at multiples of `every` since 1970, so that all workers mean the same ones.
    """

    after: timedelta
    every: timedelta
    cases: str
    max_pairs: int


def schedule_idle(
    session: Session, device_classes: Mapping[str, Collection[str]], rule: IdleRule, now: datetime
) -> list[UUID]:
    """Queue one calibration for each served class that is due one, in the session's transaction; return the jobs.

    `device_classes` maps each class to those whose measurements would wait for its own: all of them have to be idle.
    Any number of workers may call this at once: the key of a job is made of the class and the time, and a key is taken
    once. One that gave way to another job is made up for, when the class is idle again.
    """
    served = set(served_classes(session))
    queued = []
    for device_class, held_up in device_classes.items():
        if device_class not in served or queries.is_busy(session, held_up, now - rule.after):
            continue
        slot = int(now.timestamp() // rule.every.total_seconds())
        known = f"idle calibration/{device_class}/{rule.every.total_seconds():g}/{slot}/"
        commit = _commit_to_measure(session, device_class, slot)
        if commit is None:
            continue
        key = f"{known}{queries.canceled_with_key(session, known)}"
        job_id = _queue(session, device_class, commit, rule, key)
        if job_id is not None:
            queued.append(job_id)
    return queued


def _commit_to_measure(session: Session, device_class: str, slot: int) -> Commit | None:
    """Return the newest commit of a default branch that this class has measured; repositories take turns."""
    repositories = queries.measured_repositories(session, device_class)
    if not repositories:
        return None
    return queries.newest_measured(session, repositories[slot % len(repositories)], device_class)


def _queue(session: Session, device_class: str, commit: Commit, rule: IdleRule, key: str) -> UUID | None:
    values = {
        "repository_id": commit.repository_id,
        "requested_commit": commit.sha,
        "requested_baseline": commit.sha,
        "commit_sha": commit.sha,
        "baseline_sha": commit.sha,
        "devices": [device_class],
        "cases": rule.cases,
        "reason": REASON,
        "priority": IDLE_PRIORITY,
        "policy": {"max_pairs": rule.max_pairs},
        "state": State.QUEUED,
        "cancel_requested": False,
        "idempotency_key": key,
        "body_sha256": "",  # nobody posted it: no body is the same
    }
    job_id = insert_if_new(session, Job, values)
    if job_id is None:
        return None
    measurement = Measurement(id=uuid7(), job_id=job_id, device_class=device_class, state=State.QUEUED, attempt=1)
    session.add(measurement)
    session.add(JobEvent(job_id=job_id, kind="stage", payload={"state": State.QUEUED, "stage": None}))
    session.flush()
    engine.enqueue_measurement(session, measurement.id, device_class, IDLE_PRIORITY)
    return job_id
