"""Slow drift: the level left a fixed anchor although no single commit moved it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from service.stats.history_policy import HistoryPolicy
from service.stats.track import Anchor, Track

LEAST_POINTS = 5  # a level from fewer points is no anchor
SURE = 6.0  # standard errors of the two levels' difference; of normal noise one in 5e8 lies further out


@dataclass(frozen=True)
class DriftNotice:
    """The level moved by `effect` (ratio - 1, positive is slower) between two commits, in no single step."""

    since: int
    position: int
    device: str
    effect: float


def with_anchor(track: Track, policy: HistoryPolicy) -> tuple[Track, DriftNotice | None]:
    """Return the track with a new anchor when one is due, and a notice when the level has drifted.

    An anchor is the median of the last `drift_points` points. With the anchors of the last `drift_span` commits, the
    way from the oldest to the newest is a drift when it exceeds `drift_effect` and `SURE` standard errors, and no
    stretch between neighbors makes more than `drift_share` of it. After a notice the newest anchor is the only one, so
    one drift is told once per `drift_effect`. Derived here; the standard error of a median is 1.25 scatter / sqrt(n).
    """
    last = track.points[-1].position
    due = not track.anchors or last >= track.anchors[-1].position + policy.drift_anchor
    if not due or len(track.points) < LEAST_POINTS:
        return track, None
    recent = track.values(policy)[-policy.drift_points :]
    new = Anchor(last, float(np.median(recent)))
    oldest = last - policy.drift_span - policy.drift_anchor
    anchors = (*(anchor for anchor in track.anchors if anchor.position >= oldest), new)
    levels = np.array([anchor.level for anchor in anchors])
    way = float(levels[-1] - levels[0])
    error = 1.25 * track.scatter(policy) * math.sqrt(2.0 / recent.size)
    steepest = float(np.abs(np.diff(levels)).max()) if levels.size > 1 else 0.0
    drifted = abs(way) > max(math.log1p(policy.drift_effect), SURE * error) and steepest <= policy.drift_share * abs(
        way
    )
    if not drifted:
        return replace(track, anchors=anchors), None
    notice = DriftNotice(anchors[0].position, last, track.device, math.expm1(way))
    return replace(track, anchors=(new,)), notice
