import numpy as np
import pytest

from service.stats.history_policy import HistoryPolicy
from service.stats.track import Track, TrackPoint, places

POLICY = HistoryPolicy(window=8, warm_up=4, clock_memory=20)


def filled(points, policy=POLICY):
    track = Track("g")
    for position, value in points:
        track = track.with_point(TrackPoint(position, value), policy) or track
    return track


def test_a_window_of_the_newest_points_is_kept_in_order():
    track = filled([(k, 0.1 * k) for k in range(12)])
    assert [point.position for point in track.points] == list(range(4, 12))
    assert track.differences == pytest.approx([0.1] * 11)


def test_a_late_point_goes_to_its_place_and_teaches_nothing():
    track = filled([(0, 1.0), (1, 1.0), (5, 1.1)])
    later = track.with_point(TrackPoint(3, 1.2), POLICY)
    assert [point.position for point in later.points] == [0, 1, 3, 5]
    assert later.differences == track.differences
    assert places(later.points) == [(0, 1), (1, 3), (3, 5)]


def test_a_point_older_than_all_is_not_taken():
    assert filled([(4, 1.0), (5, 1.0)]).with_point(TrackPoint(3, 1.0), POLICY) is None


def test_measured_again_is_the_mean():
    track = filled([(0, 1.0), (1, 2.0), (1, 4.0), (1, 6.0)])
    assert track.points[1] == TrackPoint(1, 4.0, 0.0, 3)
    assert len(track.differences) == 1


def with_clocks(clocks, values):
    track = Track("g")
    for position, (clock, value) in enumerate(zip(clocks, values, strict=True)):
        track, seen = track.with_clock(clock, POLICY)
        track = track.with_point(TrackPoint(position, value, seen), POLICY)
    return track


@pytest.mark.parametrize("slope", [0.0, 0.4, 1.0])
def test_the_slope_of_time_over_clock_is_learned_and_taken_out(slope):
    random = np.random.default_rng(1)
    clocks = np.where(random.random(200) < 0.5, 1980.0, 1930.0)
    values = 2.0 - slope * np.log(clocks / 1980.0) + random.normal(0.0, 0.001, 200)
    track = with_clocks(clocks, values)
    assert track.clock_slope(POLICY) == pytest.approx(slope, abs=0.06)
    assert np.ptp(track.values(POLICY)) < 0.008


def test_the_slope_is_a_half_until_clocks_move_and_stays_within_reason():
    assert with_clocks([1000.0] * 9, np.zeros(9)).clock_slope(POLICY) == 0.5
    against_reason = with_clocks([1000.0, 980.0] * 10, [0.0, -0.03] * 10)
    assert against_reason.clock_slope(POLICY) == 0.0


def test_a_clock_far_under_the_usual_is_not_usable():
    track = with_clocks([1980.0] * 10, np.zeros(10))
    track, seen = track.with_clock(1880.0, POLICY)
    assert seen is None
    track, seen = track.with_clock(1940.0, POLICY)
    assert seen == pytest.approx(np.log(1940 / 1980))
    assert track.with_clock(None, POLICY) == (track, 0.0)


def test_a_lasting_lower_clock_becomes_the_usual():
    track, usable = with_clocks([1980.0] * 20, np.zeros(20)), []
    for _ in range(25):
        track, seen = track.with_clock(1700.0, POLICY)
        usable.append(seen is not None)
    assert not any(usable[:17])
    assert usable[-1]


def test_a_track_survives_json():
    track = with_clocks([1980.0, 1950.0, 1980.0], [0.1, 0.2, 0.3])
    assert Track.from_dict(track.to_dict()) == track


def test_cutting_keeps_what_is_known_of_the_noise():
    track = filled([(k, 0.1 * k) for k in range(6)])
    assert [point.position for point in track.since(4).points] == [4, 5]
    assert [point.position for point in track.until(2).points] == [0, 1]
    assert track.since(4).differences == track.until(2).differences == track.differences
