"""The machine a measurement runs on: where its files lie, how its children are confined, and their limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from service.worker.sandbox import Sandbox

StopCheck = Callable[[], bool]


def never_stop() -> bool:
    """Return that nobody asked to stop."""
    return False


@dataclass(frozen=True)
class Limits:
    """Bounds of one child process each; `document_bytes` of what a benchmark process writes."""

    build_timeout_s: float = 900.0
    process_timeout_s: float = 300.0
    profile_timeout_s: float = 180.0
    document_bytes: int = 64 * 2**20
    samples: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Host:
    """`cpus` are all that children may use; timed processes of CPU cases are pinned to `measuring_cpus`.

    A compiler cache that builds of several commits may write lets one plant object code for another: it is shared
    only on request.
    """

    data_dir: Path
    sandbox: Sandbox
    limits: Limits = field(default_factory=Limits)
    share_compiler_cache: bool = False
    cpus: tuple[int, ...] = field(default_factory=lambda: tuple(sorted(os.sched_getaffinity(0))))

    @property
    def measuring_cpus(self) -> tuple[int, ...]:
        """Return the last CPU: interrupts and other users' work tend to sit on the first."""
        return self.cpus[-1:]

    @contextmanager
    def off_measuring_cpus(self) -> Iterator[None]:
        """Leave the measuring CPU to timed processes, if there is another one for this process and its threads."""
        if len(self.cpus) > 1:
            _move_threads(self.cpus[:-1])
        try:
            yield
        finally:
            _move_threads(self.cpus)


def _move_threads(cpus: tuple[int, ...]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)
