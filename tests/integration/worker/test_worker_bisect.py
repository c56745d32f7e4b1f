"""Bisections through a worker, on SQLite and on PostgreSQL: the commit that is named, resumed, or nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from worker_fixtures import FORWARD_SELF, FakeRepository, Jobs, RunningWorker, wait_until

from service.db import Database
from service.judging.service import job_attribution, job_verdicts
from service.models import TERMINAL, Alert, ArmRun, JobEvent, Point

SLOW: dict[str, Any] = {"speed": {FORWARD_SELF: 1.1}}


@pytest.fixture
def jobs(database: Database, repository: FakeRepository) -> Jobs:
    return Jobs(database, str(repository.path))


def commits(repository: FakeRepository, *behaviors: dict[str, Any]) -> list[str]:
    return [repository.commit(f"number {at}", **behavior) for at, behavior in enumerate(behaviors)]


def bisected(jobs: Jobs, shas: list[str], folder: Path, cases: str = FORWARD_SELF) -> UUID:
    measurement_id = jobs.submit(shas[-1], shas[0], kind="bisect", cases=cases, max_pairs=8)
    run(jobs, measurement_id, folder)
    return measurement_id


def run(jobs: Jobs, measurement_id: UUID, folder: Path) -> None:
    with RunningWorker(jobs.database, folder):
        wait_until(lambda: jobs.measurement(measurement_id).state in TERMINAL, 180, "the end")


def named(jobs: Jobs, measurement_id: UUID) -> list[tuple[str, str, str]]:
    """Return (commit, baseline, verdict) of what the API shows as found."""
    with jobs.database.reading() as session:
        rows = job_attribution(session, jobs.job(measurement_id).id).rows
    return [(row.commit, row.baseline, row.verdict) for row in rows]


def whole(jobs: Jobs, measurement_id: UUID) -> list[str]:
    with jobs.database.reading() as session:
        return [row.verdict for row in job_verdicts(session, jobs.job(measurement_id).id).rows]


def outcomes(jobs: Jobs, measurement_id: UUID) -> list[tuple[int, int, str]]:
    query = select(JobEvent.payload).where(JobEvent.measurement_id == measurement_id, JobEvent.kind == "bisected")
    with jobs.database.reading() as session:
        found = session.execute(query.order_by(JobEvent.id)).scalars().all()
    return [(one["baseline"], one["candidate"], one["verdict"]) for one in found]


def pairs(jobs: Jobs, measurement_id: UUID) -> list[ArmRun]:
    query = select(ArmRun).where(ArmRun.measurement_id == measurement_id, ArmRun.purpose == "pair")
    with jobs.database.reading() as session:
        return list(session.execute(query.order_by(ArmRun.id)).scalars())


def test_the_commit_is_named_by_its_comparison_with_its_parent(
    jobs: Jobs, repository: FakeRepository, tmp_path: Path
) -> None:
    shas = commits(repository, {}, {}, SLOW, SLOW)
    measurement_id = bisected(jobs, shas, tmp_path)
    assert jobs.measurement(measurement_id).error is None
    assert named(jobs, measurement_id) == [(shas[2], shas[1], "regressed")]
    assert whole(jobs, measurement_id) == ["regressed"]
    assert [(low, high) for low, high, _ in outcomes(jobs, measurement_id)] == [(0, 3), (0, 1), (1, 3), (1, 2)]
    assert {one.pair_index // 1000 for one in pairs(jobs, measurement_id)} == {0, 1, 2, 3}
    assert jobs.job(measurement_id).state == "done"
    with jobs.database.reading() as session:
        assert session.execute(select(func.count()).select_from(Point)).scalar_one() == 0
        assert session.execute(select(func.count()).select_from(Alert)).scalar_one() == 0


def test_a_bisection_goes_on_at_the_next_pair(jobs: Jobs, repository: FakeRepository, tmp_path: Path) -> None:
    shas = commits(repository, {"run_s": 0.05}, SLOW | {"run_s": 0.05}, SLOW | {"run_s": 0.05})
    measurement_id = jobs.submit(shas[-1], shas[0], kind="bisect", cases=FORWARD_SELF, max_pairs=8)
    for wanted in (3, 1003):
        with RunningWorker(jobs.database, tmp_path):
            wait_until(
                lambda wanted=wanted: any(one.pair_index == wanted for one in pairs(jobs, measurement_id)),
                60,
                f"pair {wanted}",
            )
    before = {one.id for one in pairs(jobs, measurement_id)}
    assert jobs.measurement(measurement_id).state == "queued"
    run(jobs, measurement_id, tmp_path)
    after = pairs(jobs, measurement_id)
    assert before < {one.id for one in after}
    assert [one.pair_index for one in after] == [
        index for first in (0, 1000) for at in range(8) for index in [first + at] * 2
    ]
    assert [(low, high) for low, high, _ in outcomes(jobs, measurement_id)] == [(0, 2), (0, 1)]
    assert named(jobs, measurement_id) == [(shas[1], shas[0], "regressed")]


def test_a_commit_that_cannot_be_measured_leaves_nobody_to_name(
    jobs: Jobs, repository: FakeRepository, tmp_path: Path
) -> None:
    shas = commits(repository, {}, {"build": "fail"}, SLOW)
    measurement_id = bisected(jobs, shas, tmp_path)
    assert named(jobs, measurement_id) == []
    assert whole(jobs, measurement_id) == ["regressed"]
    assert outcomes(jobs, measurement_id)[1:] == [(0, 1, "not_comparable"), (1, 2, "not_comparable")]


def test_a_range_without_a_change_ends_after_one_comparison(
    jobs: Jobs, repository: FakeRepository, tmp_path: Path
) -> None:
    measurement_id = bisected(jobs, commits(repository, SLOW, SLOW, SLOW), tmp_path)
    assert (named(jobs, measurement_id), whole(jobs, measurement_id)) == ([], ["unchanged"])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("behavior", "cases", "code"),
    [({"build": "fail"}, FORWARD_SELF, "build_failed"), ({}, "cpu/none", "no_cases"), ({}, "cpu/*", "no_cases")],
)
def test_a_range_that_cannot_be_measured_fails(
    jobs: Jobs, repository: FakeRepository, tmp_path: Path, behavior: dict[str, Any], cases: str, code: str
) -> None:
    measurement_id = bisected(jobs, commits(repository, {}, {}, behavior), tmp_path, cases)
    error = jobs.measurement(measurement_id).error
    assert error is not None
    assert error["code"] == code
