"""One step in a short series of log values, by a bounded loss: how much each place gains, and how large the step is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.stats.pairs import MAD_TO_SD, Floats

LAST_MEANS = 6  # means of up to so many last points are levels too: a young level has no point near its mean


@dataclass(frozen=True, eq=False)
class StepProfile:
    """For every place between two points what a step there gains, and its size.

    Parameters
    ----------
    gain : float64[n - 1]
        Entry k: bounded loss of one level for all points, less that of one level for points 0..k and one for the rest;
        twice the log likelihood ratio of the step for normal noise. No unit.
    effect : float64[n - 1]
        Level after minus level before, log units.
    """

    gain: Floats
    effect: Floats


def step_profile(values: Floats, scale: float, clip: float) -> StepProfile:
    """Return the profile of a step in n >= 2 log values: a Potts model of at most one jump with a bounded loss.

    The loss of a value y at level m is min(((y - m) / scale)^2, clip^2), the "biweight" of Fearnhead & Rigaill (2019),
    JASA 114, so accidents that do not agree with each other buy no step. Levels are searched among the values and the
    means of the last 2 .. 6 values. O(n^2).

    Raises
    ------
    ValueError
        Naming the argument.
    """
    if values.ndim != 1 or values.size < 2:
        raise ValueError(f"values: expected one dimension with 2 or more values, got shape {values.shape}")
    if not scale > 0.0:
        raise ValueError(f"scale: expected a number above 0, got {scale!r}")
    recent = [float(values[-k:].mean()) for k in range(2, min(LAST_MEANS, values.size) + 1)]
    levels = np.concatenate([values, recent])
    loss = (values[None, :] - levels[:, None]) / scale
    np.multiply(loss, loss, out=loss)
    np.minimum(loss, clip * clip, out=loss)
    up_to = np.cumsum(loss, axis=1)
    total, before = up_to[:, -1:], up_to[:, :-1]
    after = total - before
    left, right, at = before.argmin(axis=0), after.argmin(axis=0), np.arange(values.size - 1)
    gain = float(total.min()) - before[left, at] - after[right, at]
    return StepProfile(gain, levels[right] - levels[left])


def scatter_of_differences(differences: Sequence[float], floor: float) -> float:
    """Return the scatter of single points from the absolute differences of neighbors, at least `floor`; log units.

    median|d| * 1.4826 / sqrt(2) (Hampel 1974, JASA 69; von Neumann 1941 for differences): a step moves one difference
    and slow drift almost none. For n differences multiplied by 1 + 4/n, because few of them may all be small by chance.
    """
    if not differences:
        return floor
    usual = MAD_TO_SD * float(np.median(np.asarray(differences, dtype=np.float64))) / math.sqrt(2.0)
    return max(usual * (1.0 + 4.0 / len(differences)), floor)


def smallest_step(values: Floats) -> float:
    """Return the smallest difference between distinct values, 0.0 when all are equal; log units.

    On values of a coarse timer this is its step; on others it is far below any effect.
    """
    distinct = np.unique(values)
    return float(np.diff(distinct).min()) if distinct.size > 1 else 0.0
