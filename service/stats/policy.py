"""The numbers of judging as one frozen, named, versioned value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class JudgingPolicy:
    """Every threshold of a verdict. Effects and tolerances are relative (0.01 is 1 %); levels are probabilities.

    Parameters
    ----------
    looks, look_share
        Numbers of measured pairs at which a case is looked at, once that share of the number is admitted. `alpha` and
        the equivalence level are split evenly over the looks.
    alpha
        Two-sided level of finding "regressed" or "improved" over all looks together, before it is confirmed.
    confirm_looks, confirm_alpha
        A change that was found is told only when fresh pairs show it again: looks at these numbers of them, at this
        two-sided level over all of those looks.
    regression_margin, min_effect
        The interval has to lie beyond the margin and the effect beyond `min_effect`.
    equivalence, equivalence_level
        "unchanged" when the interval at this level lies inside +-equivalence.
    sd_floor
        No scatter of pairs below this is believed (timer, rounding).
    trim, trim_from
        From `trim_from` admitted pairs on, this share is trimmed off each end before the t interval.
    sign_level
        A change also has to pass a one-sided sign test at this level.
    max_timer_step
        Timer steps up to this size are looked for; an effect of no more than one step is rounding.
    min_pairs, min_samples
        Fewest admitted pairs of a final look, and fewest samples of a process.
    max_throttled_share, clock_tolerance, clock_floor, clock_quantile, power_cap_tolerance
        Admission on GPUs: share of throttled samples; difference between the arms' clocks; share of the job's upper
        clock (that quantile over the pairs) which a clock must reach; difference between the arms' capped shares.
    device_clock_tolerance
        Difference between the arms' clocks as the device itself read them; None: shown, but no reason to reject.
    max_steal_share, max_foreign_share
        Admission on CPUs.
    min_admitted_share, hopeless_after, hopeless_share
        Under the first share a job is throttled; under the last, after so many measured pairs, it stops at once.
    stable_scatter, stable_clock
        Scatter under this part of the usual, at clocks under this part of the usual, is a throttled state.
    power_limited_share
        Share of capped pairs from which on the regime is power limited and "unchanged" may not be said.
    detection_power
        Probability with which the minimum detectable effect would have been called.
    false_discovery_rate
        Level of Benjamini-Hochberg over the cases of a job.
    canary_effect, crowd_share, crowd_groups
        A canary that moves more than this, or more than this share of at least so many kernel groups moving the
        same way, makes the verdict "environment".
    numerics_growth
        An error that is this many times the baseline's is reported.
    """

    name: str = "default"
    version: int = 3
    looks: tuple[int, ...] = (8, 12, 16, 24, 32, 48)
    look_share: float = 0.75
    alpha: float = 0.04
    confirm_looks: tuple[int, ...] = (5, 8, 12, 24)
    confirm_alpha: float = 0.05
    regression_margin: float = 0.003
    min_effect: float = 0.005
    equivalence: float = 0.01
    equivalence_level: float = 0.95
    sd_floor: float = 0.0005
    trim: float = 0.1
    trim_from: int = 16
    sign_level: float = 0.05
    max_timer_step: float = 0.03
    min_pairs: int = 5
    min_samples: int = 5
    max_throttled_share: float = 0.05
    clock_tolerance: float = 0.015
    device_clock_tolerance: float | None = 0.015
    clock_floor: float = 0.96
    clock_quantile: float = 0.75
    power_cap_tolerance: float = 0.2
    max_steal_share: float = 0.05
    max_foreign_share: float = 0.05
    min_admitted_share: float = 0.5
    hopeless_after: int = 24
    hopeless_share: float = 0.25
    stable_scatter: float = 0.5
    stable_clock: float = 0.98
    power_limited_share: float = 0.1
    detection_power: float = 0.95
    false_discovery_rate: float = 0.05
    canary_effect: float = 0.005
    crowd_share: float = 1.0 / 3.0
    crowd_groups: int = 6
    numerics_growth: float = 10.0

    def __post_init__(self) -> None:
        for name in ("looks", "confirm_looks"):
            looks = tuple(int(n) for n in getattr(self, name))
            object.__setattr__(self, name, looks)
            if not looks or looks[0] < 2 or any(b <= a for a, b in pairwise(looks)):
                raise ValueError(f"{name}: expected increasing numbers of pairs from 2 on, got {looks}")
        levels = ("alpha", "confirm_alpha", "equivalence_level", "sign_level", "detection_power")
        for name in (*levels, "false_discovery_rate"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name}: expected a probability between 0 and 1, got {getattr(self, name)!r}")
        for name in ("sd_floor", "equivalence"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)!r}")
        if self.device_clock_tolerance is not None and not self.device_clock_tolerance > 0.0:
            got = self.device_clock_tolerance
            raise ValueError(f"device_clock_tolerance: expected a number above 0 or None, got {got!r}")
        if not 0.0 < self.look_share <= 1.0:
            raise ValueError(f"look_share: expected a share above 0 and up to 1, got {self.look_share!r}")
        if not 0.0 <= self.trim < 0.5:
            raise ValueError(f"trim: expected a share from 0 to under 0.5, got {self.trim!r}")
        if self.min_pairs < 2:
            raise ValueError(f"min_pairs: expected 2 or more, got {self.min_pairs!r}")

    @classmethod
    def for_device(cls, device_class: str) -> JudgingPolicy:
        """Return the policy of a device class: `cpu` has its own, every other one is a GPU's.

        On a CPU that is shared with others single pairs go far astray, so trimming begins earlier and takes more;
        frequency readings there are coarse, so the arms may differ by 3 %.
        """
        if device_class == "cpu":
            return cls(name="cpu", trim=0.15, trim_from=12, clock_tolerance=0.03)
        return cls()

    def pairs_for_look(self, number: int) -> int:
        """Return how many admitted pairs look `number` (from 0) needs: look_share * looks[number], at least min_pairs.

        Which pairs are admitted depends on telemetry alone, so when a look takes place says nothing about the times.
        """
        return max(math.ceil(self.look_share * self.looks[number] - 1e-9), self.min_pairs)

    def with_budget(self, pairs: int) -> JudgingPolicy:
        """Return this policy with the looks that fit into `pairs` measured pairs: those below it, and `pairs` itself.

        The level is split over the looks that remain, so a small budget is not charged for looks it cannot take.
        Confirming a change takes no more pairs than that once more.

        Raises
        ------
        ValueError
            When `pairs` is below 2.
        """
        if pairs < 2:
            raise ValueError(f"pairs: expected a budget of 2 or more pairs, got {pairs!r}")
        confirming = min(pairs, self.confirm_looks[-1])
        return replace(
            self,
            looks=(*(n for n in self.looks if n < pairs), pairs),
            confirm_looks=(*(n for n in self.confirm_looks if n < confirming), confirming),
        )

    def confirming(self) -> JudgingPolicy:
        """Return the policy by which fresh pairs confirm a change that was found.

        No margin: that the change is beyond it has been shown, that the fresh pairs move the same way and by more than
        `min_effect` has to be.
        """
        return replace(self, looks=self.confirm_looks, alpha=self.confirm_alpha, regression_margin=0.0)

    def unconfirmed(self) -> JudgingPolicy:
        """Return the policy for what is believed without fresh pairs: at the level that finding and confirming have."""
        return replace(self, alpha=self.told_alpha)

    @property
    def told_alpha(self) -> float:
        """Two-sided level of a change that is told: alpha * confirm_alpha / 2, as its direction is given by then."""
        return self.alpha * self.confirm_alpha / 2.0

    def at_level(self, level: float) -> JudgingPolicy:
        """Return this policy with `level` as that of a change which is told: `told_alpha`, where nothing lowers it."""
        return replace(self, alpha=self.alpha * level / self.told_alpha)

    @property
    def look_alpha(self) -> float:
        """Two-sided level of one look: alpha / number of looks (Bonferroni)."""
        return self.alpha / len(self.looks)

    @property
    def look_equivalence_alpha(self) -> float:
        """Two-sided level of one look's equivalence interval: (1 - equivalence_level) / number of looks."""
        return (1.0 - self.equivalence_level) / len(self.looks)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_dict` gives the same policy back."""
        return {**asdict(self), "looks": list(self.looks), "confirm_looks": list(self.confirm_looks)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JudgingPolicy:
        """Build a policy from `to_dict`'s output; names that are left out keep their defaults.

        Raises
        ------
        ValueError
            Naming the entries that no policy has.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"policy: expected only {', '.join(sorted(known))}; got {', '.join(unknown)}")
        return cls(**values)
