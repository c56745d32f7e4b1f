"""From documents to rows and points: what bars a case, and what becomes a point."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from service.stats.policy import JudgingPolicy
from service.worker.devices import cpu
from service.worker.document import Document, Expected, read_document
from service.worker.errors import JobError
from service.worker.evidence import CaseSummary, Evidence, median_interval

A_CASE, B_CASE = "cpu/forward/self", "cpu/forward/down"


def make_document(arm: str, purpose: str, **cases: dict[str, Any]) -> Document:
    """Return a document; keyword arguments give the cases with their deviations from a sound one."""
    numerics = {
        "status": "ok",
        "reference": "float64",
        "points": "all",
        "errors": {"y": {"relative": 1e-7}},
        "tolerance": {"relative": 1e-5},
        "finite": True,
    }
    entries = []
    for name, changes in cases.items():
        level = changes.pop("level", 5.0) * random.gauss(1.0, 0.001)
        samples = [] if purpose == "numerics" or changes.get("status") == "failed" else [level] * 15
        entry = {
            "name": name,
            "version": "v1",
            "group": "cpu.forward",
            "device": "cpu",
            "definition": {},
            "status": "ok",
            "error": None,
            "backend": "cpu",
            "variant": None,
            "metric": "time",
            "unit": "ms",
            "samples": [value * random.gauss(1.0, 0.002) for value in samples],
            "sample_start_s": [],
            "sample_end_s": [],
            "host_enqueue_ms": [],
            "queued": [],
            "numerics": numerics if purpose == "numerics" else None,
        }
        entries.append(entry | changes)
    mode = "only" if purpose == "numerics" else "skip"
    data = {
        "protocol": 1,
        "arm": arm,
        "package_path": "p",
        "s2attn_version": "0",
        "started_at": "2026-11-30T10:00:00Z",
        "wall_s": 1.0,
        "numerics_mode": mode,
        "environment": {},
        "telemetry": {"source": "none", "columns": [], "rows": []},
        "cases": entries,
    }
    return read_document(json.dumps(data).encode(), Expected(arm, None, "cpu", mode, "pairs"))


def judged(
    a: dict[str, Any], b: dict[str, Any], pairs: int = 8, **pair_changes: dict[str, Any]
) -> dict[str, CaseSummary]:
    """Return the summaries of cases that are as given in the numerics, and sound in pairs unless changed there."""
    evidence = Evidence(cpu(), JudgingPolicy.for_device("cpu").with_budget(max(2, pairs)))
    if a:
        evidence.add_numerics("A", make_document("A", "numerics", **{name: dict(one) for name, one in a.items()}))
    evidence.add_numerics("B", make_document("B", "numerics", **{name: dict(one) for name, one in b.items()}))
    for index in range(pairs):
        documents = [
            make_document(arm, "pair", **{name: dict(pair_changes.get(arm, {})) for name in (A_CASE, B_CASE)})
            for arm in ("A", "B")
        ]
        evidence.add_pair(index, "AB" if index % 2 == 0 else "BA", *documents)
    return {summary.row.case: summary for summary in evidence.judge()}


def codes(summary: CaseSummary) -> set[str]:
    return {reason["code"] for reason in summary.row.reasons}


SOUND: dict[str, Any] = {A_CASE: {}, B_CASE: {}}


def test_equal_arms_are_unchanged_and_give_a_point_each() -> None:
    summary = judged(SOUND, SOUND)[A_CASE]
    assert summary.row.verdict == "unchanged"
    assert set(summary.points) == {"A", "B"}
    point = summary.points["B"]
    assert (point.processes, point.status, point.backend) == (8, "ok", "cpu")
    assert point.low <= point.value <= point.high
    assert point.value == pytest.approx(5.0, rel=0.01)


def test_a_slower_candidate_is_regressed() -> None:
    summary = judged(SOUND, SOUND, B={"level": 5.5})[A_CASE]
    assert summary.row.verdict == "regressed"
    assert summary.row.effect == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "code"),
    [
        ({B_CASE: {}}, SOUND, "not_comparable", "baseline_missing"),
        (SOUND, {B_CASE: {}}, "not_comparable", "candidate_missing"),
        ({A_CASE: {"version": "v0"}, B_CASE: {}}, SOUND, "not_comparable", "baseline_case_changed"),
        ({A_CASE: {"status": "failed", "error": "x"}, B_CASE: {}}, SOUND, "not_comparable", "baseline_case_failed"),
        (SOUND, {A_CASE: {"status": "failed", "error": "boom"}, B_CASE: {}}, "failed", "candidate_case_failed"),
    ],
)
def test_what_bars_one_case_bars_no_other(a: dict[str, Any], b: dict[str, Any], verdict: str, code: str) -> None:
    summaries = judged(a, b)
    assert summaries[A_CASE].row.verdict == verdict
    assert code in codes(summaries[A_CASE])
    assert summaries[A_CASE].points == {}
    assert summaries[B_CASE].row.verdict == "unchanged"


def test_a_wrong_case_is_failed_and_gives_no_point() -> None:
    wrong = {
        "status": "failed",
        "reference": "float64",
        "points": "all",
        "errors": {"y": None},
        "tolerance": {"relative": 1e-5},
    }
    summary = judged(SOUND, {A_CASE: {"numerics": wrong | {"finite": False}}, B_CASE: {}}, B={"level": 4.0})[A_CASE]
    assert summary.row.verdict == "failed"
    assert codes(summary) == {"numerics_failed"}
    assert summary.points == {}
    assert summary.row.numerics is not None
    assert summary.row.numerics["status"] == "failed"


def test_a_case_that_fails_in_one_pair_only_is_failed() -> None:
    summaries = judged(SOUND, SOUND, B={"status": "failed", "error": "flaky"})
    assert {summary.row.verdict for summary in summaries.values()} == {"failed"}


def test_without_a_baseline_nothing_is_comparable_and_no_pair_is_wanted() -> None:
    evidence = Evidence(cpu(), JudgingPolicy.for_device("cpu"))
    evidence.add_numerics("B", make_document("B", "numerics", **{A_CASE: {}}))
    evidence.fail_baseline(JobError("build_failed", "abc does not build", stage="build"))
    assert not evidence.needs_pairs()
    (summary,) = evidence.judge()
    assert summary.row.verdict == "not_comparable"
    assert codes(summary) == {"baseline_build_failed"}


def test_pairs_are_wanted_until_every_case_is_decided_or_the_budget_is_spent() -> None:
    evidence = Evidence(cpu(), JudgingPolicy.for_device("cpu").with_budget(12))
    for arm in ("A", "B"):
        evidence.add_numerics(arm, make_document(arm, "numerics", **{A_CASE: {}}))
    taken = 0
    while evidence.needs_pairs():
        evidence.add_pair(taken, "AB", *(make_document(arm, "pair", **{A_CASE: {}}) for arm in ("A", "B")))
        taken += 1
        assert evidence.last_admissions() == {A_CASE: True}
    assert taken in (8, 12)
    assert evidence.pairs_measured == taken


def test_too_few_pairs_are_inconclusive_and_their_points_sparse() -> None:
    summary = judged(SOUND, SOUND, pairs=3)[A_CASE]
    assert summary.row.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (48, 17, 32)]
)
def test_the_interval_of_a_median_is_the_binomial_one(count: int, low: int, high: int) -> None:
    values = list(range(1, count + 1))
    random.shuffle(values)
    assert median_interval(values)[1:] == (low, high)
