"""Limits, tokens, headers, health and the rest around the API, on SQLite and on PostgreSQL."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text
from starlette.testclient import TestClient

from service import auth, db
from service.db import Database
from service.errors import Unavailable
from service.main import create_app
from service.models import Device, Repository, Token, Worker, utc_now
from service.settings import Settings

API = "/api/v1"
JOBS = f"{API}/jobs"
BODY = {"repository": "kernels", "commit": "main", "devices": ["cpu"]}
LOOPBACK = ("127.0.0.1", 50000)


@contextmanager
def application(
    settings: Settings, database: Database, client: tuple[str, int] = LOOPBACK, host: str = "127.0.0.1:8272"
) -> Iterator[TestClient]:
    app = create_app(settings, database=database)
    with TestClient(app, base_url=f"http://{host}", client=client) as opened:
        yield opened


@pytest.fixture
def token(database: Database) -> Callable[..., dict[str, str]]:
    """Makes a token and returns the header that carries it."""

    def make(*scopes: str) -> dict[str, str]:
        with database.transaction() as session:
            return {"Authorization": f"Bearer {auth.create_token(session, 'somebody', scopes)}"}

    return make


def test_without_tokens_only_this_machine_may_write(
    settings: Settings, database: Database, repository: Repository
) -> None:
    with application(settings, database) as here:
        assert here.post(JOBS, json=BODY).status_code == 202
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Host": "evil.example"},
            {"X-Forwarded-For": "203.0.113.9"},
            {"Forwarded": "for=203.0.113.9"},
        ):
            response = here.post(JOBS, json=BODY, headers=headers)
            assert (response.status_code, response.json()["code"]) == (401, "token_required"), headers
            assert response.headers["www-authenticate"].startswith("Bearer")
        assert here.post(JOBS, json=BODY, headers={"Origin": "http://127.0.0.1:8272"}).status_code == 202
    with application(settings, database, client=("::1", 50000), host="[::1]:8272") as here:
        assert here.post(JOBS, json=BODY).status_code == 202
    with application(settings, database, client=("203.0.113.9", 50000)) as elsewhere:
        assert elsewhere.get(JOBS).status_code == 200
        response = elsewhere.post(JOBS, json=BODY)
        assert response.status_code == 401
        assert "s2bench token create" in response.json()["detail"]
        for path in ("/repositories", f"/jobs/{uuid4()}/cancel"):
            assert elsewhere.post(f"{API}{path}", json={"name": "x", "url": "/x"}).status_code == 401


def test_tokens(client: TestClient, database: Database, repository: Repository, token: Any) -> None:
    submitter, admin, worker = token("submit"), token("admin"), token("worker")
    assert client.post(JOBS, json=BODY).status_code == 401  # a token exists: this machine needs one too
    job = client.post(JOBS, json=BODY, headers=submitter)
    assert job.status_code == 202
    assert client.post(f"{job.headers['location']}/cancel", headers=submitter).status_code == 200
    assert client.post(JOBS, json=BODY, headers=admin).status_code == 202
    response = client.post(JOBS, json=BODY, headers=worker)
    assert (response.status_code, response.json()["code"]) == (403, "missing_scope")
    new = {"name": "other", "url": "https://git.example.org/other.git"}
    assert client.post(f"{API}/repositories", json=new, headers=submitter).status_code == 403
    assert client.post(f"{API}/repositories", json=new, headers=admin).status_code == 201
    for value in ("Bearer s2b_wrong", "Bearer \u00fc", "Basic YTpi", "Bearer", "s2b_wrong", "Bearer " + "x" * 5000):
        response = client.post(JOBS, json=BODY, headers={"Authorization": value.encode("latin-1")})
        assert (response.status_code, response.json()["code"]) in {(401, "invalid_token"), (401, "token_required")}, (
            value
        )
    with database.transaction() as session:
        for row in session.query(Token):
            assert row.last_used_at is not None
            row.revoked_at = utc_now()
    assert client.post(JOBS, json=BODY, headers=submitter).status_code == 401
    assert client.post(JOBS, json=BODY).status_code == 401


def test_a_stored_token_does_not_hold_its_secret(database: Database, token: Any) -> None:
    secret = token("submit")["Authorization"].removeprefix("Bearer ")
    with database.reading() as session:
        row = session.query(Token).one()
        assert secret not in json.dumps({column.name: str(getattr(row, column.name)) for column in Token.__table__.c})
        assert row.sha256 == auth.token_hash(secret)


def test_reading_may_need_a_token_too(settings: Settings, database: Database, token: Any) -> None:
    private = settings.model_copy(update={"public_read": False})
    with application(private, database, client=("203.0.113.9", 1)) as elsewhere:
        assert elsewhere.get(JOBS).status_code == 401
        headers = token("submit")
        assert elsewhere.get(JOBS).status_code == 401
        assert elsewhere.get(JOBS, headers=headers).status_code == 200
        assert elsewhere.get("/healthz").status_code == 200


def test_writes_can_be_limited(settings: Settings, database: Database, repository: Repository) -> None:
    limited = settings.model_copy(update={"write_rate_limit": "3/hour"})
    with application(limited, database) as here:
        assert [here.post(JOBS, json=BODY).status_code for _ in range(5)] == [202, 202, 202, 429, 429]
        response = here.post(f"{API}/repositories", json={"name": "x", "url": "https://git.example.org/x.git"})
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 3600
        assert here.get(JOBS).status_code == 200


def test_a_body_over_the_limit(client: TestClient, repository: Repository) -> None:
    huge = json.dumps(BODY | {"reason": "x" * 10_000_000}).encode()
    headers = {"Content-Type": "application/json"}
    announced = client.post(JOBS, content=huge, headers=headers)
    chunked = client.post(JOBS, content=(huge[at : at + 65536] for at in range(0, len(huge), 65536)), headers=headers)
    for response in (announced, chunked):
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        assert response.headers["content-type"] == "application/problem+json"


def test_a_body_over_the_limit_is_refused_before_it_is_sent(server: str) -> None:
    address = urlsplit(server)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        head = f"POST {JOBS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10000000\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 1000)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_what_is_not_there_or_not_allowed(client: TestClient) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", f"{API}/nowhere", 404),
        ("DELETE", JOBS, 405),
        ("PUT", "/healthz", 405),
        ("GET", "/static/../pyproject.toml", 404),
        ("GET", "/static/%2e%2e/%2e%2e/pyproject.toml", 404),
    ):
        response = client.request(method, path)
        assert response.status_code == status, path
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"]


def test_every_answer_carries_the_security_headers(client: TestClient) -> None:
    for path in ("/healthz", "/nowhere", JOBS, "/static/vendor/plotly.min.js", "/"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "script-src" not in headers["content-security-policy"]  # so scripts come from here, and none is inline
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_plotly_comes_from_its_package(client: TestClient) -> None:
    path = "/static/vendor/plotly.min.js"
    response = client.get(path)
    assert response.headers["content-type"].startswith("text/javascript")
    assert response.headers["content-encoding"] == "gzip"
    assert b"plotly.js v" in response.content[:300]
    assert int(response.headers["content-length"]) < len(response.content) / 2
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == response.content
    again = client.get(path, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in client.get(f"{path}?v=1").headers["cache-control"]


def test_long_answers_are_compressed(client: TestClient) -> None:
    response = client.get(f"{API}/openapi.json")
    assert response.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(response.content)) < len(response.content)


def test_openapi_describes_every_route_with_an_example(client: TestClient) -> None:
    document = client.get(f"{API}/openapi.json").json()
    submit = document["paths"][JOBS]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]["examples"]
    assert submit["security"] == [{"token": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
            if path.startswith(API):
                assert "application/problem+json" in operation["responses"]["422"]["content"]
    assert "/api/v1/jobs/{job_id}/events" in document["paths"]
    assert client.get("/docs").status_code == 404  # its page would load scripts from another host


def test_repositories(client: TestClient, source: Any, tmp_path: Path) -> None:
    new = {"name": "kernels", "url": str(source.path)}
    made = client.post(f"{API}/repositories", json=new)
    assert made.status_code == 201
    assert made.json()["default_branch"] == "main"
    changed = client.post(f"{API}/repositories", json=new | {"default_branch": "topic", "url": f"file://{source.path}"})
    assert changed.json()["id"] == made.json()["id"]
    assert client.get(f"{API}/repositories").json()["items"] == [changed.json()]
    assert client.post(JOBS, json=BODY | {"commit": "main"}).json()["baseline"] == source.git(
        "merge-base", "main", "topic"
    )
    secret = {"name": "far", "url": "https://ada:s3cret@git.example.org/far.git"}
    assert client.post(f"{API}/repositories", json=secret).json()["url"] == "https://git.example.org/far.git"
    assert "s3cret" not in client.get(f"{API}/repositories").text
    (tmp_path / "no repository").mkdir()
    for field, value in (
        ("url", str(tmp_path / "no repository")),
        ("url", str(tmp_path / "nothing")),
        ("url", str(source.path / "kernel.cpp")),
        ("url", "relative/path"),
        ("url", "ext::sh -c touch% /tmp/x"),
        ("url", "--upload-pack=x"),
        ("url", "file:///\x00"),
        ("url", ""),
        ("name", "a b"),
        ("name", "-x"),
        ("name", ""),
        ("default_branch", "-x"),
        ("default_branch", "a..b"),
    ):
        response = client.post(f"{API}/repositories", json=new | {field: value})
        assert response.status_code == 422, (field, value)
        assert [error["field"] for error in response.json()["errors"]] == [field]


def test_workers_and_devices(client: TestClient, database: Database) -> None:
    with database.transaction() as session:
        worker = Worker(executor_id="host-1", host="host", pid=7, version="0.1", sandbox="bubblewrap")
        session.add(worker)
        session.flush()
        session.add(
            Device(worker_id=worker.id, device_class="cpu", uuid="CPU-1", name="EPYC", status="ready", info={"cpus": 2})
        )
    (found,) = client.get(f"{API}/workers").json()["items"]
    assert (found["executor_id"], found["alive"]) == ("host-1", True)
    (device,) = client.get(f"{API}/devices").json()["items"]
    assert found["devices"] == [device]
    assert (device["device_class"], device["served"], device["info"]) == ("cpu", True, {"cpus": 2})
    with database.transaction() as session:
        session.query(Worker).one().heartbeat_at = utc_now().replace(year=2020)
    assert client.get(f"{API}/workers").json()["items"][0]["alive"] is False
    assert client.get(f"{API}/devices").json()["items"][0]["served"] is False


def test_health(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "database": "ok"}


def test_a_database_that_goes_away_and_comes_back(make_postgres_database: Callable[[], str], tmp_path: Path) -> None:
    url = make_postgres_database()
    db.upgrade(url)
    name = make_url(url).database
    server = create_engine(os.environ["S2BENCH_TEST_POSTGRES_URL"], isolation_level="AUTOCOMMIT")
    with (
        TestClient(create_app(Settings(database_url=url, data_dir=tmp_path)), client=LOOPBACK) as client,
        server.connect() as administrator,
    ):
        assert client.get("/healthz").status_code == 200
        administrator.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        administrator.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )
        for method, path, body in (("GET", "/healthz", None), ("GET", JOBS, None), ("POST", JOBS, BODY)):
            response = client.request(method, path, json=body, headers={"Host": "127.0.0.1"})
            assert (response.status_code, response.json()["code"]) == (503, "database_unavailable"), path
            assert response.headers["retry-after"]
            assert response.headers["content-type"] == "application/problem+json"
        administrator.execute(text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        assert client.get("/healthz").status_code == 200
        assert client.get(JOBS).json()["items"] == []
    server.dispose()


def test_an_application_on_an_old_schema_does_not_start(tmp_path: Path) -> None:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'empty.db'}", data_dir=tmp_path)
    with pytest.raises(Unavailable, match="s2bench db upgrade"), TestClient(create_app(settings)):
        pass


def test_a_defect_is_answered_and_logged(
    settings: Settings, database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError("inner matters")

    monkeypatch.setattr("service.devices.service.list_devices", broken)
    with application(settings, database) as here:
        response = here.get(f"{API}/devices")
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    assert "inner matters" not in response.text
    (record,) = [one for one in caplog.records if one.name == "s2bench"]
    assert "request_failed" in str(record.msg)
