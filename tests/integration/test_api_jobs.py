"""POST /jobs and what becomes of it, against real git and the real queue, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy import func, inspect, select, text
from starlette.testclient import TestClient

from service.db import Database
from service.models import Device, Job, JobEvent, Measurement, Repository, State, Worker, utc_now

JOBS = "/api/v1/jobs"
BODY: dict[str, Any] = {"repository": "kernels", "commit": "main", "devices": ["cpu"]}

pytestmark = pytest.mark.usefixtures("repository")


def queued(database: Database) -> dict[UUID, str]:
    """Return the status of each measurement in the queue engine's own table."""
    with database.reading() as session:
        schema = "dbos." if inspect(session.connection()).has_table("workflow_status", schema="dbos") else ""
        rows = session.execute(text(f"SELECT workflow_uuid, status FROM {schema}workflow_status"))
        return {UUID(workflow_id): status for workflow_id, status in rows}


def count(database: Database, model: type[Any]) -> int:
    with database.reading() as session:
        return session.execute(select(func.count()).select_from(model)).scalar_one()


def add_worker(database: Database, *device_classes: str, age: timedelta = timedelta(0), status: str = "ready") -> None:
    with database.transaction() as session:
        name = f"host-{uuid4().hex[:6]}"
        worker = Worker(
            executor_id=name, host=name, pid=1, version="1", sandbox="bubblewrap", heartbeat_at=utc_now() - age
        )
        session.add(worker)
        session.flush()
        for device_class in device_classes:
            session.add(
                Device(
                    worker_id=worker.id,
                    device_class=device_class,
                    uuid=f"GPU-{uuid4()}",
                    name=device_class,
                    status=status,
                    info={},
                )
            )


def post(client: TestClient, headers: dict[str, str] | None = None, **changes: Any) -> httpx2.Response:
    return client.post(JOBS, json=BODY | changes, headers=headers)


def field_error(response: httpx2.Response, field: str) -> dict[str, str]:
    """Return the error of a field from a 422 answer, having checked the shape of the whole."""
    problem = response.json()
    assert response.status_code == 422, problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == 422
    assert problem["title"]
    assert problem["detail"]
    found = [error for error in problem["errors"] if error["field"] == field]
    assert len(found) == 1, problem
    assert found[0]["expected"]
    return found[0]


def test_a_job_is_stored_with_its_measurements_and_their_places_in_the_queue(
    client: TestClient, database: Database, source: Any
) -> None:
    response = post(client, devices=["cpu", "gpu:NVIDIA H200"], reason="why\nnot", pull_request=7, cases="cpu/*")
    assert response.status_code == 202
    job = response.json()
    assert response.headers["location"] == f"{JOBS}/{job['id']}"
    assert client.get(response.headers["location"]).json() == job
    assert job["state"] == "queued"
    assert job["commit"] == source.git("rev-parse", "main")
    assert job["baseline"] == source.git("rev-parse", "main~1")
    assert job["devices"] == ["cpu", "gpu:NVIDIA H200"]
    assert (job["reason"], job["pull_request"], job["cases"]) == ("why\nnot", 7, "cpu/*")
    measurements = {UUID(one["id"]): one for one in job["measurements"]}
    assert [one["device_class"] for one in measurements.values()] == job["devices"]
    assert all(one["progress"] == {"pairs_done": 0, "budget": 48} for one in measurements.values())
    assert queued(database) == dict.fromkeys(measurements, "ENQUEUED")
    with database.reading() as session:
        assert session.get_one(Job, UUID(job["id"])).policy == {"max_pairs": 48}
        event = session.execute(select(JobEvent)).scalar_one()
        assert (event.kind, event.payload) == ("stage", {"state": "queued", "stage": None})


def test_branches_and_tags_become_commits(client: TestClient, source: Any) -> None:
    same = {
        "main": "main",
        "topic": "topic",
        "refs/heads/topic": "topic",
        "v1": "main~1",
        "light": "main~1",
        "HEAD": "main",
    }
    for ref, expected in same.items():
        response = post(client, commit=ref)
        assert response.status_code == 202, ref
        assert response.json()["commit"] == source.git("rev-parse", f"{expected}^{{commit}}"), ref
        assert response.json()["requested_commit"] == ref


def test_forms_of_a_sha(client: TestClient, source: Any) -> None:
    sha, main = source.git("rev-parse", "topic", "main").split()
    for form in (sha, sha.upper(), sha[:10], sha[:10].upper()):
        response = post(client, commit=form, baseline=main[: len(form)])
        assert response.status_code == 202, form
        assert response.json()["commit"] == sha
        assert response.json()["baseline"] == main


BAD_REFS = [
    "",
    "-x",
    "--upload-pack=touch /tmp/x",
    "main\x00",
    "ma\nin",
    "two words",
    "main..topic",
    "main@{1}",
    "@",
    "main~1",
    "main^",
    "main:kernel.cpp",
    ":/one",
    "a//b",
    "/main",
    "main/",
    "main.lock",
    ".hidden",
    "x\\y",
    "zero\u200bwidth",
    "right\u202eto-left",
    "x" * 251,
    "x" * 100_000,
]


@pytest.mark.parametrize("field", ["commit", "baseline"])
def test_what_cannot_be_a_ref_is_refused_by_name(client: TestClient, database: Database, field: str) -> None:
    for ref in BAD_REFS:
        error = field_error(post(client, **{field: ref}), field)
        assert "a branch, a tag or a SHA" in error["expected"] or "at most 250" in error["expected"], ref[:40]
        assert len(error["got"]) < 120
    assert count(database, Job) == 0


@pytest.mark.parametrize("field", ["commit", "baseline"])
def test_unknown_refs_are_refused(client: TestClient, database: Database, field: str) -> None:
    for ref in ("nowhere", "ünïcode/ветка", "deadbeef" * 5, "refs/heads/nowhere", "FETCH_HEAD", "abc"):
        response = post(client, **{field: ref})
        assert response.json()["code"] == "unknown_ref", ref
        field_error(response, field)
    assert count(database, Job) == count(database, Measurement) == 0
    assert queued(database) == {}


def test_other_objects_are_refused(client: TestClient, source: Any) -> None:
    for name in ("tree", "blob", *source.git("rev-parse", "tree", "blob", "tree^{}", "blob^{}").split()):
        response = post(client, commit=name)
        assert response.json()["code"] == "not_a_commit"
        field_error(response, "commit")


def test_an_ambiguous_abbreviation_is_refused(client: TestClient, source: Any) -> None:
    shas = source.git("rev-list", "--all").splitlines()
    prefix = next(sha[:4] for sha in shas if sum(other.startswith(sha[:4]) for other in shas) > 1)
    response = post(client, commit=prefix)
    assert response.json()["code"] == "ambiguous_ref"
    field_error(response, "commit")


def test_baselines(client: TestClient, source: Any) -> None:
    fork = source.git("merge-base", "main", "topic")
    assert post(client, commit="topic").json()["baseline"] == fork  # the merge base with the default branch
    assert post(client, commit=fork).json()["baseline"] == source.git("rev-parse", f"{fork}^")
    assert post(client, commit="main", baseline="topic").json()["baseline"] == source.git("rev-parse", "topic")
    for ref in (source.git("rev-list", "--max-parents=0", "main"), "orphan"):
        response = post(client, commit=ref)
        assert response.json()["code"] == "no_baseline"
        field_error(response, "baseline")
        assert post(client, commit=ref, baseline="main").status_code == 202


def test_a_pushed_commit_is_seen_at_once(client: TestClient, source: Any) -> None:
    assert post(client).status_code == 202
    tree = source.git("rev-parse", "main^{tree}")
    sha = source.git("commit-tree", "-p", "main", "-m", "new", tree)
    assert post(client, commit=sha, baseline="main").json()["commit"] == sha
    source.git("branch", "fresh", sha)
    assert post(client, commit="fresh", baseline="main").json()["commit"] == sha
    source.git("branch", "-D", "fresh")
    assert post(client, commit="fresh").json()["code"] == "unknown_ref"


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"repository": "nowhere"}, "repository"),
    ({"repository": "no\x00where"}, "repository"),
    ({"repository": ""}, "repository"),
    ({"repository": 7}, "repository"),
    ({"commit": None}, "commit"),
    ({"commit": ["main"]}, "commit"),
    ({"devices": []}, "devices"),
    ({"devices": None}, "devices"),
    ({"devices": "cpu"}, "devices"),
    ({"devices": ["gpu"]}, "devices.0"),
    ({"devices": ["cpu", "tpu:v5"]}, "devices.1"),
    ({"devices": ["gpu:a\x00b"]}, "devices.0"),
    ({"devices": ["gpu:" + "x" * 200]}, "devices.0"),
    ({"devices": ["cpu"] * 17}, "devices"),
    ({"cases": ""}, "cases"),
    ({"cases": "x" * 251}, "cases"),
    ({"cases": "--arm"}, "cases"),
    ({"cases": "a b"}, "cases"),
    ({"cases": "a\x00b"}, "cases"),
    ({"reason": "a\x00b"}, "reason"),
    ({"reason": "x" * 2001}, "reason"),
    ({"pull_request": 0}, "pull_request"),
    ({"pull_request": 10**30}, "pull_request"),
    ({"pull_request": 1.5}, "pull_request"),
    ({"pull_request": float("nan")}, "pull_request"),
    ({"priority": 0}, "priority"),
    ({"priority": 1001}, "priority"),
    ({"max_pairs": 1}, "max_pairs"),
    ({"max_pairs": True}, "max_pairs"),
    ({"unknown": 1}, "unknown"),
]


def test_fields_that_cannot_be_accepted(client: TestClient, database: Database) -> None:
    for changes, field in BAD_FIELDS:
        response = client.post(JOBS, content=json.dumps(BODY | changes), headers={"Content-Type": "application/json"})
        assert len(field_error(response, field)["got"]) < 120
        assert len(response.content) < 2000
    assert count(database, Job) == 0


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"main"',
    b"\xff\xfe",
    b"[" * 50_000,
    b"9" * 10_000,
    b'{"repository": Infinity}',
    b'{"repository": "kernels", "commit": "main", "reason": "\\ud800"}',
    b"\x00",
]


def test_bodies_that_are_no_job(client: TestClient) -> None:
    for content in BAD_BODIES:
        for kind in ("application/json", "text/plain", ""):
            response = client.post(JOBS, content=content, headers={"Content-Type": kind} if kind else {})
            assert response.status_code in {400, 422}, content[:20]
            assert response.headers["content-type"] == "application/problem+json"
            assert len(response.content) < 2000
            assert response.json()["detail"]


def test_a_well_formed_body_needs_its_content_type(client: TestClient, database: Database) -> None:
    """A web page may send text/plain anywhere; JSON it may not without being allowed to."""
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert client.post(JOBS, content=json.dumps(BODY), headers={"Content-Type": kind}).status_code == 422
    assert count(database, Job) == 0


def test_device_classes(client: TestClient, database: Database) -> None:
    job = post(client, devices="all").json()
    assert [(one["device_class"], one["served"]) for one in job["measurements"]] == [("cpu", False)]
    add_worker(database, "cpu", "gpu:NVIDIA H200")
    add_worker(database, "gpu:dead host", age=timedelta(minutes=2))
    add_worker(database, "gpu:broken", status="unfit")
    job = post(client, devices="all").json()
    assert [(one["device_class"], one["served"]) for one in job["measurements"]] == [
        ("cpu", True),
        ("gpu:NVIDIA H200", True),
    ]
    job = post(client, devices=["gpu:NVIDIA B200", "cpu", "cpu"]).json()
    assert [(one["device_class"], one["served"]) for one in job["measurements"]] == [
        ("cpu", True),
        ("gpu:NVIDIA B200", False),
    ]


def test_the_same_key_and_body_is_the_same_job(client: TestClient, database: Database, source: Any) -> None:
    key = {"Idempotency-Key": "push-1"}
    first = post(client, key, commit="topic")
    source.git("branch", "-m", "topic", "renamed")
    try:
        again = post(client, key, commit="topic", priority=100)  # the default, spelled out
    finally:
        source.git("branch", "-m", "renamed", "topic")
    assert first.status_code == again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    other = post(client, key, commit="main")
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency_conflict"
    assert post(client, {"Idempotency-Key": "push-2"}, commit="topic").json()["id"] != first.json()["id"]
    assert count(database, Job) == 2


def test_keys_that_cannot_be_accepted(client: TestClient) -> None:
    for key in ("", "a b", "x" * 251, "\x7f"):
        field_error(post(client, {"Idempotency-Key": key}), "idempotency-key")


def test_a_hundred_posts_at_once(server: str, database: Database) -> None:
    def send(number: int) -> httpx2.Response:
        return sender.post(JOBS, json=BODY | {"reason": str(number)})

    limits = httpx2.Limits(max_connections=100)
    with httpx2.Client(base_url=server, timeout=60, limits=limits) as sender, ThreadPoolExecutor(100) as pool:
        responses = list(pool.map(send, range(100)))
    assert {response.status_code for response in responses} == {202}
    ids = {response.json()["id"] for response in responses}
    assert len(ids) == 100
    assert count(database, Job) == count(database, Measurement) == len(queued(database)) == 100
    assert {response.json()["reason"] for response in responses} == {str(number) for number in range(100)}


def test_a_race_for_one_key_has_one_winner(server: str, database: Database) -> None:
    bodies = [BODY | {"reason": "mine"}] * 15 + [BODY | {"reason": "another"}] * 15

    def send(body: dict[str, Any]) -> httpx2.Response:
        return sender.post(JOBS, json=body, headers={"Idempotency-Key": "race"})

    with httpx2.Client(base_url=server, timeout=60) as sender, ThreadPoolExecutor(30) as pool:
        responses = list(pool.map(send, bodies))
    assert sorted(response.status_code for response in responses) == [202] * 15 + [409] * 15
    assert len({response.json()["id"] for response in responses if response.status_code == 202}) == 1
    assert count(database, Job) == len(queued(database)) == 1


def test_remote_repositories_are_left_to_the_worker(client: TestClient, database: Database) -> None:
    with database.transaction() as session:
        session.add(Repository(name="far", url="https://git.example.org/far.git"))
    job = post(client, repository="far", commit="some/branch").json()
    assert (job["state"], job["commit"], job["baseline"]) == ("queued", None, None)
    job = post(client, repository="far", commit="AB" * 20, baseline="cd" * 20).json()
    assert (job["commit"], job["baseline"]) == ("ab" * 20, "cd" * 20)
    assert post(client, repository="far", commit="-x").status_code == 422


def test_a_repository_that_cannot_be_read_is_named(client: TestClient, database: Database, tmp_path: Any) -> None:
    (tmp_path / "plain folder").mkdir()
    with database.transaction() as session:
        session.add(Repository(name="gone", url=str(tmp_path / "gone")))
        session.add(Repository(name="plain", url=str(tmp_path / "plain folder")))
    for name in ("gone", "plain"):
        error = field_error(post(client, repository=name), "repository")
        assert "administrator" in error["expected"]


def test_cancel_of_what_is_queued_is_done_at_once(client: TestClient, database: Database) -> None:
    job = post(client, devices=["cpu", "gpu:NVIDIA H200"]).json()
    canceled = client.post(f"{JOBS}/{job['id']}/cancel")
    assert canceled.status_code == 200
    assert canceled.json()["state"] == "canceled"
    assert canceled.json()["finished_at"] is not None
    assert {one["state"] for one in canceled.json()["measurements"]} == {"canceled"}
    assert set(queued(database).values()) == {"CANCELLED"}
    assert client.post(f"{JOBS}/{job['id']}/cancel").json() == canceled.json()
    with database.reading() as session:
        kinds = list(session.execute(select(JobEvent.kind).order_by(JobEvent.id)).scalars())
    assert kinds == ["stage", "cancel_requested", "end", "end", "end"]


def test_cancel_of_what_runs_is_a_request(client: TestClient, database: Database) -> None:
    job = post(client, devices=["cpu", "gpu:NVIDIA H200"]).json()
    with database.transaction() as session:
        running = session.get_one(Measurement, UUID(job["measurements"][0]["id"]))
        running.state = State.MEASURING
    for _ in range(2):
        asked = client.post(f"{JOBS}/{job['id']}/cancel").json()
        assert asked["cancel_requested"] is True
        assert asked["state"] == "measuring"
        assert [one["state"] for one in asked["measurements"]] == ["measuring", "canceled"]
        assert asked["finished_at"] is None


@pytest.mark.parametrize("state", ["done", "failed", "canceled", "expired"])
def test_what_has_ended_never_changes(client: TestClient, database: Database, state: str) -> None:
    job = post(client).json()
    with database.transaction() as session:
        session.get_one(Job, UUID(job["id"])).state = state
        session.get_one(Measurement, UUID(job["measurements"][0]["id"])).state = state
    before = client.get(f"{JOBS}/{job['id']}").json()
    assert client.post(f"{JOBS}/{job['id']}/cancel").json() == before
    assert before["state"] == state
    assert before["cancel_requested"] is False


def test_jobs_that_do_not_exist(client: TestClient) -> None:
    for path in ("", "/events", "/verdicts"):
        response = client.get(f"{JOBS}/{uuid4()}{path}")
        assert response.status_code == 404
        assert response.json()["code"] == "unknown_job"
        assert client.get(f"{JOBS}/nonsense{path}").status_code == 422
    assert client.post(f"{JOBS}/{uuid4()}/cancel").status_code == 404


def test_pages_of_jobs(client: TestClient) -> None:
    ids = [post(client, commit=ref).json()["id"] for ref in ("main", "topic", "main", "topic", "main")]
    first = client.get(JOBS, params={"limit": 2}).json()
    assert [job["id"] for job in first["items"]] == ids[:-3:-1]
    late = post(client).json()["id"]
    second = client.get(JOBS, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in second["items"]] == [ids[2], ids[1]]
    last = client.get(JOBS, params={"limit": 2, "cursor": second["next_cursor"]}).json()
    assert [job["id"] for job in last["items"]] == [ids[0]]
    assert last["next_cursor"] is None
    sha = first["items"][1]["commit"]
    assert [job["id"] for job in client.get(JOBS, params={"commit": sha[:8].upper()}).json()["items"]] == [
        ids[3],
        ids[1],
    ]
    assert client.get(JOBS, params={"repository": "other"}).json()["items"] == []
    client.post(f"{JOBS}/{late}/cancel")
    assert [job["id"] for job in client.get(JOBS, params={"state": "canceled"}).json()["items"]] == [late]


BAD_QUERIES = [
    "limit=0",
    "limit=201",
    "limit=x",
    "cursor=%00",
    "cursor=abc",
    "cursor=WyJ4Il0",
    "cursor=W1tbW1tb",
    "cursor=" + "x" * 5000,
    "state=asleep",
    "commit=main",
    "commit=%00%00%00%00",
    "repository=%00",
    "unknown=1",
]


def test_queries_that_cannot_be_accepted(client: TestClient) -> None:
    for query in BAD_QUERIES:
        response = client.get(f"{JOBS}?{query}")
        assert response.status_code == 422, query
        assert response.json()["errors"], query
        assert len(response.content) < 2000
