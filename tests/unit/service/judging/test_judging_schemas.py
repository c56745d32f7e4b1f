"""The verdict row has one shape."""

from __future__ import annotations

from dataclasses import fields

from service.judging import rows, schemas


def test_the_api_shows_the_fields_of_a_verdict_row() -> None:
    assert list(schemas.VerdictRow.model_fields) == [field.name for field in fields(rows.VerdictRow)]


def test_a_row_passes_through_unchanged() -> None:
    values = {
        "case": "cpu/forward/self",
        "case_version": "0123456789abcdef",
        "group": "cpu.forward",
        "device_class": "cpu",
        "gpu_uuid": None,
        "unit": "ms",
        "before": 2.0,
        "after": 2.2,
        "effect": 0.1,
        "interval_low": 0.09,
        "interval_high": 0.11,
        "verdict": "regressed",
        "reasons": [{"code": "beyond_margin", "detail": "slower"}],
        "pairs_used": 8,
        "pairs_rejected": 1,
        "minimum_detectable_effect": 0.01,
        "numerics": {"status": "ok"},
    }
    assert schemas.VerdictRow.model_validate(rows.VerdictRow.from_dict(values)).model_dump() == values
