"""Lays the samples of a case on the readings taken around them: what the statistics need to trust or reject a pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.stats.pairs import ArmObservation
from service.worker.document import CaseResult, Document, Telemetry

# NVML refreshes its readings every 100 ms and reports a clock that rose from idle up to 200 ms late (H200, driver 580,
# 2026-11: 345 MHz read 90 ms into kernels that ran at 1965 MHz). So a reading tells of the time before it.
REACH_S = 0.1
LAG_S = 0.2
# A reading under this share of the highest one of the process is taken for an idle one that came late.
IDLE_SHARE = 0.5
# NVML's clock event reasons: hardware slowdown, software and hardware thermal slowdown, power brake.
THROTTLE_REASONS = 0x8 | 0x20 | 0x40 | 0x80
POWER_CAP = 0x4


def observe(document: Document, case: CaseResult) -> ArmObservation:
    """Return a case's samples with the state of its device while they were taken."""
    telemetry = document.telemetry
    times = _column(telemetry, "t_s")
    start = np.array(case.sample_start_s) if case.sample_start_s else np.zeros(len(case.samples))
    end = np.array(case.sample_end_s) if case.sample_end_s else np.full(len(case.samples), document.wall_s)
    window = (float(start.min()), float(end.max()))
    foreign = _within(times, _column(telemetry, "foreign_processes"), window)
    return ArmObservation(
        samples=np.array(case.samples),
        throttled_share=_flagged_share(telemetry, THROTTLE_REASONS, (start, end)),
        sm_clock=_clock(times, _column(telemetry, "sm_clock_mhz"), window),
        mem_clock=_clock(times, _column(telemetry, "mem_clock_mhz"), window),
        device_clock=_device_clock(case),
        steal_share=_mean_share(times, _column(telemetry, "steal_share"), window),
        foreign_share=_mean_share(times, _column(telemetry, "foreign_share"), window),
        foreign_processes=int(foreign.max()) if foreign.size else 0,
        new_errors=sum(_increase(telemetry, name) for name in ("ecc_uncorrected", "xid_errors")),
        power_capped_share=_flagged_share(telemetry, POWER_CAP, (start, end)),
    )


def _column(telemetry: Telemetry, name: str) -> np.ndarray:
    """Return a column as floats, NaN where it has no reading."""
    if name not in telemetry.columns:
        return np.full(len(telemetry.rows), np.nan)
    index = telemetry.columns.index(name)
    return np.array([np.nan if row[index] is None else float(row[index] or 0.0) for row in telemetry.rows])


def _clock(times: np.ndarray, values: np.ndarray, window: tuple[float, float]) -> float | None:
    """Return the median of the readings about a window, without those that still show the idle clock from before it."""
    known = np.isfinite(values) & (values > 0)
    times, values = times[known], values[known]
    if not values.size:
        return None
    awake = values >= IDLE_SHARE * values.max()
    times, values = times[awake], values[awake]
    near = values[(times >= window[0]) & (times <= window[1] + LAG_S)]
    return float(np.median(near)) if near.size else float(values[int(np.argmin(np.abs(times - sum(window) / 2)))])


def _device_clock(case: CaseResult) -> float | None:
    """Return the median over the samples of what the device read around each: the mean of before and after."""
    readings = zip(case.device_clock_before_mhz, case.device_clock_after_mhz, strict=False)
    means = [(before + after) / 2 for before, after in readings if before is not None and after is not None]
    return float(np.median(means)) if means else None


def _within(times: np.ndarray, values: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    """Return the readings about a window, or the one nearest to it."""
    known = np.isfinite(values)
    times, values = times[known], values[known]
    if not values.size:
        return values
    chosen = (times >= window[0] - REACH_S) & (times <= window[1] + LAG_S)
    if not chosen.any():
        return values[[int(np.argmin(np.abs(times - sum(window) / 2)))]]
    return values[chosen]


def _flagged_share(telemetry: Telemetry, mask: int, spans: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the share of samples with a reading about them that carries a flag of `mask`."""
    reasons = _column(telemetry, "reasons")
    known = np.isfinite(reasons)
    if not known.any():
        return 0.0
    times = _column(telemetry, "t_s")[known]
    flagged = (reasons[known].astype(np.int64) & mask) != 0
    hits = [flagged[_near(times, start, end)].any() for start, end in zip(*spans, strict=True)]
    return float(np.mean(hits)) if hits else 0.0


def _near(times: np.ndarray, start: float, end: float) -> np.ndarray:
    near = (times >= start - REACH_S) & (times <= end + LAG_S)
    if not near.any():
        near[int(np.argmin(np.abs(times - (start + end) / 2)))] = True
    return near


def _mean_share(times: np.ndarray, shares: np.ndarray, window: tuple[float, float]) -> float:
    """Return the mean share over a window; each row tells of the time since the row before it."""
    known = np.isfinite(shares)
    times, shares = times[known], shares[known]
    if not shares.size:
        return 0.0
    begins = np.concatenate([[min(0.0, float(times[0]))], times[:-1]])
    overlap = np.clip(np.minimum(times, window[1]) - np.maximum(begins, window[0]), 0.0, None)
    if overlap.sum() <= 0:
        return float(shares[int(np.argmin(np.abs(times - sum(window) / 2)))])
    return float((overlap * shares).sum() / overlap.sum())


def _increase(telemetry: Telemetry, name: str) -> int:
    readings: Sequence[float | int | None] = telemetry.counters.get(name, ())
    known = [value for value in readings if value is not None]
    return max(0, int(known[-1] - known[0])) if len(known) > 1 else 0
