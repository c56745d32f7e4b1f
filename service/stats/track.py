"""A track: what one device has shown of a series since the last boundary; points of two devices never meet."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from service.stats.history_policy import HistoryPolicy
from service.stats.pairs import Floats
from service.stats.step import StepProfile, scatter_of_differences, step_profile

CLOCK_MOVED = 0.005  # clocks further apart than this (log) tell something about the slope of time over clock
SAME_CODE = 0.06  # neighbors further apart than this (log) differ by more than any clock explains


class TrackPoint(NamedTuple):
    """A usable point: log value, log clock relative to the track's first clock (0 without), and how often measured."""

    position: int
    log_value: float
    log_clock: float = 0.0
    times: int = 1


class Anchor(NamedTuple):
    """A level (log) fixed at a position, never moved afterwards."""

    position: int
    level: float


@dataclass(frozen=True)
class Track:
    """Points of one device, oldest first, with what is known of its noise. All values are logs.

    Parameters
    ----------
    device
        Identity of the very device (its UUID), not of its model.
    points
        At most `window` since the last boundary.
    differences
        Absolute differences of neighbors in the order of arrival, at most `clock_memory`.
    clocks
        Clocks of the last points, used or not; `clock_origin` is the first one ever.
    clock_xx, clock_xy
        Sums over neighbors of squared clock differences, and of their product with the value differences.
    anchors
        For the drift notice.
    """

    device: str
    points: tuple[TrackPoint, ...] = ()
    differences: tuple[float, ...] = ()
    clocks: tuple[float, ...] = ()
    clock_origin: float | None = None
    clock_xx: float = 0.0
    clock_xy: float = 0.0
    anchors: tuple[Anchor, ...] = ()

    def with_clock(self, clock: float | None, policy: HistoryPolicy) -> tuple[Track, float | None]:
        """Return the track that has seen a clock (any unit), and the log clock of the point; None: too low to use."""
        if clock is None:
            return self, 0.0
        origin = math.log(clock) if self.clock_origin is None else self.clock_origin
        seen = math.log(clock) - origin
        clocks = (*self.clocks, seen)[-policy.clock_memory :]
        upper = sorted(clocks)[min(int(policy.upper_clock * len(clocks)), len(clocks) - 1)]
        usable = seen >= upper + math.log(policy.clock_floor)
        return replace(self, clocks=clocks, clock_origin=origin), seen if usable else None

    def with_point(self, new: TrackPoint, policy: HistoryPolicy) -> Track | None:
        """Return the track with a point in the place of its position; None when it is older than all that is kept.

        A position that is there already takes the mean of its log values. Only a point at the end tells about scatter
        and clocks, so the order of arrival of older ones changes nothing else.
        """
        at = bisect_left(self.points, new.position, key=lambda point: point.position)
        if at < len(self.points) and self.points[at].position == new.position:
            return replace(self, points=(*self.points[:at], _merged(self.points[at], new), *self.points[at + 1 :]))
        if at == 0 and self.points:
            return None
        points = (*self.points[:at], new, *self.points[at:])[-policy.window :]
        track = replace(self, points=points)
        return track._having_learned(policy) if at == len(self.points) and at > 0 else track

    def _having_learned(self, policy: HistoryPolicy) -> Track:
        before, new = self.points[-2:]
        value, clock = new.log_value - before.log_value, new.log_clock - before.log_clock
        track = self
        if abs(clock) > CLOCK_MOVED and abs(value) < SAME_CODE:
            track = replace(self, clock_xx=self.clock_xx + clock * clock, clock_xy=self.clock_xy - clock * value)
        difference = abs(value + track.clock_slope(policy) * clock)
        return replace(track, differences=(*self.differences, difference)[-policy.clock_memory :])

    def clock_slope(self, policy: HistoryPolicy) -> float:
        """Return by how much log time falls per log clock: least squares over neighbors, drawn to 1/2; in [0, 1]."""
        slope = (self.clock_xy + 0.5 * policy.clock_prior) / (self.clock_xx + policy.clock_prior)
        return min(max(slope, 0.0), 1.0)

    def values(self, policy: HistoryPolicy) -> Floats:
        """Return the log values as they would be at the track's first clock; float64[points]."""
        table = np.array(self.points, dtype=np.float64).reshape(-1, 4)
        return np.asarray(table[:, 1] + self.clock_slope(policy) * table[:, 2])

    def scatter(self, policy: HistoryPolicy) -> float:
        """Return the scatter of single points, log units."""
        return scatter_of_differences(self.differences, policy.scale_floor)

    def profile(self, policy: HistoryPolicy) -> StepProfile:
        """Return what a step at each place between two points gains."""
        return step_profile(self.values(policy), self.scatter(policy), policy.clip)

    def since(self, position: int) -> Track:
        """Return the track without points before a position; what is known of the noise stays."""
        return replace(self, points=tuple(point for point in self.points if point.position >= position))

    def until(self, position: int) -> Track:
        """Return the track without points and anchors from a position on."""
        return replace(
            self,
            points=tuple(point for point in self.points if point.position < position),
            anchors=tuple(anchor for anchor in self.anchors if anchor.position < position),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` gives the same track back."""
        return {
            "device": self.device,
            "points": [list(point) for point in self.points],
            "differences": list(self.differences),
            "clocks": list(self.clocks),
            "clock_origin": self.clock_origin,
            "clock_xx": self.clock_xx,
            "clock_xy": self.clock_xy,
            "anchors": [list(anchor) for anchor in self.anchors],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Track:
        """Build a track from `to_dict`'s output."""
        return cls(
            **{
                **values,
                "points": tuple(TrackPoint(*point) for point in values["points"]),
                "differences": tuple(values["differences"]),
                "clocks": tuple(values["clocks"]),
                "anchors": tuple(Anchor(*anchor) for anchor in values["anchors"]),
            }
        )


def places(points: Sequence[TrackPoint]) -> list[tuple[int, int]]:
    """Return the range (low, high] of commits at each place between two points."""
    return [(before.position, after.position) for before, after in pairwise(points)]


def _merged(old: TrackPoint, new: TrackPoint) -> TrackPoint:
    times = old.times + 1
    value = old.log_value + (new.log_value - old.log_value) / times
    return TrackPoint(old.position, value, old.log_clock + (new.log_clock - old.log_clock) / times, times)
