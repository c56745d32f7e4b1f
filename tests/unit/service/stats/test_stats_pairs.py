import math

import numpy as np
import pytest

from service.stats.pairs import ArmObservation, PairObservation, checked_samples, pair_order, timer_step


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_samples_that_are_no_times_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"samples: expected finite samples above 0, got .* at position 2"):
        ArmObservation([1.0, 1.0, bad, 1.0])


@pytest.mark.parametrize("shape", [[], [[1.0, 2.0]], 1.0])
def test_samples_need_one_dimension(shape):
    with pytest.raises(ValueError, match="samples: expected one dimension"):
        ArmObservation(shape)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throttled_share", 1.5),
        ("steal_share", -0.1),
        ("foreign_share", math.nan),
        ("power_capped_share", 2.0),
        ("sm_clock", 0.0),
        ("mem_clock", math.nan),
        ("foreign_processes", -1),
        ("new_errors", -2),
    ],
)
def test_a_bad_state_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}: expected .* got"):
        ArmObservation([1.0], **{name: value})


def test_samples_are_a_read_only_copy():
    given = np.array([1.0, 2.0])
    arm = ArmObservation(given)
    given[0] = 9.0
    assert arm.samples.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        arm.samples[0] = 3.0


def test_log_ratio_is_of_medians_and_positive_when_slower():
    pair = PairObservation(0, "AB", ArmObservation([1.0, 2.0, 90.0]), ArmObservation([3.0, 4.0, 0.1]))
    assert pair.log_ratio == pytest.approx(math.log(3.0 / 2.0))


def test_cycles_are_time_times_clock(make_arm):
    pair = PairObservation(0, "BA", make_arm(2.0, sm_clock=2000.0), make_arm(2.2, sm_clock=1800.0))
    assert pair.log_clock_ratio == pytest.approx(math.log(0.9))
    assert math.exp(pair.log_cycle_ratio) == pytest.approx(2.2 * 1800 / (2.0 * 2000))
    unread = PairObservation(0, "BA", make_arm(2.0), make_arm(2.2, sm_clock=1800.0))
    assert unread.log_clock_ratio is None
    assert unread.log_cycle_ratio is None


def test_the_device_s_own_clock_counts_cycles_where_both_arms_have_it(make_arm):
    before, after = (make_arm(2.0, sm_clock=1980.0, device_clock=clock) for clock in (1980.0, 1960.0))
    assert PairObservation(0, "AB", before, after).log_clock_ratio == pytest.approx(math.log(1960 / 1980))
    assert PairObservation(0, "AB", before, make_arm(2.0, sm_clock=1980.0)).log_clock_ratio == 0.0


def test_scatter_estimates_the_sd_of_logs_and_ignores_outliers():
    logs = np.random.default_rng(1).normal(0.0, 0.01, 4000)
    clean = ArmObservation(np.exp(logs)).scatter
    assert clean == pytest.approx(0.01, rel=0.05)
    logs[:40] += 2.0
    assert ArmObservation(np.exp(logs)).scatter == pytest.approx(clean, rel=0.05)
    assert ArmObservation([5.0]).scatter == 0.0


def test_index_and_order_are_checked(make_arm):
    with pytest.raises(ValueError, match="order: expected 'AB' or 'BA'"):
        PairObservation(0, "AA", make_arm(), make_arm())
    with pytest.raises(ValueError, match="index"):
        PairObservation(-1, "AB", make_arm(), make_arm())


def test_timer_step_is_the_smallest_gap(make_pairs):
    arms = ArmObservation([1.00, 1.00, 1.01]), ArmObservation([1.02, 1.03, 1.03])
    assert timer_step([PairObservation(0, "AB", *arms)]) == pytest.approx(math.log(1.03 / 1.02))
    constant = ArmObservation([2.0, 2.0])
    assert timer_step([PairObservation(0, "AB", constant, constant)]) == 0.0
    assert timer_step([]) == 0.0
    assert timer_step(make_pairs([0.0, 0.01])) > 0.0


def test_orders_alternate():
    assert [pair_order(index) for index in range(4)] == ["AB", "BA", "AB", "BA"]


def test_checked_samples_names_its_argument():
    with pytest.raises(ValueError, match="before: expected finite"):
        checked_samples("before", [0.0])
