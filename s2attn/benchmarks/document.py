"""Protocol 1 of the benchmark document: what a process says about what it measured.

The document is JSON in UTF-8 without NaN or Infinity, complete or not there at all. Times are seconds or milliseconds
as their names say; ``*_s`` stamps count from the start of the process's measuring clock.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s2attn.benchmarks.cases import Case

PROTOCOL = 1
METRIC = "time"
UNIT = "ms"


@dataclass
class CaseRecord:
    """What one process found out about one case. Lists run parallel: one entry per sample, in the order taken.

    Attributes
    ----------
    samples
        Milliseconds per call: the device's on a GPU, CPU time on one thread of a CPU (what other processes take is not
        the kernel's doing), the wall clock's on several threads.
    sample_start_s, sample_end_s
        When the call ran, on the clock of the telemetry.
    host_enqueue_ms
        Wall-clock milliseconds of the host until the call returned; on a CPU that is the call itself.
    queued
        Whether the device had not begun when the last launch returned, so that no launch time is in the sample.
    device_clock_before_mhz, device_clock_after_mhz
        SM clock as the GPU itself read it, in a spin right before and one right after the sample; None where its timer
        stood still. Empty on a CPU.
    """

    case: Case
    backend: str | None = None
    variant: str | None = None
    error: str | None = None
    samples: list[float] = field(default_factory=list)
    sample_start_s: list[float] = field(default_factory=list)
    sample_end_s: list[float] = field(default_factory=list)
    host_enqueue_ms: list[float] = field(default_factory=list)
    queued: list[bool] = field(default_factory=list)
    device_clock_before_mhz: list[float | None] = field(default_factory=list)
    device_clock_after_mhz: list[float | None] = field(default_factory=list)
    warmups: int = 0
    numerics: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Whether the case could not be measured."""
        return self.error is not None

    def fail(self, error: str) -> None:
        """Mark the case failed; samples taken before stay as they are. The first reason wins."""
        if self.error is None:
            self.error = error

    def to_json(self) -> dict[str, Any]:
        """Return the case's entry of the document."""
        return {
            "name": self.case.name,
            "version": self.case.version,
            "group": self.case.group,
            "device": self.case.device,
            "definition": self.case.definition,
            "status": "failed" if self.failed else "ok",
            "error": self.error,
            "backend": self.backend,
            "variant": self.variant,
            "metric": METRIC,
            "unit": UNIT,
            "samples": self.samples,
            "sample_start_s": self.sample_start_s,
            "sample_end_s": self.sample_end_s,
            "host_enqueue_ms": self.host_enqueue_ms,
            "queued": self.queued,
            "device_clock_before_mhz": self.device_clock_before_mhz,
            "device_clock_after_mhz": self.device_clock_after_mhz,
            "warmups": self.warmups,
            "numerics": self.numerics,
        }


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write the document so that a reader sees all of it or none of it, also after a crash.

    Raises
    ------
    ValueError
        The document holds a number that JSON cannot carry.
    OSError
        The file cannot be written.
    """
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"
    path = path.absolute()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
