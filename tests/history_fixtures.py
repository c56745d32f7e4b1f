"""A line of commits whose measurements are planted: stored, fed and ended as a worker does it, but nothing is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from service import engine
from service.alerts.raising import update_alerts
from service.db import Database
from service.history.feeding import feed
from service.models import (
    Case,
    ChangePoint,
    Commit,
    HistoryRequest,
    Job,
    Measurement,
    Point,
    Repository,
    Series,
    SeriesHistory,
    State,
    Verdict,
    utc_now,
)
from service.models.upsert import insert_missing
from service.stats.history_state import SeriesState
from service.worker.records import end_in_transaction, lock

CASE = "gpu/forward/self"
GPU = "GPU-1"
VERSION = "0123456789abcdef"
CLASS = "gpu:NVIDIA H200"


def sha(number: int, branch: int = 0) -> str:
    """Return the SHA of a commit."""
    return f"{branch:08x}{number:032x}"


def noise(count: int, scatter: float = 0.003, seed: int = 0) -> list[float]:
    """Return factors around 1."""
    return list(np.exp(np.random.default_rng(seed).normal(0.0, scatter, count)))


@dataclass
class Line:
    """A repository with commits on its default branch, and what was measured of them."""

    database: Database
    cases: tuple[str, ...] = (CASE,)
    url: str = "https://git.invalid/x.git"
    name_of: Callable[[int], str] = sha
    device_class: str = CLASS
    backend: str = "cuda"
    repository_id: UUID = field(init=False)

    def __post_init__(self) -> None:
        with self.database.transaction() as session:
            row = Repository(name=f"line-{uuid4().hex[:6]}", url=self.url, default_branch="main")
            session.add(row)
            session.flush()
            self.repository_id = row.id

    # ---- planting ----

    def commit(self, session: Session, position: int | None, name: str | None = None, **more: Any) -> UUID:
        """Store a commit; every second is made in another time zone, and every third by a clock that is days behind."""
        name = name or self.name_of(position or 0)
        zone = timezone(timedelta(hours=-7)) if (position or 0) % 2 else UTC
        at = datetime(2026, 1, 1, tzinfo=zone) + timedelta(hours=position or 0, days=-3 * ((position or 0) % 3 == 0))
        values = {"first_parent_position": position, "orphaned": False, "committed_at": at, **more}
        return insert_missing(session, Commit, {"repository_id": self.repository_id, "sha": name}, values)

    def job(self, session: Session, candidate: str, baseline: str, cases: str = "*") -> Measurement:
        """Store a job that is being measured."""
        job = Job(
            repository_id=self.repository_id,
            requested_commit=candidate,
            requested_baseline=baseline,
            commit_sha=candidate,
            baseline_sha=baseline,
            devices=[self.device_class],
            cases=cases,
            policy={"max_pairs": 48},
            body_sha256="0" * 64,
            state=State.MEASURING,
        )
        session.add(job)
        session.flush()
        measurement = Measurement(job_id=job.id, device_class=self.device_class, state=State.MEASURING)
        session.add(measurement)
        session.flush()
        return measurement

    def push(self, position: int, value: float | Mapping[str, float], **how: Any) -> UUID:
        """Measure a commit against its parent, as its push does, and judge it: undecided unless told otherwise."""
        with self.database.transaction() as session:
            self.commit(session, position - 1)
            self.commit(session, position)
            measurement = self.job(session, self.name_of(position), self.name_of(position - 1))
            self.judge(session, measurement.id, value, **how)
            return measurement.id

    def judge(self, session: Session, measurement_id: UUID, value: float | Mapping[str, float], **how: Any) -> None:
        """End a measurement as a worker does."""
        self.store(session, measurement_id, value, **how)
        job, measurement = lock(session, measurement_id)
        feed(session, engine.enqueue_measurements, job, measurement)
        update_alerts(session, job, measurement)
        end_in_transaction(session, job, measurement)

    def store(
        self,
        session: Session,
        measurement_id: UUID,
        value: float | Mapping[str, float],
        verdict: str = "inconclusive",
        effect: float | None = None,
        device: str = GPU,
        status: str = "ok",
        clock: float | None = None,
    ) -> None:
        """Store points and verdicts; `value` may differ by case, and cases that it lacks were not measured."""
        job, measurement = lock(session, measurement_id)
        commits = {
            arm: session.execute(
                select(Commit.id).where(Commit.repository_id == self.repository_id, Commit.sha == name)
            ).scalar_one()
            for arm, name in (("A", job.baseline_sha), ("B", job.commit_sha))
        }
        measurement.candidate_id, measurement.baseline_id = commits["B"], commits["A"]
        values = value if isinstance(value, Mapping) else dict.fromkeys(self.cases, value)
        for case, one in values.items():
            series = self.series(session, case)
            numbers = {"value": one, "low": one, "high": one, "processes": 12, "status": status, "clock": clock}
            for arm, commit_id in commits.items():
                keys = {"series_id": series.id, "commit_id": commit_id, "measurement_id": measurement_id, "arm": arm}
                session.add(Point(**keys, **numbers, gpu_uuid=device))
            bounds = (None, None) if effect is None else (effect - 0.005, effect + 0.005)
            session.add(
                Verdict(
                    measurement_id=measurement_id,
                    case_id=series.case_id,
                    verdict=verdict,
                    reasons=[],
                    unit="ms",
                    effect=effect,
                    interval_low=bounds[0],
                    interval_high=bounds[1],
                    pairs_used=12,
                    pairs_rejected=0,
                    evidence={},
                    judged_at=utc_now(),
                )
            )
        session.flush()

    def series(self, session: Session, case: str = CASE) -> Series:
        """Return the series of a case."""
        group = ".".join(case.split("/")[:2])
        case_id = insert_missing(session, Case, {"name": case, "version": VERSION}, {"group": group, "definition": {}})
        key = {"repository_id": self.repository_id, "case_id": case_id, "metric": "time"}
        key |= {"device_class": self.device_class, "backend": self.backend}
        return session.get_one(Series, insert_missing(session, Series, key, {"unit": "ms"}))

    # ---- what came of it ----

    def rows(self, model: Any, *conditions: Any) -> list[Any]:
        """Return rows, oldest first."""
        with self.database.reading() as session:
            return list(session.execute(select(model).where(*conditions).order_by(model.id)).scalars())

    def state(self, case: str = CASE) -> SeriesState:
        """Return the state of a case's history."""
        query = select(SeriesHistory.state).join(Series, Series.id == SeriesHistory.series_id).join(Case)
        query = query.where(Series.repository_id == self.repository_id, Case.name == case)
        with self.database.reading() as session:
            return SeriesState.from_dict(session.execute(query).scalar_one())

    def changes(self) -> list[tuple[int, int, str]]:
        """Return the change points that hold: (low, position, status)."""
        holds = (ChangePoint.withdrawn_at.is_(None), ChangePoint.replaced_by.is_(None))
        return [(row.low, row.position, row.status) for row in self.rows(ChangePoint, *holds)]

    def waiting(self) -> list[HistoryRequest]:
        """Return the requests whose jobs are out."""
        return self.rows(HistoryRequest, HistoryRequest.outcome.is_(None))

    def confirm(self, truth: Callable[[int, int], float], value: Callable[[int], float], rounds: int = 40) -> int:
        """Run the jobs that histories ask for until none is out; return how many there were.

        `truth(low, high)` is what really changed in a range; beyond 0.5 % a job finds it.
        """
        for count in range(rounds):
            out = self.waiting()
            if not out:
                return count
            one = out[0]
            with self.database.transaction() as session:
                (measurement,) = session.execute(select(Measurement).where(Measurement.job_id == one.job_id)).scalars()
                job = session.get_one(Job, one.job_id)
                self.commit(session, one.baseline)
                self.commit(session, one.candidate)
                job.commit_sha, job.baseline_sha = sha(one.candidate), sha(one.baseline)
                effect = truth(one.baseline, one.candidate)
                verdict = "unchanged" if abs(effect) < 0.005 else "regressed" if effect > 0 else "improved"
                cases = [row.series_id for row in out if row.job_id == one.job_id]
                names = session.execute(
                    select(Case.name).join(Series, Series.case_id == Case.id).where(Series.id.in_(cases))
                ).scalars()
                self.judge(
                    session, measurement.id, dict.fromkeys(names, value(one.candidate)), verdict=verdict, effect=effect
                )
        raise AssertionError("histories do not come to rest")


def in_threads(work: Callable[[Any], object], items: Iterable[Any]) -> list[Exception]:
    """Do `work` for all items at once, again after a deadlock, as a worker does; return what went wrong."""
    todo, failures = list(items), []
    start = threading.Barrier(len(todo))

    def run(item: Any) -> None:
        start.wait()
        for _ in range(20):
            try:
                work(item)
                return
            except Exception as error:
                if "deadlock" not in str(error):
                    failures.append(error)
                    return

    threads = [threading.Thread(target=run, args=(item,)) for item in todo]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
