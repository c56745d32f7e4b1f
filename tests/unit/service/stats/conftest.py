"""Builders of pairs with known contents, and a small simulated device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from service.stats.pairs import ArmObservation, PairObservation, pair_order

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
