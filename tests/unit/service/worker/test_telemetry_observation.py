"""Samples laid on telemetry: which readings are about which samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.worker.document import Document, Expected, read_document
from service.worker.telemetry import observe

START = [0.0, 1.0, 2.0, 3.0]


def document(
    columns: list[str],
    rows: list[list[Any]],
    counters: dict[str, Any] | None = None,
    case_fields: dict[str, Any] | None = None,
) -> Document:
    """Return a document with one case of four samples, 10 ms long, one second apart."""
    case = {
        "name": "case",
        "version": "v",
        "group": "g",
        "device": "cpu",
        "definition": {},
        "status": "ok",
        "error": None,
        "backend": "cpu",
        "variant": None,
        "metric": "time",
        "unit": "ms",
        "samples": [10.0, 10.1, 10.2, 10.3],
        "sample_start_s": START,
        "sample_end_s": [start + 0.01 for start in START],
        "host_enqueue_ms": [],
        "queued": [],
        **(case_fields or {}),
    }
    data = {
        "protocol": 1,
        "arm": "A",
        "package_path": "p",
        "s2attn_version": "0",
        "started_at": "2026-11-30T10:00:00Z",
        "wall_s": 4.0,
        "numerics_mode": "skip",
        "environment": {},
        "telemetry": {"source": "x", "columns": ["t_s", *columns], "rows": rows, "counters": counters or {}},
        "cases": [case],
    }
    return read_document(json.dumps(data).encode(), Expected("A", None, "cpu", "skip", "pairs"))


def test_throttled_samples_are_those_with_a_reading_nearby() -> None:
    rows = [[0.05, 0], [0.95, 0x8], [1.5, 0x20], [2.1, 0], [3.05, 0x40]]
    seen = observe(read := document(["reasons"], rows), read.cases[0])
    assert seen.throttled_share == 0.5
    assert seen.power_capped_share == 0.0


def test_a_sample_without_a_reading_nearby_takes_the_nearest() -> None:
    rows = [[0.4, 0x8], [2.6, 0]]
    seen = observe(read := document(["reasons"], rows), read.cases[0])
    assert seen.throttled_share == 0.5


def test_a_power_cap_is_no_throttling() -> None:
    rows = [[start, 0x4 | 0x1] for start in START]
    seen = observe(read := document(["reasons"], rows), read.cases[0])
    assert (seen.throttled_share, seen.power_capped_share) == (0.0, 1.0)


def test_clocks_are_medians_of_the_readings_about_the_samples() -> None:
    rows = [[-0.5, 300, None], [0.1, 345, 2600], [1.0, 1900, 2600], [2.0, 1980, 2600], [3.1, 1980, 2600], [3.9, 300, 1]]
    seen = observe(read := document(["sm_clock_mhz", "mem_clock_mhz"], rows), read.cases[0])
    assert (seen.sm_clock, seen.mem_clock) == (1980.0, 2600.0)


def test_a_clock_that_was_read_late_is_not_taken_for_the_real_one() -> None:
    rows = [[-0.1, 345], [0.0, 345], [3.2, 1980], [3.3, 1980]]
    seen = observe(read := document(["sm_clock_mhz"], rows), read.cases[0])
    assert seen.sm_clock == 1980.0


def test_a_clock_that_falls_by_less_than_half_is_seen() -> None:
    rows = [[0.0, 1980], [1.0, 1410], [2.0, 1410], [3.2, 345]]
    seen = observe(read := document(["sm_clock_mhz"], rows), read.cases[0])
    assert seen.sm_clock == 1410.0


def test_the_clock_that_the_device_read_is_the_median_over_the_samples_and_not_nvmls() -> None:
    around = {
        "device_clock_before_mhz": [1980.0, None, 1970.0, 1900.0],
        "device_clock_after_mhz": [1960.0, 345.0, 1960.0, 1880.0],
    }
    read = document(["sm_clock_mhz"], [[1.0, 1755], [2.0, 1755]], case_fields=around)
    seen = observe(read, read.cases[0])
    assert (seen.sm_clock, seen.device_clock) == (1755.0, 1965.0)


@pytest.mark.parametrize("readings", [[], [None] * 4])
def test_a_clock_that_the_device_never_read_is_none(readings: list[None]) -> None:
    both = {"device_clock_before_mhz": readings, "device_clock_after_mhz": [1980.0] * 4}
    seen = observe(read := document([], [], case_fields=both), read.cases[0])
    assert seen.device_clock is None


def test_what_cannot_be_read_is_not_made_up() -> None:
    seen = observe(read := document(["sm_clock_mhz", "reasons"], [[0.0, None, None]]), read.cases[0])
    assert (seen.sm_clock, seen.mem_clock, seen.throttled_share) == (None, None, 0.0)
    seen = observe(read := document([], []), read.cases[0])
    assert (seen.sm_clock, seen.steal_share, seen.foreign_processes) == (None, 0.0, 0)


def test_shares_are_weighed_by_the_time_they_cover() -> None:
    rows = [[0.0, 0.9], [1.0, 0.1], [3.0, 0.4], [4.0, 1.0]]
    seen = observe(read := document(["steal_share"], rows), read.cases[0])
    # from 0 to 3.01 s: one second of 0.1, two of 0.4, and 10 ms of 1.0
    assert seen.steal_share == pytest.approx((0.1 + 0.8 + 0.01) / 3.01)


def test_foreign_processes_and_new_errors_are_counted() -> None:
    rows = [[0.0, 0], [1.0, 2], [2.0, 1]]
    counters = {"ecc_uncorrected": [5, 7], "xid_errors": [0, None], "energy_j": [1.0, 9.0]}
    seen = observe(read := document(["foreign_processes"], rows, counters), read.cases[0])
    assert (seen.foreign_processes, seen.new_errors) == (2, 2)
