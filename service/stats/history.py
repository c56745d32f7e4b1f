"""A series over its commits: each new point, each job's outcome -> the new state and what follows from it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from service.stats.drift import with_anchor
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import (
    Action,
    ChangePoint,
    ChangeStatus,
    Excluded,
    HistoryPoint,
    NewDevice,
    SeriesState,
    Withdrawn,
)
from service.stats.investigation import Investigation, Outcome, Range, advance
from service.stats.pairs import Floats
from service.stats.sequential import CHANGES
from service.stats.step import StepProfile, smallest_step
from service.stats.suspicion import change_probabilities
from service.stats.track import Track, TrackPoint, places
from service.stats.verdict import Verdict

Step = tuple[SeriesState, tuple[Action, ...]]


def update(state: SeriesState, point: HistoryPoint, policy: HistoryPolicy) -> Step:
    """Return the state that has seen one more point, and what follows from it.

    The work does not depend on the length of the history. A point that cannot be used is a gap (`Excluded`). A late
    point of an older commit is put in its place, or excluded when the track holds nothing that old; a commit measured
    again on its device counts as the mean. What has been said stays said: points never move a change point or take it
    back.

    Parameters
    ----------
    state : SeriesState
        `SeriesState()` for a new series.
    point : HistoryPoint
        Of a commit that may be new, old, or seen before.
    policy : HistoryPolicy
        The same for all points of a series.

    Returns
    -------
    state : SeriesState
    actions : tuple
        `Request`: run this job and hand its outcome to `resolve`; at most one is out per series. `ChangePoint`: store
        it; only a confirmed one is an alarm. `DriftNotice`, `Excluded`, `NewDevice`: tell.
    """
    if not point.on_line:
        return state, (Excluded(point.position, "off_line"),)
    state = _with_commit(state, point.position, policy)
    code = _why_unusable(state, point)
    if code is not None:
        return state, (Excluded(point.position, code),)
    known = state.track(point.device)
    new = () if known or not state.tracks else (NewDevice(point.position, point.device),)
    track, clock = (known or Track(point.device)).with_clock(point.clock, policy)
    if clock is None:
        return state.with_track(track, seen=True), (*new, Excluded(point.position, "clock_low"))
    longer = track.with_point(TrackPoint(point.position, math.log(point.value), clock), policy)
    if longer is None:
        return state.with_track(track, seen=True), (*new, Excluded(point.position, "late"))
    anchored, drift = with_anchor(longer, policy)
    state, found = _examined(state.with_track(anchored, seen=True), point.device, policy)
    return state, (*new, *(() if drift is None else (drift,)), *found)


def resolve(state: SeriesState, outcome: Outcome, policy: HistoryPolicy) -> Step:
    """Return the state that knows the outcome of a job, and what follows from it; actions as in `update`.

    An outcome that nobody asked for is welcome when it compares a commit with its parent, as the job of every pushed
    commit does: a change is a confirmed change point, and "unchanged" spares the commit a later job.
    """
    search = state.search
    if search is None or (outcome.candidate, outcome.baseline) != (search.high, search.low):
        return _volunteered(state, outcome)
    after = advance(search, outcome)
    if isinstance(after, Investigation):
        return _asking(state, after)
    state = replace(state, search=None)
    state = state.with_judged(after.unavailable, False).with_judged(after.cleared, True)
    said: tuple[Action, ...] = ()
    if after.change is not None:
        state, said = _confirmed(state, after.change, search.device)
    elif after.found is not None:
        state, said = _unnamed(state, after.found, search.device)
    state, found = _examined(state, search.device, policy)
    return state, (*said, *found)


def rewind(state: SeriesState, position: int) -> Step:
    """Return the state without the commits from `position` on, after a force push put others in their place.

    Their points and open search are dropped and their change points withdrawn; the points of the new commits follow by
    `update`. What the tracks know of their noise stays.
    """
    gone = tuple(Withdrawn(change.position) for change in state.changes if change.position >= position)
    changes = tuple(change for change in state.changes if change.position < position)
    confirmed = [change.position for change in changes if change.status is ChangeStatus.CONFIRMED]
    state = replace(
        state,
        last=min(state.last, position - 1),
        boundary=min(state.boundary, max(confirmed, default=-1)),
        tracks=tuple(track.until(position) for track in state.tracks),
        judged=tuple(one for one in state.judged if one[0] < position),
        search=None if state.search is not None and state.search.high >= position else state.search,
        changes=changes,
    )
    return state, gone


def _with_commit(state: SeriesState, position: int, policy: HistoryPolicy) -> SeriesState:
    if state.jobs_left is None:
        return replace(state, last=position, jobs_left=policy.burst)
    if position <= state.last:
        return state
    return replace(state, last=position, jobs_left=min(policy.burst, state.jobs_left + policy.refill))


def _why_unusable(state: SeriesState, point: HistoryPoint) -> str | None:
    if point.status != "ok":
        return point.status
    if not (math.isfinite(point.value) and point.value > 0.0):
        return "bad_value"
    return "late" if point.position < state.boundary else None


def _examined(state: SeriesState, device: str, policy: HistoryPolicy) -> Step:
    """Ask for a job where one is worth its price; else say what the level did."""
    track = state.track(device)
    if (
        state.search is not None
        or track is None
        or len(track.points) < 2
        or len(track.differences) + 1 < policy.warm_up
    ):
        return state, ()
    profile, ranges = track.profile(policy), places(track.points)
    probability = change_probabilities(profile, _open_commits(state, ranges), policy)
    best, jobs = int(probability.argmax()), state.jobs_left or 0.0
    if jobs >= 1.0 and probability[best] >= policy.price * policy.burst / jobs:
        return _asking(state, Investigation(device, *_not_judged(state, ranges[best])))
    at = _shift(track, profile, policy)
    if at is None:
        return state, ()
    around = _plausible(profile, ranges, at, policy)
    if jobs >= 1.0 and _open_commits(state, [around])[0] > 0:
        return _asking(state, Investigation(device, *_not_judged(state, around)))
    return _moved(state, track, profile, at, policy)


def _asking(state: SeriesState, search: Investigation) -> Step:
    jobs = max(0.0, (state.jobs_left or 0.0) - 1.0)
    return replace(state, search=search, jobs_left=jobs), (search.request,)


def _open_commits(state: SeriesState, ranges: list[Range]) -> NDArray[np.int64]:
    """Return how many commits of each range no job has judged; int64[ranges]."""
    judged = np.sort(np.array([position for position, _ in state.judged], dtype=np.int64))
    ends = np.array(ranges, dtype=np.int64)
    inside = np.searchsorted(judged, ends, side="right")
    return np.asarray(np.diff(ends, axis=1)[:, 0] - np.diff(inside, axis=1)[:, 0])


def _not_judged(state: SeriesState, part: Range) -> Range:
    """Return the range from the first to the last commit of a range that no job has judged."""
    judged = dict(state.judged)
    left = [position for position in range(part[0] + 1, part[1] + 1) if position not in judged]
    return left[0] - 1, left[-1]


def _shift(track: Track, profile: StepProfile, policy: HistoryPolicy) -> int | None:
    """Return the place at which the level has certainly moved, by more than rounding, whatever moved it."""
    at = int(profile.gain.argmax())
    least = max(policy.min_effect, 1.01 * _timer_step(track.values(policy), policy))
    if profile.gain[at] < policy.shift_gain or abs(profile.effect[at]) < least:
        return None
    behind = profile.gain.size - at
    aside = np.abs(np.arange(profile.gain.size) - at) >= policy.shift_points
    sharp = profile.gain[at] - profile.gain[aside].max(initial=-np.inf) >= policy.shift_contrast
    return at if behind >= policy.shift_points and sharp else None


def _plausible(profile: StepProfile, ranges: list[Range], at: int, policy: HistoryPolicy) -> Range:
    """Return the commits from the first to the last place that explains a step but for the weight of one point."""
    near = np.flatnonzero(profile.gain >= profile.gain[at] - policy.clip**2)
    return ranges[near[0]][0], ranges[near[-1]][1]


def _moved(state: SeriesState, track: Track, profile: StepProfile, at: int, policy: HistoryPolicy) -> Step:
    """Say that the level moved although no job confirms it, and begin a new level there."""
    effect = float(profile.effect[at])
    low, high = places(track.points)[at]
    judged = dict(state.judged)
    cleared = all(judged.get(position, False) for position in range(low + 1, high + 1))
    contrast = float(profile.gain[at] - np.delete(profile.gain, at).max(initial=-np.inf))
    large = abs(effect) >= math.log1p(policy.named_effect)
    change = ChangePoint(
        position=high,
        low=low,
        device=track.device,
        status=ChangeStatus.SURROUNDINGS if cleared else ChangeStatus.UNCONFIRMED,
        effect=math.expm1(effect),
        raised_at=state.last,
        named=not cleared and large and high - low == 1 and contrast >= policy.named_contrast,
    )
    return state.with_track(track.since(high)).with_change(change), (change,)


def _timer_step(values: Floats, policy: HistoryPolicy) -> float:
    step = smallest_step(values)
    return step if step <= policy.max_timer_step else 0.0


def _confirmed(state: SeriesState, outcome: Outcome, device: str) -> Step:
    """Record a proven change: a boundary for every device."""
    position = outcome.candidate
    if any(one.position == position and one.status is ChangeStatus.CONFIRMED for one in state.changes):
        return state, ()
    doubtful = [one for one in state.changes if one.status is not ChangeStatus.CONFIRMED]
    revised = next((one.position for one in doubtful if one.low < position <= one.position), None)
    change = ChangePoint(
        position=position,
        low=position - 1,
        device=device,
        status=ChangeStatus.CONFIRMED,
        effect=outcome.effect or 0.0,
        raised_at=max(state.last, position),
        interval=outcome.interval,
        replaces=revised,
    )
    state = replace(
        state,
        boundary=max(state.boundary, position),
        tracks=tuple(replace(track.since(position), anchors=()) for track in state.tracks),
    )
    return state.with_judged(((position - 1, position),), True).with_change(change), (change,)


def _unnamed(state: SeriesState, found: Outcome, device: str) -> Step:
    """Record a change that a job has proven for several commits together, of which none could be proven guilty."""
    change = ChangePoint(
        position=found.candidate,
        low=found.baseline,
        device=device,
        status=ChangeStatus.UNCONFIRMED,
        effect=found.effect or 0.0,
        raised_at=state.last,
        interval=found.interval,
        named=False,
    )
    state = state.with_judged(((found.baseline, found.candidate),), False).with_change(change)
    track = state.track(device)
    return (state if track is None else state.with_track(track.since(found.candidate))), (change,)


def _volunteered(state: SeriesState, outcome: Outcome) -> Step:
    if outcome.candidate - outcome.baseline != 1:
        return state, ()
    if outcome.verdict in CHANGES:
        return _confirmed(state, outcome, state.tracks[-1].device if state.tracks else "")
    if outcome.verdict is Verdict.UNCHANGED:
        return state.with_judged(((outcome.baseline, outcome.candidate),), True), ()
    return state, ()
