from dataclasses import replace

import pytest

from service.stats.admission import Admission, CaseHistory, admit, rejection_reasons
from service.stats.pairs import PairObservation, pair_order
from service.stats.policy import JudgingPolicy

GPU, CPU = JudgingPolicy(), JudgingPolicy.for_device("cpu")
EVEN = [0.0] * 8


def only_last(make_pairs, **states):
    return make_pairs(EVEN, only=[7], **states)


def test_undisturbed_pairs_are_admitted(make_pairs):
    pairs = make_pairs(EVEN, both={"sm_clock": 1980.0, "mem_clock": 3201.0, "throttled_share": 0.05})
    assert admit(pairs, GPU) == [Admission(True)] * 8
    assert admit([], GPU) == []


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({"throttled_share": 1 / 15}, "throttle_flagged"),
        ({"foreign_processes": 1}, "foreign_process"),
        ({"new_errors": 1}, "device_error"),
        ({"steal_share": 0.06}, "steal"),
        ({"foreign_share": 0.06}, "foreign_load"),
        ({"power_capped_share": 0.5}, "power_cap_uneven"),
    ],
)
def test_one_disturbed_arm_rejects_its_pair_only(make_pairs, state, code):
    result = admit(only_last(make_pairs, candidate=state), GPU)
    assert [one.admitted for one in result] == [True] * 7 + [False]
    assert result[-1].reasons == (code,)


@pytest.mark.parametrize("clock", ["sm_clock", "mem_clock"])
@pytest.mark.parametrize(("candidate", "admitted"), [(1000.0, True), (1014.0, True), (1017.0, False), (983.0, False)])
def test_clocks_of_the_arms_agree_within_one_and_a_half_percent(make_pairs, clock, candidate, admitted):
    pairs = make_pairs(EVEN, both={clock: 1000.0}, candidate={clock: candidate})
    assert {one.admitted for one in admit(pairs, GPU)} == {admitted}


@pytest.mark.parametrize("clock", ["sm_clock", "mem_clock"])
@pytest.mark.parametrize(("low", "admitted"), [(965.0, True), (955.0, False)])
def test_a_clock_under_96_percent_of_the_upper_clock_rejects(make_pairs, make_arm, clock, low, admitted):
    pairs = make_pairs(EVEN, both={clock: 1000.0})
    arms = make_arm(**{clock: low}), make_arm(**{clock: low})
    result = admit([*pairs, PairObservation(8, pair_order(8), *arms)], GPU)
    assert result[-1].admitted is admitted
    assert result[-1].reasons == (() if admitted else ("clock_low",))
    assert all(one.admitted for one in result[:-1])


@pytest.mark.parametrize(
    ("tolerance", "candidate", "admitted"),
    [(None, 900.0, True), (0.01, 1009.0, True), (0.01, 1011.0, False), (0.01, 989.0, False), (0.01, None, True)],
)
def test_the_clocks_that_the_device_read_decide_within_their_tolerance(make_pairs, tolerance, candidate, admitted):
    policy = replace(GPU, device_clock_tolerance=tolerance)
    for first, second in ((1000.0, candidate), (candidate, 1000.0)):
        pairs = make_pairs(EVEN, both={"sm_clock": 1980.0, "device_clock": first}, candidate={"device_clock": second})
        result = admit(pairs, policy)
        assert {one.reasons for one in result} == {() if admitted else ("device_clocks_differ",)}
    if not admitted:
        (why,) = rejection_reasons(result, policy)
        assert why.detail == "8 of 8 pairs: the arms' clocks, read on the device, differ by more than 1.0%"


def test_scaling_all_clocks_changes_nothing(make_pairs):
    for unit in (1.0, 1e-3):
        pairs = make_pairs(EVEN, both={"sm_clock": 1900.0 * unit}, candidate={"sm_clock": 1800.0 * unit}, only=[2, 3])
        pairs[0] = make_pairs([0.0], both={"sm_clock": 1980.0 * unit})[0]
        assert [one.reasons for one in admit(pairs, GPU)[2:4]] == [("clocks_differ", "clock_low")] * 2


def test_unreadable_clocks_are_no_obstacle_when_none_can_be_read(make_pairs):
    assert all(one.admitted for one in admit(make_pairs(EVEN), CPU))


def test_a_clock_reading_that_fails_once_rejects_that_pair(make_pairs):
    pairs = make_pairs(EVEN, both={"sm_clock": 1980.0}, only=range(7))
    assert admit(pairs, GPU)[-1].reasons == ("clock_unreadable",)


def test_a_power_cap_that_is_equal_in_both_arms_is_admitted(make_pairs):
    pairs = make_pairs(EVEN, both={"power_capped_share": 1.0, "sm_clock": 1400.0})
    assert all(one.admitted for one in admit(pairs, GPU))


def test_quiet_pairs_at_a_low_clock_are_throttled_even_without_a_flag(make_pairs, make_arm):
    pairs = make_pairs(EVEN, both={"sm_clock": 1000.0})
    stable = make_arm(scatter=0.001, sm_clock=970.0)
    noisy = make_arm(scatter=0.005, sm_clock=970.0)
    fast = make_arm(scatter=0.001, sm_clock=1000.0)
    tried = [PairObservation(8 + i, "AB", arm, arm) for i, arm in enumerate((stable, noisy, fast))]
    assert [one.reasons for one in admit([*pairs, *tried], GPU)[8:]] == [("stable_at_low_clock",), (), ()]


def test_history_tells_a_job_that_was_pinned_all_along(make_pairs, make_arm):
    history = CaseHistory(clock_top=2000.0, clock_low=1850.0, scatter=0.006)
    arm = make_arm(scatter=0.001, sm_clock=1900.0)
    pinned = [PairObservation(i, pair_order(i), arm, arm) for i in range(8)]
    assert all(one.admitted for one in admit(pinned, GPU))
    assert {one.reasons for one in admit(pinned, GPU, history)} == {("stable_at_low_clock",)}
    lower = make_pairs(EVEN, both={"sm_clock": 1800.0})
    assert {one.reasons for one in admit(lower, GPU, history)} == {("clock_unseen",)}
    usual = make_pairs(EVEN, both={"sm_clock": 1990.0})
    assert all(one.admitted for one in admit(usual, GPU, history))


@pytest.mark.parametrize(("count", "admitted"), [(1, False), (2, False), (4, False), (5, True), (15, True)])
def test_processes_with_too_few_samples_do_not_count(make_arm, count, admitted):
    arm = make_arm(count=count)
    result = admit([PairObservation(0, "AB", arm, arm)], CPU)[0]
    assert result.admitted is admitted
    assert result.reasons == (() if admitted else ("too_few_samples",))


def test_swapping_the_arms_changes_no_admission(make_pairs):
    states = {"steal_share": 0.2, "sm_clock": 950.0}
    pairs = make_pairs(EVEN, both={"sm_clock": 1000.0}, candidate=states, only=[1, 2])
    swapped = [PairObservation(p.index, p.order, p.candidate, p.baseline) for p in pairs]
    assert admit(swapped, CPU) == admit(pairs, CPU)


def test_reasons_are_counted_the_most_frequent_first():
    admissions = [Admission(False, ("steal",)), Admission(False, ("foreign_load", "steal")), Admission(True)]
    result = rejection_reasons(admissions, CPU)
    assert [one.code for one in result] == ["steal", "foreign_load"]
    assert result[0].detail == "2 of 3 pairs: the hypervisor took more than 5% of the time"
