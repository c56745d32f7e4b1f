"""The numbers of judging a history as one frozen, named, versioned value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class HistoryPolicy:
    """Every threshold of a history, with the noise it answers to. Effects are relative; gains are in units of variance.

    Parameters
    ----------
    window, warm_up
        A track keeps its last `window` points since its last boundary, and says nothing before `warm_up` points. 64
        points know a level to an eighth of the scatter, and slow drift moves little within them.
    clip
        A point counts no more than clip^2 against a level. Of normal noise 0.3 % lies beyond 3 sd; what lies further
        out is an accident, and how far says nothing.
    scale_floor
        No scatter below this is believed: medians of identical processes on an H200 scatter by 0.04-0.2 %.
    min_effect
        Steps below this raise no suspicion. A job calls nothing under 0.5 % a change; steps are estimated from few
        points, so a little less is asked.
    change_rate, shift_rate
        Prior probability per commit that code moved the level, and that the surroundings did. GPU histories show about
        5 changes per 1,000 commits, and levels move at least as often where no code did.
    overfit
        What the likelihood of a step is multiplied with because its size was fitted to the same points: the share of
        the plausible sizes that agrees with one point, a scatter of about 0.5 % among steps of 1-2 %.
    price
        A job is asked for when it finds a change with at least this probability: 20 jobs per change, 100 in 1,000
        commits at the prior rate.
    burst, refill
        Jobs in hand, and how many a new commit adds: in the long run what the price comes to. With jobs running out
        the price rises to price * burst / (jobs left), so a series that only scatters cannot occupy the device.
    upper_clock, clock_floor, clock_memory
        A point under `clock_floor` of that quantile of the last `clock_memory` clocks is a gap; as in a job.
    clock_prior
        How much squared log clock it takes until a track's own slope of time over clock outweighs the prior of 1/2,
        halfway between memory-bound (0) and compute-bound (1): one change of state by 1.7 %.
    shift_gain, shift_points, shift_contrast
        A level has moved, whatever moved it, when a step gains this much and has this many points behind it (five
        points beyond the clip would do), and when a step that many points aside gains less by the contrast of one
        point: a slope has no such place.
    named_contrast, named_effect
        An unconfirmed step names its commit only when the commits beside it fit worse by almost a whole point and the
        step exceeds 5 %, by which a sixth of the commits without code move a real history.
    max_timer_step
        Timer steps up to this size are looked for; an unconfirmed step of no more than one of them is rounding.
    drift_effect, drift_span, drift_anchor, drift_share, drift_points
        A drift is noticed when the level left an anchor of `drift_span` commits ago by more than this. Anchors are set
        every `drift_anchor` commits from `drift_points` points and never moved; when a single stretch between anchors
        holds more than `drift_share` of the way, it is a step.
    alarm_level
        Expected number of false alarms per commit over all series together.
    """

    name: str = "default"
    version: int = 1
    window: int = 64
    warm_up: int = 6
    clip: float = 3.0
    scale_floor: float = 0.001
    min_effect: float = 0.004
    change_rate: float = 0.005
    shift_rate: float = 0.005
    overfit: float = 0.3
    price: float = 0.05
    burst: float = 15.0
    refill: float = 0.1
    upper_clock: float = 0.9
    clock_floor: float = 0.957
    clock_memory: int = 100
    clock_prior: float = 0.0003
    shift_gain: float = 40.0
    shift_points: int = 5
    shift_contrast: float = 9.0
    named_contrast: float = 8.0
    named_effect: float = 0.05
    max_timer_step: float = 0.03
    drift_effect: float = 0.02
    drift_span: int = 100
    drift_anchor: int = 25
    drift_share: float = 0.6
    drift_points: int = 15
    alarm_level: float = 0.02

    def __post_init__(self) -> None:
        for name in ("change_rate", "shift_rate", "overfit", "price", "upper_clock", "clock_floor", "alarm_level"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name}: expected a number between 0 and 1, got {getattr(self, name)!r}")
        for name in ("clip", "scale_floor", "min_effect", "shift_gain", "burst", "refill", "drift_effect"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)!r}")
        if not 4 <= self.warm_up <= self.window:
            raise ValueError(f"warm_up: expected from 4 to window ({self.window}), got {self.warm_up!r}")
        if self.shift_points < 2:
            raise ValueError(f"shift_points: expected 2 or more, got {self.shift_points!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_dict` gives the same policy back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HistoryPolicy:
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
