"""Sending a notice: the signature, and that nothing in a private network is reached unless that is allowed."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from service.notify.sender import NO_TARGET, NOT_SENT, PRIVATE, SENT, is_public


class Receiver(BaseHTTPRequestHandler):
    """Keeps what it was sent; /redirect points elsewhere, /refuse refuses."""

    received: list[tuple[str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.received.append((self.path, dict(self.headers), body))
        self.send_response(500 if self.path == "/refuse" else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Any]:
    handler = type("OneReceiver", (Receiver,), {"received": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", handler.received
    server.shutdown()
    server.server_close()


def send(url: str, *, allow_private: bool) -> int:
    notice = {"url": url, "title": "a title", "body": "a body", "payload": {"a": 1}, "allow_private": allow_private}
    command = [sys.executable, "-m", "service.notify.sender"]
    return subprocess.run(command, input=json.dumps(notice), text=True, capture_output=True, check=False).returncode


def test_a_signed_webhook(receiver: Any) -> None:
    place, received = receiver
    assert send(f"signed+http://s3cr%40t@{place}/hook", allow_private=True) == SENT
    ((path, headers, body),) = received
    assert path == "/hook"
    assert json.loads(body) == {"a": 1}
    expected = "sha256=" + hmac.new(b"s3cr@t", body, hashlib.sha256).hexdigest()
    assert headers["X-S2Bench-Signature-256"] == expected
    assert send(f"signed+http://secret@{place}/refuse", allow_private=True) == NOT_SENT
    assert send(f"signed+http://{place}/hook", allow_private=True) == NO_TARGET


def test_a_target_of_apprise(receiver: Any) -> None:
    place, received = receiver
    assert send(f"json://{place}/hook", allow_private=True) == SENT
    assert json.loads(received[0][2])["message"] == "a body"
    assert send(f"json://{place}/refuse", allow_private=True) == NOT_SENT
    assert send("nosuchkind://x", allow_private=True) == NO_TARGET


@pytest.mark.parametrize("kind", ["json", "signed+http"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nothing_private_is_reached_by_address_or_by_name(receiver: Any, kind: str, host: str) -> None:
    place, received = receiver
    secret = "secret@" if kind.startswith("signed") else ""
    assert send(f"{kind}://{secret}{host}:{place.rpartition(':')[2]}/hook", allow_private=False) == PRIVATE
    assert received == []


def test_a_datagram_does_not_leave_for_a_private_network() -> None:
    """A syslog server is sent to without a connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        url = f"rsyslog://127.0.0.1:{server.getsockname()[1]}"
        assert send(url, allow_private=True) == SENT
        assert b"a body" in server.recv(4096)
        server.settimeout(0.2)
        assert send(url, allow_private=False) == PRIVATE
        with pytest.raises(TimeoutError):
            server.recv(4096)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (("93.184.215.14", 443), True),
        (("2606:2800:21f:cb07:6820:80da:af6b:8b2c", 443, 0, 0), True),
        (("127.0.0.1", 80), False),
        (("10.1.2.3", 80), False),
        (("172.16.0.1", 80), False),
        (("192.168.0.1", 80), False),
        (("169.254.169.254", 80), False),
        (("100.64.0.1", 80), False),
        (("0.0.0.0", 80), False),
        (("::1", 80, 0, 0), False),
        (("fe80::1%eth0", 80, 0, 2), False),
        (("fd00::1", 80, 0, 0), False),
        (("::ffff:127.0.0.1", 80, 0, 0), False),
        (("::ffff:10.0.0.1", 80, 0, 0), False),
        ("/run/docker.sock", False),
        (b"/run/docker.sock", False),
        (("localhost", 80), False),
        ((), False),
    ],
)
def test_which_addresses_are_public(address: object, expected: bool) -> None:
    assert is_public(address) is expected
