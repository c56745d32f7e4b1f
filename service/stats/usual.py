"""What a case usually shows on a device, from the evidence of earlier verdicts: a new job is held against it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from service.stats.admission import CaseHistory

LEAST_JOBS = 5  # earlier jobs from which on there is a usual
LEAST_PAIRS = 5  # admitted pairs from which on a job counts


def usual_of(evidences: Iterable[Mapping[str, Any]]) -> CaseHistory | None:
    """Return the medians over earlier jobs of what their admitted pairs showed; None with fewer than `LEAST_JOBS`.

    `clock_top` is the job's highest clock, `scatter` that inside its processes, `pair_sd` the standard deviation of its
    log ratios. `clock_low` stays unknown: a lowest clock that only admitted pairs can lower would bar a device for good
    that has settled a little below it.

    Parameters
    ----------
    evidences : iterable of mapping
        As `decide` makes them, of one case version on one device.
    """
    jobs = [pairs for evidence in evidences if len(pairs := _admitted(evidence)) >= LEAST_PAIRS]
    if len(jobs) < LEAST_JOBS:
        return None
    tops = [max(clocks) for pairs in jobs if (clocks := _values(pairs, "clock_before", "clock_after"))]
    scatters = [median(values) for pairs in jobs if (values := _values(pairs, "scatter_before", "scatter_after"))]
    deviations = [float(np.std(_values(pairs, "log_ratio"), ddof=1)) for pairs in jobs]
    return CaseHistory(
        clock_top=median(tops) if len(tops) >= LEAST_JOBS else None,
        scatter=median(scatters) if len(scatters) >= LEAST_JOBS else None,
        pair_sd=median(deviations),
    )


def _admitted(evidence: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [pair for pair in evidence.get("pairs") or () if pair["admitted"]]


def _values(pairs: Sequence[Mapping[str, Any]], *names: str) -> list[float]:
    found = (pair.get(name) for pair in pairs for name in names)
    return [float(value) for value in found if value is not None]
