"""Builders of pairs with known contents, and a small simulated device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from service.stats.history import resolve, update
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import Action, ChangePoint, ChangeStatus, Excluded, HistoryPoint, SeriesState
from service.stats.investigation import Outcome, Request
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.verdict import Verdict

ArmBuilder = Callable[..., ArmObservation]
PairsBuilder = Callable[..., list[PairObservation]]


def build_arm(median: float = 1.0, scatter: float = 0.005, count: int = 15, **state: Any) -> ArmObservation:
    """An arm whose samples have exactly this median, spread evenly on both sides in log."""
    return ArmObservation(median * np.exp(scatter * np.linspace(-1.5, 1.5, count)), **state)


def build_pairs(
    log_ratios: Sequence[float],
    *,
    before: float = 1.0,
    both: dict[str, Any] | None = None,
    candidate: dict[str, Any] | None = None,
    only: Sequence[int] | None = None,
) -> list[PairObservation]:
    """Pairs with exactly these log ratios; `both` and `candidate` set the arms' states in all pairs or in `only`."""
    pairs = []
    for index, ratio in enumerate(log_ratios):
        chosen = only is None or index in only
        shared = (both or {}) if chosen else {}
        special = {**shared, **((candidate or {}) if chosen else {})}
        a, b = build_arm(before, **shared), build_arm(before * float(np.exp(ratio)), **special)
        pairs.append(PairObservation(index, pair_order(index), a, b))
    return pairs


class SimulatedDevice:
    """Process offsets, sample noise and outliers; throttled processes are slow, quiet and show half of the effect."""

    def __init__(
        self, seed: int, effect: float = 0.0, throttled: Callable[[int], bool] = lambda process: False
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.effect, self.throttled = np.log1p(effect), throttled
        self.processes = 0
        self.rests: list[int] = []

    def process(self, arm: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log times, clocks (1 is full) and throttle flags of one process."""
        throttled = self.throttled(self.processes)
        self.processes += 1
        quiet = 0.2 if throttled else 1.0
        log_times = self.random.normal(0.0, 0.005 * quiet, count) + self.random.normal(0.0, 0.002)
        log_times += np.where(self.random.random(count) < 0.01, 0.05, 0.0)
        log_times += (self.effect if arm == "B" else 0.0) * (0.5 if throttled else 1.0) + (0.04 if throttled else 0.0)
        clocks = (0.92 if throttled else 1.0) * np.exp(self.random.normal(0.0, 0.001, count))
        return log_times, clocks, np.full(count, throttled)

    def rest(self, samples: int) -> None:
        self.rests.append(samples)


@pytest.fixture
def make_arm() -> ArmBuilder:
    return build_arm


@pytest.fixture
def make_pairs() -> PairsBuilder:
    return build_pairs


@pytest.fixture
def simulated_device() -> type[SimulatedDevice]:
    return SimulatedDevice


class FollowedSeries:
    """A series with true changes (by position), whose requests are answered from the truth; remembers what was said."""

    def __init__(self, changes: Mapping[int, float] | None = None, *, jobs: bool = True) -> None:
        self.truth, self.jobs = dict(changes or {}), jobs
        self.state, self.policy = SeriesState(), HistoryPolicy()
        self.said: list[Action] = []

    def add(self, *points: HistoryPoint) -> FollowedSeries:
        for point in points:
            self.follow(*update(self.state, point, self.policy))
        return self

    def add_values(self, values: Sequence[float], start: int = 0, **state: Any) -> FollowedSeries:
        return self.add(*(HistoryPoint(start + k, float(value), **state) for k, value in enumerate(values)))

    def follow(self, state: SeriesState, actions: tuple[Action, ...]) -> None:
        self.state = state
        self.said += actions
        for request in [action for action in actions if isinstance(action, Request)]:
            self.follow(*resolve(self.state, self.answer(request), self.policy))

    def answer(self, request: Request) -> Outcome:
        effect = sum(size for commit, size in self.truth.items() if request.baseline < commit <= request.candidate)
        verdict = Verdict.REGRESSED if effect > 0 else Verdict.IMPROVED if effect < 0 else Verdict.UNCHANGED
        return Outcome(request.candidate, request.baseline, verdict if self.jobs else Verdict.NOT_COMPARABLE, effect)

    def all(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.said if isinstance(action, kind)]

    def changes(self, status: ChangeStatus = ChangeStatus.CONFIRMED) -> list[int]:
        return [change.position for change in self.all(ChangePoint) if change.status is status]

    def codes(self) -> list[str]:
        return [one.code for one in self.all(Excluded)]


@pytest.fixture
def followed() -> type[FollowedSeries]:
    return FollowedSeries
