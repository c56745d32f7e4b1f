"""How fast one client may write. Counted in this process alone: a second API process has a count of its own."""

from __future__ import annotations

import math
import time

from service.errors import TooManyRequests


class WriteRate:
    """A moving window per client; without a limit nothing is counted."""

    def __init__(self, limit: str | None) -> None:
        if limit is None:
            self._limit = None
            return
        from limits import parse
        from limits.storage import MemoryStorage
        from limits.strategies import MovingWindowRateLimiter

        self._limit = parse(limit)
        self._window = MovingWindowRateLimiter(MemoryStorage())

    def count(self, client: str) -> None:
        """Count one write of a client; raises TooManyRequests when it is one too many."""
        if self._limit is None or self._window.hit(self._limit, client):
            return
        wait_s = max(1, math.ceil(self._window.get_window_stats(self._limit, client).reset_time - time.time()))
        message = f"more than {self._limit}: try again in {wait_s} s"
        raise TooManyRequests("rate_limited", message, headers={"Retry-After": str(wait_s)})
