"""The simulated devices against what was recorded of real ones (figures in `service/evaluation/device.py`)."""

import numpy as np
import pytest

from service.evaluation.device import SCENARIOS, TOP_CLOCK, SimulatedGpu

GPUS = range(150)


def gpu(name, number, effect=0.0):
    return SimulatedGpu(np.random.default_rng([7, number]), SCENARIOS[name], effect)


def test_the_scatter_of_quiet_processes_and_samples_is_the_recorded_one():
    between, within = [], []
    for number in GPUS:
        device = gpu("quiet", number)
        seen = [device.observe("A") for _ in range(20)]
        between.append(np.log([one.median for one in seen]).std(ddof=1))
        within.append(np.median([one.scatter for one in seen]))
    assert 0.0004 <= np.quantile(between, 0.05) <= np.quantile(between, 0.95) <= 0.006
    assert 0.0008 <= np.quantile(within, 0.05) <= np.quantile(within, 0.95) <= 0.007
    assert 0.0008 <= np.median(between) <= 0.002  # recorded: 0.04-0.19 %, this project's kernels up to 0.4 %


@pytest.mark.parametrize(("scenario", "low", "high"), [("quiet", 0.019, 0.021), ("power cap", 0.003, 0.011)])
def test_two_percent_more_work_shows_as_it_did(scenario, low, high):
    """At the power cap a GEMM with 2 % more work took 0.4 % longer."""
    shown = []
    for number in GPUS:
        device = gpu(scenario, number, effect=0.02)
        pairs = [device.pair(index, "AB") for index in range(12)]
        shown.append(np.mean([pair.log_ratio for pair in pairs]))
    assert low <= np.median(shown) <= high


def test_the_power_cap_lowers_the_clock_and_says_so():
    seen = [gpu("power cap", number).observe("A") for number in GPUS]
    clocks = [one.sm_clock / TOP_CLOCK for one in seen]
    assert 0.59 <= min(clocks) <= max(clocks) <= 0.98
    assert all(one.power_capped_share == 1.0 and one.throttled_share == 0.0 for one in seen)


def test_a_pinned_device_is_quiet_slow_and_mostly_flagged():
    seen = [gpu("pinned", number).observe("A") for number in GPUS]
    assert 0.8 <= np.mean([one.throttled_share for one in seen]) <= 0.98
    assert max(one.sm_clock for one in seen) <= 0.975 * TOP_CLOCK
    assert np.median([one.scatter for one in seen]) < 0.001


def test_throttling_sets_in_and_stays():
    device = gpu("onset", 1)
    flags = [device.observe("A").throttled_share for _ in range(10)]
    assert flags == [0.0, 0.0] + [1.0] * 8


def test_a_neighbor_lengthens_some_processes_by_much_and_is_not_always_seen():
    slow = seen = 0
    for number in GPUS:
        device = gpu("neighbor", number)
        observed = [device.observe("A") for _ in range(20)]
        fastest = min(one.median for one in observed)
        late = [one for one in observed if one.median > 1.05 * fastest]
        slow += len(late)
        seen += sum(one.foreign_processes for one in late)
    assert 0.1 * 20 * len(GPUS) < slow < 0.5 * 20 * len(GPUS)
    assert 0.35 < seen / slow < 0.65


def test_a_device_is_given_by_its_seed():
    first, second = (gpu("mixed", 3, effect=0.01).pair(0, "BA") for _ in range(2))
    assert first.log_ratio == second.log_ratio
    assert first.order == "BA"


def test_resting_ends_episodes():
    device = gpu("throttle", 0)
    while not device.observe("A").throttled_share:
        pass
    device.rest(10_000)
    assert device.observe("A").throttled_share in (0.0, 1.0)  # a new one may begin
    shares = []
    for number in GPUS:
        device = gpu("throttle", number)
        device.observe("A")
        device.rest(1000)
        shares.append(device.observe("A").throttled_share)
    assert np.mean(shares) < 0.15
