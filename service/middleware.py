"""What surrounds every request: limits, headers, one log line, and an answer when a handler breaks.

Plain ASGI: Starlette's `BaseHTTPMiddleware` would copy every body through a queue and break streaming.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import BodyTooLarge
from service.logs import logger
from service.problems import answer_of, problem

# Plotly adds <style> elements while it draws; style attributes in markup and inline scripts stay forbidden.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; style-src-elem 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class RequestLog:
    """Puts the security headers on each answer, answers 500 when a handler raised, and logs requests if asked to."""

    def __init__(self, app: ASGIApp, verbose: bool = False) -> None:
        self.app = app
        self._verbose = verbose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("request_failed", method=scope["method"], path=scope["path"])
            if status:  # part of the answer is on its way: all that is left is to break the connection
                raise
            answer = problem(500, "Internal error", "internal_error", "this is a defect of s2bench: its log says more")
            await answer(scope, receive, send_with_headers)
        finally:
            if self._verbose:
                elapsed_ms = round(1000 * (time.perf_counter() - started), 1)
                logger.info("request", method=scope["method"], path=scope["path"], status=status, elapsed_ms=elapsed_ms)


class BodyLimit:
    """Answers 413 to a body over the limit: at once when its length is announced, else when the limit is passed.

    `others` are the limits of some paths.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, others: Mapping[str, int] | None = None) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._others = dict(others or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self._others.get(scope["path"], self.max_bytes)
        error = BodyTooLarge(
            "body_too_large", f"body: got more than {limit} bytes, expected fewer: send less in one request"
        )
        if _announced_length(scope) > limit:
            await answer_of(error)(scope, receive, send)
            return
        await self.app(scope, _counting(receive, limit, error), send)


def _counting(receive: Receive, limit: int, error: BodyTooLarge) -> Receive:
    received = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            # FastAPI turns any other exception while it reads a body into "400: cannot be parsed".
            raise HTTPException(413, error.message)
        return message

    return counted


def _announced_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
