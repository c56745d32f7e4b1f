import json

import pytest

from service.judging.rows import VerdictRow
from service.stats.verdict import CaseDecision, Verdict, reason

DECISION = CaseDecision(
    Verdict.REGRESSED,
    (reason("slower", effect=0.1, margin=0.003),),
    effect=0.1,
    interval=(0.08, 0.12),
    minimum_detectable_effect=0.02,
    pairs_used=8,
    pairs_rejected=1,
    before=2.0,
    after=2.2,
)
NAMES = {
    "case": "cpu/forward/self/24x48/c16h1/fp32/tc0.2",
    "case_version": "0123456789abcdef",
    "group": "cpu.forward",
    "device_class": "cpu",
    "unit": "ms",
}


def test_the_row_carries_the_decision_in_plain_json():
    numerics = {"candidate_error": 1e-7, "baseline_error": 1e-7, "tolerance": 1e-5, "status": "ok"}
    row = VerdictRow.of(DECISION, **NAMES, numerics=numerics)
    values = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert values == {
        **NAMES,
        "gpu_uuid": None,
        "before": 2.0,
        "after": 2.2,
        "effect": 0.1,
        "interval_low": 0.08,
        "interval_high": 0.12,
        "verdict": "regressed",
        "reasons": [{"code": "slower", "detail": "+10.00%, and the whole interval is above +0.3%"}],
        "pairs_used": 8,
        "pairs_rejected": 1,
        "minimum_detectable_effect": 0.02,
        "numerics": numerics,
    }
    assert VerdictRow.from_dict(values) == row


def test_a_row_without_numbers_has_nulls():
    row = VerdictRow.of(CaseDecision(Verdict.THROTTLED), **NAMES)
    assert (row.before, row.effect, row.interval_low, row.interval_high, row.numerics) == (None,) * 5


def test_an_open_case_has_no_row():
    with pytest.raises(ValueError, match="decision: expected a verdict for case 'cpu/forward"):
        VerdictRow.of(CaseDecision(None), **NAMES)


def test_missing_and_unknown_fields_are_named():
    values = VerdictRow.of(DECISION, **NAMES).to_dict()
    values["speed"] = values.pop("effect")
    with pytest.raises(ValueError, match=r"missing \['effect'\], unknown \['speed'\]"):
        VerdictRow.from_dict(values)
