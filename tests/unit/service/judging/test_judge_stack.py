"""The judging of a whole stack: what a canary that moved takes back, and what it leaves."""

from collections.abc import Sequence

import numpy as np
import pytest

from service.judging.stack import CaseSteps, judge_stack
from service.stats.attribution import RoundObservation, attribute, round_order
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.verdict import Verdict

POLICY = JudgingPolicy().unconfirmed().with_budget(12)
RANDOM = np.random.default_rng(5)


def arm(log_median: float) -> ArmObservation:
    return ArmObservation(np.exp(log_median + RANDOM.normal(0.0, 0.001) + 0.004 * np.linspace(-1.5, 1.5, 15)))


def steps(levels: Sequence[float]) -> CaseSteps:
    """A case at these levels, commit by commit."""
    rounds = [
        RoundObservation(index, round_order(index, len(levels)), tuple(arm(level) for level in levels))
        for index in range(12)
    ]
    return CaseSteps("cpu.forward", tuple(range(1, len(levels))), attribute(rounds, POLICY, final=True))


def canary(effect: float) -> dict[str, list[PairObservation]]:
    pairs = [PairObservation(index, pair_order(index), arm(0.0), arm(effect)) for index in range(12)]
    return {"canary/cpu/gemm": pairs}


@pytest.fixture
def cases() -> dict[str, CaseSteps]:
    return {"one": steps((0.0, 0.05, 0.10)), "other": steps((0.0, 0.0, 0.05))}


def test_a_canary_that_moved_takes_back_what_is_said_of_its_commit(cases: dict[str, CaseSteps]) -> None:
    canaries = {1: canary(0.0), 2: canary(0.05), None: canary(0.05)}
    judged = judge_stack(cases, POLICY, final=True, canaries=canaries)
    assert [step.verdict for step in judged["one"].steps] == [Verdict.REGRESSED, Verdict.ENVIRONMENT]
    assert [step.verdict for step in judged["other"].steps] == [Verdict.UNCHANGED, Verdict.ENVIRONMENT]
    for found in judged.values():
        assert found.whole.verdict is Verdict.ENVIRONMENT
        assert found.steps[1].reasons[0].code == "canary_moved"


def test_canaries_that_stand_still_change_nothing(cases: dict[str, CaseSteps]) -> None:
    still = judge_stack(cases, POLICY, final=True, canaries={end: canary(0.0) for end in (1, 2, None)})
    assert still == judge_stack(cases, POLICY, final=True)
    assert [step.verdict for step in still["one"].steps] == [Verdict.REGRESSED, Verdict.REGRESSED]
