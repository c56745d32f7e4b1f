"""Clopper and Pearson's interval, against its definition by tail sums of the binomial law."""

import math

import pytest

from service.stats.proportion import Proportion


def tail(count, trials, rate):
    """P(X >= count), term by term."""
    return sum(math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(count, trials + 1))


@pytest.mark.parametrize(("count", "trials"), [(1, 3), (2, 40), (20, 40), (39, 40)])
def test_each_end_leaves_half_of_the_rest_in_its_tail(count, trials):
    low, high = Proportion(count, trials).interval()
    assert tail(count, trials, low) == pytest.approx(0.025, abs=1e-9)
    assert 1 - tail(count + 1, trials, high) == pytest.approx(0.025, abs=1e-9)


def test_none_of_many_is_not_never():
    low, high = Proportion(0, 300).interval()
    assert low == 0.0
    assert high == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-9)
    assert Proportion(300, 300).interval() == (pytest.approx(1 - high), 1.0)


def test_nothing_counted_says_nothing():
    nothing = Proportion(0, 0)
    assert nothing.rate is None
    assert nothing.interval() is None


def test_counts_add_up():
    assert Proportion(1, 10) + Proportion(2, 5) == Proportion(3, 15)


@pytest.mark.parametrize(("count", "trials"), [(-1, 3), (4, 3)])
def test_an_impossible_count_is_refused(count, trials):
    with pytest.raises(ValueError, match=r"count: expected from 0 to trials"):
        Proportion(count, trials)
