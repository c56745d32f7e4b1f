"""Simulated histories: one benchmark case over the commits of a branch, with changes whose place and size are known.

What moves a level besides code is what the design notes of this project say of real histories of GPU benchmarks: slow
drift, two clock states, states that no telemetry shows, throttled commits. Sizes of scatter as in `device`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from service.stats.history_state import HistoryPoint
from service.stats.pairs import Floats

EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10)
APART = 25  # commits between two changes, and from a change to either end
TOP_CLOCK = 1980.0


@dataclass(frozen=True, eq=False)
class SimulatedHistory:
    """Points of one series, and the truth: the effect (ratio - 1) of every commit that changed something."""

    seed: int
    points: tuple[HistoryPoint, ...]
    changes: dict[int, float]

    def values(self) -> tuple[Floats, list[int]]:
        """Return the values of the usable commits and their positions: all that a detector of values can see."""
        usable = [point for point in self.points if point.status == "ok"]
        return np.array([point.value for point in usable]), [point.position for point in usable]

    def effect_between(self, low: int, high: int) -> float:
        """Return what the commits in (low, high] changed together, as ratio - 1."""
        return math.expm1(sum(math.log1p(size) for at, size in self.changes.items() if low < at <= high))


def simulate_history(seed: int, commits: int) -> SimulatedHistory:
    """Return a history of so many commits; half of them hold changes, seven in ten of these slower."""
    random = np.random.default_rng([seed, 0x48495354])
    changes = _plant(random, commits)
    logs = np.full(commits, math.log(10.0 ** random.uniform(-2.0, 1.0)))
    for position, size in changes.items():
        logs[position:] += math.log1p(size)
    logs += random.normal(0.0, 10.0 ** random.uniform(-3.0, -2.2), commits)
    if random.random() < 0.5:
        logs += np.linspace(0.0, random.uniform(-0.015, 0.015), commits)
    clocks = np.ones(commits)
    state = random.random()
    if state < 0.3:
        clocks = np.where(_two_states(random, commits, 0.15), 1.0 - random.uniform(0.01, 0.04), 1.0)
    elif state < 0.4:
        logs += np.where(_two_states(random, commits, 0.05), random.uniform(0.01, 0.04), 0.0)
    logs -= random.uniform(0.05, 1.0) * np.log(clocks)
    logs += np.where(random.random(commits) < 0.01, random.exponential(0.05, commits), 0.0)
    throttled = _two_states(random, commits, 0.015, 0.3)
    seen = TOP_CLOCK * clocks * np.exp(random.normal(0.0, 0.0005, commits))
    points = tuple(
        HistoryPoint(
            at,
            math.exp(logs[at] + (0.05 if throttled[at] else 0.0)),
            status="throttled" if throttled[at] else "ok",
            clock=float(seen[at]),
        )
        for at in range(commits)
    )
    return SimulatedHistory(seed, points, changes)


def _plant(random: np.random.Generator, commits: int) -> dict[int, float]:
    """Return one to four changes for half of the histories, none for the others."""
    changes: dict[int, float] = {}
    if random.random() < 0.5:
        return changes
    wanted = int(random.integers(1, 5))
    for position in random.permutation(np.arange(APART, commits - APART)):
        if len(changes) < wanted and all(abs(int(position) - other) >= APART for other in changes):
            changes[int(position)] = float(random.choice(EFFECTS)) * (1.0 if random.random() < 0.7 else -1.0)
    return dict(sorted(changes.items()))


def _two_states(random: np.random.Generator, commits: int, enter: float, leave: float | None = None) -> np.ndarray:
    """Return whether the second of two states holds at each commit; begins in the first where `leave` is given."""
    holds = np.zeros(commits, dtype=np.bool_)
    now = bool(random.random() < 0.5) if leave is None else False
    for at in range(commits):
        if random.random() < ((leave if now else enter) if leave is not None else enter):
            now = not now
        holds[at] = now
    return holds
