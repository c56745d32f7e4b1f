import math

import numpy as np
import pytest

from service.stats.history_policy import HistoryPolicy
from service.stats.step import StepProfile, step_profile
from service.stats.suspicion import change_probabilities

POLICY = HistoryPolicy()


def slow_probabilities(gain, effect, open_commits, policy):
    weights = [
        policy.overfit * math.exp(g / 2) if abs(e) >= policy.min_effect else 0.0
        for g, e in zip(gain, effect, strict=True)
    ]
    everything = 1.0
    for weight, commits in zip(weights, open_commits, strict=True):
        everything += policy.change_rate * commits * weight + policy.shift_rate * weight
    return [
        policy.change_rate * commits * weight / everything
        for weight, commits in zip(weights, open_commits, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_probabilities_agree_with_the_slow_twin(seed):
    random = np.random.default_rng(seed)
    gain, effect = random.normal(5.0, 8.0, 20), random.normal(0.0, 0.01, 20)
    commits = random.integers(0, 4, 20)
    result = change_probabilities(StepProfile(gain, effect), commits, POLICY)
    assert result == pytest.approx(slow_probabilities(gain, effect, commits, POLICY))
    assert (result >= 0.0).all()
    assert result.sum() < 1.0


def test_a_certain_step_is_suspected_as_much_as_the_surroundings():
    profile = StepProfile(np.array([0.0, 2000.0, 0.0]), np.array([0.01, 0.05, 0.01]))
    probability = change_probabilities(profile, np.array([1, 1, 1]), POLICY)
    assert probability[1] == pytest.approx(POLICY.change_rate / (POLICY.change_rate + POLICY.shift_rate))


def test_a_cleared_commit_does_not_hand_its_suspicion_to_its_neighbors():
    values = np.random.default_rng(3).normal(0.0, 0.003, 40)
    values[30:] += 0.03
    profile = step_profile(values, 0.003, 3.0)
    commits = np.ones(39, dtype=np.int64)
    assert change_probabilities(profile, commits, POLICY)[29] > 0.4
    commits[29] = 0
    assert change_probabilities(profile, commits, POLICY).max() < POLICY.price


def test_small_steps_are_not_suspected_however_certain():
    profile = StepProfile(np.array([500.0]), np.array([0.9 * POLICY.min_effect]))
    assert change_probabilities(profile, np.array([1]), POLICY).tolist() == [0.0]
