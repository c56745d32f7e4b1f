"""A worker answers what a history asks: jobs over a range, then its halves, until one commit is proven guilty."""

from __future__ import annotations

from pathlib import Path

import pytest
from history_fixtures import Line, noise
from worker_fixtures import BACKWARD_SELF, FORWARD_SELF, FakeRepository, RunningWorker, wait_until

from service.db import Database
from service.models import Alert, Case, ChangePoint, Commit, HistoryRequest, Job, Measurement, Point, Verdict
from service.worker.devices import cpu

GUILTY, NEWEST = 10, 13


def planted_line(database: Database, repository: FakeRepository) -> Line:
    """Commits whose points are planted up to the gap before the newest one, which is slower by 10 %."""
    shas = [repository.commit("root")]
    for position in range(2, NEWEST + 1):
        shas.append(repository.commit(f"{position}", speed={FORWARD_SELF: 1.1 if position >= GUILTY else 1.0}))
    line = Line(
        database, (FORWARD_SELF,), str(repository.path), lambda position: shas[position - 1], "cpu", backend="cpu"
    )
    factors = noise(NEWEST)
    for position in range(2, GUILTY - 1):
        line.push(position, 5.0 * factors[position], device=cpu().uuid)
    line.push(NEWEST, 5.5, device=cpu().uuid)
    return line


@pytest.mark.slow
def test_the_guilty_commit_in_a_gap_is_found_by_jobs(database: Database, repository: FakeRepository, tmp_path: Path):
    line = planted_line(database, repository)
    (first,) = line.waiting()
    assert (first.baseline, first.candidate) == (GUILTY - 2, NEWEST)
    with RunningWorker(database, tmp_path):
        wait_until(lambda: line.rows(ChangePoint) or not line.waiting(), 200, "a change point")
        wait_until(lambda: not line.waiting(), 30, "the end of all jobs")
    assert line.changes() == [(GUILTY - 1, GUILTY, "confirmed")]
    (change,) = line.rows(ChangePoint)
    assert 0.08 < change.effect < 0.12
    assert change.interval_low < 0.1 < change.interval_high
    assert change.device == cpu().uuid
    (alert,) = line.rows(Alert)
    assert (alert.base_sha, alert.head_sha) == (line.name_of(GUILTY - 1), line.name_of(GUILTY))
    jobs = line.rows(Job, Job.reason == "confirm")
    assert {job.cases for job in jobs} == {FORWARD_SELF}
    assert any("~" in job.requested_commit for job in jobs)
    assert all(job.state == "done" for job in jobs)
    assert [one.outcome for one in line.rows(HistoryRequest)][-1] == "regressed"
    assert {case.name for case in line.rows(Case, ~Case.name.startswith("canary/"))} == {FORWARD_SELF}
    found = {commit.id: commit.first_parent_position for commit in line.rows(Commit)}
    assert {found[point.commit_id] for point in line.rows(Point, Point.history == "ok")} >= {GUILTY, NEWEST}


@pytest.mark.slow
def test_where_the_suspect_does_not_build_the_change_is_unconfirmed(
    database: Database, repository: FakeRepository, tmp_path: Path
) -> None:
    shas = [repository.commit("root")]
    for position in range(2, 20):
        slower = {"speed": {BACKWARD_SELF: 1.3}} if position >= 10 else {}
        broken = {"build": "fail"} if position == 10 else {}
        shas.append(repository.commit(f"{position}", **slower, **broken))
    line = Line(
        database, (BACKWARD_SELF,), str(repository.path), lambda position: shas[position - 1], "cpu", backend="cpu"
    )
    factors = noise(20)
    for position in range(2, 11):
        line.push(position, 5.0 * factors[position] * (1.3 if position == 10 else 1.0), device=cpu().uuid)
    with RunningWorker(database, tmp_path):
        for position in range(11, 20):
            wait_until(lambda: not line.waiting(), 60, "the end of the job")
            line.push(position, 6.5 * factors[position], device=cpu().uuid)
        wait_until(lambda: not line.waiting(), 60, "the end of the last job")
    asked = line.rows(HistoryRequest)[0]
    assert (asked.candidate, asked.baseline, asked.outcome) == (10, 9, "not_comparable")
    (job,) = line.rows(Job, Job.id == asked.job_id)
    assert (job.state, job.error["code"] if job.error else None) == ("failed", "build_failed")
    assert line.rows(Verdict, Verdict.measurement_id.in_(_measurements(line, job))) == []
    ((low, high, status),) = line.changes()
    assert low < 10 <= high
    assert status == "unconfirmed"
    assert line.rows(Alert) == []


def _measurements(line: Line, job: Job) -> list[object]:
    return [row.id for row in line.rows(Measurement, Measurement.job_id == job.id)]
