import json

import pytest

from service.stats.policy import JudgingPolicy


def test_defaults_are_those_of_the_design():
    policy = JudgingPolicy()
    assert policy.looks == (8, 12, 16, 24, 32, 48)
    assert policy.look_alpha == pytest.approx(0.04 / 6)
    assert policy.told_alpha == pytest.approx(0.001)
    assert policy.unconfirmed().look_alpha == pytest.approx(0.001 / 6)
    assert policy.confirm_looks == (5, 8, 12, 24)
    assert policy.look_equivalence_alpha == pytest.approx(0.05 / 6)
    assert (policy.regression_margin, policy.equivalence, policy.sd_floor) == (0.003, 0.01, 0.0005)


@pytest.mark.parametrize(
    ("budget", "looks"),
    [
        (6, (6,)),
        (8, (8,)),
        (10, (8, 10)),
        (12, (8, 12)),
        (20, (8, 12, 16, 20)),
        (48, (8, 12, 16, 24, 32, 48)),
        (60, (8, 12, 16, 24, 32, 48, 60)),
    ],
)
def test_a_budget_plans_its_own_looks_and_spends_the_whole_level(budget, looks):
    policy = JudgingPolicy().with_budget(budget)
    assert policy.looks == looks
    assert policy.look_alpha * len(looks) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("budget", "looks"), [(4, (4,)), (6, (5, 6)), (8, (5, 8)), (20, (5, 8, 12, 20)), (48, (5, 8, 12, 24))]
)
def test_confirming_takes_no_more_pairs_than_the_budget_and_the_whole_level(budget, looks):
    confirming = JudgingPolicy().with_budget(budget).confirming()
    assert confirming.looks == looks
    assert confirming.look_alpha * len(looks) == pytest.approx(0.05)
    assert (confirming.regression_margin, confirming.min_effect) == (0.0, 0.005)


def test_a_budget_of_one_pair_is_refused():
    with pytest.raises(ValueError, match="pairs: expected a budget of 2 or more pairs, got 1"):
        JudgingPolicy().with_budget(1)


@pytest.mark.parametrize("tolerance", [0.0, -0.01, float("nan")])
def test_a_tolerance_of_device_clocks_is_above_zero_or_none(tolerance):
    with pytest.raises(ValueError, match="device_clock_tolerance: expected a number above 0 or None, got"):
        JudgingPolicy(device_clock_tolerance=tolerance)
    assert JudgingPolicy(device_clock_tolerance=None).device_clock_tolerance is None


def test_round_trip_through_json():
    policy = JudgingPolicy.for_device("cpu").with_budget(20)
    assert JudgingPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert JudgingPolicy.from_dict({}) == JudgingPolicy()


def test_unknown_entries_are_named():
    with pytest.raises(ValueError, match="got margin"):
        JudgingPolicy.from_dict({"margin": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("looks", ()),
        ("looks", (8, 8)),
        ("looks", (1, 4)),
        ("confirm_looks", (8, 5)),
        ("confirm_alpha", 1.0),
        ("look_share", 0.0),
        ("alpha", 0.0),
        ("equivalence_level", 1.0),
        ("sd_floor", 0.0),
        ("equivalence", -0.1),
        ("trim", 0.5),
        ("min_pairs", 1),
    ],
)
def test_impossible_policies_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        JudgingPolicy(**{name: value})


def test_cpu_devices_have_a_policy_of_their_own():
    assert JudgingPolicy.for_device("cpu").name == "cpu"
    assert JudgingPolicy.for_device("gpu:NVIDIA H200") == JudgingPolicy()


def test_a_look_needs_three_quarters_of_its_pairs():
    policy = JudgingPolicy()
    assert [policy.pairs_for_look(number) for number in range(6)] == [6, 9, 12, 18, 24, 36]
    assert policy.with_budget(6).pairs_for_look(0) == 5


@pytest.mark.parametrize("level", [0.001, 2e-5])
def test_at_level_sets_the_level_of_what_is_told(level: float) -> None:
    policy = JudgingPolicy.for_device("cpu")
    assert policy.at_level(level).told_alpha == pytest.approx(level)
    assert policy.at_level(policy.told_alpha) == policy
