"""How much longer the other one takes: the median over rounds, and an interval that assumes no distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Ratio(NamedTuple):
    """Median of per-round ratios, theirs to ours (above 1: ours is faster), with an interval of the stated coverage."""

    median: float
    low: float
    high: float
    coverage: float


def ratio_of_rounds(ours_ms: Sequence[float], theirs_ms: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return the ratio of two lists that hold two samples of every round, in the order taken.

    The interval runs between order statistics of the rounds' ratios: r of n independent values lie below their median
    with the probabilities of n tosses of a coin (David and Nagaraja, Order Statistics, 2003, section 7.1). It is the
    narrowest symmetric one with at least ``confidence``; fewer than 6 rounds reach less than 0.95 with their extremes.

    Raises
    ------
    ValueError
        No round, or lists of unequal or odd length.
    """
    if not ours_ms or len(ours_ms) != len(theirs_ms) or len(ours_ms) % 2:
        raise ValueError(f"ours_ms, theirs_ms: got {len(ours_ms)} and {len(theirs_ms)} samples, expected pairs of both")
    ratios = sorted(sum(theirs_ms[i : i + 2]) / sum(ours_ms[i : i + 2]) for i in range(0, len(ours_ms), 2))
    cut = 0
    while cut + 1 < len(ratios) - cut - 1 and _coverage(len(ratios), cut + 1) >= confidence:
        cut += 1
    return Ratio(statistics.median(ratios), ratios[cut], ratios[-1 - cut], _coverage(len(ratios), cut))


def _coverage(count: int, cut: int) -> float:
    """Probability that the median lies between the values that remain when ``cut`` are taken off each end."""
    outside = sum(math.comb(count, below) for below in range(cut + 1)) / 2**count
    return max(0.0, 1.0 - 2.0 * float(outside))
