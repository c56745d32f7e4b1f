"""Intervals of a proportion that was counted: false alarms of so many verdicts, found changes of so many planted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LEVEL = 0.95


@dataclass(frozen=True)
class Proportion:
    """`count` of `trials`; with no trials nothing is known, and nothing is said (never 0 %).

    Raises
    ------
    ValueError
        When the count is below 0 or above the trials.
    """

    count: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.trials:
            raise ValueError(f"count: expected from 0 to trials ({self.trials}), got {self.count}")

    @property
    def rate(self) -> float | None:
        """Return count / trials, None without trials."""
        return self.count / self.trials if self.trials else None

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the two-sided interval that holds the true rate with at least `level`, None without trials.

        Quantiles of the beta law, so that neither 0 of n nor n of n gives an interval without width.
        Source: Clopper & Pearson (1934), Biometrika 26.
        """
        if not self.trials:
            return None
        from scipy.special import betaincinv

        tail, failures = (1.0 - level) / 2.0, self.trials - self.count
        low = float(betaincinv(self.count, failures + 1, tail)) if self.count else 0.0
        high = float(betaincinv(self.count + 1, failures, 1.0 - tail)) if failures else 1.0
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Return count, trials, rate and the interval's ends as plain JSON types, null where nothing is known."""
        low, high = self.interval() or (None, None)
        return {"count": self.count, "trials": self.trials, "rate": self.rate, "low": low, "high": high}

    def __add__(self, other: Proportion) -> Proportion:
        return Proportion(self.count + other.count, self.trials + other.trials)
