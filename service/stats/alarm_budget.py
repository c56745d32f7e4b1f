"""Many series at once: how many false alarms a commit may raise over all of them together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlarmBudget:
    """What the confirmation jobs of one new commit may still spend: an expected number of false alarms.

    Jobs come in waves: all series that ask because of the same commit, then the follow-ups. A wave spends half of what
    is left, evenly over its jobs, so all waves together never spend more than the first budget (Bonferroni's bound per
    wave; halving as in alpha-spending, Lan & DeMets 1983, Biometrika 70). It holds whatever made the series ask, as a
    job's evidence is measured after that, and under any dependence between the cases of a job.
    """

    left: float

    def __post_init__(self) -> None:
        if not 0.0 < self.left < 1.0:
            raise ValueError(f"left: expected an expected number of false alarms between 0 and 1, got {self.left!r}")

    def wave(self, jobs: int, alpha: float) -> tuple[float, AlarmBudget]:
        """Return the two-sided level at which each of a wave's jobs is judged, and the budget of the next wave.

        A job judged at a lower level takes more pairs where it needs them; it does not lose what it would have found.

        Parameters
        ----------
        jobs : int
            How many series ask in this wave.
        alpha : float
            `JudgingPolicy.alpha`, the level of a job that stands alone and the highest one returned.

        Raises
        ------
        ValueError
            For less than one job.
        """
        if jobs < 1:
            raise ValueError(f"jobs: expected 1 or more, got {jobs!r}")
        return min(alpha, self.left / 2.0 / jobs), AlarmBudget(self.left / 2.0)
