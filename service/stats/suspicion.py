"""Which commit to suspect: the probability of each place of a step, against no step and against the surroundings."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.stats.history_policy import HistoryPolicy
from service.stats.pairs import Floats
from service.stats.step import StepProfile

HIGHEST_GAIN = 600.0  # exp(300) is still a double; beyond it the ratio of two places is certain anyway


def change_probabilities(profile: StepProfile, open_commits: NDArray[np.int64], policy: HistoryPolicy) -> Floats:
    """Return for each place the probability that the code of a commit there moved the level.

    Place k lies between points k and k + 1 of a track. With L = overfit * exp(gain / 2), or 0 for steps below
    `min_effect`, the hypotheses "nothing moved" (weight 1), "one of the commits at k that no job has cleared"
    (change_rate * open_commits * L) and "the surroundings moved at k" (shift_rate * L) exclude each other, so Bayes's
    rule divides each weight by their sum. The last hypothesis is what makes a refuted suspicion end: without it the
    evidence of a real but innocent shift would fall on one neighbor after the other. Derived here.

    Parameters
    ----------
    profile : StepProfile
        Of the track's n points.
    open_commits : int64[n - 1]
        Commits at each place that no job has judged.
    policy : HistoryPolicy
        Gives the rates, `overfit` and `min_effect`.

    Returns
    -------
    float64[n - 1]
    """
    likelihood = policy.overfit * np.exp(np.minimum(profile.gain, HIGHEST_GAIN) / 2.0)
    likelihood[np.abs(profile.effect) < policy.min_effect] = 0.0
    code = policy.change_rate * open_commits * likelihood
    return np.asarray(code / (1.0 + float(code.sum()) + policy.shift_rate * float(likelihood.sum())))
