"""What identical code measured against itself says of a device: false alarms, noise floor, detectable effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.stats.proportion import Proportion
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict

DECIDED = CHANGES | {Verdict.UNCHANGED}


@dataclass(frozen=True)
class IdenticalVerdict:
    """A verdict on identical code. `scatter` is the noise floor of its pairs; ratios, None where nothing is known."""

    verdict: Verdict
    effect: float | None = None
    scatter: float | None = None
    minimum_detectable_effect: float | None = None


@dataclass(frozen=True)
class Calibration:
    """What some verdicts on identical code come to.

    Parameters
    ----------
    false_alarms
        Changes among the verdicts that decided (a change or "unchanged"). Undecided ones are left out: a job that was
        broken off early accuses nobody, and must not make the rate look better.
    verdicts
        How often each verdict was given.
    noise_floor
        Median standard deviation of the log ratio of one pair; None where no verdict has one.
    minimum_detectable_effect
        Median over the verdicts that have one.
    """

    false_alarms: Proportion
    verdicts: Mapping[str, int]
    noise_floor: float | None
    minimum_detectable_effect: float | None

    @classmethod
    def of(cls, found: Iterable[IdenticalVerdict]) -> Calibration:
        """Sum verdicts up; none at all is allowed, and then nothing is known."""
        rows = list(found)
        counts = Counter(row.verdict for row in rows)
        return cls(
            false_alarms=Proportion(sum(counts[one] for one in CHANGES), sum(counts[one] for one in DECIDED)),
            verdicts={str(verdict): counts[verdict] for verdict in Verdict if counts[verdict]},
            noise_floor=_median([row.scatter for row in rows]),
            minimum_detectable_effect=_median([row.minimum_detectable_effect for row in rows]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "false_alarms": self.false_alarms.to_dict(),
            "verdicts": dict(self.verdicts),
            "noise_floor": self.noise_floor,
            "minimum_detectable_effect": self.minimum_detectable_effect,
        }


def pair_scatter(evidence: Mapping[str, Any]) -> float | None:
    """Return the standard deviation of the log ratios of the admitted pairs in a decision's evidence.

    That is what one pair of identical code scatters by on this device. None with fewer than two admitted pairs.
    """
    ratios = [pair["log_ratio"] for pair in evidence.get("pairs", ()) if pair["admitted"]]
    return float(np.std(ratios, ddof=1)) if len(ratios) >= 2 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None
