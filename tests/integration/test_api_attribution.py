"""Jobs of kind stack over HTTP: taken, refused, shown; on SQLite and on PostgreSQL."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from service.db import Database
from service.models import Attribution, Commit, Job, Repository

API = "/api/v1"
NUMBERS = {"before": 2.0, "after": 2.2, "effect": 0.1, "interval_low": 0.09, "interval_high": 0.11}


def post(client: TestClient, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return client.post(f"{API}/jobs", json={"repository": "kernels", "commit": "topic"} | body, headers=headers)


def test_the_kind_is_kept_and_compare_unless_told(client: TestClient, repository: Repository) -> None:
    assert post(client).json()["kind"] == "compare"
    stack = post(client, kind="stack").json()
    assert stack["kind"] == "stack"
    assert client.get(f"{API}/jobs/{stack['id']}").json()["kind"] == "stack"
    assert [job["kind"] for job in client.get(f"{API}/jobs").json()["items"]] == ["stack", "compare"]
    assert client.get(f"{API}/jobs/{stack['id']}/attribution").json()["rows"] == []


def test_an_unknown_kind_is_refused(client: TestClient, repository: Repository) -> None:
    answer = post(client, kind="dance")
    assert answer.status_code == 422
    assert "kind" in answer.text


@pytest.mark.parametrize("cases", ["*", "cpu/?", "cpu/[ab]", "-x", "two words"])
def test_a_bisection_is_about_one_case(client: TestClient, repository: Repository, cases: str) -> None:
    answer = post(client, kind="bisect", cases=cases)
    assert answer.status_code == 422
    assert "cases" in answer.text
    assert post(client, kind="bisect", cases="cpu/forward/self").json()["kind"] == "bisect"


def test_what_shows_comparisons_leaves_stacks_out(client: TestClient, database: Database, history: Any) -> None:
    before, after = (history.commits[at].sha for at in (1, 2))
    with database.transaction() as session:
        session.get_one(Commit, history.commits[2].id).first_parent_position = 3
    compare = {"repository": "kernels", "base": before, "head": after}
    assert len(client.get(f"{API}/compare", params=compare).json()["rows"]) == 2
    overview = client.get(f"{API}/overview").json()
    badge = client.get(f"{API}/badge.svg", params={"repository": "kernels", "device_class": "cpu"}).text
    with database.transaction() as session:
        session.get_one(Job, history.job.id).kind = "stack"
    assert client.get(f"{API}/compare", params=compare).json()["rows"] == []
    assert client.get(f"{API}/overview").json() != overview
    assert client.get(f"{API}/badge.svg", params={"repository": "kernels", "device_class": "cpu"}).text != badge


def test_another_kind_under_a_known_key_is_another_body(client: TestClient, repository: Repository) -> None:
    first = post(client, "key").json()
    assert post(client, "key", kind="compare").json()["id"] == first["id"]
    assert post(client, "key", kind="stack").status_code == 409


@pytest.mark.parametrize("known", [True, False])
def test_rows_come_by_case_and_position(client: TestClient, database: Database, history: Any, known: bool) -> None:
    if not known:
        assert client.get(f"{API}/jobs/{uuid4()}/attribution").status_code == 404
        return
    common = {"measurement_id": history.measurement.id, "unit": "ms", "pairs_used": 8, "pairs_rejected": 1}
    with database.transaction() as session:
        for case in history.case_rows:
            for position in (2, 1):
                row = {"commit_id": history.commits[position].id, "baseline_id": history.commits[position - 1].id}
                session.add(
                    Attribution(
                        **common, **NUMBERS, **row, case_id=case.id, position=position, verdict="regressed", reasons=[]
                    )
                )
    rows = client.get(f"{API}/jobs/{history.job.id}/attribution").json()["rows"]
    assert [(row["case"], row["position"]) for row in rows] == [
        (name, position) for name in sorted(history.cases) for position in (1, 2)
    ]
    assert (rows[1]["commit"], rows[1]["baseline"]) == (history.commits[2].sha, history.commits[1].sha)
    assert rows[1]["subject"] == "subject 2 <b>"
    assert {name: rows[0][name] for name in NUMBERS} == NUMBERS
