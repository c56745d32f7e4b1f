import math
from itertools import pairwise

import numpy as np
import pytest

from service.stats.drift import DriftNotice, with_anchor
from service.stats.history_policy import HistoryPolicy
from service.stats.track import Track, TrackPoint

POLICY = HistoryPolicy()


def notices(levels, seed=0, scatter=0.003):
    """Notices over a series with these log levels and normal noise."""
    random, track, told = np.random.default_rng(seed), Track("g"), []
    for position, level in enumerate(levels):
        track = track.with_point(TrackPoint(position, level + random.normal(0.0, scatter)), POLICY)
        track, notice = with_anchor(track, POLICY)
        told += [] if notice is None else [notice]
    return told


def test_three_percent_over_a_hundred_commits_are_noticed():
    told = notices(np.linspace(0.0, math.log(1.06), 200))
    assert told
    first = told[0]
    assert isinstance(first, DriftNotice)
    assert 0 < first.since < first.position <= 130
    assert first.position - first.since <= 125
    assert first.effect > POLICY.drift_effect


def test_each_part_of_a_drift_is_told_once():
    told = notices(np.linspace(0.0, math.log(1.12), 400))
    assert 3 <= len(told) <= 5
    assert all(later.since >= earlier.position for earlier, later in pairwise(told))


def test_faster_is_noticed_too():
    told = notices(np.linspace(0.0, math.log(0.94), 200))
    assert told[0].effect < -POLICY.drift_effect


@pytest.mark.parametrize("size", [0.03, -0.05, 0.2])
def test_a_step_is_no_drift(size):
    assert notices(np.where(np.arange(300) < 140, 0.0, size)) == []


def test_one_percent_over_a_hundred_commits_is_not_worth_a_notice():
    assert notices(np.linspace(0.0, 0.03, 300)) == []


def test_under_the_null_nothing_is_noticed():
    for seed in range(20):
        assert notices(np.zeros(500), seed, scatter=0.01) == []


def test_noise_too_large_for_the_limit_raises_the_limit():
    for seed in range(20):
        assert notices(np.zeros(500), seed, scatter=0.08) == []


def test_anchors_never_move():
    random, track = np.random.default_rng(4), Track("g")
    for position in range(90):
        before = track.anchors
        track = track.with_point(TrackPoint(position, random.normal(0.0, 0.01)), POLICY)
        track, _ = with_anchor(track, POLICY)
        assert track.anchors[: len(before)] == before
    assert [anchor.position for anchor in track.anchors] == [4, 29, 54, 79]
