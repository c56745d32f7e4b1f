import math
from dataclasses import replace

import numpy as np
import pytest

from service.judging.judge import CaseFailure, CaseInput, judge_cases, numerics_summary
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.verdict import Verdict

POLICY = JudgingPolicy()
GOOD = {
    "status": "ok",
    "reference": "float64",
    "points": "all",
    "errors": {"y": {"max_abs": 1e-6, "relative": 2e-7}},
    "tolerance": {"relative": 1e-5},
    "finite": True,
}


def numerics(**changes):
    return {**GOOD, **changes}


def error(relative):
    return {"y": {"max_abs": 1.0, "relative": relative}, "dq": {"max_abs": 1e-7, "relative": 1e-8}}


def pairs_of(effect=0.0, *, count=8, sd=0.002, seed=0, start=0):
    ratios = np.random.default_rng(seed).normal(math.log1p(effect), sd, count)
    spread = np.exp(np.linspace(-0.01, 0.01, 15))
    return [
        PairObservation(i, pair_order(i), ArmObservation(spread), ArmObservation(math.exp(ratio) * spread))
        for i, ratio in enumerate(ratios, start)
    ]


def case(effect=0.0, *, group="cpu.forward", seed=0, **changes):
    fresh = pairs_of(effect, count=5, seed=seed + 1000, start=8)
    return replace(CaseInput(pairs_of(effect, seed=seed), GOOD, GOOD, group, fresh=fresh), **changes)


def judge_one(given, *, final=True):
    return judge_cases({"case": given}, POLICY, final)["case"]


def codes(decision):
    return [one.code for one in decision.reasons]


def test_speed_is_judged_when_the_numbers_are_right():
    assert judge_one(case(0.1)).verdict is Verdict.REGRESSED
    assert judge_one(case(-0.1)).verdict is Verdict.IMPROVED
    assert judge_one(case(0.0)).verdict is Verdict.UNCHANGED
    assert codes(judge_one(case(0.1))) == ["slower", "confirmed"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"status": "failed"}, "status 'failed'"),
        ({"finite": False}, "NaN or infinity"),
        ({"errors": error(2e-5)}, "relative error of y is 2.00e-05, tolerance 1.0e-05"),
        ({"errors": error(None)}, "error of y is not a number"),
        ({"errors": error(math.nan)}, "error of y is not a number"),
        ({"status": "shape"}, "status 'shape'"),
    ],
)
def test_faster_but_wrong_is_failed_and_never_improved(wrong, words):
    decision = judge_one(case(-0.5, numerics=numerics(**wrong)))
    assert decision.verdict is Verdict.FAILED
    assert codes(decision) == ["numerics_failed"]
    assert words in decision.reasons[0].detail
    assert decision.effect is None


def test_wrong_numbers_fail_at_once_even_without_pairs():
    assert judge_one(case(pairs=[], numerics=numerics(finite=False)), final=False).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("failure", "verdict", "code"),
    [
        (CaseFailure("A", "missing"), Verdict.NOT_COMPARABLE, "baseline_missing"),
        (CaseFailure("A", "build_failed", "no compiler"), Verdict.NOT_COMPARABLE, "baseline_build_failed"),
        (CaseFailure("B", "missing"), Verdict.NOT_COMPARABLE, "candidate_missing"),
        (CaseFailure("B", "case_failed", "boom"), Verdict.FAILED, "candidate_case_failed"),
    ],
)
def test_failures_name_their_arm_and_cause(failure, verdict, code):
    decision = judge_one(case(pairs=[], baseline_numerics=None, failure=failure))
    assert (decision.verdict, codes(decision)) == (verdict, [code])
    assert failure.detail in decision.reasons[0].detail


def test_a_wrong_candidate_fails_even_without_a_baseline():
    given = case(pairs=[], numerics=numerics(finite=False), failure=CaseFailure("A", "missing"))
    assert judge_one(given).verdict is Verdict.FAILED


def test_a_wrong_baseline_is_no_yardstick():
    decision = judge_one(case(0.3, baseline_numerics=numerics(errors=error(1.0))))
    assert (decision.verdict, codes(decision)) == (Verdict.NOT_COMPARABLE, ["baseline_numerics_failed"])


def test_a_growing_error_is_reported_beside_the_speed():
    decision = judge_one(case(0.0, numerics=numerics(errors=error(5e-6))))
    assert decision.verdict is Verdict.UNCHANGED
    assert codes(decision)[-1] == "numerics_error_grew"
    tiny = case(0.0, numerics=numerics(errors=error(5e-8)), baseline_numerics=numerics(errors=error(1e-9)))
    assert codes(judge_one(tiny)) == ["equivalent"]


def test_numbers_that_were_not_checked_are_said_to_be_so():
    assert codes(judge_one(case(0.0, numerics=None, baseline_numerics=None)))[-1] == "numerics_not_measured"


def test_summary_of_numerics_for_the_row():
    grown = numerics(errors=error(5e-6))
    assert numerics_summary(grown, GOOD, POLICY) == {
        "candidate_error": 5e-6,
        "baseline_error": 2e-7,
        "tolerance": 1e-5,
        "status": "grew",
    }
    assert numerics_summary(GOOD, None, POLICY)["status"] == "ok"
    broken = numerics_summary(numerics(errors=error(math.nan)), GOOD, POLICY)
    assert (broken["status"], broken["candidate_error"]) == ("failed", None)
    assert numerics_summary(None, GOOD, POLICY) is None


def test_open_cases_keep_the_job_going_and_final_closes_all():
    cases = {"done": case(0.1), "open": case(pairs=pairs_of(sd=0.05), fresh=())}
    going = judge_cases(cases, POLICY, final=False)
    assert (going["done"].verdict, going["open"].verdict) == (Verdict.REGRESSED, None)
    assert judge_cases(cases, POLICY, final=True)["open"].verdict is Verdict.INCONCLUSIVE


def test_a_real_change_of_one_group_in_a_suite_of_six_is_regressed():
    cases = {f"forward{i}": case(0.1, seed=i) for i in range(3)}
    cases |= {f"backward{i}": case(0.0, group="cpu.backward", seed=10 + i) for i in range(3)}
    verdicts = [one.verdict for one in judge_cases(cases, POLICY, final=True).values()]
    assert verdicts == [Verdict.REGRESSED] * 3 + [Verdict.UNCHANGED] * 3


def test_a_weak_change_among_very_many_cases_goes_on_or_ends_inconclusive():
    weak = case(0.01, seed=4)
    p = judge_one(weak).p_value
    assert judge_one(weak).verdict is Verdict.REGRESSED
    assert 1e-4 < p < 1e-3
    quiet = [case(0.0, seed=seed, group=f"g{seed}") for seed in range(10)]
    many = {"weak": weak} | {f"quiet{i}": quiet[i % 10] for i in range(int(0.05 / p) + 20)}
    going, closed = judge_cases(many, POLICY, final=False)["weak"], judge_cases(many, POLICY, final=True)["weak"]
    assert (going.verdict, closed.verdict) == (None, Verdict.INCONCLUSIVE)
    assert codes(closed)[0] == "not_significant_among_cases"


def test_canaries_are_judged_like_cases():
    cases = {"a": case(0.1), "b": case(0.0, seed=1)}
    still, moved = {"gemm": pairs_of(0.0, seed=5)}, {"gemm": pairs_of(0.03, seed=5)}
    assert [one.verdict for one in judge_cases(cases, POLICY, True, still).values()] == [
        Verdict.REGRESSED,
        Verdict.UNCHANGED,
    ]
    assert {one.verdict for one in judge_cases(cases, POLICY, True, moved).values()} == {Verdict.ENVIRONMENT}


def test_no_cases_give_no_decisions():
    assert judge_cases({}, POLICY, final=True) == {}
