"""From documents to rows and points: what bars a case, and what becomes a point."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from service.stats.admission import CaseHistory
from service.stats.policy import JudgingPolicy
from service.worker.devices import cpu
from service.worker.document import Document, Expected, Telemetry, read_document
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
    while names := evidence.to_confirm():
        index, order = evidence.next_pair()
        changed = [pair_changes.get(arm, {}) for arm in ("A", "B")]
        fresh = [
            make_document(arm, "pair", **{n: dict(c) for n in names}) for arm, c in zip("AB", changed, strict=True)
        ]
        evidence.add_fresh(index, order, *fresh)
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


GEMM = "canary/cpu/gemm"


def watched(canary_level: float, *, level: float = 1.0, steal: float = 0.0) -> Evidence:
    """Return evidence of eight pairs in which the candidate's canary and case are at these levels of the baseline's."""
    evidence = Evidence(cpu(), JudgingPolicy.for_device("cpu").with_budget(8))
    for arm in ("A", "B"):
        evidence.add_numerics(arm, make_document(arm, "numerics", **{A_CASE: {}}))
    telemetry = {"source": "proc", "columns": ["t_s", "steal_share"], "rows": [[0.5, steal], [1.0, steal]]}
    for index in range(8):
        arms, canaries = {}, {}
        for arm, factor, canary_factor in (("A", 1.0, 1.0), ("B", level, canary_level)):
            document = make_document(arm, "pair", **{A_CASE: {"level": 5.0 * factor}})
            arms[arm] = document.model_copy(update={"telemetry": Telemetry.model_validate(telemetry)})
            canaries[arm] = make_document(arm, "pair", **{GEMM: {"level": canary_factor, "group": "canary"}})
        evidence.add_pair(index, "AB" if index % 2 == 0 else "BA", arms["A"], arms["B"], canaries)
    return evidence


def test_a_canary_that_moves_takes_the_claims_back_and_spares_fresh_pairs() -> None:
    evidence = watched(1.05, level=1.05)
    assert evidence.to_confirm() == ()
    (summary,) = evidence.judge()
    assert summary.row.verdict == "environment"
    assert codes(summary) == {"canary_moved", "slower"}
    assert summary.evidence["canaries"][GEMM]["verdict"] == "regressed"


def test_a_canary_that_rests_is_shown_and_changes_nothing() -> None:
    evidence = watched(1.0, level=1.05)
    assert evidence.to_confirm() == (A_CASE,)
    assert (evidence.next_pair(), evidence.needs_pairs()) == ((8, "BA"), False)
    (summary,) = watched(1.0).judge()
    assert summary.row.verdict == "unchanged"
    shown = summary.evidence["canaries"]
    assert set(shown) == {GEMM}
    assert (shown[GEMM]["verdict"], shown[GEMM]["pairs_used"]) == ("unchanged", 8)
    assert list(shown[GEMM]["log_ratios"]) == [str(index) for index in range(8)]


def test_canaries_are_believed_in_the_pairs_alone_that_cases_are_believed_in() -> None:
    (summary,) = watched(1.3, level=1.0, steal=0.4).judge()
    assert summary.row.verdict == "throttled"
    assert summary.evidence["canaries"][GEMM]["verdict"] == "throttled"


def test_fresh_pairs_without_a_change_are_not_wanted_and_a_change_ends_its_own() -> None:
    evidence = watched(1.0, level=1.05)
    assert evidence.last_admissions() == {A_CASE: True}
    taken = 0
    while names := evidence.to_confirm():
        assert names == (A_CASE,)
        index, order = evidence.next_pair()
        assert (index, order) == (8 + taken, "BA" if taken % 2 == 0 else "AB")
        arms = [make_document(arm, "pair", **{A_CASE: {"level": 5.0 * f}}) for arm, f in (("A", 1.0), ("B", 1.05))]
        evidence.add_fresh(index, order, *arms)
        assert evidence.last_admissions() == {A_CASE: True}
        taken += 1
    assert (taken, evidence.fresh_measured, evidence.pairs_measured) == (5, 5, 8)
    (summary,) = evidence.judge()
    assert (summary.row.verdict, summary.row.pairs_used) == ("regressed", 8)
    assert codes(summary) == {"slower", "confirmed"}


def test_a_case_that_fails_in_a_fresh_pair_is_failed() -> None:
    evidence = watched(1.0, level=1.05)
    broken = make_document("B", "pair", **{A_CASE: {"status": "failed", "error": "flaky"}})
    evidence.add_fresh(8, "BA", make_document("A", "pair", **{A_CASE: {}}), broken)
    assert evidence.to_confirm() == ()
    (summary,) = evidence.judge()
    assert (summary.row.verdict, codes(summary)) == ("failed", {"candidate_case_failed"})


@pytest.mark.parametrize("arm", ["A", "B"])
def test_a_fresh_process_that_leaves_out_what_it_was_asked_for_has_failed(arm: str) -> None:
    evidence = watched(1.0, level=1.05)
    arms = [make_document(one, "pair", **{B_CASE if one == arm else A_CASE: {}}) for one in ("A", "B")]
    evidence.add_fresh(8, "BA", *arms)
    assert evidence.to_confirm() == ()
    (summary,) = evidence.judge()
    assert summary.row.verdict == ("not_comparable" if arm == "A" else "failed")
    assert "no result in pair 8" in summary.row.reasons[0]["detail"]


def test_a_change_that_nobody_measured_again_is_not_told() -> None:
    (summary,) = watched(1.0, level=1.05).judge()
    assert summary.row.verdict == "inconclusive"
    assert codes(summary) == {"not_measured_again", "slower"}


def test_what_is_quieter_than_usual_is_judged_by_the_usual_scatter_of_the_same_case_version() -> None:
    usual = {(A_CASE, "v1"): CaseHistory(pair_sd=0.1), (B_CASE, "v0"): CaseHistory(pair_sd=0.1)}
    evidence = Evidence(cpu(), JudgingPolicy.for_device("cpu").with_budget(8), usual)
    for arm in ("A", "B"):
        evidence.add_numerics(arm, make_document(arm, "numerics", **{A_CASE: {}, B_CASE: {}}))
    for index in range(8):
        arms = [make_document(arm, "pair", **{A_CASE: {}, B_CASE: {}}) for arm in ("A", "B")]
        evidence.add_pair(index, "AB" if index % 2 == 0 else "BA", *arms)
    summaries = {summary.row.case: summary for summary in evidence.judge()}
    assert summaries[A_CASE].row.verdict == "inconclusive"
    assert "suspiciously_stable" in codes(summaries[A_CASE])
    assert summaries[B_CASE].row.verdict == "unchanged"


def job_with(samples: dict[str, list[float]], clocks: dict[str, list[float | None]] | None = None) -> CaseSummary:
    """Return the result of eight pairs (and fresh ones if wanted) whose processes show exactly these samples."""
    evidence = Evidence(cpu(), JudgingPolicy().with_budget(8))
    for arm in ("A", "B"):
        evidence.add_numerics(arm, make_document(arm, "numerics", **{A_CASE: {}}))

    def process(arm: str, index: int) -> Document:
        document = make_document(arm, "pair", **{A_CASE: {"samples": samples[arm]}})
        readings = (clocks or {"A": [], "B": []})[arm] if index >= 4 else [1980.0] * 3 if clocks else []
        rows = [[0.2 * (number + 1), clock] for number, clock in enumerate(readings)]
        columns = ["t_s", "sm_clock_mhz"] if clocks else []
        telemetry = Telemetry(source="nvml" if clocks else "none", columns=columns, rows=rows)
        return document.model_copy(update={"telemetry": telemetry})

    while evidence.needs_pairs() or evidence.to_confirm():
        add = evidence.add_pair if evidence.needs_pairs() else evidence.add_fresh
        index, order = evidence.next_pair()
        add(index, order, process("A", index), process("B", index))
    (summary,) = evidence.judge()
    return summary


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_of_very_few_samples_are_no_evidence(count: int) -> None:
    summary = job_with({"A": [5.0] * count, "B": [6.0] * count})
    assert summary.row.verdict == "inconclusive"
    assert codes(summary) == {"under_half_admitted", "too_few_samples"}
    assert (summary.row.effect, summary.row.pairs_rejected) == (None, 8)


def test_constant_samples_are_unchanged_at_the_scatter_that_is_assumed() -> None:
    summary = job_with({"A": [3.264] * 20, "B": [3.264] * 20})
    assert (summary.row.verdict, summary.row.effect) == ("unchanged", 0.0)
    assert codes(summary) == {"equivalent", "zero_variance"}
    assert summary.row.minimum_detectable_effect is not None


def test_identical_values_one_timer_step_apart_are_no_change_and_several_are_one() -> None:
    step = job_with({"A": [3.264] * 20, "B": [3.296] * 20})
    assert step.row.verdict == "inconclusive"
    assert "timer_resolution" in codes(step)
    far = job_with({"A": [3.264] * 20, "B": [3.264] * 10 + [3.584] * 11})
    assert (far.row.verdict, codes(far)) == ("regressed", {"slower", "zero_variance", "confirmed"})


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        ({"A": [1980.0, None, None], "B": [None, None, 1980.0]}, "regressed"),
        ({"A": [1980.0] * 3, "B": [None] * 3}, "inconclusive"),
        ({"A": [], "B": []}, "inconclusive"),
    ],
    ids=["some readings", "one arm", "no reading"],
)
def test_clocks_that_are_lost_after_four_pairs(lost: dict[str, list[float | None]], verdict: str) -> None:
    """One reading of a process is enough; a process without any is not believed where others have some."""
    noisy = {arm: [level * (1 + 0.001 * k) for k in range(15)] for arm, level in (("A", 5.0), ("B", 5.5))}
    summary = job_with(noisy, lost)
    assert summary.row.verdict == verdict
    assert ("clock_unreadable" in codes(summary)) == (verdict == "inconclusive")
    assert summary.row.pairs_rejected == (4 if verdict == "inconclusive" else 0)
