"""How much evidence a verdict needs: minimum detectable effect, pairs needed, and what unpaired runs are worth."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from service.stats.interval import Estimate, t_noncentrality, t_quantile
from service.stats.pairs import checked_samples
from service.stats.policy import JudgingPolicy
from service.stats.verdict import CaseDecision, Verdict, reason

MOST_PAIRS = 1000  # a case that needs more is called out of reach


def minimum_detectable_effect(estimated: Estimate, policy: JudgingPolicy) -> float:
    """Return the smallest slow-down (relative) that this look would have called with `policy.detection_power`.

    exp(margin + delta * standard error) - 1, never under `policy.min_effect`, where delta is the noncentrality with
    which Student's t passes its critical value t(1 - alpha_look/2) with that power (Johnson & Welch 1940, Biometrika
    31). For few pairs it is well above the sum of two quantiles, because the scatter is itself an estimate.
    """
    critical = t_quantile(1.0 - policy.look_alpha / 2.0, estimated.degrees)
    delta = t_noncentrality(policy.detection_power, critical, estimated.degrees)
    return max(math.expm1(policy.regression_margin + delta * estimated.standard_error), policy.min_effect)


def pairs_needed(center: float, sd: float, policy: JudgingPolicy) -> int | None:
    """Return how many admitted pairs would decide a case with this center and sd of log ratios; None: out of reach.

    The smallest n with t(1 - a/2, n - 1) * sd / sqrt(n) at most the distance to the nearest verdict: |center| - margin
    at the level of a look for a change, equivalence - |center| at the equivalence level for "unchanged". Rounded up to
    the next planned look. Derived here.
    """
    sd = max(sd, policy.sd_floor)
    size = abs(center)
    goals = []
    if size > max(policy.regression_margin, policy.min_effect):
        goals.append((size - policy.regression_margin, policy.look_alpha))
    if size < policy.equivalence:
        goals.append((policy.equivalence - size, policy.look_equivalence_alpha))
    for n in range(policy.looks[0], MOST_PAIRS + 1):
        if any(t_quantile(1.0 - alpha / 2.0, n - 1) * sd / math.sqrt(n) < room for room, alpha in goals):
            return next((look for look in policy.looks if look >= n), n)
    return None


def needed_hint(center: float, sd: float, policy: JudgingPolicy) -> str:
    """Return the end of a sentence that says how many pairs would do."""
    n = pairs_needed(center, sd, policy)
    if n is None:
        return f"; with pairs scattering by {sd:.1%} even {MOST_PAIRS} would not decide"
    return f"; with pairs scattering by {sd:.1%} about {n} would decide"


def judge_unpaired(before: ArrayLike, after: ArrayLike, policy: JudgingPolicy) -> CaseDecision:
    """Return the decision on runs that were not taken in pairs: always inconclusive, saying what would be enough.

    Runs of one side share whatever state the device was in, so no number of them separates the code from the hour.
    The scatter that pairs would have is estimated as sqrt(var log before + var log after). Derived here.

    Parameters
    ----------
    before, after : array_like
        float64[n]: one value per process, in one unit.
    policy : JudgingPolicy
        Says what would be enough.

    Raises
    ------
    ValueError
        Naming the argument, for values that are not finite and above 0.
    """
    a, b = checked_samples("before", before), checked_samples("after", after)
    center = float(np.median(np.log(b)) - np.median(np.log(a)))
    variances = [float(np.log(side).var(ddof=1)) for side in (a, b) if side.size > 1]
    hint = needed_hint(center, math.sqrt(sum(variances)), policy) if len(variances) == 2 else ""
    why = reason("unpaired", before=a.size, after=b.size, effect=math.expm1(center), hint=hint)
    return CaseDecision(
        Verdict.INCONCLUSIVE,
        (why,),
        effect=math.expm1(center),
        before=float(np.median(a)),
        after=float(np.median(b)),
        evidence={"unpaired": {"before": a.tolist(), "after": b.tolist()}},
    )
