"""Measurements -> histories -> jobs -> change points and alerts, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from typing import Any

import pytest
from history_fixtures import CASE, Line, in_threads, noise, sha
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from service import engine
from service.history.feeding import feed, give_up
from service.models import Alert, ChangePoint, Commit, HistoryRequest, Job, Measurement, Point, SeriesHistory, State
from service.stats.history_policy import HistoryPolicy
from service.worker.records import lock

LEVELS = noise(40)


def planted(line: Line, count: int, at: int, effect: float, *, start: int = 2, **how: Any) -> None:
    """Push commits of which one changes the level, and none of whose own jobs decides."""
    for position in range(start, count):
        line.push(position, LEVELS[position % 40] * (1.0 + effect * (position >= at)), **how)


def measured(position: int, at: int, effect: float) -> float:
    return LEVELS[position % 40] * (1.0 + effect * (position >= at))


def truth(at: int, effect: float) -> Any:
    return lambda low, high: effect if low < at <= high else 0.0


def test_a_planted_step_becomes_a_job_a_change_point_and_an_alert(line: Line) -> None:
    planted(line, 21, 20, 0.05)
    (waiting,) = line.waiting()
    assert (waiting.candidate, waiting.baseline, waiting.wave) == (20, 19, 0)
    (job,) = line.rows(Job, Job.id == waiting.job_id)
    assert (job.reason, job.cases, job.commit_sha, job.baseline_sha) == ("confirm", CASE, sha(20), sha(19))
    assert (job.state, job.priority, job.policy["level"]) == ("queued", 200, waiting.level)
    (measurement,) = line.rows(Measurement, Measurement.job_id == job.id)
    assert engine._client(line.database.engine).retrieve_workflow(str(measurement.id)).get_status().status == "ENQUEUED"
    assert line.confirm(truth(20, 0.05), lambda position: measured(position, 20, 0.05)) == 1
    assert line.changes() == [(19, 20, "confirmed")]
    (change,) = line.rows(ChangePoint)
    assert (change.effect, change.job_id, change.device, change.named) == (0.05, job.id, "GPU-1", True)
    assert (change.interval_low, change.interval_high) == (pytest.approx(0.045), pytest.approx(0.055))
    (commit,) = line.rows(Commit, Commit.id == change.commit_id)
    assert commit.sha == sha(20)
    (alert,) = line.rows(Alert)
    assert (alert.base_sha, alert.head_sha, alert.group, alert.state) == (sha(19), sha(20), "gpu.forward", "open")


def test_the_commits_own_job_spares_the_confirmation_and_makes_the_only_alert(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    line.push(20, 1.05, verdict="regressed", effect=0.05)
    planted(line, 26, 20, 0.05, start=21)
    assert line.changes() == [(19, 20, "confirmed")]
    assert line.rows(HistoryRequest) == []
    assert len(line.rows(Alert)) == 1


def test_a_commit_whose_own_job_found_nothing_is_not_asked_about_again(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    line.push(20, 1.05, verdict="unchanged", effect=0.0)
    planted(line, 30, 20, 0.05, start=21)
    line.confirm(truth(99, 0.0), lambda position: measured(position, 20, 0.05))
    assert (20, 19) not in {(one.candidate, one.baseline) for one in line.rows(HistoryRequest)}
    assert {status for *_, status in line.changes()} <= {"surroundings"}
    assert line.rows(Alert) == []


def test_throttled_commits_are_a_gap_that_is_bisected_and_only_the_guilty_one_alerts(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    planted(line, 28, 99, 5.0, start=20, status="throttled")
    planted(line, 29, 23, 0.05, start=28)
    codes = {row.history for row in line.rows(Point, Point.arm == "B")}
    assert codes == {"ok", "throttled"}
    (waiting,) = line.waiting()
    assert (waiting.baseline, waiting.candidate) == (19, 28)
    jobs = line.confirm(truth(23, 0.05), lambda position: measured(position, 23, 0.05))
    assert 3 <= jobs <= 7
    assert line.changes() == [(22, 23, "confirmed")]
    (alert,) = line.rows(Alert)
    assert (alert.base_sha, alert.head_sha) == (sha(22), sha(23))
    levels = [one.level for one in line.rows(HistoryRequest)]
    assert sum(levels) <= HistoryPolicy().alarm_level
    assert levels == sorted(levels, reverse=True)


def test_commits_that_nobody_measured_are_named_by_their_distance(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    with line.database.transaction() as session:
        line.commit(session, 29)
    line.push(30, 1.05)
    (waiting,) = line.waiting()
    assert (waiting.baseline, waiting.candidate) == (19, 30)
    with line.database.transaction() as session:
        (measurement,) = session.execute(select(Measurement).where(Measurement.job_id == waiting.job_id)).scalars()
        line.judge(session, measurement.id, 1.05, verdict="regressed", effect=0.05)
    (half,) = line.waiting()
    (job,) = line.rows(Job, Job.id == half.job_id)
    assert (half.baseline, half.candidate) == (19, 24)
    assert (job.requested_commit, job.commit_sha) == (f"{sha(29)}~5", None)
    assert (job.requested_baseline, job.baseline_sha) == (sha(19), sha(19))


def test_series_with_the_same_suspicion_share_a_job_and_the_budget(line: Line) -> None:
    line.cases = ("gpu/forward/self/a", "gpu/forward/self/b", "gpu/backward/self/a")
    planted(line, 21, 20, 0.05)
    waiting = line.waiting()
    assert len(waiting) == 3
    (job,) = line.rows(Job, Job.reason == "confirm")
    assert {one.job_id for one in waiting} == {job.id}
    assert job.cases == "gpu/*/self/*"
    assert job.policy["level"] == pytest.approx(min(0.001, HistoryPolicy().alarm_level / 2 / 3))
    assert line.confirm(truth(20, 0.05), lambda position: 1.05) == 1
    assert line.changes() == [(19, 20, "confirmed")] * 3
    assert {alert.group for alert in line.rows(Alert)} == {"gpu.forward", "gpu.backward"}


def test_all_measurements_of_a_commit_share_one_alarm_budget(line: Line) -> None:
    first, second = ([f"gpu/{kind}/x{number}" for number in range(12)] for kind in ("a", "b"))
    line.cases = (*first, *second)
    planted(line, 12, 99, 0.0)
    line.push(12, dict.fromkeys(first, 1.1))
    line.push(12, dict.fromkeys(second, 1.1))
    waiting = line.waiting()
    budget = HistoryPolicy().alarm_level
    levels = sorted({one.level for one in waiting}, reverse=True)
    assert levels == [pytest.approx(budget / 2 / 12), pytest.approx(budget / 4 / 2 / 12)]
    assert sum(one.level + one.left for one in waiting) <= budget
    assert {job.policy["level"] for job in line.rows(Job, Job.reason == "confirm")} == set(levels)
    line.confirm(truth(12, 0.1), lambda position: 1.1)
    assert sum(one.level for one in line.rows(HistoryRequest)) <= budget


def test_a_recovery_closes_the_alert(line: Line) -> None:
    planted(line, 21, 20, 0.05)
    line.confirm(truth(20, 0.05), lambda position: 1.05)
    planted(line, 30, 20, 0.05, start=21)
    line.push(30, 1.0, verdict="improved", effect=-0.048)
    assert [alert.state for alert in line.rows(Alert)] == ["fixed"]
    assert line.changes() == [(19, 20, "confirmed"), (29, 30, "confirmed")]


def test_where_the_job_fails_the_change_stays_unconfirmed_and_nobody_is_alerted(line: Line) -> None:
    planted(line, 21, 20, 0.2)
    for position in range(21, 32):
        for one in line.waiting():
            with line.database.transaction() as session:
                (measurement,) = session.execute(select(Measurement).where(Measurement.job_id == one.job_id)).scalars()
                job, measurement = lock(session, measurement.id)
                job.state = measurement.state = State.FAILED
                give_up(session, engine.enqueue_measurements, job, measurement)
                give_up(session, engine.enqueue_measurements, job, measurement)
        line.push(position, LEVELS[position] * 1.2)
    assert {one.outcome for one in line.rows(HistoryRequest) if one.outcome} == {"not_comparable"}
    assert (19, 20, "unconfirmed") in line.changes()
    assert line.rows(Alert) == []
    assert len(line.rows(HistoryRequest)) <= HistoryPolicy().burst + 31 * HistoryPolicy().refill


def test_a_measurement_that_is_told_twice_counts_once(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    last = line.push(20, 1.05)
    before = line.state()
    for _ in range(2):
        with line.database.transaction() as session:
            job, measurement = lock(session, last)
            feed(session, engine.enqueue_measurements, job, measurement)
    assert line.state() == before
    assert len(line.waiting()) == 1
    assert [point.times for point in before.tracks[0].points] == [1] * 19


def test_workers_that_feed_one_series_at_once_lose_nothing(line: Line) -> None:
    line.cases = ("gpu/a/x", "gpu/b/x", "gpu/c/x")
    line.push(2, 1.0)
    with line.database.transaction() as session:
        for position in range(3, 15):
            line.commit(session, position)
        ids = [line.job(session, sha(position), sha(position - 1)).id for position in range(3, 15)]

    def work(measurement_id: Any) -> None:
        with line.database.transaction() as session:
            line.judge(session, measurement_id, LEVELS[3])

    assert in_threads(work, ids) == []
    for case in line.cases:
        state = line.state(case)
        assert [point.position for point in state.tracks[0].points] == list(range(2, 15))
        assert state.last == 14
    assert {row.version for row in line.rows(SeriesHistory)} == {len(ids) + 2}
    assert {row.history for row in line.rows(Point, Point.arm == "B")} == {"ok"}


def test_commits_off_the_line_and_orphaned_ones_are_kept_and_marked(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    before = line.state()
    with line.database.transaction() as session:
        topic = line.commit(session, None, sha(1, 7))
        orphan = line.commit(session, 20, sha(20, 8), orphaned=True)
        for name in (sha(1, 7), sha(20, 8)):
            measurement = line.job(session, name, sha(19))
            line.judge(session, measurement.id, 3.0, verdict="regressed", effect=2.0)
    assert line.state() == before
    marked = line.rows(Point, Point.history == "off_line")
    assert {row.commit_id for row in marked} == {topic, orphan}
    assert line.changes() == []


def test_another_gpu_of_the_same_model_in_mid_series_is_no_change(line: Line) -> None:
    planted(line, 20, 99, 0.0)
    planted(line, 40, 20, 0.08, start=20, device="GPU-2")
    assert [track.device for track in line.state().tracks] == ["GPU-1", "GPU-2"]
    assert (line.changes(), line.rows(HistoryRequest)) == ([], [])


def test_a_series_of_three_commits_says_nothing(line: Line) -> None:
    for position, value in ((2, 1.0), (3, 5.0), (4, 0.1)):
        line.push(position, value)
    assert (line.changes(), line.rows(HistoryRequest)) == ([], [])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_impossible_values_are_gaps(line: Line, bad: float) -> None:
    planted(line, 19, 99, 0.0)
    if math.isnan(bad) and line.database.is_sqlite:  # SQLite knows no NaN, and the column refuses what it makes of it
        with pytest.raises(IntegrityError):
            line.push(19, bad)
        return
    line.push(19, bad)
    planted(line, 22, 20, 0.05, start=20)
    assert [row.history for row in line.rows(Point, Point.arm == "B")][17] == "bad_value"
    assert line.confirm(truth(20, 0.05), lambda position: 1.05) >= 1
    assert line.changes() == [(19, 20, "confirmed")]


def test_a_low_clock_is_a_gap(line: Line) -> None:
    for position in range(2, 20):
        line.push(position, LEVELS[position], clock=1980.0)
    line.push(20, 1.2, clock=1500.0)
    assert line.rows(Point, Point.arm == "B")[-1].history == "clock_low"
    assert line.rows(HistoryRequest) == []
