"""`python -m service.notify.sender`: sends one notice, as a process of its own; the only module that imports apprise.

Where a target lies is known for certain only when something connects to it: a name may resolve to anything, a server
may redirect. So connecting itself is watched, by an audit hook, which cannot be removed again and thus wants a process
to itself. That process also has a time limit, and takes the target's URL, a secret, from standard input.

Exit codes: 0 sent, 1 not sent, 2 no such kind of target, 3 in a private network.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

SENT, NOT_SENT, NO_TARGET, PRIVATE = 0, 1, 2, 3
SIGNED = ("signed+https", "signed+http")
TIMEOUT_S = 20.0
# A datagram needs no connection; without an address it goes where its socket was connected to.
_REACHES_OUT = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


class _PrivateAddresses:
    """Refuses every connection and datagram that does not lead to a public address."""

    def __init__(self) -> None:
        self.refused = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _REACHES_OUT and arguments[1] is not None and not is_public(arguments[1]):
            self.refused = True
            raise PermissionError("this address is in a private network")


def is_public(address: object) -> bool:
    """Say whether a socket's address is that of a host in the public internet."""
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])  # type: ignore[index]
    except (ValueError, TypeError, IndexError):
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_global)


def send(notice: Mapping[str, Any]) -> int:
    """Send {"url", "title", "body", "payload"} and return the exit code."""
    if urlsplit(notice["url"]).scheme in SIGNED:
        return _send_signed(notice["url"], notice["payload"])
    import apprise

    target = apprise.Apprise()
    if not target.add(notice["url"]):
        return NO_TARGET
    sent = target.notify(title=notice["title"], body=notice["body"], body_format=apprise.NotifyFormat.TEXT)
    return SENT if sent else NOT_SENT


def _send_signed(url: str, payload: Mapping[str, Any]) -> int:
    """POST JSON to signed+https://SECRET@host/path, with its HMAC-SHA256 in X-S2Bench-Signature-256."""
    import httpx2

    parts = urlsplit(url)
    secret, _, place = parts.netloc.rpartition("@")
    if not secret:
        return NO_TARGET
    body = json.dumps(payload, sort_keys=True).encode()
    signature = hmac.new(unquote(secret).encode(), body, hashlib.sha256).hexdigest()
    address = parts._replace(scheme=parts.scheme.removeprefix("signed+"), netloc=place).geturl()
    headers = {"Content-Type": "application/json", "X-S2Bench-Signature-256": f"sha256={signature}"}
    try:
        answer = httpx2.post(address, content=body, headers=headers, timeout=TIMEOUT_S)
    except httpx2.HTTPError:
        return NOT_SENT
    return SENT if answer.is_success else NOT_SENT


def main() -> int:
    """Send what standard input says."""
    notice = json.load(sys.stdin)
    guard = None if notice["allow_private"] else _PrivateAddresses()
    code = send(notice)
    return PRIVATE if code != SENT and guard is not None and guard.refused else code


if __name__ == "__main__":
    sys.exit(main())
