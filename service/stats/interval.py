"""Location and interval of the pairs' log ratios: Student's t for few pairs, the trimmed t for more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from service.stats.pairs import Floats
from service.stats.policy import JudgingPolicy


@dataclass(frozen=True)
class Estimate:
    """Center of log ratios with its standard error (log units), degrees of freedom, and how it came about.

    `sd` is the scatter of single pairs that stands behind the standard error, `observed_sd` the one without any floor.
    """

    center: float
    standard_error: float
    degrees: int
    sd: float
    observed_sd: float
    trimmed: int

    def half_width(self, alpha: float) -> float:
        """Return half the two-sided interval at 1 - alpha, log units: t(1 - alpha/2, degrees) * standard error."""
        return t_quantile(1.0 - alpha / 2.0, self.degrees) * self.standard_error

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided interval at level 1 - alpha, log units."""
        half = self.half_width(alpha)
        return self.center - half, self.center + half

    def p_beyond(self, margin: float) -> float:
        """Return the two-sided p of "|center| <= margin": 2 * P(T >= (|center| - margin) / standard error), at most 1.

        It is at most alpha exactly where the interval at 1 - alpha lies outside +-margin. Derived here.
        """
        excess = (abs(self.center) - margin) / self.standard_error
        return min(1.0, 2.0 * t_tail(excess, self.degrees)) if excess > 0.0 else 1.0


def estimate(values: Floats, policy: JudgingPolicy, usual_sd: float | None = None) -> Estimate:
    """Return center and standard error of n >= 2 log ratios.

    Under `policy.trim_from` values: mean, s / sqrt(n), n - 1 degrees (Student 1908). From there on, with
    g = floor(trim * n) values cut off each end and h = n - 2g: the trimmed mean, and s_w / ((h/n) sqrt(n)) with the
    winsorized standard deviation s_w and h - 1 degrees (Tukey & McLaughlin 1963, Sankhya A 25; Yuen 1974, Biometrika
    61). Against the level of a look (1.7e-4), 400,000 simulated sets of 16 and 24 normal values exceeded it 1.2 times
    as often as they should with trim 0.1, heavy-tailed ones (t3, 10 % outliers of 10 sd) 0.5-0.9 times.

    Scatter below `policy.sd_floor` is replaced by it, and scatter under a third of `usual_sd` by `usual_sd`:
    stability beyond the usual is never better evidence.
    """
    n = values.size
    if n < 2:
        raise ValueError(f"values: expected 2 or more, got {n}")
    cut = math.floor(policy.trim * n + 1e-9) if n >= policy.trim_from else 0
    ordered = np.sort(values)
    kept = n - 2 * cut
    center = float(ordered[cut : n - cut].mean())
    winsorized = np.clip(ordered, ordered[cut], ordered[n - cut - 1])
    observed = float(winsorized.std(ddof=1)) * n / kept
    sd = max(observed, policy.sd_floor)
    if is_suspiciously_stable(observed, usual_sd):
        sd = max(sd, usual_sd or 0.0)
    return Estimate(center, sd / math.sqrt(n), kept - 1, sd, observed, cut)


def is_suspiciously_stable(sd: float, usual_sd: float | None) -> bool:
    """Return whether a scatter of pairs is under a third of the usual; with no history nothing is suspicious."""
    return usual_sd is not None and sd < usual_sd / 3.0


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Return Student's t quantile of `probability` with `degrees` degrees of freedom."""
    from scipy.special import stdtrit  # imported late: the API process never judges

    return float(stdtrit(degrees, probability))


@lru_cache(maxsize=4096)
def t_noncentrality(power: float, critical: float, degrees: int) -> float:
    """Return the noncentrality with which t of `degrees` degrees exceeds `critical` with probability `power`."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(degrees, 1.0 - power, critical))


def t_tail(value: float, degrees: int) -> float:
    """Return P(T >= value) of Student's t; computed as P(T <= -value), which keeps small probabilities exact."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -value))


def sign_test(values: Floats, direction: float) -> tuple[int, float]:
    """Return how many values have the sign of `direction`, and the one-sided p of so many under a fair coin.

    P(X >= k) for X ~ Binomial(n, 1/2); values of 0 count against (Arbuthnot 1710, Phil. Trans. 27).
    """
    from scipy.special import bdtrc

    agree = int(np.count_nonzero(values * np.sign(direction) > 0.0))
    return agree, 1.0 if agree == 0 else float(bdtrc(agree - 1, values.size, 0.5))
