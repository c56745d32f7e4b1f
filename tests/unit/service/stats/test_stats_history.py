import json
import math
import time

import numpy as np
import pytest

from service.stats.drift import DriftNotice
from service.stats.history import resolve, rewind, update
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import ChangePoint, ChangeStatus, HistoryPoint, NewDevice, SeriesState, Withdrawn
from service.stats.investigation import Outcome, Request
from service.stats.verdict import Verdict

POLICY = HistoryPolicy()
SURROUNDINGS, UNCONFIRMED = ChangeStatus.SURROUNDINGS, ChangeStatus.UNCONFIRMED


def noise(count, seed=0, scatter=0.004):
    return np.exp(np.random.default_rng(seed).normal(0.0, scatter, count))


def stepped(count, at, effect, seed=0, scatter=0.004):
    return noise(count, seed, scatter) * np.where(np.arange(count) < at, 1.0, 1.0 + effect)


# ---------------------------------------------------------------------------------- what it is for


@pytest.mark.parametrize("effect", [0.02, 0.05, -0.03, 0.3])
def test_a_step_is_confirmed_and_named(followed, effect):
    series = followed({60: effect}).add_values(stepped(100, 60, effect))
    (change,) = series.all(ChangePoint)
    assert (change.position, change.low, change.status, change.named) == (60, 59, ChangeStatus.CONFIRMED, True)
    assert change.effect == effect
    assert change.raised_at - 60 <= 2
    assert series.state.boundary == 60


def test_the_first_job_compares_the_suspect_with_its_parent(followed):
    series = followed({60: 0.05}).add_values(stepped(61, 60, 0.05))
    assert series.all(Request)[-1] == Request(60, 59)


def test_an_accident_costs_a_job_and_says_nothing(followed):
    values = noise(80, 2)
    values[50] *= 1.5
    series = followed().add_values(values[:51])
    assert series.all(Request)[-1] == Request(50, 49)
    series.add_values(values[51:], start=51)
    assert [request.candidate for request in series.all(Request)].count(50) == 1
    assert series.all(ChangePoint) == []


def test_an_innocent_shift_is_the_surroundings_and_said_once(followed):
    series = followed().add_values(stepped(120, 60, 0.05))
    (change,) = series.all(ChangePoint)
    assert (change.position, change.status, change.named) == (60, SURROUNDINGS, False)
    assert change.effect == pytest.approx(0.05, abs=0.01)
    assert [request.candidate for request in series.all(Request)].count(60) == 1


def test_without_jobs_a_clear_step_is_unconfirmed_and_named(followed):
    series = followed(jobs=False).add_values(stepped(120, 60, 0.2))
    (change,) = series.all(ChangePoint)
    assert (change.position, change.status, change.named) == (60, UNCONFIRMED, True)


def test_a_small_step_without_jobs_is_unconfirmed_and_unnamed(followed):
    (change,) = followed(jobs=False).add_values(stepped(120, 60, 0.03)).all(ChangePoint)
    assert (change.status, change.named) == (UNCONFIRMED, False)
    assert change.low < 60 <= change.position or abs(change.position - 60) <= 2


def test_a_step_inside_a_gap_is_found_by_bisection(followed):
    series = followed({57: 0.04})
    for position, value in enumerate(stepped(90, 57, 0.04)):
        status = "throttled" if 52 <= position < 62 else "ok"
        series.add(HistoryPoint(position, value, status=status))
    (change,) = series.all(ChangePoint)
    assert (change.position, change.status) == (57, ChangeStatus.CONFIRMED)
    asked = series.all(Request)
    jobs = asked[asked.index(Request(62, 51)) : asked.index(Request(57, 56)) + 1]
    assert len(jobs) <= 1 + 2 * 4
    assert jobs[1] == Request(56, 51)


def test_a_range_that_cannot_be_narrowed_is_unconfirmed(followed):
    series = followed({57: 0.04})
    for position, value in enumerate(stepped(62, 57, 0.04)):
        if not 52 <= position < 62:
            series.add(HistoryPoint(position, value))
    state, (request,) = update(series.state, HistoryPoint(62, 1.04), POLICY)
    state, (half,) = resolve(state, Outcome(request.candidate, request.baseline, Verdict.REGRESSED, 0.04), POLICY)
    state, (other,) = resolve(state, Outcome(half.candidate, half.baseline, Verdict.NOT_COMPARABLE), POLICY)
    state, (change,) = resolve(state, Outcome(other.candidate, other.baseline, Verdict.FAILED), POLICY)
    assert (change.low, change.position, change.status, change.named) == (51, 62, UNCONFIRMED, False)
    assert change.effect == 0.04


def test_slow_drift_is_noticed_and_no_commit_accused(followed):
    values = noise(220, scatter=0.003) * np.linspace(1.0, 1.06, 220)
    series = followed().add_values(values)
    assert series.all(DriftNotice)
    assert series.changes() == series.changes(UNCONFIRMED) == []


def test_levels_far_apart_in_time_are_still_two_changes(followed):
    values = stepped(200, 60, 0.03) * np.where(np.arange(200) < 140, 1.0, 0.95)
    assert followed({60: 0.03, 140: -0.05}).add_values(values).changes() == [60, 140]


# ---------------------------------------------------------------------------------- jobs


def test_an_undecided_job_is_asked_for_twice_and_then_left(followed):
    state = followed().add_values(noise(60)).state
    state, (request,) = update(state, HistoryPoint(60, 1.1), POLICY)
    again = Outcome(request.candidate, request.baseline, Verdict.THROTTLED)
    state, actions = resolve(state, again, POLICY)
    assert actions == (request,)
    state, actions = resolve(state, again, POLICY)
    assert Request(60, 59) not in actions
    assert dict(state.judged)[60] is False


def test_while_a_job_is_out_no_other_is_asked_for(followed):
    state = followed().add_values(noise(60)).state
    state, actions = update(state, HistoryPoint(60, 1.1), POLICY)
    assert actions == (Request(60, 59),)
    for position in range(61, 75):
        state, actions = update(state, HistoryPoint(position, 1.1), POLICY)
        assert actions == ()
    state, (change,) = resolve(state, Outcome(60, 59, Verdict.REGRESSED, 0.1, (0.09, 0.11)), POLICY)
    assert (change.position, change.raised_at, change.interval) == (60, 74, (0.09, 0.11))


def test_jobs_are_bounded_however_wild_the_series(followed):
    random = np.random.default_rng(3)
    values = np.exp(np.cumsum(random.standard_t(2, 1000)) * 0.02)
    assert len(followed().add_values(values).all(Request)) <= POLICY.burst + POLICY.refill * 1000


def test_the_verdict_of_a_pushs_own_job_spares_the_later_one(followed):
    series = followed().add_values(noise(60))
    series.follow(*resolve(series.state, Outcome(60, 59, Verdict.UNCHANGED), POLICY))
    series.add(HistoryPoint(60, 1.1))
    assert Request(60, 59) not in series.all(Request)


def test_the_change_of_a_pushs_own_job_is_confirmed_once(followed):
    series = followed({60: 0.1}).add_values(noise(60))
    told = Outcome(60, 59, Verdict.REGRESSED, 0.1)
    series.follow(*resolve(series.state, told, POLICY))
    series.follow(*resolve(series.state, told, POLICY))
    series.add_values(1.1 * noise(30, 1), start=60)
    assert series.changes() == [60]


def test_a_late_confirmation_revises_an_unconfirmed_change(followed):
    series = followed(jobs=False).add_values(stepped(120, 60, 0.2))
    series.follow(*resolve(series.state, Outcome(60, 59, Verdict.REGRESSED, 0.2), POLICY))
    assert (series.said[-1].status, series.said[-1].replaces) == (ChangeStatus.CONFIRMED, 60)
    assert [change.status for change in series.state.changes] == [ChangeStatus.CONFIRMED]


def test_an_outcome_of_a_range_that_nobody_asked_for_changes_nothing():
    state = SeriesState()
    assert resolve(state, Outcome(9, 2, Verdict.REGRESSED, 0.1), POLICY) == (state, ())
    assert resolve(state, Outcome(9, 8, Verdict.FAILED), POLICY) == (state, ())


# ---------------------------------------------------------------------------------- odd inputs


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_short_series_say_nothing(followed, count):
    assert followed().add_values([1.0, 5.0, 0.1, 9.0, 2.0][:count]).said == []


def test_constant_values_say_nothing(followed):
    assert followed().add_values([0.25] * 200).said == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_impossible_values_of_an_old_history_are_gaps(followed, bad):
    values = stepped(100, 60, 0.05)
    values[[0, 20, 40, 59, 61]] = bad
    series = followed({60: 0.05}).add_values(values)
    assert series.codes() == ["bad_value"] * 5
    assert series.changes() == [60]


@pytest.mark.parametrize("status", ["throttled", "sparse"])
def test_gaps_do_not_count_whatever_their_value(followed, status):
    usual, wild = followed(), followed()
    for position, value in enumerate(noise(100)):
        gap = position % 7 == 3
        usual.add(HistoryPoint(position, value, status=status if gap else "ok"))
        wild.add(HistoryPoint(position, value * (5.0 if gap else 1.0), status=status if gap else "ok"))
    assert wild.said == usual.said
    assert wild.state == usual.state
    assert set(wild.codes()) == {status}


def test_one_timer_tick_between_constant_values_is_not_a_change(followed):
    """1 us ticks: 20 values of 100 us, then 20 of 101 us. One job at most, and without jobs nothing is claimed."""
    values = [0.100] * 20 + [0.101] * 20
    assert len(followed().add_values(values).all(Request)) == 1
    assert followed(jobs=False).add_values(values).all(ChangePoint) == []


def test_a_tick_far_below_any_effect_is_not_even_suspected(followed):
    assert followed().add_values([1.000] * 20 + [1.001] * 20).said == []


def test_a_large_step_between_constant_values_is_a_change(followed):
    assert followed({20: 0.2}).add_values([1.0] * 20 + [1.2] * 20).changes() == [20]
    assert followed(jobs=False).add_values([1.0] * 20 + [1.2] * 20).changes(UNCONFIRMED) == [20]


def test_another_gpu_of_the_same_model_is_never_compared(followed):
    series = followed().add_values(noise(60), device="GPU-a")
    series.add_values(1.08 * noise(60, 1), start=60, device="GPU-b")
    assert series.all(NewDevice) == [NewDevice(60, "GPU-b")]
    assert series.all(ChangePoint) == []
    assert all(request.baseline >= 61 for request in series.all(Request) if request.candidate >= 60)


def test_two_gpus_taking_turns_are_each_compared_with_themselves(followed):
    series, values = followed({100: 0.04}), stepped(160, 100, 0.04)
    for position, value in enumerate(values):
        other = position % 3 == 0
        series.add(HistoryPoint(position, value * (1.08 if other else 1.0), device="b" if other else "a"))
    assert series.changes() == [100]
    assert len(series.all(NewDevice)) == 1


def test_tracks_of_devices_long_gone_are_forgotten(followed):
    series = followed()
    for k in range(20):
        series.add_values(noise(5, k), start=5 * k, device=f"GPU-{k}")
    assert [track.device for track in series.state.tracks] == [f"GPU-{k}" for k in range(12, 20)]


def test_commits_off_the_line_are_left_out_entirely(followed):
    with_them, without = followed({60: 0.05}), followed({60: 0.05})
    for position, value in enumerate(stepped(100, 60, 0.05)):
        with_them.add(HistoryPoint(position, value), HistoryPoint(position, 3.0, on_line=False))
        without.add(HistoryPoint(position, value))
    assert with_them.state == without.state
    assert with_them.codes() == ["off_line"] * 100


def test_a_force_push_withdraws_the_changes_it_removed(followed):
    series = followed({30: 0.05, 80: 0.05}).add_values(stepped(100, 30, 0.05) * np.where(np.arange(100) < 80, 1, 1.05))
    assert series.changes() == [30, 80]
    state, actions = rewind(series.state, 70)
    assert actions == (Withdrawn(80),)
    assert (state.last, state.boundary) == (69, 30)
    assert all(point.position < 70 for track in state.tracks for point in track.points)
    assert [change.position for change in state.changes] == [30]
    assert SeriesState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_a_force_push_ends_the_search_among_the_removed_commits(followed):
    state, _ = update(followed().add_values(noise(60)).state, HistoryPoint(60, 1.1), POLICY)
    assert rewind(state, 60)[0].search is None
    assert rewind(state, 61)[0].search == state.search


@pytest.mark.parametrize("seed", range(6))
def test_late_results_are_put_in_their_place(followed, seed):
    """Every third point arrives up to five commits late: the same change is found, once."""
    random, values = np.random.default_rng(seed), stepped(150, 80, 0.04, seed)
    order = np.argsort(
        np.arange(150) + np.where(random.random(150) < 0.33, random.integers(0, 6, 150), 0), kind="stable"
    )
    series = followed({80: 0.04})
    for position in order:
        series.add(HistoryPoint(int(position), values[position]))
    assert series.changes() == [80]
    assert series.changes(UNCONFIRMED) == []
    kept = [point.position for point in series.state.tracks[0].points]
    assert kept == sorted(kept)


def test_a_result_from_before_the_boundary_changes_nothing(followed):
    series = followed({60: 0.05}).add_values(stepped(100, 60, 0.05))
    before = series.state
    series.add(HistoryPoint(30, 9.0), HistoryPoint(59, 9.0))
    assert series.state == before
    assert series.codes() == ["late", "late"]


def test_a_commit_measured_again_counts_as_the_mean(followed):
    series = followed().add_values(noise(60))
    for _ in range(20):
        series.add(HistoryPoint(59, 1.0))
    assert series.all(ChangePoint) == []
    assert series.state.tracks[0].points[-1].times == 21


def test_what_was_said_stays_said(followed):
    """Change points never move and never disappear while points arrive."""
    series, seen = followed({60: 0.03, 120: 0.02}), []
    for position, value in enumerate(stepped(200, 60, 0.03) * np.where(np.arange(200) < 120, 1.0, 1.02)):
        series.add(HistoryPoint(position, value))
        assert list(series.state.changes[: len(seen)]) == seen
        seen = list(series.state.changes)
    assert [change.position for change in seen if change.status is ChangeStatus.CONFIRMED] == [60, 120]


# ---------------------------------------------------------------------------------- equivariance, state, cost


@pytest.mark.parametrize("factor", [1e-6, 1000.0])
def test_the_unit_of_time_does_not_matter(followed, factor):
    values = stepped(150, 80, 0.02, 3)
    assert followed({80: 0.02}).add_values(factor * values).said == followed({80: 0.02}).add_values(values).said


def test_slower_and_faster_are_treated_alike(followed):
    logs = np.log(stepped(150, 80, 0.03, 4))
    slower, faster = followed({80: 0.03}).add_values(np.exp(logs)), followed({80: -0.03}).add_values(np.exp(-logs))
    assert slower.all(Request) == faster.all(Request)
    assert slower.changes() == faster.changes() == [80]


def test_the_state_survives_json_at_every_point(followed):
    series = followed({60: 0.05})
    for position, value in enumerate(stepped(90, 60, 0.05)):
        series.add(HistoryPoint(position, value, "GPU-a", clock=1980.0 - position % 2))
        series.state = SeriesState.from_dict(json.loads(json.dumps(series.state.to_dict())))
    at_once = followed({60: 0.05})
    for position, value in enumerate(stepped(90, 60, 0.05)):
        at_once.add(HistoryPoint(position, value, "GPU-a", clock=1980.0 - position % 2))
    assert series.state == at_once.state
    assert series.said == at_once.said
    assert series.changes() == [60]


def test_a_state_with_a_search_survives_json_and_others_are_refused(followed):
    state, _ = update(followed().add_values(noise(60)).state, HistoryPoint(60, 1.1), POLICY)
    assert state.search is not None
    assert SeriesState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    with pytest.raises(ValueError, match="protocol: expected 1, got 7"):
        SeriesState.from_dict({**state.to_dict(), "protocol": 7})


def test_ten_thousand_commits_cost_the_same_each(followed):
    values = noise(10_000)
    series, took = followed(), []
    for position, value in enumerate(values):
        started = time.perf_counter()
        series.add(HistoryPoint(position, value))
        took.append(time.perf_counter() - started)
    assert np.median(took) < 1e-3
    assert np.median(took[-1000:]) < 2.0 * np.median(took[1000:2000])
    assert len(json.dumps(series.state.to_dict())) < 40_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position": -1}, "position: expected 0 or more, got -1"),
        ({"status": "hot"}, "status: expected 'ok', 'throttled' or 'sparse', got 'hot'"),
        ({"clock": 0.0}, "clock: expected a finite clock above 0 or None, got 0.0"),
        ({"clock": math.nan}, "clock: expected a finite clock"),
    ],
)
def test_bad_points_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        HistoryPoint(**{"position": 1, "value": 1.0, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"price": 0.0}, "price: expected a number between 0 and 1, got 0.0"),
        ({"scale_floor": 0.0}, "scale_floor: expected a number above 0"),
        ({"warm_up": 99}, "warm_up: expected from 4 to window"),
        ({"shift_points": 1}, "shift_points: expected 2 or more"),
    ],
)
def test_bad_policies_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        HistoryPolicy(**fields)


def test_a_policy_survives_json():
    policy = HistoryPolicy(price=0.1)
    assert HistoryPolicy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    with pytest.raises(ValueError, match=r"policy: expected only .*; got prize"):
        HistoryPolicy.from_dict({"prize": 1})
