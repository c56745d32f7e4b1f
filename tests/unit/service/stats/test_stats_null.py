"""Behavior over many simulated jobs: identical code is never called a change, planted steps are found."""

from collections import Counter

import numpy as np
import pytest

from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.sequential import decide
from service.stats.verdict import Verdict

CHANGES = {Verdict.REGRESSED, Verdict.IMPROVED}


class SharedCpu:
    """A CPU among others: slow states over processes, busy spells that no counter shows, heavy-tailed processes."""

    def __init__(self, seed, sd, effect=0.0):
        self.random, self.sd, self.effect = np.random.default_rng(seed), sd, np.log1p(effect)
        self.level, self.busy, self.load = 0.0, 0, 0.0

    def observe(self, arm):
        self.level = 0.5 * self.level + self.random.normal(0.0, 0.6 * self.sd)
        if not self.busy and self.random.random() < 0.03:
            self.busy, self.load = int(self.random.geometric(0.3)), self.random.uniform(0.05, 0.3)
        center = self.level + 0.4 * self.sd * self.random.standard_t(3) + (self.load if self.busy else 0.0)
        self.busy = max(0, self.busy - 1)
        center += self.effect if arm == "B" else 0.0
        return ArmObservation(np.exp(center + self.random.normal(0.0, 0.02, 15)))

    def pair(self, index, order):
        seen = {arm: self.observe(arm) for arm in order}
        return PairObservation(index, order, seen["A"], seen["B"])


@pytest.mark.parametrize(("budget", "jobs"), [(8, 400), (16, 250)])
@pytest.mark.parametrize("sd", [0.003, 0.03])
def test_identical_code_on_a_shared_cpu_is_never_a_change(budget, jobs, sd):
    policy = JudgingPolicy.for_device("cpu").with_budget(budget)
    verdicts = Counter(run_job(SharedCpu(seed, sd).pair, lambda times: None, policy).verdict for seed in range(jobs))
    assert not CHANGES & set(verdicts), verdicts


def test_a_tenth_is_found_on_a_shared_cpu_within_two_dozen_pairs():
    policy = JudgingPolicy.for_device("cpu").with_budget(24)
    jobs = [run_job(SharedCpu(seed, 0.025, effect=0.1).pair, lambda times: None, policy) for seed in range(120)]
    assert sum(one.verdict is Verdict.REGRESSED for one in jobs) >= 114
    assert np.median([one.pairs_used for one in jobs]) <= 16
    assert np.median([one.effect for one in jobs]) == pytest.approx(0.1, abs=0.01)


def test_the_level_holds_without_any_margin(make_pairs):
    """With margin, minimum effect and sign test out of the way, looks together err no more often than alpha."""
    policy = JudgingPolicy(looks=(8, 12, 16), alpha=0.05, regression_margin=0.0, min_effect=0.0, equivalence=1e-9)
    random = np.random.default_rng(30)
    jobs = [decide(make_pairs(random.normal(0.0, 0.01, 16)), policy, final=True) for _ in range(600)]
    false = sum(one.verdict in CHANGES for one in jobs)
    assert false / 600 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 600)


@pytest.mark.parametrize(("effect", "least"), [(0.01, 0.93), (-0.01, 0.93), (0.02, 0.98)])
def test_planted_steps_are_found(simulated_device, effect, least):
    found = []
    for seed in range(60):
        device = simulated_device(seed, effect)

        def pair(index, order, device=device):
            seen = {arm: ArmObservation(np.exp(device.process(arm, 15)[0])) for arm in order}
            return PairObservation(index, order, seen["A"], seen["B"])

        found.append(run_job(pair, device.rest, JudgingPolicy()).verdict)
    expected = Verdict.REGRESSED if effect > 0 else Verdict.IMPROVED
    assert found.count(expected) >= least * len(found)
