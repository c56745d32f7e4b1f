"""What the API and the command line say of histories."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from history_fixtures import CASE, Line, noise, sha
from sqlalchemy import update
from starlette.testclient import TestClient
from typer.testing import CliRunner

from service.cli import app
from service.models import Alert, AlertState, ChangePoint, DriftNotice, HistoryRequest, Job, Point

API = "/api/v1"
LEVELS = noise(120)


def lived(line: Line) -> str:
    """A confirmed step at 20, and a job that is out for 31; the series' id."""
    for position in range(2, 21):
        line.push(position, LEVELS[position] * (1.05 if position == 20 else 1.0))
    line.confirm(lambda low, high: 0.05 if low < 20 <= high else 0.0, lambda position: 1.05)
    for position in range(21, 31):
        line.push(position, 1.05 * LEVELS[position])
    line.push(31, 1.05 * 1.5)
    with line.database.transaction() as session:
        return str(line.series(session).id)


def test_change_points_drift_and_open_searches(client: TestClient, line: Line) -> None:
    series_id = lived(line)
    with line.database.transaction() as session:
        ends = {"since_commit_id": line.commit(session, 21), "commit_id": line.commit(session, 30)}
        session.add(DriftNotice(series_id=UUID(series_id), since=21, position=30, **ends, effect=0.03, device="GPU-1"))
    path = f"{API}/series/{series_id}"
    found: dict[str, Any] = client.get(f"{path}/change-points").json()
    (change,) = found["change_points"]
    (alert,) = line.rows(Alert)
    (job,) = line.rows(Job, Job.id == line.rows(ChangePoint)[0].job_id)
    assert (change["status"], change["commit"], change["low_commit"]) == ("confirmed", sha(20), sha(19))
    assert (change["position"], change["low"], change["named"]) == (20, 19, True)
    assert (change["effect"], change["interval_low"]) == (0.05, pytest.approx(0.045))
    assert (change["job_id"], change["alert_id"], change["alert_state"]) == (str(job.id), str(alert.id), "open")
    assert (change["replaced_by"], change["withdrawn_at"]) == (None, None)
    (drift,) = found["drift"]
    assert (drift["effect"], drift["since_commit"], drift["commit"]) == (0.03, sha(21), sha(30))
    (out,) = line.waiting()
    (search,) = found["searches"]
    assert (search["job_id"], search["low"], search["high"]) == (str(out.job_id), 30, 31)
    points = client.get(f"{path}/points").json()["points"]
    assert {point["history"] for point in points if point["arm"] == "B"} == {"ok"}
    assert client.get(f"{API}/series/{uuid4()}/change-points").json()["code"] == "unknown_series"


def test_the_overview_shows_a_change_until_its_alert_is_settled(client: TestClient, line: Line) -> None:
    lived(line)
    (row,) = client.get(f"{API}/overview").json()["rows"]
    assert (row["case"], row["open_change"]["commit"], row["open_change"]["alert_state"]) == (CASE, sha(20), "open")
    with line.database.transaction() as session:
        session.execute(update(Alert).values(state=AlertState.EXPECTED))
    (row,) = client.get(f"{API}/overview").json()["rows"]
    assert row["open_change"] is None


def test_the_overview_shows_a_change_without_an_alert_while_its_commit_is_in_sight(
    client: TestClient, line: Line
) -> None:
    seen = {}
    for position in range(2, 55):
        line.push(position, LEVELS[position] * (0.8 if position >= 20 else 1.0))
        line.confirm(lambda low, high: -0.2 if low < 20 <= high else 0.0, lambda position: 0.8)
        (row,) = client.get(f"{API}/overview").json()["rows"]
        seen[position] = row["open_change"]
    assert {position: change is not None for position, change in seen.items() if position in {19, 20, 25, 54}} == {
        19: False,
        20: True,
        25: True,
        54: False,
    }
    assert (seen[20]["status"], seen[20]["commit"], seen[20]["alert_id"]) == ("confirmed", sha(20), None)


def test_canceling_the_job_that_a_history_waits_for_answers_it(client: TestClient, line: Line) -> None:
    lived(line)
    (out,) = line.waiting()
    assert client.post(f"{API}/jobs/{out.job_id}/cancel").json()["state"] == "canceled"
    (answered,) = line.rows(HistoryRequest, HistoryRequest.job_id == out.job_id)
    assert answered.outcome == "not_comparable"
    search = line.state().search
    assert search is None or (search.high, search.low) != (31, 30)


def test_the_command_rebuilds_histories(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(line)
    before = line.state()
    monkeypatch.setenv("S2BENCH_DATABASE_URL", line.database.url)
    with line.database.transaction() as session:
        session.execute(update(Point).values(history=None))
    done = CliRunner().invoke(app, ["history", "rebuild", "--data-dir", str(tmp_path), "--json"])
    assert (done.exit_code, done.stdout.split()) == (0, ["{", '"series":', "1,", '"changes":', "1", "}"])
    assert line.state() == before
    assert {row.history for row in line.rows(Point, Point.arm == "B")} == {"ok"}
    unknown = CliRunner().invoke(app, ["history", "rebuild", "--repository", "nowhere", "--data-dir", str(tmp_path)])
    assert unknown.exception is not None
    assert "nowhere" in str(unknown.exception)
