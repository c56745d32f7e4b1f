"""What the machine did while the samples were taken: a thread that reads CPU load or GPU state at 25 Hz.

Rows share one clock with the samples (`Clock`), so every sample can be laid on the readings around it. A source that
cannot be read is named in the telemetry (``source: "none"`` and a note), never replaced by made-up values.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

# 25 Hz: more than the 20 Hz that verdicts ask for, and about 0.2 % of a core (one /proc reading takes under 0.1 ms).
INTERVAL_S = 0.04

Value = float | int | None


class Clock:
    """Seconds since the process began to measure, from one monotonic counter for samples and telemetry alike."""

    def __init__(self) -> None:
        self.zero_ns = time.perf_counter_ns()

    def seconds(self, stamp_ns: int | None = None) -> float:
        """Return a ``perf_counter_ns`` stamp (default: now) in seconds since zero, to the microsecond."""
        stamp_ns = time.perf_counter_ns() if stamp_ns is None else stamp_ns
        return round((stamp_ns - self.zero_ns) * 1e-9, 6)


class Source(Protocol):
    """Something that can be read again and again."""

    name: str
    columns: tuple[str, ...]
    note: str | None

    def read(self) -> list[Value]:
        """Return one value per column."""
        ...

    def counters(self) -> dict[str, Value]:
        """Return counters to be read once before and once after the samples."""
        ...

    def close(self) -> None:
        """Give back what the source holds open."""
        ...


class Telemetry:
    """Reads a source in a daemon thread from `start` to `stop`."""

    def __init__(self, source: Source, clock: Clock, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._clock = clock
        self._interval_s = interval_s
        self._rows: list[list[Value]] = []
        self._failures = 0
        self._last_failure: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._before: dict[str, Value] = {}
        self._after: dict[str, Value] = {}

    def start(self) -> None:
        """Begin to read."""
        self._before = self._source.counters()
        if self._source.columns:
            self._thread.start()

    def stop(self) -> None:
        """Take a last row, so that the last samples are covered, and end the thread."""
        self._stopped.set()
        if self._source.columns:
            self._thread.join()
            self._read()
        self._after = self._source.counters()
        self._source.close()

    def to_json(self) -> dict[str, Any]:
        """Return the telemetry of the document."""
        notes = [self._source.note] if self._source.note else []
        if self._failures:
            notes.append(f"{self._failures} readings failed, the last with: {self._last_failure}")
        return {
            "source": self._source.name,
            "note": "; ".join(notes) or None,
            "interval_s": self._interval_s,
            "columns": ["t_s", *self._source.columns] if self._source.columns else [],
            "rows": self._rows,
            "counters": {name: [self._before[name], self._after.get(name)] for name in self._before},
        }

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            self._read()
            due = max(due + self._interval_s, time.monotonic())
            self._stopped.wait(due - time.monotonic())

    def _read(self) -> None:
        try:
            values = self._source.read()
        except Exception as error:
            # one failed reading is a hole in the rows, not the end of the measurement; the document counts it
            self._failures += 1
            self._last_failure = f"{type(error).__name__}: {error}"
            return
        self._rows.append([self._clock.seconds(), *values])


class NoSource:
    """Stands for telemetry that this machine cannot give; the note says why."""

    name = "none"
    columns: tuple[str, ...] = ()

    def __init__(self, note: str) -> None:
        self.note: str | None = note

    def read(self) -> list[Value]:
        """Return nothing."""
        return []

    def counters(self) -> dict[str, Value]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Hold nothing."""
