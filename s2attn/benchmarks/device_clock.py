"""The SM clock as the device itself sees it, from the stamps of the spin kernel (``csrc/cuda/kernels/spin.cuh``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

SPIN_MS = 0.5
# Enough for the clock, as both ends of a spin are stamped right after a step of the device's timer.
AFTER_MS = 0.05
_READINGS = 10
_FIRST_CYCLES = 200_000
_USUAL_MHZ = 1500.0
# A host that needs longer than this to enqueue one call is not worth waiting for: the samples say queued = false.
_LONGEST_SPIN_MS = 20.0


class DeviceClock:
    """Spins of the current stream, queued and read later. Needs the kernels of this package for CUDA, loaded.

    Parameters
    ----------
    device : torch.device
        Where it spins.
    """

    def __init__(self, device: torch.device) -> None:
        self._stamps = torch.zeros(2, 4, dtype=torch.int64, device=device)

    def spin(self, place: int, cycles: int) -> None:
        """Queue a spin of that many SM cycles; its reading replaces the one of that place, 0 or 1."""
        torch.ops.s2attn.spin(self._stamps[place], cycles)

    def read_mhz(self) -> list[float | None]:
        """Wait for the spins of both places and return the SM clock during each; None where the timer stood still."""
        return [_megahertz(stamps) for stamps in self._stamps.tolist()]


@dataclass(frozen=True)
class Spin:
    """A spin of ``cycles`` of the SM clock, which take about ``milliseconds``, in front of every sample."""

    clock: DeviceClock
    cycles: int
    milliseconds: float

    @property
    def after_cycles(self) -> int:
        """Length of the spin right behind a sample."""
        return round(self.cycles * AFTER_MS / self.milliseconds)

    def hiding(self, enqueue_ms: float) -> Spin:
        """Return a spin, no shorter, that outlasts a host which needs that long to enqueue one call."""
        milliseconds = min(max(self.milliseconds, 3 * enqueue_ms), _LONGEST_SPIN_MS)
        return replace(self, cycles=round(self.cycles * milliseconds / self.milliseconds), milliseconds=milliseconds)


def calibrate_spin(clock: DeviceClock, milliseconds: float = SPIN_MS) -> Spin:
    """Return a spin of about the given length at the present SM clock: the highest of some readings, as it may rise.

    Where the timer stands still, the length follows from a clock that GPUs usually have; nothing else depends on it.
    """
    readings: list[float] = []
    for _ in range(_READINGS):
        clock.spin(0, _FIRST_CYCLES)
        readings += [mhz for mhz in clock.read_mhz()[:1] if mhz is not None]
    return Spin(clock, round(1e3 * max(readings, default=_USUAL_MHZ) * milliseconds), milliseconds)


def _megahertz(stamps: Sequence[Any]) -> float | None:
    cycles_start, cycles_end, ns_start, ns_end = (int(stamp) for stamp in stamps)
    if ns_end <= ns_start or cycles_end <= cycles_start:
        return None
    return round(1e3 * (cycles_end - cycles_start) / (ns_end - ns_start), 3)
