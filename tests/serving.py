"""Applications behind a real server on a free port.

pytest puts this folder on the module path (pyproject.toml): `from serving import serving`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    """A server that looks every 10 ms whether it shall stop, not every 100: hundreds of tests wait for that."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await asyncio.sleep(0.01)


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """Run an application on a free port in a thread and yield its URL."""
    config = uvicorn.Config(application, port=0, log_config=None, proxy_headers=False, timeout_graceful_shutdown=1)
    running = _Server(config)
    thread = threading.Thread(target=running.run, name="server", daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not running.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"
