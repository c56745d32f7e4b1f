"""Reads what a benchmark process wrote. The writer is code of a commit: nothing it says is taken on trust.

`read_document` accepts every protocol version ever released (so far 1) and returns typed values, or raises
`DocumentError` with code bad_samples (a sample that is no positive finite number of milliseconds, or no case at all) or
bad_document (everything else).
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from service.worker.errors import JobError

PROTOCOL = 1
MAX_BYTES = 64 * 2**20

Short = Annotated[str, Field(max_length=40)]
Positive = Annotated[FiniteFloat, Field(gt=0)]
NonNegative = Annotated[FiniteFloat, Field(ge=0)]
Share = FiniteFloat | int | None
Parsed = TypeVar("Parsed", bound=BaseModel)


class DocumentError(JobError):
    """A document that cannot be used, and why."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class NumericsError(_Strict):
    """Distance of one output from the float64 reference; None where it has none (wrong shape, not finite)."""

    max_abs: NonNegative | None = None
    relative: NonNegative | None = None


class Numerics(_Strict):
    """The check of a case's outputs against the float64 reference."""

    status: Literal["ok", "failed"]
    reference: Short
    points: int | str
    errors: dict[str, NumericsError | None]
    tolerance: dict[str, FiniteFloat]
    finite: bool
    reason: str | None = None


class CaseResult(_Strict):
    """What one process measured of one case; the lists run parallel, one entry per sample."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    version: Annotated[str, Field(min_length=1, max_length=64)]
    group: Annotated[str, Field(min_length=1, max_length=120)]
    device: Literal["cpu", "cuda"]
    definition: dict[str, Any]
    status: Literal["ok", "failed"]
    error: str | None
    backend: Short | None
    variant: str | None
    metric: Short
    unit: Literal["ms"]
    samples: list[Positive]
    sample_start_s: list[FiniteFloat]
    sample_end_s: list[FiniteFloat]
    host_enqueue_ms: list[NonNegative]
    queued: list[bool]
    device_clock_before_mhz: list[Positive | None] = []
    device_clock_after_mhz: list[Positive | None] = []
    warmups: Annotated[int, Field(ge=0)] = 0
    numerics: Numerics | None = None

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        count = len(self.samples)
        lists: dict[str, Sized] = {"sample_start_s": self.sample_start_s, "sample_end_s": self.sample_end_s}
        lists |= {"host_enqueue_ms": self.host_enqueue_ms, "queued": self.queued}
        lists |= {name: getattr(self, name) for name in ("device_clock_before_mhz", "device_clock_after_mhz")}
        for name, values in lists.items():
            if len(values) not in (0, count):
                raise ValueError(f"{name}: expected {count} entries as in samples, got {len(values)}")
        return self


class Environment(BaseModel):
    """What the process ran under; unknown entries are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    build_key: str | None = None
    gpu_name: str | None = None
    gpu_uuid: Annotated[str, Field(max_length=80)] | None = None


class Telemetry(_Strict):
    """Readings of clocks and load under `columns`; counters hold [before, after]."""

    source: Annotated[str, Field(max_length=20)]
    columns: list[str]
    rows: list[list[Share]]
    counters: dict[str, list[Share]] = {}
    note: str | None = None

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        width = len(self.columns)
        if any(len(row) != width for row in self.rows):
            raise ValueError(f"rows: expected {width} values in each as in columns")
        if self.columns and self.columns[0] != "t_s":
            raise ValueError(f"columns: expected t_s first, got {self.columns[0]!r}")
        return self


class Document(_Strict):
    """One process of one arm."""

    protocol: Literal[1]
    arm: Literal["A", "B"]
    package_path: str
    s2attn_version: str
    started_at: Annotated[AwareDatetime, Field(strict=False)]
    wall_s: NonNegative
    numerics_mode: Literal["with", "only", "skip"]
    environment: Environment
    telemetry: Telemetry
    cases: Annotated[list[CaseResult], Field(min_length=1)]

    def case(self, name: str) -> CaseResult | None:
        """Return a case by name."""
        return next((case for case in self.cases if case.name == name), None)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        names = [case.name for case in self.cases]
        if len(set(names)) != len(names):
            raise ValueError("cases: expected each name once")
        return self


@dataclass(frozen=True)
class Expected:
    """What the worker asked for, to be compared with what the document claims; None does not compare."""

    arm: str
    package_path: str | None
    device: str
    numerics_mode: str
    stage: str
    max_bytes: int = MAX_BYTES


def read_file(path: Path, expected: Expected) -> tuple[Document, bytes]:
    """Read a document that a child left behind."""
    raw = read_raw(path, expected.max_bytes, expected.stage)
    return read_document(raw, expected), raw


def read_raw(path: Path, max_bytes: int, stage: str) -> bytes:
    """Return the bytes of a file that a child left behind; links and special files in its folder are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        message = f"the process wrote no document ({error.strerror})"
        raise DocumentError("bad_document", message, stage=stage) from error
    with open(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError("bad_document", "the document is not a regular file", stage=stage)
        raw = stream.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise DocumentError("bad_document", f"the document is larger than {max_bytes} bytes", stage=stage)
    return raw


def read_document(raw: bytes, expected: Expected) -> Document:
    """Return the document in `raw` if it is sound and is what was asked for."""
    if len(raw) > expected.max_bytes:
        message = f"the document is larger than {expected.max_bytes} bytes"
        raise DocumentError("bad_document", message, stage=expected.stage)
    document = parse(raw, Document, expected.stage)
    try:
        _check_expected(document, expected)
    except ValueError as error:
        raise _unusable(error, raw, expected.stage) from error
    return document


def parse(raw: bytes, model: type[Parsed], stage: str) -> Parsed:
    """Return the sound document of a known protocol in `raw`."""
    try:
        data = json.loads(raw.decode("utf-8"))
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {type(data).__name__}")
        if data.get("protocol") != PROTOCOL:
            raise ValueError(f"protocol: expected {PROTOCOL}, got {data.get('protocol')!r}")
        parsed = model.model_validate(data)
        _check_values(data, "document")
    except ValidationError as error:
        raise _translate(error, raw, stage) from error
    except (ValueError, RecursionError) as error:
        raise _unusable(error, raw, stage) from error
    return parsed


def _unusable(error: Exception, raw: bytes, stage: str) -> DocumentError:
    message = f"the document is not usable: {error or type(error).__name__}"
    return DocumentError("bad_document", message, stage=stage, log_tail=_excerpt(raw))


def _translate(error: ValidationError, raw: bytes, stage: str) -> DocumentError:
    first = error.errors(include_url=False)[0]
    location = ".".join(str(part) for part in first["loc"])
    fields = {part for part in first["loc"] if isinstance(part, str)}
    about_samples = bool(fields & {"samples", "unit"}) or (first["loc"] == ("cases",) and first["type"] == "too_short")
    got = str(first.get("input"))[:80]
    return DocumentError(
        "bad_samples" if about_samples else "bad_document",
        f"{location or 'document'}: {first['msg']}, got {got}",
        stage=stage,
        log_tail=_excerpt(raw),
    )


def _check_expected(document: Document, expected: Expected) -> None:
    claims = {
        "arm": (document.arm, expected.arm),
        "package_path": (document.package_path, expected.package_path or document.package_path),
        "numerics_mode": (document.numerics_mode, expected.numerics_mode),
    }
    for name, (got, wanted) in claims.items():
        if got != wanted:
            raise ValueError(f"{name}: expected {wanted!r}, got {got!r}")
    for case in document.cases:
        if case.device != expected.device:
            raise ValueError(f"{case.name}: expected device {expected.device!r}, got {case.device!r}")
        if case.status == "ok" and expected.numerics_mode != "only" and not case.samples:
            raise DocumentError("bad_samples", f"{case.name}: expected samples, got none", stage=expected.stage)
        if case.status == "ok" and expected.numerics_mode != "skip" and case.numerics is None:
            raise ValueError(f"{case.name}: expected numerics, got none")


def _check_values(value: Any, where: str) -> None:
    """Refuse, at any depth, what databases cannot store: numbers that are not finite, NUL, lone surrogates."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: expected finite numbers, got {value}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"{where}: expected integers of 64 bits, got a larger one")
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError(f"{where}: expected text without NUL characters")
        value.encode("utf-8")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, where)
            _check_values(item, f"{where}.{key}"[:120])
    elif isinstance(value, list):
        for item in value:
            _check_values(item, where)


def _excerpt(raw: bytes) -> str:
    return raw[:2000].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
