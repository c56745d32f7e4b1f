"""Histories derived again, and taken back after a force push, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from history_fixtures import CASE, Line, noise, sha
from sqlalchemy import delete, insert, update
from uuid_utils.compat import uuid7

from service import engine
from service.history import queries
from service.history.rebuilding import follow_refs, rebuild, rewind_series
from service.models import (
    ChangePoint,
    Commit,
    DriftNotice,
    HistoryRequest,
    Job,
    Measurement,
    Point,
    Series,
    SeriesHistory,
    utc_now,
)
from service.stats.history_state import SeriesState
from service.worker.checkout import Standing

LEVELS = noise(300)


def push(line: Line, start: int, stop: int, **steps: float) -> None:
    """Push commits; `steps` are effects by position, as in p20=0.05."""
    for position in range(start, stop):
        value = LEVELS[position]
        for name, effect in steps.items():
            value *= 1.0 + effect * (position >= int(name[1:]))
        line.push(position, value)


def rebuilt(line: Line) -> SeriesState:
    """Rebuild every series of the line; return the state of the first case."""
    with line.database.transaction() as session:
        for series_id in queries.of_repository(session, line.repository_id):
            rebuild(session, engine.enqueue_measurements, series_id)
    return line.state()


def rewound(line: Line, position: int) -> int:
    """Mark the commits from a position on as orphaned and rewind."""
    with line.database.transaction() as session:
        gone = update(Commit).where(
            Commit.repository_id == line.repository_id, Commit.first_parent_position >= position
        )
        session.execute(gone.where(Commit.sha.startswith("0" * 8)).values(orphaned=True))
        return rewind_series(session, engine.enqueue_measurements, line.repository_id, position)


@pytest.fixture
def lived(line: Line) -> Line:
    """A history with a confirmed step, a gap that was bisected, an unconfirmed step, and a job that is out."""
    push(line, 2, 21, p20=0.05)
    truth = {20: 0.05, 32: -0.04}
    line.confirm(lambda low, high: sum(truth.get(one, 0.0) for one in range(low + 1, high + 1)), lambda one: 1.05)
    push(line, 21, 30, p20=0.05)
    for position in range(30, 34):
        line.push(position, 9.0, status="throttled")
    push(line, 34, 36, p20=0.05, p32=-0.04)
    line.confirm(lambda low, high: sum(truth.get(one, 0.0) for one in range(low + 1, high + 1)), lambda one: 1.0)
    push(line, 36, 45, p20=0.05, p32=-0.04)
    push(line, 45, 46, p20=0.05, p32=-0.04, p45=0.3)
    return line


def test_a_rebuild_of_what_was_lived_changes_nothing(lived: Line) -> None:
    before = lived.state(), lived.changes(), len(lived.rows(ChangePoint)), len(lived.rows(Job))
    codes = {row.id: row.history for row in lived.rows(Point)}
    assert before[1] == [(19, 20, "confirmed"), (31, 32, "confirmed")]
    assert before[0].search is not None
    assert rebuilt(lived) == before[0]
    assert (lived.state(), lived.changes(), len(lived.rows(ChangePoint)), len(lived.rows(Job))) == before
    assert {row.id: row.history for row in lived.rows(Point)} == codes


def test_a_lost_state_is_derived_from_what_is_stored(lived: Line) -> None:
    before = lived.state()
    with lived.database.transaction() as session:
        session.execute(delete(SeriesHistory))
    assert rebuilt(lived) == before


def test_a_state_of_another_protocol_is_derived_again_by_the_next_point(lived: Line) -> None:
    before = lived.state()
    with lived.database.transaction() as session:
        session.execute(update(SeriesHistory).values(state={"protocol": 0}))
    push(lived, 46, 47, p20=0.05, p32=-0.04, p45=0.3)
    after = lived.state()
    assert after.changes == before.changes
    assert [point.position for point in after.tracks[0].points][-2:] == [45, 46]
    assert after == rebuilt(lived)


def test_a_change_point_that_is_not_said_again_is_withdrawn(lived: Line) -> None:
    false = lived.rows(ChangePoint)[0]
    with lived.database.transaction() as session:
        values = {
            name: getattr(false, name) for name in ("series_id", "commit_id", "low_commit_id", "status", "effect")
        }
        session.add(ChangePoint(**values, position=11, low=10, named=True, device="GPU-1", raised_at=12))
    assert len(lived.changes()) == 3
    rebuilt(lived)
    assert lived.changes() == [(19, 20, "confirmed"), (31, 32, "confirmed")]
    assert len(lived.rows(ChangePoint)) == 3


def test_points_from_before_there_were_histories_are_taken_in(line: Line) -> None:
    push(line, 2, 60, p30=0.2)
    line.push(60, LEVELS[60] * 1.2)
    with line.database.transaction() as session:  # as the release before has left them
        session.execute(delete(HistoryRequest))
        session.execute(delete(ChangePoint))
        session.execute(delete(SeriesHistory))
        session.execute(update(Point).values(history=None))
    jobs = len(line.rows(Job))
    state = rebuilt(line)
    assert state.last == 60
    assert line.changes() == [(29, 30, "unconfirmed")]
    assert len(line.rows(Job)) == jobs
    assert {row.history for row in line.rows(Point, Point.arm == "B")} == {"ok"}
    assert {row.history for row in line.rows(Point, Point.arm == "A")} == {None}


def test_of_old_points_only_the_newest_may_ask_for_a_job(line: Line) -> None:
    push(line, 2, 41, p40=0.2)
    with line.database.transaction() as session:
        session.execute(delete(HistoryRequest))
        session.execute(delete(SeriesHistory))
    rebuilt(line)
    (waiting,) = line.waiting()
    assert (waiting.baseline, waiting.candidate) == (39, 40)
    rebuilt(line)
    assert len(line.waiting()) == 1


def test_slow_drift_is_stored_once_and_accuses_nobody(line: Line) -> None:
    for position in range(2, 202):
        line.push(position, LEVELS[position] * (1.0 + 0.0003 * position))
    found = line.rows(DriftNotice)
    assert found
    assert all(row.effect > 0.02 and row.position - row.since >= 75 for row in found)
    assert line.changes() == []
    rebuilt(line)
    assert [row.id for row in line.rows(DriftNotice, DriftNotice.withdrawn_at.is_(None))] == [row.id for row in found]


# ---------------------------------------------------------------------------------- force push


def test_a_force_push_takes_back_what_was_said_of_its_commits(lived: Line) -> None:
    assert rewound(lived, 31) == 1
    assert lived.changes() == [(19, 20, "confirmed")]
    assert len(lived.rows(ChangePoint)) == 2
    state = lived.state()
    assert (state.last, state.search) == (30, None)
    assert lived.waiting() == []
    assert {row.outcome for row in lived.rows(HistoryRequest)} >= {"withdrawn"}
    orphaned = {row.id for row in lived.rows(Commit, Commit.orphaned.is_(True))}
    marked = {row.commit_id for row in lived.rows(Point, Point.history == "off_line")}
    assert marked == orphaned


def test_histories_follow_the_refs_of_a_fetch(lived: Line) -> None:
    """A force push drops commits from 31 on; later refs hold them again."""
    on_line = Commit.first_parent_position.is_not(None)
    line = [row.sha for row in sorted(lived.rows(Commit, on_line), key=lambda row: row.first_parent_position or 0)]
    places = {row.sha: row.first_parent_position or 0 for row in lived.rows(Commit, on_line)}
    whole = [f"{place:040x}" for place in range(1, max(places.values()) + 1)]
    for sha_, place in places.items():
        whole[place - 1] = sha_
    kept, lost = whole[:30], frozenset(whole[30:])

    def follow(held: list[str], dropped: frozenset[str]) -> set[str]:
        standing = Standing(tuple(held), frozenset(held), dropped, utc_now())
        with lived.database.transaction() as session:
            enqueue = engine.enqueue_measurements
            return {row.sha for row in follow_refs(session, enqueue, lived.repository_id, standing)}

    before = lived.state()
    assert follow(whole, frozenset()) == set()
    assert lived.state() == before
    assert follow(kept, lost) == lost & set(line)
    assert lived.changes() == [(19, 20, "confirmed")]
    assert lived.state().last == 30
    assert follow(whole, frozenset()) == set()
    assert lived.state().last == before.last
    assert lived.state().tracks[0].points == before.tracks[0].points


def test_the_answer_of_a_job_about_lost_commits_changes_nothing(lived: Line) -> None:
    (out,) = lived.waiting()
    rewound(lived, 31)
    before = lived.state()
    with lived.database.transaction() as session:
        (measurement,) = lived.rows(Measurement, Measurement.job_id == out.job_id)
        lived.judge(session, measurement.id, 1.3, verdict="regressed", effect=0.3)
    assert lived.state() == before
    assert lived.changes() == [(19, 20, "confirmed")]


def test_commits_that_took_their_place_before_the_rewind_are_taken_in_again(lived: Line) -> None:
    with lived.database.transaction() as session:
        for position in range(31, 36):
            lived.commit(session, position, sha(position, 9))
        for position in range(32, 36):
            measurement = lived.job(session, sha(position, 9), sha(position - 1, 9))
            lived.judge(session, measurement.id, LEVELS[position] * 1.05)
    rewound(lived, 31)
    state = lived.state()
    assert state.last == 35
    assert [point.position for point in state.tracks[0].points if point.position > 30] == [32, 33, 34, 35]
    assert all(point.times == 1 for point in state.tracks[0].points if point.position > 30)
    assert lived.changes() == [(19, 20, "confirmed")]
    assert rebuilt(lived).tracks[0].points[-4:] == state.tracks[0].points[-4:]


def test_commits_that_come_to_the_branch_after_they_were_measured_are_taken_in(line: Line) -> None:
    push(line, 2, 20)
    with line.database.transaction() as session:
        for position in range(20, 23):
            line.commit(session, None, sha(position, 9))
        for position in range(21, 23):
            measurement = line.job(session, sha(position, 9), sha(position - 1, 9))
            line.judge(session, measurement.id, LEVELS[position] * 1.05, verdict="unchanged", effect=0.0)
    assert line.state().last == 19
    with line.database.transaction() as session:
        for position in range(20, 23):
            moved = update(Commit).where(Commit.sha == sha(position, 9))
            session.execute(moved.values(first_parent_position=position))
        assert rewind_series(session, engine.enqueue_measurements, line.repository_id, 20) == 0
    state = line.state()
    assert [point.position for point in state.tracks[0].points][-3:] == [19, 21, 22]
    assert dict(state.judged) == {21: True, 22: True}
    assert rebuilt(line).tracks == state.tracks


def test_a_rewind_past_the_end_changes_nothing(lived: Line) -> None:
    before = lived.state()
    with lived.database.transaction() as session:
        assert rewind_series(session, engine.enqueue_measurements, lived.repository_id, 46) == 0
    assert lived.state() == before


def test_other_repositories_are_left_alone(lived: Line) -> None:
    other = Line(lived.database)
    push(other, 2, 40)
    before = other.state(), len(lived.rows(Series))
    rewound(lived, 2)
    assert (other.state(), len(lived.rows(Series))) == before
    assert lived.state(CASE).last == 1


@pytest.mark.slow
def test_ten_thousand_commits_take_less_than_a_millisecond_each(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    count = 10_000
    values = noise(count) * np.where(np.arange(count) < 5000, 1.0, 1.3)
    line.push(2, 1.0)
    with line.database.transaction() as session:
        (old,) = line.rows(Measurement)
        series_id = line.series(session).id
        commits = [{"id": uuid7(), "sha": sha(position), "position": position} for position in range(3, count + 3)]
        session.execute(
            insert(Commit),
            [
                {"id": one["id"], "sha": one["sha"], "first_parent_position": one["position"], "orphaned": False}
                | {"repository_id": line.repository_id}
                for one in commits
            ],
        )
        jobs = [_copy(session.get_one(Job, old.job_id)) for _ in commits]
        session.execute(insert(Job), jobs)
        measurements = [
            {"id": uuid7(), "job_id": job["id"], "device_class": old.device_class, "state": "done", "attempt": 1}
            for job in jobs
        ]
        session.execute(insert(Measurement), measurements)
        numbers = {"arm": "B", "processes": 12, "status": "ok", "series_id": series_id, "gpu_uuid": "GPU-1"}
        session.execute(
            insert(Point),
            [
                numbers
                | {"commit_id": commit["id"], "measurement_id": measurement["id"]}
                | {"value": value, "low": value, "high": value}
                for commit, measurement, value in zip(commits, measurements, values, strict=True)
            ],
        )
        began = time.process_time()
        state = rebuild(session, engine.enqueue_measurements, series_id)
        each_ms = 1000.0 * (time.process_time() - began) / count
    assert state.last == count + 2
    assert line.changes() == [(5002, 5003, "unconfirmed")]
    with capsys.disabled():
        print(f" {each_ms:.2f} ms per commit ", end="")
    assert each_ms <= 1.0
    began = time.process_time()
    line.push(count + 3, 1.3)
    assert time.process_time() - began < 1.0  # nothing of the past is looked at again
    assert len(json.dumps(state.to_dict())) < 40_000


def _copy(row: Job) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in Job.__table__.columns} | {"id": uuid7()}
