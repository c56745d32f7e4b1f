"""Steps of a stack: they add up, hold together under the null, find what is planted, and say when they cannot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from service.stats.attribution import Attribution, RoundObservation, attribute, joint_policy, round_order
from service.stats.pairs import ArmObservation
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict

POLICY = JudgingPolicy()
QUICK = POLICY.with_budget(8)


def arm(log_median: float, **state: Any) -> ArmObservation:
    return ArmObservation(np.exp(log_median + 0.004 * np.linspace(-1.5, 1.5, 15)), **state)


def build_rounds(log_medians: Sequence[Sequence[float]], **state: Any) -> list[RoundObservation]:
    """Rounds with exactly these log medians; log_medians is [rounds, arms]."""
    return [
        RoundObservation(index, round_order(index, len(row)), tuple(arm(value, **state) for value in row))
        for index, row in enumerate(log_medians)
    ]


def noise(seed: int, rounds: int, effects: Sequence[float], sd: float = 0.002, drift: float = 0.0) -> np.ndarray:
    """Log medians [rounds, arms] of commits with these step effects, on a device that drifts."""
    random = np.random.default_rng(seed)
    arms = len(effects) + 1
    levels = np.concatenate([[0.0], np.cumsum(np.log1p(effects))])
    values = levels + random.normal(0.0, sd, (rounds, arms))
    for index in range(rounds):
        for place, position in enumerate(round_order(index, arms)):
            values[index, position] += drift * (index * arms + place)
    return values


def run(seed: int, effects: Sequence[float], sd: float = 0.002, budget: int = 48, drift: float = 0.0) -> Attribution:
    """Take rounds until the case is decided, as a job does."""
    policy = POLICY.with_budget(budget)
    rounds = build_rounds(noise(seed, budget, effects, sd, drift))
    for count in range(policy.looks[0], budget + 1):
        found = attribute(rounds[:count], policy, final=count == budget)
        if not found.is_open:
            return found
    raise AssertionError("a final attribution is never open")


# ---- orders ----


@pytest.mark.parametrize("arms", [2, 3, 4, 7, 21])
def test_orders_are_balanced(arms: int) -> None:
    orders = [round_order(index, arms) for index in range(2 * arms)]
    for place in range(arms):
        assert Counter(order[place] for order in orders) == dict.fromkeys(range(arms), 2)
    for one in range(arms - 1):
        assert sum(order.index(one) < order.index(one + 1) for order in orders) == arms
    for index in range(0, 2 * arms, 2):
        assert orders[index] == orders[index + 1][::-1]


def test_two_arms_take_turns() -> None:
    assert [round_order(index, 2) for index in range(4)] == [(0, 1), (1, 0), (1, 0), (0, 1)]


def test_linear_drift_cancels_exactly() -> None:
    found = attribute(build_rounds(noise(1, 8, [0.0] * 4, sd=0.0, drift=1e-3)), QUICK, final=True)
    assert [one.effect for one in (*found.steps, found.whole)] == pytest.approx([0.0] * 5, abs=1e-12)


# ---- adding up ----

log_medians = st.integers(2, 6).flatmap(
    lambda arms: st.lists(st.lists(st.floats(-0.05, 0.05), min_size=arms, max_size=arms), min_size=8, max_size=20)
)


@settings(max_examples=60, deadline=None)
@given(log_medians, st.floats(1e-5, 0.05))
def test_steps_add_up_and_the_whole_lies_inside_their_sum(values: list[list[float]], floor: float) -> None:
    policy = JudgingPolicy(sd_floor=floor).with_budget(len(values))
    found = attribute(build_rounds(values), policy, final=True)
    assert found.whole.effect is not None
    logs = [math.log1p(one.effect or 0.0) for one in found.steps]
    assert sum(logs) == pytest.approx(math.log1p(found.whole.effect), abs=1e-12)
    whole = [math.log1p(bound) for bound in found.whole.interval or ()]
    steps = [[math.log1p(bound) for bound in one.interval or ()] for one in found.steps]
    assert sum(step[0] for step in steps) <= whole[0] + 1e-12
    assert whole[1] <= sum(step[1] for step in steps) + 1e-12
    assert len({one.pairs_used for one in (*found.steps, found.whole)}) == 1


@settings(max_examples=40, deadline=None)
@given(log_medians)
def test_intervals_are_those_of_the_formula(values: list[list[float]]) -> None:
    """A slow twin: mean and Student's t of the differences, alpha over looks and claims, by hand."""
    policy = POLICY.with_budget(len(values))
    found = attribute(build_rounds(values), policy, final=True)
    number = found.whole.look
    assert number is not None
    n = found.whole.pairs_used
    matrix = np.array(values)[:n]
    arms = matrix.shape[1]
    claims = arms if arms > 2 else 1
    columns = [(k, k + 1) for k in range(arms - 1)] + [(0, arms - 1)]
    for (a, b), one in zip(columns, (*found.steps, found.whole), strict=True):
        d = matrix[:, b] - matrix[:, a]
        sd = max(d.std(ddof=1), policy.sd_floor)
        half = t.ppf(1.0 - policy.alpha / len(policy.looks) / claims / 2.0, n - 1) * sd / math.sqrt(n)
        low, high = one.interval or (math.nan, math.nan)
        assert math.log1p(low) == pytest.approx(d.mean() - half, abs=1e-9)
        assert math.log1p(high) == pytest.approx(d.mean() + half, abs=1e-9)


def test_a_unit_of_time_changes_nothing_and_the_reversed_line_swaps_the_verdicts() -> None:
    values = noise(3, 16, [0.03, 0.0, -0.02])
    forward = attribute(build_rounds(values), POLICY.with_budget(16), final=True)
    scaled = attribute(build_rounds(values + math.log(1000.0)), POLICY.with_budget(16), final=True)
    backward = attribute(build_rounds(values[:, ::-1]), POLICY.with_budget(16), final=True)
    names = [one.verdict for one in forward.steps]
    assert names == [Verdict.REGRESSED, Verdict.UNCHANGED, Verdict.IMPROVED]
    assert [one.verdict for one in scaled.steps] == names
    assert [one.verdict for one in backward.steps] == [Verdict.REGRESSED, Verdict.UNCHANGED, Verdict.IMPROVED]


def test_with_one_step_the_step_is_the_whole_at_the_full_level() -> None:
    found = attribute(build_rounds(noise(4, 8, [0.02])), QUICK, final=True)
    assert found.steps == (found.whole,)
    assert joint_policy(QUICK, 2).alpha == QUICK.alpha
    assert joint_policy(QUICK, 5).alpha == pytest.approx(QUICK.alpha / 5)
    assert joint_policy(QUICK, 5).equivalence_level == pytest.approx(0.99)


# ---- many jobs ----


def test_identical_commits_are_never_told_apart() -> None:
    found = [run(seed, [0.0] * 3, sd=0.003, drift=1e-4) for seed in range(120)]
    verdicts = Counter(one.verdict for each in found for one in (*each.steps, each.whole))
    assert not CHANGES & set(verdicts), verdicts
    assert verdicts[Verdict.UNCHANGED] >= 0.98 * verdicts.total()


def test_the_stated_error_holds_for_all_claims_together() -> None:
    """Without margins, minimum effect and sign test in the way no more jobs err than alpha says, whichever claim."""
    policy = JudgingPolicy(
        looks=(8, 12), alpha=0.1, regression_margin=0.0, min_effect=0.0, equivalence=1e-9, sign_level=0.999
    )
    missed = 0
    for seed in range(400):
        found = attribute(build_rounds(noise(seed, 12, [0.0] * 4, sd=0.01)), policy, final=True)
        looks = found.evidence["looks"]
        missed += any(look["interval"][0] > 0.0 or look["interval"][1] < 0.0 for look in looks)
    assert missed / 400 <= 0.1 + 2 * math.sqrt(0.1 * 0.9 / 400)


@pytest.mark.parametrize(("effects", "expected"), [([0.0, 0.02, 0.0], "uru"), ([0.015, -0.015, 0.0], "riu")])
def test_planted_steps_are_found_where_they_are(effects: list[float], expected: str) -> None:
    found = [run(seed, effects) for seed in range(40)]
    said = Counter("".join(str(one.verdict)[0] for one in each.steps) for each in found)
    assert said[expected] >= 38, said
    assert np.median([each.steps[1].effect for each in found]) == pytest.approx(effects[1], abs=0.001)


def test_opposite_steps_leave_the_whole_unchanged() -> None:
    found = run(5, [0.02, -0.02 / 1.02])
    assert [str(one.verdict) for one in (*found.steps, found.whole)] == ["regressed", "improved", "unchanged"]


# ---- admission, budget, open ends ----


def test_one_disturbed_process_takes_its_whole_round_away() -> None:
    values = noise(6, 10, [0.02, 0.0], sd=0.0005)
    rounds = build_rounds(values)
    bad = rounds[3]
    arms = (bad.arms[0], arm(1.0, foreign_share=0.5), bad.arms[2])
    rounds[3] = RoundObservation(3, bad.order, arms)
    found = attribute(rounds, POLICY.with_budget(10), final=True)
    assert [one.pairs_used for one in found.steps] == [found.whole.pairs_used] * 2
    assert [one["admitted"] for one in found.evidence["rounds"]] == [index != 3 for index in range(10)]
    assert found.evidence["rounds"][3]["reasons"] == ["foreign_load"]
    assert found.steps[1].effect == pytest.approx(0.0, abs=0.001)


@pytest.mark.parametrize(
    ("clocks", "code"), [((2000.0, 2000.0, 1960.0), "clocks_differ"), ((2000.0, None, 2000.0), "clock_unreadable")]
)
def test_clocks_are_those_of_all_arms(clocks: tuple[float | None, ...], code: str) -> None:
    rounds = build_rounds(noise(7, 8, [0.0, 0.0]), sm_clock=2000.0)
    arms = tuple(arm(0.0, sm_clock=clock) for clock in clocks)
    rounds[2] = RoundObservation(2, rounds[2].order, arms)
    assert attribute(rounds, QUICK, final=True).evidence["rounds"][2]["reasons"] == [code]


def test_a_device_that_is_throttled_all_the_time_says_so() -> None:
    found = attribute(build_rounds(noise(8, 8, [0.05, 0.0]), throttled_share=1.0), QUICK, final=True)
    assert {one.verdict for one in (*found.steps, found.whole)} == {Verdict.THROTTLED}
    assert {one.effect for one in found.steps} == {None}


def test_nothing_is_said_until_everything_is_decided() -> None:
    values = noise(9, 8, [0.05, 0.0], sd=0.0002)
    values[:, 2] += np.random.default_rng(0).normal(0.0, 0.05, 8)
    found = attribute(build_rounds(values), POLICY, final=False)
    assert found.is_open
    assert {one.verdict for one in (*found.steps, found.whole)} == {None}
    ended = attribute(build_rounds(values), QUICK, final=True)
    assert [str(one.verdict) for one in ended.steps] == ["regressed", "inconclusive"]
    assert ended.steps[1].reasons[0].code == "budget_spent"


def test_too_few_rounds_are_no_evidence() -> None:
    found = attribute(build_rounds(noise(10, 2, [0.05])), POLICY.with_budget(2), final=True)
    assert found.steps[0].verdict is Verdict.INCONCLUSIVE
    assert found.steps[0].reasons[0].code == "too_few_pairs"
    assert attribute(build_rounds(noise(10, 1, [0.05])), POLICY, final=False).is_open


def test_bad_input_names_the_argument() -> None:
    one = arm(0.0)
    with pytest.raises(ValueError, match=r"arms: expected 2 or more, got 1"):
        RoundObservation(0, (0,), (one,))
    with pytest.raises(ValueError, match=r"order: .* got \(0, 0\)"):
        RoundObservation(0, (0, 0), (one, one))
    with pytest.raises(ValueError, match="index"):
        RoundObservation(-1, (0, 1), (one, one))
    with pytest.raises(ValueError, match="arms: expected 2 or more, got 1"):
        round_order(0, 1)
    with pytest.raises(ValueError, match="rounds: expected one or more"):
        attribute([], POLICY, final=True)
    with pytest.raises(ValueError, match=r"got numbers \[2, 3\]"):
        attribute([*build_rounds([[0.0, 0.0]]), *build_rounds([[0.0] * 3])], POLICY, final=True)
    with pytest.raises(ValueError, match="increasing indices"):
        attribute(build_rounds([[0.0, 0.0]]) * 2, POLICY, final=True)
