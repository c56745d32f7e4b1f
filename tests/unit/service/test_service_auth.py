"""Which requests were made on this machine by something other than a foreign page; tokens."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from starlette.requests import Request

from service.auth import Principal, create_token, is_local, token_hash
from service.errors import InvalidInput
from service.models import Token


def request(client: str | None, host: str, **headers: str) -> Request:
    raw = [(b"host", host.encode())]
    raw += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {
            "type": "http",
            "scheme": "http",
            "server": ("127.0.0.1", 8272),
            "path": "/",
            "query_string": b"",
            "client": (client, 1) if client else None,
            "headers": raw,
        }
    )


@pytest.mark.parametrize(
    ("client", "host", "headers", "expected"),
    [
        ("127.0.0.1", "127.0.0.1:8272", {}, True),
        ("127.8.8.8", "localhost", {}, True),
        ("::1", "[::1]:8272", {}, True),
        ("127.0.0.1", "localhost:8272", {"origin": "http://localhost:8272"}, True),
        ("127.0.0.1", "localhost:8272", {"origin": "http://localhost:9999"}, False),
        ("127.0.0.1", "localhost:8272", {"origin": "https://evil.example"}, False),
        ("127.0.0.1", "evil.example:8272", {}, False),
        ("127.0.0.1", "", {}, False),
        ("127.0.0.1", "[::1", {}, False),
        ("127.0.0.1", "localhost", {"x_forwarded_for": "10.0.0.1"}, False),
        ("127.0.0.1", "localhost", {"via": "1.1 proxy"}, False),
        ("10.0.0.1", "localhost", {}, False),
        ("testclient", "localhost", {}, False),
        (None, "localhost", {}, False),
    ],
)
def test_local_requests(client: str | None, host: str, headers: dict[str, str], expected: bool) -> None:
    assert is_local(request(client, host, **headers)) is expected


def test_tokens_are_long_random_and_stored_as_hashes() -> None:
    session = Mock()
    first, second = create_token(session, "ci", ["submit"]), create_token(session, "ci", ["worker", "admin"])
    assert first != second
    assert len(first) >= 43
    rows = [call.args[0] for call in session.add.call_args_list]
    assert all(isinstance(row, Token) for row in rows)
    assert [row.sha256 for row in rows] == [token_hash(first), token_hash(second)]
    assert rows[1].scopes == ["admin", "worker"]


@pytest.mark.parametrize(
    ("name", "scopes"),
    [("ci", []), ("ci", ["everything"]), ("", ["submit"]), ("a\nb", ["submit"]), ("x" * 121, ["submit"])],
)
def test_tokens_that_cannot_be(name: str, scopes: list[str]) -> None:
    session = Mock()
    with pytest.raises(InvalidInput):
        create_token(session, name, scopes)
    session.add.assert_not_called()


def test_scopes() -> None:
    assert Principal(None, "x", frozenset({"admin"})).may("submit")
    assert not Principal(None, "x", frozenset({"worker"})).may("submit")
