"""What can go wrong with a measurement, as one kind of error.

JobError
    permanent    the commit's own doing (does not compile, crashes, writes nonsense): reported, never retried
    transient    the surroundings' doing (the repository is unreachable, the disk is full): retried, counted
    device_unfit the device's doing: the measurement goes back, the device is taken out

Codes: unknown_ref, bad_range, no_s2attn, checkout_failed, build_failed, build_timeout, benchmark_timeout,
benchmark_crashed, bad_document, bad_samples, no_cases, no_parent, orphaned, canary_failed, sandbox_missing,
device_unfit, device_busy, worker_lost, internal_error.
A wrong number and a lack of evidence are verdicts, not errors; a canceled measurement raises `Canceled`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

LOG_TAIL_CHARACTERS = 8000


class Kind(StrEnum):
    """Who is to blame, and therefore what happens next."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    DEVICE_UNFIT = "device_unfit"


class JobError(Exception):
    """A failure of a measurement: `code` for programs, the message for people, `log_tail` as the evidence."""

    def __init__(self, code: str, message: str, *, stage: str, log_tail: str = "", kind: Kind = Kind.PERMANENT) -> None:
        super().__init__(message)
        self.code = code
        self.stage = stage
        self.message = message
        self.log_tail = log_tail[-LOG_TAIL_CHARACTERS:]
        self.kind = kind

    def to_dict(self) -> dict[str, Any]:
        """Return the value stored in `Measurement.error`."""
        return {"code": self.code, "stage": self.stage, "message": self.message, "log_tail": self.log_tail}


class Canceled(Exception):  # noqa: N818 (a request that was obeyed, not an error)
    """Somebody asked to stop, between processes or during one."""
