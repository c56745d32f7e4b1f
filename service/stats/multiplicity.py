"""Many cases in one job: control of the false discovery rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray


def benjamini_hochberg(p_values: ArrayLike, rate: float) -> NDArray[np.bool_]:
    """Return which hypotheses are rejected so that the expected share of false rejections is at most `rate`.

    With p sorted up, reject the k smallest for the largest k with p(k) <= k * rate / m. Benjamini & Hochberg (1995),
    JRSS B 57, theorem 1; holds under positive dependence too (Benjamini & Yekutieli 2001), which is what cases that
    share processes have.

    Parameters
    ----------
    p_values : array_like
        float64[m], from 0 to 1.
    rate : float
        Between 0 and 1.

    Returns
    -------
    bool[m]
        In the order given.

    Raises
    ------
    ValueError
        When a p is outside [0, 1] or not a number, or `rate` is not between 0 and 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise ValueError(f"p_values: expected one dimension of numbers from 0 to 1, got {p_values!r}")
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate: expected a number between 0 and 1, got {rate!r}")
    order = np.argsort(p, kind="stable")
    passed = np.flatnonzero(p[order] <= rate * np.arange(1, p.size + 1) / max(p.size, 1))
    rejected = np.zeros(p.size, dtype=np.bool_)
    if passed.size:
        rejected[order[: passed[-1] + 1]] = True
    return rejected


def discoveries(p_values: Mapping[str, float], rate: float) -> frozenset[str]:
    """Return the names whose p survives `benjamini_hochberg` at `rate`."""
    if not p_values:
        return frozenset()
    names = list(p_values)
    kept = benjamini_hochberg([p_values[name] for name in names], rate)
    return frozenset(name for name, survives in zip(names, kept, strict=True) if survives)
