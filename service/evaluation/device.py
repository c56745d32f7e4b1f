"""Simulated GPUs: processes with the noise that real ones have, and the telemetry that goes with it.

Magnitudes are those of a recording of two H200s (135 fresh processes of seven operations, 2026-11-29, driver 580,
torch 2.11) where it shows them, and of this project's design notes for states that it did not meet (throttling).
From the recording, medians of identical processes timed behind a spin kernel, as a log scatter: 0.04 % (copy), 0.07 %
(atomic adds), 0.06-0.19 % (GEMM, attention, softmax); samples inside a process 0.1-0.6 %; slope of log time over log
clock -0.06 to -0.52; stragglers under 0.3 % of the samples (up to 6 % where the host is not ahead). At the power cap
the clock ran at 60-99 % of its top and a GEMM with 2 % more work took 0.4 % longer. A neighbor on the GPU lengthened
kernels by 0-120 %. Pairs of this project's own kernels on an H200 scatter by up to 0.4 %, so the model goes that far.
`tests/unit/service/evaluation/test_evaluation_device.py` holds these figures against the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from service.stats.pairs import ArmObservation, Floats, PairObservation

SAMPLES = 15
REST_PROCESSES = 5  # how many processes' time a rest after a rejected pair takes, per rejection in a row
TOP_CLOCK = 1980.0  # MHz, of an H200


@dataclass(frozen=True)
class Scenario:
    """What may happen to a device while a job runs. Shares are relative to the top clock, rates are per process.

    Parameters
    ----------
    warm_up
        Most that the clock loses while the device warms up, over some ten processes.
    boost, boost_rate
        Most that the lower of two boost clocks lies below the upper one, and how often the clock changes between them.
    throttle_rate
        How often an episode of thermal throttling begins; it lasts about five processes.
    onset
        Processes after which the device throttles for the rest of the job.
    pinned
        It throttles from the first process to the last.
    capped
        It runs at its power cap from the first process to the last.
    neighbor_rate
        How often somebody else begins to compute on the device, for about five processes; half of them are of another
        container, where no telemetry shows them.
    usable
        Whether a change can be seen in this state at all; where it cannot, any claim is wrong.
    """

    name: str
    says: str
    warm_up: float = 0.0
    boost: float = 0.0
    boost_rate: float = 0.0
    throttle_rate: float = 0.0
    onset: int | None = None
    pinned: bool = False
    capped: bool = False
    neighbor_rate: float = 0.0
    usable: bool = True


SCENARIOS = {
    one.name: one
    for one in (
        Scenario("quiet", "nothing but the scatter of processes and samples"),
        Scenario("warm-up", "the clock falls by up to 3 % while the device warms up", warm_up=0.03),
        Scenario("boost", "the clock flips between two states 1-4 % apart", boost=0.04, boost_rate=0.06),
        Scenario(
            "mixed",
            "warm-up, boost flips and rare throttling together",
            warm_up=0.03,
            boost=0.04,
            boost_rate=0.06,
            throttle_rate=0.015,
        ),
        Scenario("throttle", "episodes of thermal throttling", warm_up=0.03, throttle_rate=0.06),
        Scenario("onset", "throttling begins in the second pair and stays", onset=3, usable=False),
        Scenario("pinned", "throttled from start to end", pinned=True, usable=False),
        Scenario("neighbor", "another process computes on the device now and then", neighbor_rate=0.06),
        Scenario("power cap", "at the power cap from start to end, which hides most of a change", capped=True),
    )
}


class SimulatedGpu:
    """One device on which one case is run by a job; `effect` is how much slower the candidate really is (ratio - 1)."""

    def __init__(self, random: np.random.Generator, scenario: Scenario, effect: float = 0.0) -> None:
        self._random = random
        self._scenario = scenario
        self._effect = math.log1p(effect)
        self._level = math.log(_log_uniform(random, 0.02, 20.0))  # ms
        self._process_sd = _log_uniform(random, 0.0004, 0.004)
        self._sample_sd = _log_uniform(random, 0.001, 0.006)
        self._clock_slope = random.uniform(0.05, 1.0)
        self._warm_up = random.uniform(0.0, scenario.warm_up), random.uniform(4.0, 40.0)
        self._lower_boost = 1.0 - random.uniform(0.25, 1.0) * scenario.boost
        self._is_low = bool(random.random() < 0.5) and scenario.boost > 0.0
        self._throttling = _Throttling.begin(random) if scenario.pinned else None
        self._throttled_for = 0
        self._neighbor_for = 0
        self._neighbor_slowdown = 0.0
        self._neighbor_seen = False
        self._cap_clock = random.uniform(0.6, 0.97)
        self._cap_effect = random.uniform(0.2, 0.5)
        self._processes = 0

    def observe(self, arm: str, samples: int = SAMPLES) -> ArmObservation:
        """Run one fresh process of arm "A" (baseline) or "B" (candidate)."""
        random, scenario = self._random, self._scenario
        self._advance()
        clocks = self._clocks(samples)
        throttling, capped = self._throttling, scenario.capped
        compression = throttling.effect if throttling else self._cap_effect if capped else 1.0
        quiet = throttling.scatter if throttling else 1.0
        logs = self._level + random.normal(0.0, self._process_sd) + random.normal(0.0, self._sample_sd * quiet, samples)
        logs += np.where(random.random(samples) < 0.003, random.exponential(0.03, samples), 0.0)
        logs -= self._clock_slope * np.log(clocks)
        logs += compression * self._effect if arm == "B" else 0.0
        logs += self._neighbor_slowdown if self._neighbor_for else 0.0
        return ArmObservation(
            np.exp(logs),
            throttled_share=1.0 if throttling and throttling.flagged else 0.0,
            sm_clock=TOP_CLOCK * float(np.median(clocks)) * math.exp(random.normal(0.0, 0.0005)),
            foreign_processes=1 if self._neighbor_for and self._neighbor_seen else 0,
            power_capped_share=1.0 if capped else 0.0,
        )

    def pair(self, index: int, order: str) -> PairObservation:
        """Run one process of each arm in this order."""
        seen = {arm: self.observe(arm) for arm in order}
        return PairObservation(index, "AB" if order == "AB" else "BA", seen["A"], seen["B"])

    def rest(self, rejected_in_a_row: int) -> None:
        """Leave the device alone: an episode in progress goes on meanwhile, and may end."""
        idle = REST_PROCESSES * rejected_in_a_row
        self._throttled_for = max(0, self._throttled_for - idle)
        self._neighbor_for = max(0, self._neighbor_for - idle)

    def _advance(self) -> None:
        """Let the time of one process pass: episodes begin and end."""
        random, scenario = self._random, self._scenario
        self._processes += 1
        if random.random() < scenario.boost_rate:
            self._is_low = not self._is_low
        self._neighbor_for = max(0, self._neighbor_for - 1)
        if not self._neighbor_for and random.random() < scenario.neighbor_rate:
            self._neighbor_for, self._neighbor_slowdown = int(random.geometric(0.2)), random.uniform(0.0, 0.8)
            self._neighbor_seen = bool(random.random() < 0.5)
        if scenario.pinned:
            return
        if scenario.onset is not None and self._processes >= scenario.onset:
            self._throttling = self._throttling or _Throttling.begin(random, always_flagged=True)
            return
        self._throttled_for = max(0, self._throttled_for - 1)
        if not self._throttled_for:
            self._throttling = None
            if random.random() < scenario.throttle_rate:
                self._throttled_for, self._throttling = int(random.geometric(0.2)), _Throttling.begin(random)

    def _clocks(self, samples: int) -> Floats:
        """Return the clock at each sample, as a share of the top clock; a boost flip may fall inside a process."""
        loss, processes = self._warm_up
        clock = 1.0 - loss * (1.0 - math.exp(-self._processes / processes))
        low = np.full(samples, self._is_low)
        if self._random.random() < self._scenario.boost_rate:
            low[self._random.integers(samples) :] ^= True
            self._is_low = bool(low[-1])
        shares = clock * np.where(low, self._lower_boost, 1.0)
        if self._throttling:
            shares = np.minimum(shares, self._throttling.clock)
        return np.asarray(np.minimum(shares, self._cap_clock) if self._scenario.capped else shares)


@dataclass(frozen=True)
class _Throttling:
    """One episode: its clock, what is left of an effect and of the scatter, and whether the driver says so."""

    clock: float
    effect: float
    scatter: float
    flagged: bool

    @classmethod
    def begin(cls, random: np.random.Generator, *, always_flagged: bool = False) -> _Throttling:
        """Draw an episode: 3-15 % of the clock lost, half of an effect hidden, suspiciously quiet, 10 % unflagged."""
        return cls(1.0 - random.uniform(0.03, 0.15), 0.5, 0.2, always_flagged or bool(random.random() < 0.9))


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))
