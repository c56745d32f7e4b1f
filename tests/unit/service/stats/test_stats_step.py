import math

import numpy as np
import pytest

from service.stats.step import scatter_of_differences, smallest_step, step_profile


def slow_profile(values, scale, clip):
    """Gain and possible sizes (levels can tie) of a step at every place, from the formula, level by level."""
    levels = [*values, *(np.mean(values[-k:]) for k in range(2, min(6, len(values)) + 1))]

    def cheapest(part):
        costs = [sum(min(((y - level) / scale) ** 2, clip**2) for y in part) for level in levels]
        return min(costs), [level for level, cost in zip(levels, costs, strict=True) if cost < min(costs) + 1e-9]

    one, _ = cheapest(values)
    gains, effects = [], []
    for place in range(1, len(values)):
        (before, low), (after, high) = cheapest(values[:place]), cheapest(values[place:])
        gains.append(one - before - after)
        effects.append([b - a for a in low for b in high])
    return gains, effects


@pytest.mark.parametrize("seed", range(25))
def test_profiles_agree_with_the_slow_twin(seed):
    random = np.random.default_rng(seed)
    values = random.standard_t(2, random.integers(2, 40)) * 0.01
    values[len(values) // 2 :] += random.choice([0.0, 0.01, 0.1])
    profile = step_profile(values, 0.008, 3.0)
    gains, effects = slow_profile(values.tolist(), 0.008, 3.0)
    assert profile.gain == pytest.approx(gains, abs=1e-9)
    for effect, possible in zip(profile.effect, effects, strict=True):
        assert min(abs(effect - one) for one in possible) < 1e-12


def test_a_step_gains_most_where_it_is():
    values = np.random.default_rng(1).normal(0.0, 0.004, 60)
    values[45:] += 0.02
    profile = step_profile(values, 0.004, 3.0)
    assert int(profile.gain.argmax()) == 44
    assert profile.gain[44] > 100.0
    assert profile.effect[44] == pytest.approx(0.02, abs=0.004)


def test_accidents_buy_no_more_than_one_point():
    values = np.zeros(40)
    values[[10, 20, 30]] = [5.0, -3.0, 8.0]
    assert step_profile(values, 0.01, 3.0).gain.max() <= 9.0 + 1e-9


def test_equal_values_gain_nothing():
    assert step_profile(np.full(20, 1.5), 0.001, 3.0).gain.tolist() == [0.0] * 19


@pytest.mark.parametrize("seed", range(10))
def test_gains_do_not_depend_on_unit_scale_or_direction(seed):
    values = np.random.default_rng(seed).normal(0.0, 1.0, 30)
    profile = step_profile(values, 1.0, 3.0)
    shifted, scaled, upside_down = (
        step_profile(v, s, 3.0) for v, s in [(values + 7, 1), (values * 4, 4), (-values, 1)]
    )
    for other in (shifted, scaled, upside_down):
        assert other.gain == pytest.approx(profile.gain, abs=1e-9)
    assert upside_down.effect == pytest.approx(-profile.effect)
    assert scaled.effect == pytest.approx(4 * profile.effect)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="values: expected one dimension with 2 or more"):
        step_profile(np.array([1.0]), 1.0, 3.0)
    with pytest.raises(ValueError, match="scale: expected a number above 0, got 0"):
        step_profile(np.zeros(3), 0.0, 3.0)


def test_scatter_estimates_the_sd_and_ignores_steps():
    values = np.random.default_rng(2).normal(0.0, 0.01, 4000)
    values[2000:] += 1.0
    assert scatter_of_differences(np.abs(np.diff(values)).tolist(), 0.001) == pytest.approx(0.01, rel=0.05)


def test_scatter_of_few_or_equal_values_has_a_floor():
    assert scatter_of_differences([], 0.001) == 0.001
    assert scatter_of_differences([0.0] * 30, 0.001) == 0.001
    assert scatter_of_differences([0.01] * 4, 0.001) == pytest.approx(1.4826 * 0.01 / math.sqrt(2) * 2)


def test_smallest_step_is_that_of_a_coarse_timer():
    assert smallest_step(np.array([0.3, 0.1, 0.3, 0.6])) == pytest.approx(0.2)
    assert smallest_step(np.ones(5)) == 0.0
