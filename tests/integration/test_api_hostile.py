"""Whatever is sent, the answer is no 5xx, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

API = "/api/v1"
FIELDS = ("repository", "commit", "baseline", "devices", "cases", "reason", "pull_request", "priority", "max_pairs")
PATHS = ("jobs", "verdicts", "series", "compare", "overview", "devices", "repositories", "measurements", "nowhere")
QUERIES = (
    "repository",
    "commit",
    "case",
    "device_class",
    "state",
    "verdict",
    "cursor",
    "limit",
    "base",
    "head",
    "other",
)

texts = st.text(max_size=40) | st.sampled_from(
    ["kernels", "main", "topic", "-x", "\x00", "\ud800", "a..b", "gpu:x", "*"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
plausible = {"repository": "kernels", "commit": "main", "devices": ["cpu"]}
relaxed = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(response: Any) -> None:
    assert response.status_code < 500, (response.request.url, response.text)
    assert response.headers["content-type"] in {"application/json", "application/problem+json"}
    if response.status_code >= 400:
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["detail"]
        assert len(response.content) < 10_000


@pytest.mark.usefixtures("repository")
@relaxed
@given(changes=st.dictionaries(st.sampled_from(FIELDS) | texts, values, max_size=4))
def test_bodies(client: TestClient, changes: dict[str, Any]) -> None:
    content = json.dumps(plausible | changes).encode("utf-8", "surrogatepass")
    check(client.post(f"{API}/jobs", content=content, headers={"Content-Type": "application/json"}))


@pytest.mark.usefixtures("history")
@relaxed
@given(
    path=st.sampled_from(PATHS),
    query=st.dictionaries(st.sampled_from(QUERIES), st.text(max_size=30) | st.integers().map(str), max_size=4),
    inner=st.sampled_from(["", "/x", "/0", "/%00", f"/{'f' * 32}", f"/{'0' * 32}/pairs", f"/{'0' * 32}/points"]),
)
def test_queries(client: TestClient, path: str, query: dict[str, str], inner: str) -> None:
    text = "&".join(f"{name}={quote(value, errors='surrogatepass')}" for name, value in query.items())
    check(client.get(f"{API}/{path}{inner}?{text}"))


@pytest.mark.usefixtures("repository")
@relaxed
@given(
    name=st.sampled_from(["Authorization", "Idempotency-Key", "Content-Type", "Host", "Origin", "If-None-Match"]),
    value=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=255), max_size=40),
)
def test_headers(client: TestClient, name: str, value: str) -> None:
    headers = {"Content-Type": "application/json", name: value.encode("latin-1")}
    check(client.post(f"{API}/jobs", content=json.dumps(plausible), headers=headers))
