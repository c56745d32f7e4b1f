"""The case that started the project, told to the functions that decide: runs without pairs, and a throttled session.

An upsample forward took 6.686 / 6.917 / 6.150 ms before a change and 5.877 / 5.886 / 5.882 ms after it (-12 %). A
session on a throttled GPU had called the same change "little gain": throttling makes differences smaller and looks
stable.
"""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from service.cli import app
from service.judging.judge import CaseInput, judge_cases
from service.stats.admission import CaseHistory
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.verdict import Verdict

BEFORE, AFTER = "6.686,6.917,6.150", "5.877,5.886,5.882"
CHANGE = math.log(5.882 / 6.686)
POLICY = JudgingPolicy()
NUMERICS = {"status": "ok", "errors": {"y": {"relative": 1e-7}}, "tolerance": {"relative": 1e-5}, "finite": True}


def session(effect, *, scatter=0.005, sd=0.002, count=8, start=0, seed=1, **state):
    """Pairs of one session: times of 6.6 ms with this effect, inside processes and between them with this scatter."""
    random = np.random.default_rng(seed)
    spread = np.exp(scatter * np.linspace(-1.5, 1.5, 15))
    return [
        PairObservation(
            index,
            pair_order(index),
            ArmObservation(6.6 * spread, **state),
            ArmObservation(6.6 * math.exp(random.normal(effect, sd)) * spread, **state),
        )
        for index in range(start, start + count)
    ]


def judged(pairs, fresh=(), history=None):
    given = CaseInput(pairs, NUMERICS, NUMERICS, "cuda.forward", history=history, fresh=fresh)
    return judge_cases({"cuda/forward/up": given}, POLICY, final=True)["cuda/forward/up"]


def test_three_runs_a_side_are_no_verdict_and_it_is_said_what_would_be_enough():
    shown = CliRunner().invoke(app, ["judge", BEFORE, AFTER, "--device", "cuda"])
    assert shown.exit_code == 4
    assert shown.stdout.startswith("inconclusive: 3 runs before and 3 after were not taken in pairs and show -12.0%")
    assert "about 8 would decide" in shown.stdout
    said = json.loads(CliRunner().invoke(app, ["judge", BEFORE, AFTER, "--json"]).stdout)
    assert (said["verdict"], said["effect"]) == ("inconclusive", pytest.approx(-0.12, abs=0.001))


def test_values_that_are_no_times_are_a_mistake():
    for wrong in ("6.7,x", "6.7,0", "6.7,nan", ""):
        assert CliRunner().invoke(app, ["judge", wrong, AFTER]).exit_code == 2


def test_as_many_pairs_as_were_said_to_be_enough_find_it_and_fresh_ones_confirm_it():
    scatter = math.sqrt(np.log([6.686, 6.917, 6.150]).var(ddof=1) + np.log([5.877, 5.886, 5.882]).var(ddof=1))
    decision = judged(session(CHANGE, sd=scatter, seed=3), session(CHANGE, sd=scatter, count=12, start=8, seed=4))
    assert decision.verdict is Verdict.IMPROVED
    assert decision.interval[1] < -POLICY.regression_margin


def test_a_flagged_throttled_session_is_throttled_and_never_unchanged():
    decision = judged(session(0.0, scatter=0.0005, sd=0.0003, count=48, throttled_share=1.0, sm_clock=1200.0))
    assert (decision.verdict, decision.effect) == (Verdict.THROTTLED, None)
    assert [one.code for one in decision.reasons] == ["throttle_flagged", "under_half_admitted"]


def test_an_unflagged_one_is_known_by_its_suspicious_stability_at_a_low_clock():
    quiet = session(0.0, scatter=0.0005, sd=0.0003, count=48, sm_clock=1200.0)
    usual = CaseHistory(clock_top=1980.0, clock_low=1850.0, scatter=0.005, pair_sd=0.002)
    decision = judged(quiet, history=usual)
    assert (decision.verdict, decision.effect) == (Verdict.THROTTLED, None)
    assert "suspiciously stable" in " ".join(one.detail for one in decision.reasons)


def test_a_session_that_throttles_halfway_is_throttled_and_never_unchanged():
    """Four pairs at the full clock, the others quiet and slow, without a flag and without any history."""
    first = session(CHANGE, count=4, sm_clock=1980.0)
    rest = session(0.0, scatter=0.0005, sd=0.0003, count=44, start=4, sm_clock=1200.0)
    for count in (8, 12, 24, 48):
        decision = judged([*first, *rest][:count])
        assert decision.verdict is (Verdict.INCONCLUSIVE if count == 8 else Verdict.THROTTLED)
        assert "stable_at_low_clock" in [one.code for one in decision.reasons]


def test_the_power_cap_is_a_regime_of_its_own_that_never_says_unchanged():
    decision = judged(session(0.0, count=48, power_capped_share=1.0, sm_clock=1400.0))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "power_limited" in [one.code for one in decision.reasons]


def test_a_case_that_is_quieter_than_it_ever_was_is_judged_by_its_usual_scatter():
    pairs, usual = session(0.0, sd=0.0002), CaseHistory(pair_sd=0.02)
    assert judged(pairs).verdict is Verdict.UNCHANGED
    decision = judged(pairs, history=usual)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "suspiciously_stable" in [one.code for one in decision.reasons]


def test_an_unchanged_case_says_what_it_would_have_seen():
    decision = judged(session(0.0))
    assert decision.verdict is Verdict.UNCHANGED
    assert f"a change of {decision.minimum_detectable_effect:.2%} would have shown" in decision.reasons[0].detail
