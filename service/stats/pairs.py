"""Observations: what one process of one arm showed for one case, and a pair of such processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MAD_TO_SD = 1.4826  # 1 / Phi^-1(3/4): makes the median absolute deviation estimate the sd of a normal law


@dataclass(frozen=True, eq=False)
class ArmObservation:
    """One case in one fresh process of one arm.

    Parameters
    ----------
    samples : array_like, float64[n], n >= 1
        Timed samples, all in one unit (the protocol's is ms), in the order taken; finite and above zero.
    throttled_share : float in [0, 1]
        Share of the samples with a thermal or hardware throttle reason (not the software power cap).
    sm_clock, mem_clock : float or None
        Median clock while the samples were taken (MHz, or any unit that is the same in all pairs); None: unreadable.
    steal_share, foreign_share : float in [0, 1]
        CPU devices: share of time stolen by the hypervisor, and share used by other processes.
    foreign_processes : int
        GPU devices: compute processes of others seen on the device.
    new_errors : int
        New ECC or Xid errors since the process started.
    power_capped_share : float in [0, 1]
        Share of the samples with the software power cap as reason.
    device_clock : float or None
        Median SM clock as the device itself read it around the samples, in the unit of `sm_clock`; None: unread.

    Raises
    ------
    ValueError
        Naming the argument, what was expected and what was given.
    """

    samples: Floats
    throttled_share: float = 0.0
    sm_clock: float | None = None
    mem_clock: float | None = None
    steal_share: float = 0.0
    foreign_share: float = 0.0
    foreign_processes: int = 0
    new_errors: int = 0
    power_capped_share: float = 0.0
    device_clock: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", checked_samples("samples", self.samples))
        for name in ("throttled_share", "steal_share", "foreign_share", "power_capped_share"):
            share = getattr(self, name)
            if not (math.isfinite(share) and 0.0 <= share <= 1.0):
                raise ValueError(f"{name}: expected a share from 0 to 1, got {share!r}")
        for name in ("sm_clock", "mem_clock", "device_clock"):
            clock = getattr(self, name)
            if clock is not None and not (math.isfinite(clock) and clock > 0.0):
                raise ValueError(f"{name}: expected a finite clock above 0 or None, got {clock!r}")
        for name in ("foreign_processes", "new_errors"):
            count = getattr(self, name)
            if count < 0:
                raise ValueError(f"{name}: expected a count of 0 or more, got {count!r}")

    @cached_property
    def median(self) -> float:
        """Median of the samples, in their unit: the one value this process contributes."""
        return float(np.median(self.samples))

    @cached_property
    def scatter(self) -> float:
        """Robust relative scatter inside the process: 1.4826 * median|x - median x| of x = log(sample); no unit.

        Source: Hampel (1974), "The influence curve and its role in robust estimation", JASA 69.
        """
        logs = np.log(self.samples)
        return MAD_TO_SD * float(np.median(np.abs(logs - np.median(logs))))


@dataclass(frozen=True, eq=False)
class PairObservation:
    """Two fresh processes, one of each arm, run one right after the other: the unit of evidence.

    Parameters
    ----------
    index : int
        Position in the job, from 0.
    order : {"AB", "BA"}
        Which arm ran first; A is the baseline, B the candidate.
    baseline, candidate : ArmObservation
    """

    index: int
    order: Literal["AB", "BA"]
    baseline: ArmObservation
    candidate: ArmObservation

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"index: expected 0 or more, got {self.index!r}")
        if self.order not in ("AB", "BA"):
            raise ValueError(f"order: expected 'AB' or 'BA', got {self.order!r}")

    @cached_property
    def log_ratio(self) -> float:
        """log(median candidate) - log(median baseline); above 0 is slower. Derived here; no unit."""
        return math.log(self.candidate.median) - math.log(self.baseline.median)

    @cached_property
    def log_clock_ratio(self) -> float | None:
        """log(candidate's SM clock) - log(baseline's SM clock), None where either is unreadable; no unit.

        As the device read it itself, where both arms have that: on an H200 it explained a third of the variance of log
        ratios of identical code, while NVML showed 1980 MHz throughout (2,700 pairs, 2026-11-30).
        """
        before, after = self.baseline.device_clock, self.candidate.device_clock
        if before is None or after is None:
            before, after = self.baseline.sm_clock, self.candidate.sm_clock
        return None if before is None or after is None else math.log(after) - math.log(before)

    @cached_property
    def log_cycle_ratio(self) -> float | None:
        """Log ratio of cycles = time * clock, so log_ratio + log_clock_ratio; None where a clock is unreadable."""
        clocks = self.log_clock_ratio
        return None if clocks is None else self.log_ratio + clocks


def checked_samples(name: str, samples: ArrayLike) -> Floats:
    """Return a read-only float64 copy of one-dimensional samples that are all finite and above zero.

    Raises
    ------
    ValueError
        Naming `name`, what was expected and the first offending value.
    """
    values = np.array(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"{name}: expected one dimension with at least one sample, got shape {values.shape}")
    bad = ~(np.isfinite(values) & (values > 0.0))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name}: expected finite samples above 0, got {values[at]} at position {at}")
    values.setflags(write=False)
    return values


def timer_step(pairs: Sequence[PairObservation]) -> float:
    """Smallest step between different sample values of both arms, as a difference of logs; 0 when all are equal.

    A coarse timer shows as few distinct values: a difference of one such step cannot be told from rounding. With a
    fine timer the smallest gap of some hundred samples is far below any effect, so this says nothing there.
    Derived here; no unit.
    """
    if not pairs:
        return 0.0
    values = np.unique(np.concatenate([arm.samples for pair in pairs for arm in (pair.baseline, pair.candidate)]))
    return float(np.diff(np.log(values)).min()) if values.size > 1 else 0.0


def pair_order(index: int) -> Literal["AB", "BA"]:
    """Order of pair `index`: AB, BA, AB, ...; alternation cancels what drifts linearly from process to process."""
    return "AB" if index % 2 == 0 else "BA"
