import math

import numpy as np
import pytest
from scipy import stats

from service.stats.multiplicity import benjamini_hochberg, discoveries


def slow_benjamini_hochberg(p_values, rate):
    m = len(p_values)
    largest = 0
    for k in range(1, m + 1):
        if sorted(p_values)[k - 1] <= k * rate / m:
            largest = k
    limit = sorted(p_values)[largest - 1] if largest else -1.0
    return [p <= limit for p in p_values]


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_slow_twin_and_with_scipy(seed):
    random = np.random.default_rng(seed)
    p = random.random(random.integers(1, 30)) ** random.integers(1, 6)
    result = benjamini_hochberg(p, 0.05)
    assert result.tolist() == slow_benjamini_hochberg(p.tolist(), 0.05)
    assert result.tolist() == (stats.false_discovery_control(p) <= 0.05).tolist()


def test_the_example_of_the_paper():
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    assert benjamini_hochberg(p, 0.05).sum() == 4


def test_order_does_not_matter():
    p = np.array([0.2, 0.001, 0.03, 0.9])
    back = np.array([2, 0, 3, 1])
    assert benjamini_hochberg(p[back], 0.1).tolist() == benjamini_hochberg(p, 0.1)[back].tolist()


def test_false_discovery_rate_under_the_null_and_with_effects():
    random = np.random.default_rng(8)
    shares, any_false = [], []
    for _ in range(1500):
        null, real = random.random(40), random.random(10) * 1e-4
        kept = benjamini_hochberg(np.concatenate([null, real]), 0.05)
        shares.append(kept[:40].sum() / max(kept.sum(), 1))
        any_false.append(benjamini_hochberg(null, 0.05).any())
    assert np.mean(shares) <= 0.05
    assert np.mean(any_false) <= 0.05 + 3 * math.sqrt(0.05 / 1500)


@pytest.mark.parametrize("bad", [[-0.1], [1.1], [math.nan], [[0.1]]])
def test_bad_p_values_are_refused(bad):
    with pytest.raises(ValueError, match="p_values"):
        benjamini_hochberg(bad, 0.05)


def test_bad_rate_is_refused():
    with pytest.raises(ValueError, match="rate"):
        benjamini_hochberg([0.1], 0.0)


def test_discoveries_by_name():
    assert discoveries({"a": 1e-6, "b": 0.5}, 0.05) == {"a"}
    assert discoveries({}, 0.05) == frozenset()
    assert benjamini_hochberg([], 0.05).size == 0
