"""The document reader: what it accepts, and that everything else is refused with a code and a place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.worker.document import DocumentError, Expected, read_document, read_file

GOLDEN = Path(__file__).parents[3] / "data" / "documents" / "protocol1_cpu.json"
EXPECTED = Expected("A", "/checkout/s2attn", "cpu", "with", "pairs")


def sound() -> dict[str, Any]:
    """Return a document of protocol 1 with two cases."""
    return {
        "protocol": 1,
        "arm": "A",
        "package_path": "/checkout/s2attn",
        "s2attn_version": "0.1.0",
        "started_at": "2026-11-30T10:00:00+00:00",
        "wall_s": 1.5,
        "numerics_mode": "with",
        "environment": {"python": "3.11", "threads": 1, "gpu_uuid": None, "build_key": "abc", "more": {"x": [1, 2]}},
        "telemetry": {
            "source": "proc",
            "columns": ["t_s", "steal_share"],
            "rows": [[0.0, 0.0], [0.1, None]],
            "counters": {"involuntary_switches": [0, 3]},
        },
        "cases": [case("cpu/forward/self"), case("cpu/forward/down")],
    }


def case(name: str) -> dict[str, Any]:
    """Return a sound case."""
    return {
        "name": name,
        "version": "0123456789abcdef",
        "group": "cpu.forward",
        "device": "cpu",
        "definition": {"op": "forward"},
        "status": "ok",
        "error": None,
        "backend": "cpu",
        "variant": "plain",
        "metric": "time",
        "unit": "ms",
        "samples": [1.0, 2, 3.5],
        "sample_start_s": [0.0, 0.1, 0.2],
        "sample_end_s": [0.001, 0.102, 0.204],
        "host_enqueue_ms": [1.0, 2.0, 3.5],
        "queued": [True, True, True],
        "cycles": None,
        "warmups": 3,
        "numerics": {
            "status": "ok",
            "reason": None,
            "reference": "float64",
            "points": "all",
            "errors": {"y": {"max_abs": 1e-6, "relative": 1e-7}},
            "tolerance": {"relative": 1e-5},
            "finite": True,
        },
    }


def read(data: dict[str, Any], expected: Expected = EXPECTED) -> DocumentError | None:
    """Read a document and return the error, if any."""
    try:
        read_document(json.dumps(data).encode(), expected)
    except DocumentError as error:
        return error
    return None


def test_a_sound_document_is_read() -> None:
    document = read_document(json.dumps(sound()).encode(), EXPECTED)
    assert [case.name for case in document.cases] == ["cpu/forward/self", "cpu/forward/down"]
    assert document.cases[0].samples == [1.0, 2.0, 3.5]
    assert document.environment.model_dump()["more"] == {"x": [1, 2]}
    assert document.case("cpu/forward/down") is document.cases[1]
    assert document.case("nothing") is None


def test_the_documents_of_older_commits_are_read() -> None:
    raw = GOLDEN.read_bytes()
    assert b'"cycles"' in raw
    document = read_document(raw, EXPECTED)
    assert all(case.device_clock_before_mhz == case.device_clock_after_mhz == [] for case in document.cases)


def test_clocks_of_the_device_come_with_the_samples_or_not_at_all() -> None:
    data = sound()
    data["cases"][0] |= {"device_clock_before_mhz": [1980, None, 1979.5], "device_clock_after_mhz": []}
    first, second = read_document(json.dumps(data).encode(), EXPECTED).cases
    assert first.device_clock_before_mhz == [1980.0, None, 1979.5]
    assert second.device_clock_after_mhz == []


@pytest.mark.parametrize("name", ["device_clock_before_mhz", "device_clock_after_mhz"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1980.0], "expected 3 entries as in samples, got 1"),
        ([1980.0, 0.0, 1980.0], "greater than 0, got 0.0"),
        ([1980.0, float("inf"), 1980.0], "finite number, got inf"),
        (None, "valid list, got None"),
    ],
)
def test_clocks_of_the_device_that_are_none_are_refused(name: str, value: object, message: str) -> None:
    data = sound()
    data["cases"][1][name] = value
    error = read(data)
    assert error is not None
    assert error.code == "bad_document"
    assert name in error.message
    assert message in error.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 0, None, "1.0", True])
def test_a_sample_that_is_no_positive_number_is_a_bad_sample(value: object) -> None:
    data = sound()
    data["cases"][1]["samples"][2] = value
    error = read(data)
    assert error is not None
    assert error.code == "bad_samples"
    assert "cases.1.samples.2" in error.message
    assert error.stage == "pairs"


@pytest.mark.parametrize("unit", ["s", "us", "", None])
def test_a_unit_other_than_milliseconds_is_a_bad_sample(unit: object) -> None:
    data = sound()
    data["cases"][0]["unit"] = unit
    error = read(data)
    assert error is not None
    assert error.code == "bad_samples"


def test_no_case_and_no_samples_are_bad_samples() -> None:
    for change in (lambda data: data.update(cases=[]), lambda data: data["cases"][0].update(samples=[])):
        data = sound()
        change(data)
        data["cases"] and data["cases"][0].update(sample_start_s=[], sample_end_s=[], host_enqueue_ms=[], queued=[])
        error = read(data)
        assert error is not None
        assert error.code == "bad_samples"


def _set(*path: Any, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        target: Any = data
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = value

    change.__name__ = "-".join(str(part) for part in path)
    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("protocol", value=2),
        _set("protocol", value="1"),
        _set("arm", value="B"),
        _set("arm", value="C"),
        _set("package_path", value="/usr/lib/python3/s2attn"),
        _set("numerics_mode", value="skip"),
        _set("started_at", value="2026-11-30T10:00:00"),
        _set("wall_s", value=-1.0),
        _set("environment", value=[]),
        _set("environment", "gpu_uuid", value="G" * 81),
        _set("environment", "more", value={"deep": [float("nan")]}),
        _set("environment", "more", value={"text": "a\0b"}),
        _set("environment", "more", value={"text": "\ud800"}),
        _set("environment", "more", value=2**70),
        _set("telemetry", "rows", 0, value=[0.0]),
        _set("telemetry", "columns", value=["steal_share", "t_s"]),
        _set("cases", 0, "device", value="cuda"),
        _set("cases", 0, "name", value=""),
        _set("cases", 0, "name", value="x" * 251),
        _set("cases", 0, "version", value="v" * 65),
        _set("cases", 0, "name", value="cpu/forward/down"),
        _set("cases", 0, "sample_start_s", value=[0.0]),
        _set("cases", 0, "queued", value=[True]),
        _set("cases", 0, "numerics", value=None),
        _set("cases", 0, "numerics", "errors", "y", "relative", value=-1.0),
        _set("cases", 0, "definition", value={"x": float("inf")}),
        _set("cases", 0, "status", value="great"),
        _set("cases", value=None),
    ],
    ids=lambda change: getattr(change, "__name__", "change"),
)
def test_everything_else_is_a_bad_document(change: Callable[[dict[str, Any]], None]) -> None:
    data = copy.deepcopy(sound())
    change(data)
    error = read(data)
    assert error is not None
    assert error.code == "bad_document"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"protocol": 1}',
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 100_000,
        b'{"protocol": 1e999}',
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_bytes_that_are_no_document_are_a_bad_document(raw: bytes) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(raw, EXPECTED)
    assert caught.value.code == "bad_document"


def test_a_failed_case_needs_no_samples_and_no_numerics() -> None:
    data = sound()
    data["cases"][0].update(
        status="failed",
        error="out of memory",
        samples=[],
        sample_start_s=[],
        sample_end_s=[],
        host_enqueue_ms=[],
        queued=[],
        numerics=None,
    )
    assert read(data) is None


def test_numerics_without_an_error_value_are_kept() -> None:
    data = sound()
    data["cases"][0]["numerics"].update(status="failed", errors={"y": None, "dq": {"relative": None}}, finite=False)
    document = read_document(json.dumps(data).encode(), EXPECTED)
    assert document.cases[0].numerics is not None
    assert document.cases[0].numerics.errors["y"] is None


def test_a_document_over_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(b" " * 2000)
    small = Expected("A", None, "cpu", "with", "pairs", max_bytes=1000)
    with pytest.raises(DocumentError, match="larger than 1000 bytes"):
        read_file(path, small)


def test_a_link_a_pipe_and_a_missing_file_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing"):
        with pytest.raises(DocumentError) as caught:
            read_file(tmp_path / name, EXPECTED)
        assert caught.value.code == "bad_document"
        assert "root:" not in caught.value.log_tail
