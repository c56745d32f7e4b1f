"""Profiles one arm, kernel by kernel, with the checkout's own `python -m s2attn.benchmarks profile`.

A profile explains a verdict and never makes one: it is taken once per arm when the pairs are over, within a time limit,
and whatever goes wrong with it is its status and reason. Commits before the command came answer with exit status 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from service.worker.document import PROTOCOL, Short, parse, read_raw
from service.worker.errors import Canceled, JobError
from service.worker.host import Host, never_stop
from service.worker.measure import MODULE, USAGE_STATUS, ProcessSpec, child_of
from service.worker.sandbox import Places, package_path, run_child

STAGE = "profile"
_DOCUMENT = "profile.json"
_MAX_BYTES = 8 * 2**20
# Of the time limit, what reading hardware counters may take.
_COUNTERS_SHARE = 0.5

NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Extent = Annotated[list[Count], Field(min_length=3, max_length=3)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class KernelEntry(_Strict):
    """A kernel of a case: what it took per call, how it was launched, what it needs; None where nobody knows.

    `kind` is kernel, memset, memcpy, operator (of torch, on a CPU) or rest (many small ones together).
    """

    name: Annotated[str, Field(min_length=1, max_length=4000)]
    kind: Literal["kernel", "memset", "memcpy", "operator", "rest"]
    calls: NonNegative
    time_ms: NonNegative
    share: NonNegative
    grid: Extent | None = None
    block: Extent | None = None
    registers: Count | None = None
    shared_bytes: Count | None = None
    dynamic_shared_bytes: int | None = None
    spill_store_bytes: Count | None = None
    spill_load_bytes: Count | None = None
    stack_bytes: Count | None = None
    sass_bytes: Count | None = None
    occupancy: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None
    occupancy_limit: Short | None = None
    counters: Annotated[dict[Short, NonNegative], Field(max_length=40)] | None = None


class ProfiledCase(_Strict):
    """The kernels of a case, longest first."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    version: Annotated[str, Field(min_length=1, max_length=64)]
    status: Literal["ok", "failed"]
    error: str | None = None
    time_ms: NonNegative
    kernels: Annotated[list[KernelEntry], Field(max_length=1000)]


class CountersNote(_Strict):
    """Of how many cases hardware counters were read, and why of no more."""

    cases: Count
    reason: Annotated[str, Field(max_length=2000)] | None = None


class Profile(_Strict):
    """What one profiling process found."""

    protocol: Literal[1]
    kind: Literal["profile"]
    device: Literal["cpu", "cuda"]
    source: Annotated[str, Field(max_length=120)]
    calls: Annotated[int, Field(ge=1)]
    package_path: str
    counters: CountersNote | None = None
    cases: Annotated[list[ProfiledCase], Field(min_length=1, max_length=2000)]


@dataclass(frozen=True)
class ProfileResult:
    """The outcome for one arm: `status` is done, unsupported (by the commit) or failed; the last two say why."""

    status: str
    reason: str | None
    profile: Profile | None
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        document = self.profile.model_dump(mode="json", exclude={"package_path"}) if self.profile else None
        return {"status": self.status, "reason": self.reason, "wall_s": self.wall_s, "document": document}


def profile_arm(spec: ProcessSpec, host: Host, stop: Callable[[], bool] = never_stop) -> ProfileResult:
    """Profile an arm; only a request to stop raises."""

    def command(places: Places) -> list[str]:
        arguments = ["profile", "--protocol", str(PROTOCOL), "--cases", spec.cases, "--device", spec.device.kind]
        if spec.device.kind == "cuda":
            seconds = max(1, int(_COUNTERS_SHARE * host.limits.profile_timeout_s))
            arguments += ["--counters", "--counters-timeout-s", str(seconds)]
        return [*MODULE, *arguments, "--out", str(places.output / _DOCUMENT)]

    try:
        with child_of(spec, host, command, timeout_s=host.limits.profile_timeout_s) as child:
            outcome = run_child(child, host.sandbox, stop)
            if outcome.stopped:
                raise Canceled("profiling was stopped")
            if outcome.timed_out:
                reason = f"no end within {host.limits.profile_timeout_s:g} s"
                return ProfileResult("failed", reason, None, outcome.wall_s)
            if outcome.status == USAGE_STATUS:
                return ProfileResult("unsupported", "the commit has no profile command", None, outcome.wall_s)
            if outcome.status != 0:
                reason = f"ended with status {outcome.status}: {_last_line(outcome.log)}"
                return ProfileResult("failed", reason, None, outcome.wall_s)
            found = parse(read_raw(child.output / _DOCUMENT, _MAX_BYTES, STAGE), Profile, STAGE)
            _check(found, spec, package_path(child, host.sandbox))
    except (JobError, OSError) as error:
        return ProfileResult("failed", str(error)[:2000], None, 0.0)
    return ProfileResult("done", None, found, outcome.wall_s)


def _check(found: Profile, spec: ProcessSpec, path: str | None) -> None:
    claims = {"device": (found.device, spec.device.kind), "package_path": (found.package_path, path)}
    for name, (got, wanted) in claims.items():
        if wanted is not None and got != wanted:
            raise JobError("bad_document", f"{name}: expected {wanted!r}, got {got!r}", stage=STAGE)


def _last_line(log: str) -> str:
    lines = log.strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
