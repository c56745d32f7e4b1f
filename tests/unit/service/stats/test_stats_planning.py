import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from service.stats.interval import estimate, t_quantile
from service.stats.planning import judge_unpaired, minimum_detectable_effect, needed_hint, pairs_needed
from service.stats.policy import JudgingPolicy
from service.stats.verdict import Verdict

POLICY = JudgingPolicy()
BEFORE, AFTER = (6.686, 6.917, 6.150), (5.877, 5.886, 5.882)  # ms, the upsample forward that started the project


def test_three_unpaired_runs_are_not_enough_and_it_is_said_what_would_be():
    decision = judge_unpaired(BEFORE, AFTER, POLICY)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert [one.code for one in decision.reasons] == ["unpaired"]
    sd = math.sqrt(np.log(BEFORE).var(ddof=1) + np.log(AFTER).var(ddof=1))
    n = pairs_needed(math.log(5.882 / 6.686), sd, POLICY)
    assert 8 <= n <= 24
    assert f"about {n} would decide" in decision.reasons[0].detail
    assert "3 runs before and 3 after" in decision.reasons[0].detail
    assert decision.effect == pytest.approx(5.882 / 6.686 - 1)
    assert (decision.before, decision.after, decision.interval) == (6.686, 5.882, None)


def test_swapped_medians_negate_the_log_effect_and_nothing_else():
    forth, back = judge_unpaired(BEFORE, AFTER, POLICY), judge_unpaired(AFTER, BEFORE, POLICY)
    assert math.log1p(back.effect) == pytest.approx(-math.log1p(forth.effect))
    assert back.verdict is forth.verdict


def test_single_unpaired_runs_give_no_plan():
    decision = judge_unpaired([6.686], [5.877], POLICY)
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert "would decide" not in decision.reasons[0].detail


@pytest.mark.parametrize(("before", "after", "name"), [([1.0, 0.0], [1.0], "before"), ([1.0], [math.nan], "after")])
def test_unpaired_values_are_checked_by_name(before, after, name):
    with pytest.raises(ValueError, match=f"{name}: expected finite"):
        judge_unpaired(before, after, POLICY)


@pytest.mark.parametrize(("center", "sd"), [(0.01, 0.004), (-0.01, 0.004), (0.0, 0.004), (0.1, 0.03), (0.006, 0.001)])
def test_pairs_needed_is_the_first_look_that_would_do(center, sd):
    n = pairs_needed(center, sd, POLICY)
    assert n in POLICY.looks

    def decides(count):
        half = sd / math.sqrt(count)
        change = abs(center) > 0.005 and abs(center) - t_quantile(1 - 0.04 / 12, count - 1) * half > 0.003
        return change or abs(center) + t_quantile(1 - 0.05 / 12, count - 1) * half < 0.01

    assert decides(n)
    earlier = [look for look in POLICY.looks if look < n]
    assert not any(decides(look) for look in earlier)


def test_what_is_out_of_reach_is_called_so():
    assert pairs_needed(0.0, 0.5, POLICY) is None
    assert "even 1000 would not decide" in needed_hint(0.0, 0.5, POLICY)


@pytest.mark.parametrize("n", [8, 24])
def test_the_minimum_detectable_effect_is_found_with_the_promised_power(n):
    random, sd = np.random.default_rng(n), 0.01
    policy = JudgingPolicy(looks=(n,), trim=0.0)
    known = estimate(sd * stats.norm.ppf((np.arange(n) + 0.5) / n), policy)
    known = replace(known, standard_error=sd / math.sqrt(n))
    detectable = math.log1p(minimum_detectable_effect(known, policy))
    found = [
        estimate(detectable + random.normal(0.0, sd, n), policy).interval(policy.look_alpha)[0]
        > policy.regression_margin
        for _ in range(1500)
    ]
    assert 0.93 < np.mean(found) < 0.97


def test_the_minimum_detectable_effect_is_never_under_the_minimum_effect():
    assert minimum_detectable_effect(estimate(np.zeros(48), POLICY), POLICY) == POLICY.min_effect
