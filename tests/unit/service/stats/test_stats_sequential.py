import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from service.stats.admission import CaseHistory
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.sequential import decide
from service.stats.verdict import Verdict

POLICY = JudgingPolicy()
CPU = JudgingPolicy.for_device("cpu")


def noise(seed, count, sd=0.004, mean=0.0):
    return np.random.default_rng(seed).normal(mean, sd, count)


def codes(decision):
    return [one.code for one in decision.reasons]


def swap(pairs):
    return [PairObservation(p.index, p.order, p.candidate, p.baseline) for p in pairs]


def slow_verdict(ratios, policy):
    """The rule for undisturbed pairs, look by look from the formulas, with scipy.stats."""
    for look in [n for n in policy.looks if n <= len(ratios)]:
        x = np.sort(np.array(ratios[:look]))
        g = int(policy.trim * look) if look >= policy.trim_from else 0
        h = look - 2 * g
        center = stats.trim_mean(x, g / look + 1e-12) if g else x.mean()
        winsorized = np.concatenate([[x[g]] * g, x[g : look - g], [x[look - g - 1]] * g])
        error = max(winsorized.std(ddof=1) * look / h, policy.sd_floor) / math.sqrt(look)
        wide = stats.t.isf(policy.alpha / len(policy.looks) / 2, h - 1) * error
        narrow = stats.t.isf((1 - policy.equivalence_level) / len(policy.looks) / 2, h - 1) * error
        agree = sum(value * center > 0 for value in x)
        proven = abs(center) > policy.min_effect and stats.binom.sf(agree - 1, look, 0.5) <= policy.sign_level
        if center - wide > policy.regression_margin and proven:
            return "regressed", look, center - wide, center + wide
        if center + wide < -policy.regression_margin and proven:
            return "improved", look, center - wide, center + wide
        if -policy.equivalence < center - narrow and center + narrow < policy.equivalence:
            return "unchanged", look, center - wide, center + wide
    return "inconclusive", len(ratios), center - wide, center + wide


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("policy", [POLICY, CPU.with_budget(20)], ids=["gpu", "cpu20"])
def test_decisions_agree_with_the_slow_twin(make_pairs, seed, policy):
    random = np.random.default_rng(seed)
    ratios = random.normal(random.choice([-0.02, -0.01, 0.0, 0.006, 0.01, 0.03]), random.choice([0.002, 0.01]), 48)
    ratios = ratios[: policy.looks[-1]]
    decision = decide(make_pairs(ratios), policy, final=True)
    verdict, used, low, high = slow_verdict(ratios, policy)
    assert (decision.verdict, decision.pairs_used) == (verdict, used)
    assert decision.interval == pytest.approx((math.expm1(low), math.expm1(high)))


def test_a_step_is_found_at_the_first_look(make_pairs):
    decision = decide(make_pairs(noise(1, 8, mean=0.03), before=2.0), POLICY, final=False)
    assert decision.verdict is Verdict.REGRESSED
    assert codes(decision) == ["slower"]
    assert decision.effect == pytest.approx(0.03, abs=0.006)
    assert decision.interval[0] > 0.003
    assert (decision.look, decision.pairs_used, decision.pairs_rejected) == (0, 8, 0)
    assert decision.before == pytest.approx(2.0)
    assert decision.after == pytest.approx(2.06, rel=0.01)


def test_same_code_is_unchanged_with_what_would_have_been_found(make_pairs):
    decision = decide(make_pairs(noise(2, 8, sd=0.002)), POLICY, final=False)
    assert decision.verdict is Verdict.UNCHANGED
    assert 0.005 <= decision.minimum_detectable_effect < 0.02
    assert f"{decision.minimum_detectable_effect:.2%}" in decision.reasons[0].detail


def test_undecided_continues_until_it_is_final(make_pairs):
    pairs = make_pairs(noise(3, 12, sd=0.05))
    open_one, closed = decide(pairs, POLICY, final=False), decide(pairs, POLICY, final=True)
    assert open_one.verdict is None
    assert closed.verdict is Verdict.INCONCLUSIVE
    assert codes(closed) == ["budget_spent"]
    assert "12 admitted pairs of 12" in closed.reasons[0].detail
    assert open_one.effect == closed.effect


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_fewer_pairs_than_any_look_needs_are_too_few(make_pairs, count):
    pairs = make_pairs(noise(4, count, mean=0.1))
    assert decide(pairs, POLICY, final=False).verdict is None
    decision = decide(pairs, POLICY, final=True)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert codes(decision) == ["too_few_pairs"]
    assert "a look needs 5 at least" in decision.reasons[0].detail
    assert ("would decide" in decision.reasons[0].detail) == (count >= 2)


@pytest.mark.parametrize("count", [5, 7])
def test_a_job_that_ends_before_its_first_look_takes_it_at_what_there_is(make_pairs, count):
    changed, same = make_pairs(noise(4, count, mean=0.1)), make_pairs(noise(4, count, sd=0.001))
    assert decide(changed, POLICY, final=False).verdict is None
    assert decide(changed, POLICY, final=True).verdict is Verdict.REGRESSED
    assert decide(same, POLICY, final=True).verdict is Verdict.UNCHANGED


def test_looks_taken_early_find_no_change_in_identical_code_more_often_than_their_level(make_pairs):
    jobs = [decide(make_pairs(noise(seed, 5, sd=0.01)), POLICY, final=True) for seed in range(2000)]
    found = sum(one.verdict in (Verdict.REGRESSED, Verdict.IMPROVED) for one in jobs)
    assert found <= 2000 * POLICY.look_alpha + 3 * math.sqrt(2000 * POLICY.look_alpha)


@pytest.mark.parametrize("budget", [6, 8, 10, 12, 20])
def test_small_budgets_find_a_tenth(make_pairs, budget):
    pairs = make_pairs(noise(5, budget, sd=0.02, mean=math.log(1.1)))
    assert decide(pairs, CPU.with_budget(budget), final=True).verdict is Verdict.REGRESSED


def test_a_small_budget_forgives_a_rejected_pair(make_pairs):
    pairs = make_pairs(noise(6, 6, sd=0.02, mean=math.log(1.1)), both={"steal_share": 0.3}, only=[2])
    decision = decide(pairs, CPU.with_budget(6), final=True)
    assert (decision.verdict, decision.pairs_used, decision.pairs_rejected) == (Verdict.REGRESSED, 5, 1)


def test_looks_wait_for_three_quarters_of_their_pairs(make_pairs):
    ratios = noise(7, 10, sd=0.002, mean=0.03)
    rejected = {"throttled_share": 1.0}
    assert decide(make_pairs(ratios[:8], both=rejected, only=[0, 1]), POLICY, final=False).pairs_used == 6
    three = make_pairs(ratios, both=rejected, only=[0, 1, 2])
    assert decide(three[:8], POLICY, final=False).verdict is None
    decision = decide(three, POLICY, final=False)
    assert (decision.pairs_used, decision.pairs_rejected) == (6, 3)


@pytest.mark.parametrize("seed", range(12))
def test_scaling_all_times_changes_only_the_times(make_pairs, seed):
    ratios = noise(seed, 16, mean=0.01 * (seed % 3 - 1), sd=0.005)
    small = decide(make_pairs(ratios, before=0.01), POLICY, final=True)
    large = decide(make_pairs(ratios, before=700.0), POLICY, final=True)
    assert small.verdict is large.verdict
    assert small.effect == pytest.approx(large.effect)
    assert small.interval == pytest.approx(large.interval)
    assert large.before / small.before == pytest.approx(70_000.0)


@pytest.mark.parametrize("policy", [POLICY, CPU.with_budget(20)], ids=["gpu", "cpu20"])
@pytest.mark.parametrize("seed", range(24))
def test_swapping_the_arms_swaps_the_verdict_and_negates_the_effect(make_pairs, seed, policy):
    pairs = make_pairs(noise(seed, 20, mean=0.02 * (seed % 3 - 1), sd=0.006))
    forth, back = decide(pairs, policy, final=True), decide(swap(pairs), policy, final=True)
    opposite = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.IMPROVED: Verdict.REGRESSED}
    assert back.verdict is opposite.get(forth.verdict, forth.verdict)
    assert math.log1p(back.effect) == pytest.approx(-math.log1p(forth.effect))
    assert math.log1p(back.interval[0]) == pytest.approx(-math.log1p(forth.interval[1]))
    assert back.p_value == pytest.approx(forth.p_value)


def test_later_pairs_do_not_undo_a_decision(make_pairs):
    ratios = np.concatenate([noise(8, 8, sd=0.002, mean=0.02), noise(9, 40, sd=0.002)])
    early, late = (decide(make_pairs(ratios[:n]), POLICY, final=False) for n in (8, 48))
    assert early.verdict is late.verdict is Verdict.REGRESSED
    assert early.interval == late.interval
    assert late.pairs_used == 8


def test_throttled_pairs_end_throttled_and_show_no_effect(make_pairs):
    """The story of the seed: a throttled session showed +-0 and looked stable; the change was -12 %."""
    throttled = make_pairs(noise(10, 12, sd=0.0005), both={"throttled_share": 1.0, "sm_clock": 1200.0})
    decision = decide(throttled, POLICY, final=True)
    assert decision.verdict is Verdict.THROTTLED
    assert codes(decision) == ["throttle_flagged", "under_half_admitted"]
    assert decision.effect is decision.interval is decision.before is None
    assert decide(throttled[:3], POLICY, final=True).verdict is Verdict.THROTTLED


def test_suspicious_stability_at_a_low_clock_is_throttled_without_any_flag(make_arm):
    history = CaseHistory(clock_top=1980.0, scatter=0.005)
    arm = make_arm(scatter=0.0005, sm_clock=1500.0)
    pairs = [PairObservation(i, pair_order(i), arm, arm) for i in range(16)]
    decision = decide(pairs, POLICY, final=True, history=history)
    assert decision.verdict is Verdict.THROTTLED
    assert "stable_at_low_clock" in codes(decision)


def test_a_hopeless_job_stops_before_its_budget(make_pairs):
    pairs = make_pairs(noise(11, 24), both={"throttled_share": 1.0})
    assert decide(pairs[:23], POLICY, final=False).verdict is None
    assert decide(pairs, POLICY, final=False).verdict is Verdict.THROTTLED


def test_throttle_onset_rejects_what_came_after_it(make_pairs):
    pairs = make_pairs(noise(12, 24, mean=0.01), both={"throttled_share": 1.0}, only=range(4, 24))
    assert decide(pairs, POLICY, final=True).verdict is Verdict.THROTTLED


@pytest.mark.parametrize(("state", "code"), [("steal_share", "steal"), ("foreign_share", "foreign_load")])
def test_a_cpu_that_others_use_gives_no_verdict_on_the_code(make_pairs, state, code):
    pairs = make_pairs(noise(13, 12, mean=0.1), both={state: 0.2}, only=range(8))
    decision = decide(pairs, CPU.with_budget(12), final=True)
    assert decision.verdict is Verdict.THROTTLED
    assert codes(decision) == [code, "under_half_admitted"]


def test_a_throttled_job_names_its_main_cause_first_and_the_power_cap_beside_what_it_brings_about(make_pairs):
    capped = {"power_capped_share": 1.0, "sm_clock": 1700.0}
    pairs = make_pairs(noise(13, 8), both=capped, candidate={"sm_clock": 1660.0})
    assert codes(decide(pairs, POLICY, final=True)) == ["clocks_differ", "power_limited", "under_half_admitted"]
    pairs = make_pairs(noise(13, 8), both=capped | {"foreign_processes": 1}, candidate={"sm_clock": 1660.0})
    decision = decide(pairs, POLICY, final=True)
    assert codes(decision) == ["foreign_process", "clocks_differ", "power_limited", "under_half_admitted"]
    assert decision.reasons[0].detail == "8 of 8 pairs: another process computed on the device"


def test_too_few_pairs_at_the_power_cap_say_that_it_was_there(make_pairs):
    decision = decide(make_pairs(noise(13, 4), both={"power_capped_share": 1.0}), POLICY, final=True)
    assert (decision.verdict, codes(decision)) == (Verdict.INCONCLUSIVE, ["too_few_pairs", "power_limited"])


def test_stolen_pairs_do_not_count_but_the_others_do(make_pairs):
    ratios = noise(14, 12, sd=0.02, mean=math.log(1.1))
    ratios[[1, 5]] = 0.9
    pairs = make_pairs(ratios, candidate={"steal_share": 0.3}, only=[1, 5])
    decision = decide(pairs, CPU.with_budget(12), final=True)
    assert decision.verdict is Verdict.REGRESSED
    assert decision.effect == pytest.approx(0.1, abs=0.03)


def test_outlying_pairs_do_not_hide_a_tenth_on_a_cpu(make_pairs):
    ratios = noise(15, 24, sd=0.025, mean=math.log(1.1))
    ratios[[3, 9, 17]] = [0.6, -0.5, 0.7]
    decision = decide(make_pairs(ratios), CPU.with_budget(24), final=True)
    assert decision.verdict is Verdict.REGRESSED
    assert decision.effect == pytest.approx(0.1, abs=0.03)


def test_power_limited_forbids_unchanged_but_not_a_regression(make_pairs):
    capped = {"power_capped_share": 1.0, "sm_clock": 1400.0}
    same = decide(make_pairs(noise(16, 48, sd=0.002), both=capped), POLICY, final=True)
    assert same.verdict is Verdict.INCONCLUSIVE
    assert "power_limited" in codes(same)
    slower = decide(make_pairs(noise(17, 8, sd=0.002, mean=0.03), both=capped), POLICY, final=True)
    assert slower.verdict is Verdict.REGRESSED
    assert codes(slower) == ["slower", "power_limited"]
    faster = decide(make_pairs(noise(17, 8, sd=0.002, mean=-0.03), both=capped), POLICY, final=True)
    assert (faster.verdict, codes(faster)) == (Verdict.IMPROVED, ["faster", "power_limited"])


def test_constant_samples_are_judged_with_the_floor():
    arm = ArmObservation(np.full(20, 3.264))
    pairs = [PairObservation(i, pair_order(i), arm, arm) for i in range(8)]
    decision = decide(pairs, POLICY, final=False)
    assert decision.verdict is Verdict.UNCHANGED
    assert codes(decision) == ["equivalent", "zero_variance"]
    assert decision.interval[1] - decision.interval[0] > 2 * POLICY.sd_floor


def test_one_timer_tick_between_constants_is_no_change():
    arms = ArmObservation(np.full(20, 3.264)), ArmObservation(np.full(20, 3.296))
    decision = decide([PairObservation(i, pair_order(i), *arms) for i in range(8)], POLICY, final=True)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "timer_resolution" in codes(decision)
    back = decide([PairObservation(i, pair_order(i), *reversed(arms)) for i in range(8)], POLICY, final=True)
    assert (back.verdict, codes(back)) == (Verdict.INCONCLUSIVE, codes(decision))


def test_a_large_step_between_constants_is_a_change():
    arms = ArmObservation(np.full(20, 3.2)), ArmObservation(np.full(20, 3.52))
    decision = decide([PairObservation(i, pair_order(i), *arms) for i in range(8)], POLICY, final=True)
    assert decision.verdict is Verdict.REGRESSED


def test_a_small_real_effect_is_unchanged_and_said(make_pairs):
    decision = decide(make_pairs(noise(18, 8, sd=0.0002, mean=0.0045)), POLICY, final=True)
    assert decision.verdict is Verdict.UNCHANGED
    assert codes(decision) == ["below_minimum_effect", "equivalent"]


def test_a_mean_that_few_pairs_carry_is_no_change(make_pairs):
    """Sixteen pairs of which six are far slower and ten a little faster: the interval alone would call it."""
    policy = JudgingPolicy(looks=(16,), trim=0.0, alpha=0.2)
    ratios = np.array([0.05] * 6 + [-0.001] * 10) + noise(19, 16, sd=1e-4)
    decision = decide(make_pairs(ratios), policy, final=True)
    assert decision.interval[0] > policy.regression_margin
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "signs_disagree" in codes(decision)


def test_unusual_stability_is_reported_and_not_believed(make_pairs):
    pairs = make_pairs(noise(20, 8, sd=0.0006))
    assert decide(pairs, POLICY, final=True).verdict is Verdict.UNCHANGED
    decision = decide(pairs, POLICY, final=True, history=CaseHistory(pair_sd=0.02))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "suspiciously_stable" in codes(decision)


def test_cycles_come_with_their_interval_and_doubt_a_change_of_clock(make_pairs):
    ratios = noise(21, 8, sd=0.001, mean=0.012)
    work = make_pairs(ratios, both={"sm_clock": 1980.0})
    proven = decide(work, POLICY, final=True)
    assert proven.verdict is Verdict.REGRESSED
    assert proven.interval_cycles == pytest.approx(proven.interval)
    look = proven.evidence["looks"][0]
    assert look["cycles"]["mean"] == pytest.approx(look["mean"])
    assert look["cycles"]["interval"] == pytest.approx(look["interval"])
    clock = make_pairs(ratios, both={"sm_clock": 1980.0}, candidate={"sm_clock": 1980.0 * math.exp(-0.012)})
    decision = decide(clock, POLICY, final=True)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert codes(decision) == ["budget_spent", "cycles_disagree"]
    assert decision.interval_cycles[0] < 0 < decision.interval_cycles[1]
    unknown = decide(make_pairs(ratios), POLICY, final=True)
    assert (unknown.verdict, unknown.interval_cycles) == (Verdict.REGRESSED, None)
    assert unknown.evidence["looks"][0]["cycles"] is None


def test_at_the_power_cap_code_may_move_the_clock(make_pairs):
    ratios = noise(21, 8, sd=0.001, mean=0.012)
    capped = {"power_capped_share": 1.0, "sm_clock": 1400.0}
    heavier = make_pairs(ratios, both=capped, candidate={"sm_clock": 1400.0 * math.exp(-0.012)})
    decision = decide(heavier, POLICY, final=True)
    assert decision.verdict is Verdict.REGRESSED
    assert codes(decision) == ["slower", "cycles_disagree", "power_limited"]
    assert decision.evidence["pairs"][0]["power_capped_after"] == 1.0


@pytest.mark.parametrize("missing", ["baseline", "both", "all"])
def test_a_clock_that_fails_midway_costs_its_pairs_and_no_more(make_pairs, missing):
    """The readings of six pairs are gone: where others are there, a pair without its clock is not believed."""
    pairs = make_pairs(noise(24, 16, sd=0.002, mean=0.03), both={"sm_clock": 1980.0})
    lost = range(16) if missing == "all" else range(4, 10)
    for at in lost:
        after = replace(pairs[at].candidate, sm_clock=1980.0 if missing == "baseline" else None)
        pairs[at] = replace(pairs[at], baseline=replace(pairs[at].baseline, sm_clock=None), candidate=after)
    decision = decide(pairs, POLICY, final=True)
    assert decision.verdict is Verdict.REGRESSED
    used = [one["index"] for one in decision.evidence["pairs"] if one["admitted"]]
    if missing == "all":
        assert (used, decision.interval_cycles) == (list(range(16)), None)
    else:
        assert used == [0, 1, 2, 3, *range(10, 16)]
        assert {code for at in lost for code in decision.evidence["pairs"][at]["reasons"]} == {"clock_unreadable"}
        assert decision.interval_cycles == pytest.approx(decision.interval)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_of_a_few_samples_are_inconclusive_with_their_reason(make_arm, count):
    arm = make_arm(count=count)
    decision = decide([PairObservation(i, pair_order(i), arm, arm) for i in range(12)], POLICY, final=True)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert codes(decision) == ["too_few_samples", "under_half_admitted"]


def test_indices_must_increase(make_pairs):
    with pytest.raises(ValueError, match=r"pairs: expected increasing indices, got \[0, 0\]"):
        decide([*make_pairs([0.0]), *make_pairs([0.0])], POLICY, final=True)


def test_the_evidence_is_json_and_enough_to_draw_the_decision_again(make_pairs):
    odd = {"throttled_share": 0.5, "device_clock": 1965.0}
    pairs = make_pairs(noise(22, 20, sd=0.006, mean=0.01), both={"device_clock": 1980.0}, candidate=odd, only=[4])
    decision = decide(pairs, POLICY, final=True)
    evidence = json.loads(json.dumps(decision.evidence, allow_nan=False))
    assert [one["index"] for one in evidence["pairs"]] == list(range(20))
    assert [one["order"] for one in evidence["pairs"][:2]] == ["AB", "BA"]
    assert evidence["pairs"][4]["admitted"] is False
    assert evidence["pairs"][4]["reasons"] == ["throttle_flagged"]
    clocks = [(one["device_clock_before"], one["device_clock_after"]) for one in evidence["pairs"]]
    assert clocks == [(1980.0, 1965.0) if at == 4 else (None, None) for at in range(20)]
    look = evidence["looks"][0]
    ratios = {one["index"]: one["log_ratio"] for one in evidence["pairs"]}
    used = np.array([ratios[index] for index in look["admitted"]])
    assert look["n"] == len(used) == 7
    assert look["mean"] == pytest.approx(used.mean())
    half = stats.t.isf(evidence["policy"]["alpha"] / 6 / 2, 6) * used.std(ddof=1) / math.sqrt(7)
    assert look["interval"] == pytest.approx([used.mean() - half, used.mean() + half])
