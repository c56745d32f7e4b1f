import numpy as np
import pytest

from service.stats.environment import with_environment
from service.stats.policy import JudgingPolicy
from service.stats.sequential import decide
from service.stats.verdict import CaseDecision, Verdict

POLICY = JudgingPolicy()
R, F, U = Verdict.REGRESSED, Verdict.IMPROVED, Verdict.UNCHANGED


def job(*verdicts, cases_per_group=1):
    decisions, groups = {}, {}
    for group, verdict in enumerate(verdicts):
        for case in range(cases_per_group):
            decisions[f"{group}/{case}"] = CaseDecision(verdict, effect=0.02, look=0)
            groups[f"{group}/{case}"] = f"group{group}"
    return decisions, groups


def judged(decisions, groups, canaries=None):
    return [one.verdict for one in with_environment(decisions, groups, canaries or {}, POLICY).values()]


def test_a_change_of_one_group_of_two_stays_a_change():
    decisions, groups = job(R, U, cases_per_group=3)
    assert judged(decisions, groups) == [R] * 3 + [U] * 3


def test_a_change_of_both_groups_of_a_small_suite_stays_a_change():
    decisions, groups = job(R, R, cases_per_group=3)
    assert judged(decisions, groups) == [R] * 6


def test_many_cases_of_one_group_are_one_group():
    decisions, groups = job(R, U, U, U, U, U)
    for case in range(20):
        decisions[f"0/more{case}"], groups[f"0/more{case}"] = CaseDecision(R, look=0), "group0"
    assert judged(decisions, groups).count(R) == 21


def test_more_than_a_third_of_six_groups_moving_together_is_the_environment():
    assert judged(*job(R, R, U, U, U, U)) == [R, R, U, U, U, U]
    assert judged(*job(R, R, R, U, U, U)) == [Verdict.ENVIRONMENT] * 3 + [U] * 3
    assert judged(*job(R, R, F, F, U, U)) == [R, R, F, F, U, U]
    assert judged(*job(F, F, F, U, U, R)) == [Verdict.ENVIRONMENT] * 3 + [U, U, R]


def test_the_reason_counts_groups_and_keeps_the_old_reasons():
    result = with_environment(*job(R, R, R, U, U, U), {}, POLICY)["0/0"]
    assert result.reasons[0].code == "groups_moved_together"
    assert result.reasons[0].detail == "3 of 6 unrelated kernel groups became slower at once"


@pytest.mark.parametrize("moved", [R, F])
def test_a_moved_canary_takes_back_every_claim(moved):
    canaries = {"gemm": CaseDecision(U, effect=0.001), "copy": CaseDecision(moved, effect=0.02)}
    decisions, groups = job(R, F, U, Verdict.INCONCLUSIVE, Verdict.FAILED)
    result = with_environment(decisions, groups, canaries, POLICY)
    verdicts = [one.verdict for one in result.values()]
    assert verdicts == [Verdict.ENVIRONMENT] * 3 + [Verdict.INCONCLUSIVE, Verdict.FAILED]
    assert "copy" in result["0/0"].reasons[0].detail


def test_canaries_that_rest_change_nothing():
    canaries = {"gemm": CaseDecision(U, effect=0.001), "copy": CaseDecision(Verdict.INCONCLUSIVE, effect=0.02)}
    assert judged(*job(R, U), canaries) == [R, U]


def test_a_canary_whose_clock_moved_has_moved(make_pairs):
    ratios = np.random.default_rng(1).normal(0.012, 0.001, 8)
    clock = make_pairs(ratios, both={"sm_clock": 1980.0}, candidate={"sm_clock": 1980.0 * float(np.exp(-0.012))})
    canaries = {"gemm": decide(clock, POLICY, final=True)}
    assert canaries["gemm"].verdict is Verdict.INCONCLUSIVE
    assert judged(*job(R, U), canaries) == [Verdict.ENVIRONMENT] * 2
