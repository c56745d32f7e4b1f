"""The state of one series, and everything that can be said about it. JSON-able: one document per series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from service.stats.drift import DriftNotice
from service.stats.investigation import Investigation, Request
from service.stats.track import Track

PROTOCOL = 1
MOST_TRACKS = 8  # devices of one model that are followed at once; the one unseen for longest is forgotten
MOST_CHANGES = 64  # change points that the state remembers; the service keeps a row of each
MOST_CLEARED = 256  # commits that the state remembers as judged; far more than the windows of its tracks hold


class ChangeStatus(StrEnum):
    """Confirmed by a job; not confirmable by any; or a level that moved although jobs cleared its commits."""

    CONFIRMED = "confirmed"
    UNCONFIRMED = "unconfirmed"
    SURROUNDINGS = "surroundings"


@dataclass(frozen=True)
class HistoryPoint:
    """A commit's value on one device.

    Parameters
    ----------
    position
        Of the commit on the first-parent line, from 0.
    value
        Time in the series' unit. What is not finite and above 0 makes a gap.
    device
        Identity of the very device.
    status : {"ok", "throttled", "sparse"}
        All but "ok" are gaps.
    clock
        Median SM clock in any unit, None where unreadable.
    on_line
        False for commits off the first-parent line, orphaned or dirty.
    """

    position: int
    value: float
    device: str = ""
    status: str = "ok"
    clock: float | None = None
    on_line: bool = True

    def __post_init__(self) -> None:
        if self.position < 0:
            raise ValueError(f"position: expected 0 or more, got {self.position!r}")
        if self.status not in ("ok", "throttled", "sparse"):
            raise ValueError(f"status: expected 'ok', 'throttled' or 'sparse', got {self.status!r}")
        if self.clock is not None and not (math.isfinite(self.clock) and self.clock > 0.0):
            raise ValueError(f"clock: expected a finite clock above 0 or None, got {self.clock!r}")


@dataclass(frozen=True)
class ChangePoint:
    """The level moved at a commit in (low, position]; `effect` = ratio - 1, positive is slower.

    Parameters
    ----------
    effect, interval
        Of the job when confirmed, else the difference of the two levels in the history, without an interval.
    raised_at
        Newest commit of the series when this was said.
    named
        Whether `position` alone is meant: always when confirmed.
    replaces
        Position of the unconfirmed change point that this one revises.
    """

    position: int
    low: int
    device: str
    status: ChangeStatus
    effect: float
    raised_at: int
    interval: tuple[float, float] | None = None
    named: bool = True
    replaces: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` gives the same change point back."""
        interval = None if self.interval is None else list(self.interval)
        return {**asdict(self), "status": str(self.status), "interval": interval}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ChangePoint:
        """Build a change point from `to_dict`'s output."""
        interval = None if values["interval"] is None else tuple(values["interval"])
        return cls(**{**values, "status": ChangeStatus(values["status"]), "interval": interval})


@dataclass(frozen=True)
class Excluded:
    """A point that is kept by whoever stores points but is no part of the segmentation, and why.

    Codes: throttled, sparse, clock_low, bad_value, off_line, late (older than all that the track still holds).
    """

    position: int
    code: str


@dataclass(frozen=True)
class NewDevice:
    """The series goes on with a device that it has not seen (lately): a boundary, nothing is compared across."""

    position: int
    device: str


@dataclass(frozen=True)
class Withdrawn:
    """A change point whose commit is no longer on the first-parent line."""

    position: int


Action = Request | ChangePoint | DriftNotice | Excluded | NewDevice | Withdrawn


@dataclass(frozen=True)
class SeriesState:
    """All that judging the next point of a series needs.

    Parameters
    ----------
    last
        Newest position seen, -1 before the first.
    boundary
        Last confirmed change, or -1: no track holds points before it.
    jobs_left
        Confirmation jobs in hand; None before the first point.
    tracks
        By device, the one seen last at the end.
    judged
        Commits that need no further job, True: cleared, False: no job could decide.
    search
        The investigation that waits for an outcome.
    changes
        In the order in which they were raised.
    """

    last: int = -1
    boundary: int = -1
    jobs_left: float | None = None
    tracks: tuple[Track, ...] = ()
    judged: tuple[tuple[int, bool], ...] = ()
    search: Investigation | None = None
    changes: tuple[ChangePoint, ...] = ()

    def track(self, device: str) -> Track | None:
        """Return the track of a device."""
        return next((track for track in self.tracks if track.device == device), None)

    def with_track(self, track: Track, *, seen: bool = False) -> SeriesState:
        """Return the state with this track in the place of its device's; `seen` moves it to the end."""
        if not seen:
            return replace(self, tracks=tuple(track if one.device == track.device else one for one in self.tracks))
        others = tuple(one for one in self.tracks if one.device != track.device)
        return replace(self, tracks=(*others, track)[-MOST_TRACKS:])

    def with_change(self, change: ChangePoint) -> SeriesState:
        """Return the state that remembers a change point, in the place of the one that it revises."""
        kept = tuple(one for one in self.changes if one.position != change.replaces or change.replaces is None)
        return replace(self, changes=(*kept, change)[-MOST_CHANGES:])

    def with_judged(self, ranges: tuple[tuple[int, int], ...], cleared: bool) -> SeriesState:
        """Return the state that remembers the commits in these ranges (low, high] as judged."""
        new = {position: cleared for low, high in ranges for position in range(low + 1, high + 1)}
        return replace(self, judged=tuple({**dict(self.judged), **new}.items())[-MOST_CLEARED:])

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON document; `from_dict` gives the same state back."""
        return {
            "protocol": PROTOCOL,
            "last": self.last,
            "boundary": self.boundary,
            "jobs_left": self.jobs_left,
            "tracks": [track.to_dict() for track in self.tracks],
            "judged": [list(one) for one in self.judged],
            "search": None if self.search is None else self.search.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SeriesState:
        """Build a state from `to_dict`'s output.

        Raises
        ------
        ValueError
            For a document of another protocol.
        """
        if values.get("protocol") != PROTOCOL:
            raise ValueError(f"protocol: expected {PROTOCOL}, got {values.get('protocol')!r}")
        return cls(
            last=values["last"],
            boundary=values["boundary"],
            jobs_left=values["jobs_left"],
            tracks=tuple(Track.from_dict(track) for track in values["tracks"]),
            judged=tuple((position, cleared) for position, cleared in values["judged"]),
            search=None if values["search"] is None else Investigation.from_dict(values["search"]),
            changes=tuple(ChangePoint.from_dict(change) for change in values["changes"]),
        )
