import math
import statistics

import numpy as np
import pytest
from scipy import stats

from service.stats.interval import estimate, is_suspiciously_stable, sign_test, t_quantile, t_tail
from service.stats.policy import JudgingPolicy

POLICY = JudgingPolicy()


def slow_estimate(values, policy):
    """Tukey-McLaughlin from the formula, with lists."""
    n = len(values)
    g = int(policy.trim * n) if n >= policy.trim_from else 0
    ordered = sorted(values)
    kept = ordered[g : n - g]
    winsorized = [kept[0]] * g + kept + [kept[-1]] * g
    error = statistics.stdev(winsorized) / ((len(kept) / n) * math.sqrt(n))
    return statistics.fmean(kept), max(error, policy.sd_floor / math.sqrt(n)), len(kept) - 1


@pytest.mark.parametrize("n", [2, 3, 8, 12, 15, 16, 24, 33, 48])
@pytest.mark.parametrize("policy", [POLICY, JudgingPolicy.for_device("cpu"), JudgingPolicy(trim=0.0)])
def test_estimate_agrees_with_the_slow_twin(n, policy):
    values = np.random.default_rng(n).standard_t(3, n) * 0.01
    result = estimate(values, policy)
    center, error, degrees = slow_estimate(values.tolist(), policy)
    assert result.center == pytest.approx(center)
    assert result.standard_error == pytest.approx(error)
    assert result.degrees == degrees


def test_untrimmed_interval_is_scipys_t_interval():
    values = np.random.default_rng(3).normal(0.01, 0.004, 12)
    expected = stats.t.interval(0.999, 11, values.mean(), stats.sem(values))
    assert estimate(values, POLICY).interval(0.001) == pytest.approx(expected)


def test_trimmed_center_is_scipys():
    values = np.random.default_rng(4).standard_t(2, 32)
    assert estimate(values, POLICY).center == pytest.approx(stats.trim_mean(values, 0.1))


@pytest.mark.parametrize("margin", [0.0, 0.003])
def test_p_is_below_the_level_exactly_where_the_interval_leaves_the_margin(margin):
    for seed in range(50):
        one = estimate(np.random.default_rng(seed).normal(0.006, 0.004, 8), POLICY)
        low, high = one.interval(0.02)
        assert (one.p_beyond(margin) < 0.02) == (low > margin or high < -margin)
    inside = estimate(np.full(8, 0.001), POLICY)
    assert inside.p_beyond(0.003) == 1.0


def test_no_scatter_is_floored_and_few_values_are_refused():
    one = estimate(np.full(8, 0.01), POLICY)
    assert one.observed_sd == 0.0
    assert one.standard_error == pytest.approx(POLICY.sd_floor / math.sqrt(8))
    with pytest.raises(ValueError, match="values: expected 2 or more, got 1"):
        estimate(np.array([0.1]), POLICY)


def test_unusual_stability_is_not_better_evidence():
    values = np.random.default_rng(1).normal(0.0, 0.001, 8)
    assert estimate(values, POLICY, usual_sd=0.01).sd == 0.01
    assert estimate(values, POLICY, usual_sd=0.002).sd < 0.002
    assert not is_suspiciously_stable(0.0, None)


def test_quantiles_and_tails_are_students():
    for degrees in (3, 7, 47):
        assert t_quantile(1 - 8e-5, degrees) == pytest.approx(stats.t.isf(8e-5, degrees), rel=1e-6)
        assert t_tail(30.0, degrees) == pytest.approx(stats.t.sf(30.0, degrees), rel=1e-6)


def test_sign_test_counts_from_the_formula():
    values = np.array([0.1, 0.2, -0.1, 0.0, 0.3, 0.4])
    agree, p = sign_test(values, 1.0)
    assert agree == 4
    assert p == pytest.approx(sum(math.comb(6, k) for k in (4, 5, 6)) / 2**6)
    assert sign_test(-values, -1.0) == (agree, p)
    assert sign_test(np.zeros(6), 1.0) == (0, 1.0)


@pytest.mark.parametrize("kind", ["normal", "t3", "outliers"])
@pytest.mark.parametrize("n", [8, 16, 24])
def test_p_is_no_smaller_than_uniform_under_the_null(kind, n):
    random = np.random.default_rng(n)
    sets = 4000
    values = random.standard_t(3, (sets, n)) if kind == "t3" else random.normal(size=(sets, n))
    if kind == "outliers":
        values *= np.where(random.random((sets, n)) < 0.1, 10.0, 1.0)
    p = np.array([estimate(row, POLICY).p_beyond(0.0) for row in values])
    for level in (0.2, 0.05, 0.01):
        assert (p <= level).mean() <= level * 1.1 + 3 * math.sqrt(level / sets)
