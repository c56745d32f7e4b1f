import importlib.util
import math
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.verdict import Verdict


@pytest.fixture(scope="module")
def adapters():
    path = Path(__file__).parents[3] / "scoring" / "adapters.py"
    spec = importlib.util.spec_from_file_location("scoring_adapters", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded(make_arm, ratios, **state):
    calls = []

    def sample_pair(index, order):
        calls.append((index, order))
        return PairObservation(index, order, make_arm(1.0, **state), make_arm(math.exp(ratios[index]), **state))

    return calls, sample_pair


def test_pairs_alternate_stop_at_the_deciding_look_and_are_confirmed_in_the_other_order(make_arm):
    calls, sample_pair = recorded(make_arm, np.random.default_rng(1).normal(0.05, 0.002, 48))
    decision = run_job(sample_pair, lambda times: None, JudgingPolicy())
    assert decision.verdict is Verdict.REGRESSED
    first, fresh = [(i, "AB" if i % 2 == 0 else "BA") for i in range(8)], list(zip(range(8, 13), cycle(("BA", "AB"))))
    assert calls == first + fresh
    assert [one["index"] for one in decision.evidence["confirmation"]["pairs"]] == list(range(8, 13))


def test_what_kept_step_with_the_order_is_not_confirmed(make_arm):
    """Of every four processes the second and third are slow: the candidate's in AB BA, the baseline's in BA AB."""
    orders = []

    def sample_pair(index, order):
        orders.append(order)
        slow = 0.03 if (order == "AB") == (index % 2 == 0) else -0.03
        return PairObservation(index, order, make_arm(1.0), make_arm(math.exp(slow + 0.001 * (index % 3))))

    decision = run_job(sample_pair, lambda times: None, JudgingPolicy())
    assert (decision.verdict, decision.claim) == (Verdict.INCONCLUSIVE, Verdict.REGRESSED)
    assert decision.reasons[0].code == "not_confirmed"
    assert orders[7:11] == ["BA", "BA", "AB", "BA"]


def test_a_spent_budget_ends_the_job(make_arm):
    calls, sample_pair = recorded(make_arm, np.random.default_rng(2).normal(0.0, 0.2, 48))
    decision = run_job(sample_pair, lambda times: None, JudgingPolicy().with_budget(10))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert len(calls) == 10


def test_rests_grow_with_rejections_in_a_row(make_arm):
    rests = []
    _, sample_pair = recorded(make_arm, np.zeros(48), throttled_share=1.0)
    decision = run_job(sample_pair, rests.append, JudgingPolicy())
    assert decision.verdict is Verdict.THROTTLED
    assert rests == list(range(1, 24))
    assert decision.pairs_rejected == 24


def test_errors_of_measuring_pass_through():
    def sample_pair(index, order):
        raise OSError("device gone")

    with pytest.raises(OSError, match="device gone"):
        run_job(sample_pair, lambda times: None, JudgingPolicy())


def test_bad_samples_stop_the_job_by_name():
    def sample_pair(index, order):
        return PairObservation(index, order, ArmObservation([1.0]), ArmObservation([math.nan]))

    with pytest.raises(ValueError, match="samples"):
        run_job(sample_pair, lambda times: None, JudgingPolicy())


def test_the_scorers_adapter_speaks_its_words(adapters, simulated_device):
    assert adapters.job_procedure(simulated_device(1, 0.03)) == ("regression", 8 + 5)
    assert adapters.job_procedure(simulated_device(2, -0.03)) == ("improvement", 8 + 5)
    verdicts = [adapters.job_procedure(simulated_device(seed))[0] for seed in range(30)]
    assert verdicts.count("unchanged") >= 29


def test_the_scorers_adapter_rests_and_gives_up_on_a_throttled_device(adapters, simulated_device):
    device = simulated_device(3, 0.02, throttled=lambda process: process >= 6)
    assert adapters.job_procedure(device) == ("throttled", 24)
    assert device.rests[:3] == [80, 160, 240]
