"""From a suspicion to a named commit: a job over the suspected commits, then bisection with every end measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict

ATTEMPTS = 2  # an undecided or throttled job is asked for once more
UNDECIDED = frozenset({Verdict.INCONCLUSIVE, Verdict.THROTTLED, Verdict.ENVIRONMENT})

Range = tuple[int, int]


@dataclass(frozen=True)
class Request:
    """A job that is asked for: positions of the candidate and of its baseline, an earlier commit of the same line."""

    candidate: int
    baseline: int


@dataclass(frozen=True)
class Outcome:
    """What a job said: `effect` and `interval` are candidate over baseline minus 1; NOT_COMPARABLE if it cannot run."""

    candidate: int
    baseline: int
    verdict: Verdict
    effect: float | None = None
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.baseline < self.candidate:
            got = f"baseline {self.baseline} and candidate {self.candidate}"
            raise ValueError(f"baseline: expected a position from 0 to before the candidate's, got {got}")
        if self.verdict in CHANGES and self.effect is None:
            raise ValueError(f"effect: expected a number with verdict {self.verdict}, got None")


@dataclass(frozen=True)
class Investigation:
    """An open search on one device. Commit p is in the range (low, high] when low < p <= high.

    Parameters
    ----------
    device
        Whose track raised the suspicion.
    low, high
        The range under test: a job of `high` against `low` is out.
    others
        Ranges still to try when this one is cleared.
    found
        Smallest range in which a job has shown a change, with that job's effect and interval.
    cleared, unavailable
        Ranges that jobs have cleared, and those that no job could decide.
    attempt
        Jobs already spent on this range without a decision.
    """

    device: str
    low: int
    high: int
    others: tuple[Range, ...] = ()
    found: Outcome | None = None
    cleared: tuple[Range, ...] = ()
    unavailable: tuple[Range, ...] = ()
    attempt: int = 0

    @property
    def request(self) -> Request:
        """The job that is out."""
        return Request(self.high, self.low)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` gives the same investigation back."""
        found = None
        if self.found is not None:
            one = self.found
            interval = None if one.interval is None else list(one.interval)
            found = [one.candidate, one.baseline, str(one.verdict), one.effect, interval]
        ranges = {name: [list(part) for part in getattr(self, name)] for name in ("others", "cleared", "unavailable")}
        return {
            "device": self.device, "low": self.low, "high": self.high, "attempt": self.attempt, "found": found, **ranges
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Investigation:
        """Build an investigation from `to_dict`'s output."""
        found = None
        if values["found"] is not None:
            candidate, baseline, verdict, effect, interval = values["found"]
            found = Outcome(
                candidate, baseline, Verdict(verdict), effect, None if interval is None else tuple(interval)
            )
        ranges = {name: _ranges(values[name]) for name in ("others", "cleared", "unavailable")}
        return cls(values["device"], values["low"], values["high"], found=found, attempt=values["attempt"], **ranges)


@dataclass(frozen=True)
class Finding:
    """How an investigation ended.

    `change` is the job that compared the guilty commit with its own parent; None when no commit is proven. `found` is
    then the smallest range proven to hold a change, if any.
    """

    change: Outcome | None
    found: Outcome | None
    cleared: tuple[Range, ...]
    unavailable: tuple[Range, ...]


def advance(search: Investigation, outcome: Outcome) -> Investigation | Finding:
    """Return the next request of a search, or how it ended.

    A change in (low, high] is looked for in its earlier half and, when that is cleared, in its later half, each by a
    job of the half's two ends; a single commit against its parent ends the search. So the last word is always a direct
    comparison, and when both halves of a proven range are cleared, nobody is accused. Derived here.

    Raises
    ------
    ValueError
        When the outcome is not that of the request which is out.
    """
    if (outcome.candidate, outcome.baseline) != (search.high, search.low):
        got = f"{outcome.candidate} against {outcome.baseline}"
        raise ValueError(f"outcome: expected {search.high} against {search.low}, got {got}")
    part = (search.low, search.high)
    if outcome.verdict in CHANGES:
        if search.high - search.low == 1:
            return Finding(outcome, outcome, search.cleared, search.unavailable)
        middle = (search.low + search.high) // 2
        return replace(search, high=middle, others=((middle, search.high),), found=outcome, attempt=0)
    if outcome.verdict is Verdict.UNCHANGED:
        return _next(replace(search, cleared=(*search.cleared, part)))
    if outcome.verdict in UNDECIDED and search.attempt + 1 < ATTEMPTS:
        return replace(search, attempt=search.attempt + 1)
    return _next(replace(search, unavailable=(*search.unavailable, part)))


def _next(search: Investigation) -> Investigation | Finding:
    if not search.others:
        return Finding(None, search.found, search.cleared, search.unavailable)
    low, high = search.others[0]
    return replace(search, low=low, high=high, others=search.others[1:], attempt=0)


def _ranges(values: Sequence[Sequence[int]]) -> tuple[Range, ...]:
    return tuple((low, high) for low, high in values)
