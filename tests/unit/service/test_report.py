"""The pull-request table and the exit codes that follow from it."""

import pytest

from service.report import (
    Exit,
    exit_code,
    failure_exit_code,
    interval_text,
    markdown_table,
    sort_by_severity,
    terminal_table,
)


def row(case="cpu/forward", verdict="unchanged", effect=0.001, **changes):
    values = {
        "case": case,
        "unit": "ms",
        "before": 1.25,
        "after": 1.25 * (1 + effect) if effect is not None else None,
        "effect": effect,
        "interval_low": None if effect is None else effect - 0.002,
        "interval_high": None if effect is None else effect + 0.002,
        "verdict": verdict,
        "reasons": [],
        "minimum_detectable_effect": None,
    }
    return values | changes


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["unchanged", "improved"], Exit.OK),
        (["unchanged", "regressed", "throttled"], Exit.REGRESSION),
        (["failed"], Exit.REGRESSION),
        (["unchanged", "throttled"], Exit.INCONCLUSIVE),
        (["not_comparable"], Exit.INCONCLUSIVE),
        (["environment"], Exit.INCONCLUSIVE),
        ([], Exit.INCONCLUSIVE),
    ],
)
def test_lack_of_evidence_never_exits_zero(verdicts, expected):
    assert exit_code([row(verdict=verdict) for verdict in verdicts]) is expected


def test_a_commit_that_does_not_build_is_not_the_hosts_fault():
    assert failure_exit_code({"code": "build_failed"}) is Exit.REGRESSION
    assert failure_exit_code({"code": "sandbox_missing"}) is Exit.INFRASTRUCTURE
    assert failure_exit_code(None) is Exit.INFRASTRUCTURE


def test_worst_verdict_and_largest_effect_come_first():
    rows = [row("a"), row("b", "regressed", 0.02), row("c", "regressed", 0.3), row("d", "failed", None)]
    assert [r["case"] for r in sort_by_severity(rows)] == ["d", "c", "b", "a"]


def test_markdown_has_one_line_per_row_and_escapes_names():
    text = markdown_table([row("evil|<b>\nname` @all #1 ![x](http://y)", "regressed", 0.125)])
    header, rule, line = text.splitlines()
    assert header == "| case | before | after | delta | interval | verdict |"
    assert rule.count("|") == 7
    assert "<code>evil&#124;&#60;b&#62; name&#96; &#64;all &#35;1 &#33;&#91;x&#93;&#40;http&#58;//y&#41;</code>" in line
    assert "| 1.250 ms | 1.406 ms | +12.50 % | +12.30 … +12.70 % | regressed |" in line


def test_unchanged_prints_what_it_could_have_seen():
    assert interval_text(row(minimum_detectable_effect=0.004)).endswith("(detectable: 0.40 %)")


def test_missing_values_are_dashes_and_reasons_are_named():
    text = markdown_table([row(verdict="throttled", effect=None, reasons=[{"code": "few_admitted", "detail": "…"}])])
    assert "| – | – | – | throttled (few_admitted) |" in text


def test_terminal_table_has_a_row_per_case():
    assert terminal_table([row("a"), row("b", "failed", None)]).row_count == 2
