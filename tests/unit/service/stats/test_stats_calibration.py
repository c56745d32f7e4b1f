"""Sums over verdicts on identical code, and the noise floor in a decision's evidence."""

import numpy as np
import pytest

from service.stats.calibration import Calibration, IdenticalVerdict, pair_scatter
from service.stats.policy import JudgingPolicy
from service.stats.proportion import Proportion
from service.stats.sequential import decide
from service.stats.verdict import Verdict


def test_only_decided_verdicts_are_counted_as_chances_of_a_false_alarm():
    rows = [
        IdenticalVerdict(Verdict.UNCHANGED, 0.001, 0.002, 0.006),
        IdenticalVerdict(Verdict.UNCHANGED, -0.001, 0.004, 0.010),
        IdenticalVerdict(Verdict.REGRESSED, 0.02, 0.003, 0.007),
        IdenticalVerdict(Verdict.INCONCLUSIVE, 0.004, 0.2, 0.5),
        IdenticalVerdict(Verdict.THROTTLED),
    ]
    found = Calibration.of(rows)
    assert found.false_alarms == Proportion(1, 3)
    assert found.verdicts == {"regressed": 1, "unchanged": 2, "inconclusive": 1, "throttled": 1}
    assert found.noise_floor == pytest.approx(0.0035)
    assert found.minimum_detectable_effect == pytest.approx(0.0085)


def test_without_verdicts_nothing_is_known():
    found = Calibration.of([])
    assert found.false_alarms.rate is None
    assert found.noise_floor is None
    assert found.minimum_detectable_effect is None
    assert found.verdicts == {}


def test_the_noise_floor_is_the_scatter_of_admitted_pairs(make_pairs):
    ratios = [0.001, -0.002, 0.003, 0.0, -0.001, 0.002, -0.003, 0.001]
    pairs = make_pairs([*ratios, 0.4], both={"foreign_processes": 1}, only=[8])
    assert pair_scatter(decide(pairs, JudgingPolicy(), final=True).evidence) == pytest.approx(np.std(ratios, ddof=1))


@pytest.mark.parametrize("ratios", [[], [0.001]])
def test_fewer_than_two_pairs_have_no_scatter(make_pairs, ratios):
    assert pair_scatter(decide(make_pairs(ratios), JudgingPolicy(), final=True).evidence) is None
    assert pair_scatter({}) is None
