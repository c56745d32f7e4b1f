"""Scores alarms over histories against the changes that were planted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.evaluation.detectors import Alarm, Watched, available_detectors
from service.evaluation.histories import SimulatedHistory, simulate_history
from service.stats.proportion import Proportion

TOLERANCE = 3  # commits either side at which an alarm still names a change


@dataclass(frozen=True)
class HistoryTask:
    """One detector over one simulated history."""

    detector: str
    seed: int
    commits: int

    def run(self) -> HistoryScore:
        """Watch the history and score the alarms."""
        history = simulate_history(self.seed, self.commits)
        return score(self.detector, history, available_detectors()[self.detector](history))


@dataclass(frozen=True)
class HistoryScore:
    """Counts over some histories; `sizes` maps the size of a change to how many of them were found.

    `delays` are in commits from a change to when its alarm was raised, of the changes that were found.
    """

    detector: str
    commits: int = 0
    right: int = 0
    false: int = 0
    sizes: dict[float, Proportion] = field(default_factory=dict)
    delays: tuple[int, ...] = ()
    jobs: int = 0

    @property
    def precision(self) -> Proportion:
        """Return how many of the alarms were right."""
        return Proportion(self.right, self.right + self.false)

    @property
    def recall(self) -> Proportion:
        """Return how many of the changes were found."""
        return sum(self.sizes.values(), Proportion(0, 0))

    @property
    def f1(self) -> float | None:
        """Return the harmonic mean of precision and recall; None where there was nothing to find and no alarm."""
        missed = self.recall.trials - self.right
        total = 2 * self.right + self.false + missed
        return 2 * self.right / total if total else None

    @property
    def delay(self) -> tuple[float, float] | None:
        """Return the median delay and its 90 % quantile, in commits; None where nothing was found."""
        if not self.delays:
            return None
        return float(np.median(self.delays)), float(np.quantile(self.delays, 0.9))

    def per_thousand(self, count: int) -> float | None:
        """Return a count per 1,000 commits."""
        return 1000.0 * count / self.commits if self.commits else None

    def __add__(self, other: HistoryScore) -> HistoryScore:
        if self.detector != other.detector:
            raise ValueError(f"other: expected a score of {self.detector!r}, got one of {other.detector!r}")
        none = Proportion(0, 0)
        sizes = {size: self.sizes.get(size, none) + other.sizes.get(size, none) for size in {*self.sizes, *other.sizes}}
        return HistoryScore(
            self.detector,
            self.commits + other.commits,
            self.right + other.right,
            self.false + other.false,
            dict(sorted(sizes.items())),
            self.delays + other.delays,
            self.jobs + other.jobs,
        )


def score(detector: str, history: SimulatedHistory, watched: Watched) -> HistoryScore:
    """Match alarms to changes one to one, the nearest first, and count."""
    found = match(watched.alarms, list(history.changes))
    counts: Counter[float] = Counter(abs(size) for size in history.changes.values())
    hits: Counter[float] = Counter(abs(history.changes[position]) for position in found)
    return HistoryScore(
        detector,
        commits=len(history.points),
        right=len(found),
        false=len(watched.alarms) - len(found),
        sizes={size: Proportion(hits[size], counts[size]) for size in sorted(counts)},
        delays=tuple(alarm.raised_at - position for position, alarm in found.items()),
        jobs=watched.jobs,
    )


def match(alarms: Sequence[Alarm], changes: Sequence[int]) -> dict[int, Alarm]:
    """Return the alarm of each change that has one: within the tolerance, each alarm once, the nearest first."""
    near = sorted(
        (abs(alarm.position - change), change, number)
        for number, alarm in enumerate(alarms)
        for change in changes
        if abs(alarm.position - change) <= TOLERANCE
    )
    found: dict[int, int] = {}
    for _, change, number in near:
        if change not in found and number not in found.values():
            found[change] = number
    return {change: alarms[number] for change, number in found.items()}


def history_tasks(detectors: Sequence[str], *, series: int, commits: int, seed: int) -> Iterator[HistoryTask]:
    """Yield all tasks: each detector over each history."""
    for number in range(series):
        for detector in detectors:
            yield HistoryTask(detector, 1_000_000 * seed + number, commits)
