"""A change is told only when fresh pairs show it again: what they may say, how often they err, what they cost."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from service.stats.confirmation import confirm, fresh_order
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.sequential import decide
from service.stats.verdict import CaseDecision, Verdict

POLICY = JudgingPolicy()
CHANGES = {Verdict.REGRESSED, Verdict.IMPROVED}


def noise(seed, count, sd=0.004, mean=0.0):
    return np.random.default_rng(seed).normal(mean, sd, count)


def codes(decision):
    return [one.code for one in decision.reasons]


@pytest.fixture
def first(make_pairs):
    return make_pairs(noise(1, 8, sd=0.002, mean=0.02))


@pytest.fixture
def found(first):
    decision = decide(first, POLICY, final=False)
    assert decision.verdict is Verdict.REGRESSED
    return decision


def test_fresh_pairs_begin_with_the_other_arm():
    assert [fresh_order(number) for number in range(4)] == ["BA", "AB", "BA", "AB"]
    assert all(fresh_order(number) != pair_order(number) for number in range(6))


def test_a_change_that_is_there_again_stands_as_it_was_found(found, first, make_pairs):
    decision = confirm(found, first, make_pairs(noise(2, 5, sd=0.002, mean=0.018)), POLICY, final=False)
    assert (decision.verdict, decision.claim) == (Verdict.REGRESSED, Verdict.REGRESSED)
    assert codes(decision) == ["slower", "confirmed"]
    assert (decision.effect, decision.interval, decision.pairs_used) == (found.effect, found.interval, 8)
    again = json.loads(json.dumps(decision.evidence, allow_nan=False))["confirmation"]
    assert (again["verdict"], len(again["pairs"]), again["looks"][0]["n"]) == ("regressed", 5, 5)
    assert again["effect"] == pytest.approx(0.018, abs=0.004)
    assert decision.evidence["pairs"] == found.evidence["pairs"]


def test_a_change_waits_for_its_fresh_pairs(found, first, make_pairs):
    fresh = make_pairs(noise(3, 24, sd=0.02, mean=0.02))
    for count in (0, 1, 4):
        decision = confirm(found, first, fresh[:count], POLICY, final=False)
        assert (decision.verdict, decision.claim) == (None, Verdict.REGRESSED)
    assert confirm(found, first, fresh, POLICY, final=False).verdict is not None


@pytest.mark.parametrize("mean", [0.0, -0.02])
def test_a_change_that_is_not_there_again_is_inconclusive(found, first, make_pairs, mean):
    decision = confirm(found, first, make_pairs(noise(4, 12, sd=0.002, mean=mean)), POLICY, final=False)
    assert (decision.verdict, decision.claim) == (Verdict.INCONCLUSIVE, Verdict.REGRESSED)
    assert codes(decision)[0] == "not_confirmed"
    assert f"{found.effect:+.2%} was found" in decision.reasons[0].detail


def test_without_any_fresh_pair_nothing_is_told(found, first):
    decision = confirm(found, first, [], POLICY, final=True)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert codes(decision) == ["not_measured_again", "slower"]


def test_a_device_that_is_throttled_by_then_gives_no_verdict_and_no_effect(found, first, make_pairs):
    fresh = make_pairs(noise(5, 24, sd=0.0003, mean=0.001), both={"throttled_share": 1.0})
    decision = confirm(found, first, fresh, POLICY, final=False)
    assert (decision.verdict, decision.effect, decision.interval) == (Verdict.THROTTLED, None, None)
    assert codes(decision) == ["not_confirmed", "throttle_flagged", "under_half_admitted"]
    assert decision.reasons[0].detail.endswith("was found, but fresh pairs did not show it again: 0 of 24 admitted")
    assert decision.evidence["pairs"] == found.evidence["pairs"]


def test_stability_at_a_lower_clock_is_seen_against_the_first_pairs(make_arm):
    """The fresh pairs alone look sound: one clock, no flag. Beside the first ones they are slow and too quiet."""

    def pairs(ratio, scatter, clock):
        arms = [make_arm(level, scatter, sm_clock=clock) for level in (1.0, 1.0 + ratio)]
        return [PairObservation(i, pair_order(i), *arms) for i in range(12)]

    first, fresh = pairs(0.02, 0.006, 1980.0), pairs(0.01, 0.001, 1850.0)
    found = decide(first, POLICY, final=True)
    assert decide(fresh, POLICY, final=True).verdict in CHANGES
    decision = confirm(found, first, fresh, POLICY, final=True)
    assert decision.verdict is Verdict.THROTTLED
    assert "stable_at_low_clock" in codes(decision)


def test_only_changes_are_confirmed(first):
    with pytest.raises(ValueError, match="found: expected a decision that says regressed or improved"):
        confirm(CaseDecision(Verdict.UNCHANGED), first, [], POLICY, final=True)


def jobs_of(policy, effect, sd, count, seed):
    random = np.random.default_rng(seed)
    spread = np.exp(0.005 * np.linspace(-1.5, 1.5, 15))

    def sample_pair(index, order):
        ratio = random.normal(np.log1p(effect), sd)
        return PairObservation(index, order, ArmObservation(spread), ArmObservation(np.exp(ratio) * spread))

    return [run_job(sample_pair, lambda times: None, policy) for _ in range(count)]


def test_finding_and_confirming_err_no_more_often_than_promised():
    """With every other guard out of the way, 3,000 jobs on identical code; the promise there is alpha * 0.2 / 2."""
    bare = {"regression_margin": 0.0, "min_effect": 0.0, "equivalence": 1e-9, "sign_level": 0.999}
    policy = JudgingPolicy(looks=(8, 12), alpha=0.2, confirm_looks=(5, 8), confirm_alpha=0.2, **bare)
    jobs = jobs_of(policy, 0.0, 0.01, 3000, seed=31)
    found = sum(one.claim is not None for one in jobs) / len(jobs)
    told = sum(one.verdict in CHANGES for one in jobs) / len(jobs)
    assert 0.05 < found <= 0.2
    assert told <= policy.told_alpha + 2 * np.sqrt(policy.told_alpha / len(jobs))
    assert policy.told_alpha == pytest.approx(0.02)


@pytest.mark.parametrize(("effect", "least", "pairs"), [(0.01, 0.97, 16), (-0.01, 0.97, 16), (0.02, 0.99, 13)])
def test_what_is_there_is_found_confirmed_and_cheap(effect, least, pairs):
    jobs = jobs_of(POLICY, effect, 0.004, 300, seed=32)
    expected = Verdict.REGRESSED if effect > 0 else Verdict.IMPROVED
    assert Counter(one.verdict for one in jobs)[expected] >= least * len(jobs)
    used = [one.pairs_used + len(one.evidence["confirmation"]["pairs"]) for one in jobs if one.claim is not None]
    assert np.median(used) <= pairs


def test_identical_code_costs_no_fresh_pairs_and_is_never_a_change():
    jobs = jobs_of(POLICY, 0.0, 0.004, 1000, seed=33)
    assert sum(one.claim is not None for one in jobs) <= POLICY.alpha * len(jobs)
    assert not any(one.verdict in CHANGES for one in jobs)


def test_a_confirmation_does_not_depend_on_the_unit_and_turns_with_the_arms(found, first, make_pairs):
    fresh = make_pairs(noise(6, 8, mean=0.012))
    scaled = [
        replace(
            pair,
            baseline=ArmObservation(pair.baseline.samples * 50),
            candidate=ArmObservation(pair.candidate.samples * 50),
        )
        for pair in fresh
    ]
    assert (
        confirm(found, first, scaled, POLICY, final=True).verdict
        is confirm(found, first, fresh, POLICY, final=True).verdict
    )
    turned = [replace(pair, baseline=pair.candidate, candidate=pair.baseline) for pair in (*first, *fresh)]
    back = confirm(decide(turned[:8], POLICY, final=True), turned[:8], turned[8:], POLICY, final=True)
    opposite = {Verdict.REGRESSED: Verdict.IMPROVED, Verdict.INCONCLUSIVE: Verdict.INCONCLUSIVE}
    assert back.verdict is opposite[confirm(found, first, fresh, POLICY, final=True).verdict]
