"""GET /calibration: sums over stored verdicts on identical code; nothing known is null, never 0 %."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from service.db import Database
from service.models import Calibration, Case, Job, Measurement, Repository, Series, State, Verdict, utc_now

Add = Callable[..., UUID]
PATH = "/api/v1/calibration"


@pytest.fixture
def calibrated(database: Database, repository: Repository) -> Add:
    """Adds one job of a commit against itself with one verdict, and returns the job's id."""

    def add(
        verdict: str,
        scatter: float | None = 0.002,
        *,
        case: str = "cpu/forward/self",
        device: str = "cpu",
        days: int = 0,
    ) -> UUID:
        with database.transaction() as session:
            return _add(session, repository, verdict, scatter, case, device, days)

    return add


def _add(
    session: Session, repository: Repository, verdict: str, scatter: float | None, case: str, device: str, days: int
) -> UUID:
    sha = "c" * 40
    job = Job(
        repository_id=repository.id,
        requested_commit=sha,
        requested_baseline=sha,
        commit_sha=sha,
        baseline_sha=sha,
        devices=[device],
        cases="*",
        policy={"max_pairs": 12},
        state=State.DONE,
        body_sha256="",
    )
    session.add(job)
    session.flush()
    measurement = Measurement(job_id=job.id, device_class=device, state=State.DONE)
    row = session.query(Case).filter_by(name=case).one_or_none()
    if row is None:
        row = Case(name=case, version="1" * 16, group=case.rsplit("/", 1)[0].replace("/", "."), definition={})
    session.add_all([measurement, row])
    session.flush()
    key = {"repository_id": repository.id, "case_id": row.id, "metric": "time", "device_class": device}
    series = session.query(Series).filter_by(**key).one_or_none() or Series(**key, unit="ms", backend="cpu")
    found = Verdict(
        measurement_id=measurement.id,
        case_id=row.id,
        verdict=verdict,
        reasons=[],
        unit="ms",
        effect=0.01 if scatter else None,
        interval_low=0.005 if scatter else None,
        interval_high=0.015 if scatter else None,
        minimum_detectable_effect=3 * scatter if scatter else None,
        pairs_used=8,
        pairs_rejected=0,
        evidence={},
        judged_at=utc_now() - timedelta(days=days),
    )
    session.add_all([series, found])
    session.flush()
    session.add(Calibration(verdict_id=found.id, series_id=series.id if scatter else None, scatter=scatter))
    return job.id


def get(client: TestClient, **query: Any) -> dict[str, Any]:
    response = client.get(PATH, params=query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_without_calibrations_nothing_is_said(client: TestClient) -> None:
    answer = get(client)
    assert [answer[name] for name in ("devices", "groups", "series", "false_alarms")] == [[], [], [], []]
    assert answer["days"] == 90


def test_undecided_verdicts_give_no_rate(client: TestClient, calibrated: Add) -> None:
    calibrated("inconclusive", 0.05)
    calibrated("failed", None, case="cpu/backward/self")
    (device,) = get(client)["devices"]
    assert device["false_alarms"] == {"count": 0, "trials": 0, "rate": None, "low": None, "high": None}
    assert device["verdicts"] == {"failed": 1, "inconclusive": 1}
    assert device["noise_floor"] == pytest.approx(0.05)
    failed = next(one for one in get(client)["series"] if one["case"] == "cpu/backward/self")
    assert failed["series_id"] is failed["noise_floor"] is failed["minimum_detectable_effect"] is None


def test_rates_by_device_class_group_and_series(client: TestClient, calibrated: Add) -> None:
    for _ in range(3):
        calibrated("unchanged", 0.002)
    false_job = calibrated("improved", 0.004, case="cpu/backward/self")
    calibrated("unchanged", 0.001, device="gpu:NVIDIA H200")
    answer = get(client)
    cpu, gpu = answer["devices"]
    assert (cpu["device_class"], gpu["device_class"]) == ("cpu", "gpu:NVIDIA H200")
    assert cpu["false_alarms"]["count"] == 1
    assert cpu["false_alarms"]["trials"] == cpu["jobs"] == 4
    assert cpu["false_alarms"]["rate"] == 0.25
    assert 0 < cpu["false_alarms"]["low"] < 0.25 < cpu["false_alarms"]["high"] < 1
    assert cpu["noise_floor"] == pytest.approx(0.002)
    assert gpu["false_alarms"]["rate"] == 0.0
    assert gpu["false_alarms"]["high"] == pytest.approx(0.975)
    groups = {(one["device_class"], one["group"]): one["false_alarms"]["trials"] for one in answer["groups"]}
    assert groups == {("cpu", "cpu.backward"): 1, ("cpu", "cpu.forward"): 3, ("gpu:NVIDIA H200", "cpu.forward"): 1}
    assert [one["repository"] for one in answer["series"]] == ["kernels"] * 3
    (alarm,) = answer["false_alarms"]
    assert alarm["job_id"] == str(false_job)
    assert (alarm["case"], alarm["verdict"], alarm["effect"]) == ("cpu/backward/self", "improved", 0.01)


def test_filters_and_their_mistakes(client: TestClient, calibrated: Add) -> None:
    calibrated("unchanged", days=100)
    calibrated("unchanged", device="gpu:X", days=1)
    assert len(get(client)["devices"]) == 1
    assert len(get(client, days=101)["devices"]) == 2
    assert get(client, days=101, device_class="cpu")["devices"][0]["device_class"] == "cpu"
    assert get(client, days=101, repository="elsewhere")["devices"] == []
    for query, field in (({"days": 0}, "days"), ({"device_class": "tpu"}, "device_class"), ({"dayz": 3}, "dayz")):
        response = client.get(PATH, params=query)
        assert response.status_code == 422
        assert field in response.text


def test_a_commit_may_be_posted_against_itself(client: TestClient, repository: Repository) -> None:
    body = {"repository": "kernels", "commit": "main", "baseline": "main", "reason": "calibrate", "priority": 1000}
    response = client.post("/api/v1/jobs", json=body)
    assert response.status_code == 202, response.text
    job = response.json()
    assert job["commit"] == job["baseline"]


def test_overview_and_badge_go_by_changes_alone(
    client: TestClient, database: Database, history: Any, source: Any
) -> None:
    head = source.git("rev-parse", "main")
    with database.transaction() as session:
        history.commits[2].first_parent_position = 2
        job = Job(
            repository_id=history.repository.id,
            requested_commit=head,
            requested_baseline=head,
            commit_sha=head,
            baseline_sha=head,
            devices=["cpu"],
            cases="*",
            policy={"max_pairs": 12},
            state=State.DONE,
            body_sha256="",
        )
        session.add_all([job, history.commits[2]])
        session.flush()
        measurement = Measurement(job_id=job.id, device_class="cpu", state=State.DONE)
        measurement.candidate_id = measurement.baseline_id = history.commits[2].id
        session.add(measurement)
        session.flush()
        for case in history.case_rows:
            session.add(
                Verdict(
                    measurement_id=measurement.id,
                    case_id=case.id,
                    verdict="unchanged",
                    reasons=[],
                    unit="ms",
                    pairs_used=8,
                    pairs_rejected=0,
                    evidence={},
                    judged_at=utc_now(),
                )
            )
    rows = client.get("/api/v1/overview").json()["rows"]
    assert {row["last_verdict"] for row in rows} == {"regressed"}
    badge = client.get("/api/v1/badge.svg", params={"repository": "kernels", "device_class": "cpu"})
    assert "2 regressed" in badge.text
    pinned = client.get("/api/v1/badge.svg", params={"repository": "kernels", "device_class": "cpu", "branch": "main"})
    assert "2 regressed" in pinned.text
