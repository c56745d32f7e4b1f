"""Behavior over many simulated histories, through the very adapter that a scorer of detectors calls."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from service.stats.history_state import ChangePoint
from service.stats.investigation import Request


@pytest.fixture(scope="module")
def adapters():
    path = Path(__file__).parents[3] / "scoring" / "adapters.py"
    spec = importlib.util.spec_from_file_location("scoring_adapters_of_history", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated_history(seed, steps=(), commits=250):
    """A series as a scorer hands it over: five runs a commit, clocks, throttle flags; steps are (commit, effect).

    Run scatter 0.2-1 % and outliers; slow waves in every second series, two clock states that the clock reading shows
    in every fourth, two states that nothing shows in every eighth, and throttled episodes of 5 commits that halve
    differences and are flagged.
    """
    random = np.random.default_rng(seed)
    at, scatter = np.arange(commits), random.uniform(0.002, 0.01)
    level = sum((math.log1p(effect) * (at >= commit) for commit, effect in steps), np.zeros(commits))
    throttled = np.zeros(commits, dtype=bool)
    kind, states = random.integers(8), np.cumsum(random.random(commits) < 0.1) % 2
    if kind % 2:
        level = level + 0.003 * np.sin(at / random.uniform(10, 30))
    level = level + np.where((kind == 7) & (states == 1), 0.025, 0.0)
    for start in random.integers(0, commits, commits // 60):
        throttled[start : start + 5] = True
    clock = np.where(throttled, 0.9, np.where((kind in (1, 2)) & (states == 1), 0.975, 1.0))
    level = np.where(throttled, 0.5 * level, level)
    runs = level + random.normal(0.0, 0.5 * scatter, commits) - random.uniform(0.3, 1.0) * np.log(clock)
    noise = random.normal(0.0, scatter, (commits, 5)) + 0.05 * (random.random((commits, 5)) < 0.01)
    times = np.exp(runs[:, None] + noise)
    return {
        "name": f"simulated-{seed}",
        "values": np.median(times, axis=1),
        "runs": times,
        "clock": clock[:, None] * np.exp(random.normal(0.0, 0.001, (commits, 5))),
        "throttled": np.repeat(throttled[:, None], 5, axis=1),
    }


class CountedJobs:
    """The scorer's confirm(): a job of a commit against its parent on a simulated device; counts them."""

    def __init__(self, simulated_device, steps, seed):
        self.device, self.truth, self.seed, self.count = simulated_device, dict(steps), seed, 0

    def __call__(self, commit, ab):
        self.count += 1
        return ab(self.device(10_000 * self.seed + self.count, self.truth.get(commit, 0.0)))


def over_histories(adapters, simulated_device, seeds, steps_of):
    """Return found steps, all steps, delays, false alarms and jobs over the histories of these seeds."""
    found, total, delays, false, jobs = 0, 0, [], [], 0
    for seed in seeds:
        steps = steps_of(seed)
        confirm = CountedJobs(simulated_device, steps, seed)
        alarms = dict(adapters.history_detector(simulated_history(seed, steps), confirm))
        found, total, jobs = found + len(alarms.keys() & dict(steps)), total + len(steps), jobs + confirm.count
        delays += [raised - commit for commit, raised in alarms.items() if commit in dict(steps)]
        false += [(seed, commit) for commit in alarms.keys() - dict(steps)]
    return found, total, delays, false, jobs


def test_histories_without_changes_raise_no_alarm(adapters, simulated_device):
    _, _, _, false, jobs = over_histories(adapters, simulated_device, range(1, 31), lambda seed: ())
    assert false == []
    assert jobs <= 0.11 * 30 * 250


@pytest.mark.parametrize(
    ("size", "least", "delay"), [(0.01, 0.85, 6), (0.02, 0.95, 1), (0.05, 0.95, 0), (-0.03, 0.95, 1)]
)
def test_planted_steps_are_found_soon_and_nothing_else_is(adapters, simulated_device, size, least, delay):
    seeds = range(100, 112)
    steps = {seed: [(60 + seed % 7, size), (125 + seed % 5, size), (190 + seed % 3, size)] for seed in seeds}
    found, total, delays, false, jobs = over_histories(adapters, simulated_device, seeds, steps.__getitem__)
    assert false == []
    assert found >= (least - 2.0 * math.sqrt(least * (1.0 - least) / total)) * total
    assert np.median(delays) <= delay
    assert jobs <= 0.11 * len(seeds) * 250


def test_without_jobs_noise_is_never_called_a_moved_level(followed):
    """Heavy tails, no step: neither confirmed nor unconfirmed nor blamed on the surroundings."""
    for seed in range(30):
        values = np.exp(0.004 * np.random.default_rng(seed).standard_t(3, 400))
        series = followed(jobs=False).add_values(values)
        assert series.all(ChangePoint) == []


@pytest.mark.parametrize("scatter", [0.0005, 0.004, 0.02])
def test_suspicions_under_the_null_stay_within_their_price(followed, scatter):
    """Fewer than one in ten commits of a quiet history is asked about, whatever its scatter."""
    values = np.exp(np.random.default_rng(7).normal(0.0, scatter, 3000))
    assert len(followed().add_values(values).all(Request)) <= 0.1 * 3000
