"""From timed candidates to rows of ``csrc/cuda/tunings.h``: what is faster for certain, and what stays as it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.ratios import Ratio

# A smaller gain is no reason for a row: medians of processes scatter by 0.04-0.2 % (see measure.py), and who begins a
# process, what lies where in memory, comes on top.
LEAST_GAIN = 1.01

# Octets of owners, 8 columns of two rows of the gather table, up to which a row may have tiles of its own (kFewOctets).
FEW_OCTETS = 8192

_STORAGES = {"float32": "kFloat32", "float16": "kFloat16", "bfloat16": "kBfloat16"}


@dataclass(frozen=True)
class Site:
    """Where a policy is chosen: one pass of a case.

    Attributes
    ----------
    pass_name
        ``forward``, ``backward_query`` or ``backward_key``.
    width
        Of the neighborhood: partner latitudes of an owner, their mean rounded up.
    octets
        Of owners, of every batch and head.
    chosen
        The present choice by its numbers, as ``s2attn::cuda_candidates`` gives them; its channels come first.
    """

    case: Case
    pass_name: str
    width: int
    octets: int
    chosen: str

    @property
    def few(self) -> bool:
        """Whether a row from here is for few octets alone."""
        return self.octets <= FEW_OCTETS

    @property
    def key(self) -> tuple[str, str, str, bool, int]:
        """What sites share that one decision is for; those of one row follow each other when sorted."""
        return self.pass_name, self.case.dtype, self.chosen, not self.few, self.width


class Trial(NamedTuple):
    """One candidate in place of the choice; ``ratio`` is the choice's time to the candidate's (above 1: faster)."""

    candidate: str
    ratio: Ratio | None
    error: str | None = None


class Timing(NamedTuple):
    """What was timed at a site."""

    site: Site
    trials: tuple[Trial, ...]


class Decision(NamedTuple):
    """What sites of one key say: the policy to take, and the timings that it rests on."""

    policy: str
    timings: tuple[Timing, ...]


class Where(NamedTuple):
    """What a measurement belongs to; ``architecture`` is 90 for sm_90."""

    architecture: int
    gpu: str
    date: str
    torch: str
    command: str


Confirm = Callable[[Site, str], Trial]


def combine(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric means of medians and of both ends; coverage is the least of them."""
    median, low, high = (
        math.exp(math.fsum(math.log(ratio[field]) for ratio in ratios) / len(ratios)) for field in range(3)
    )
    return Ratio(median, low, high, min(ratio.coverage for ratio in ratios))


def ratios_of(candidate: str, timings: Sequence[Timing]) -> list[Ratio]:
    """Return the ratios of a candidate that has right numbers at every site; empty where it has not."""
    found = [trial for timing in timings for trial in timing.trials if trial.candidate == candidate]
    ratios = [trial.ratio for trial in found if trial.ratio is not None and trial.error is None]
    return ratios if len(ratios) == len(timings) else []


def is_gain(ratios: Sequence[Ratio]) -> bool:
    """Whether a candidate is faster over all sites together for certain, and at none of them slower for certain."""
    return bool(ratios) and all(ratio.high >= 1.0 for ratio in ratios) and combine(ratios).low > LEAST_GAIN


def fastest(timings: Sequence[Timing]) -> str | None:
    """Return the candidate with the largest gain; None where the choice stays."""
    names = dict.fromkeys(trial.candidate for timing in timings for trial in timing.trials)
    gains = {name: ratios for name in names if is_gain(ratios := ratios_of(name, timings))}
    return max(gains, key=lambda name: combine(gains[name]).median, default=None)


def decide(timings: Sequence[Timing], confirm: Confirm) -> Decision:
    """Decide for sites of one key. The best of many looks better than it is: it must win once more, alone."""
    best = fastest(timings)
    if best is not None:
        again = tuple(Timing(timing.site, (confirm(timing.site, best),)) for timing in timings)
        if is_gain(ratios_of(best, again)):
            return Decision(best, again)
    return Decision(timings[0].site.chosen, tuple(timings))


@dataclass(frozen=True)
class Row:
    """A row for the table, with its measurement."""

    policy: str
    timings: tuple[Timing, ...]
    where: Where

    @property
    def site(self) -> Site:
        """The widest of its sites, all of few octets or none: the row is for that width and less."""
        return max((timing.site for timing in self.timings), key=lambda site: site.width)

    @property
    def verdict(self) -> str:
        """``change``, or ``keep`` where no candidate is faster for certain."""
        return "keep" if self.policy == self.site.chosen else "change"

    @property
    def figure(self) -> str:
        """The measurement in words: the gain, or how near the nearest candidate comes."""
        cases = f"torch {self.where.torch}, {len(self.timings)} cases"
        if self.verdict == "change":
            return f"{cases}: {_words(combine(ratios_of(self.policy, self.timings)))} as fast as {self.site.chosen}"
        names = dict.fromkeys(trial.candidate for timing in self.timings for trial in timing.trials)
        known = {name: combine(ratios) for name in names if (ratios := ratios_of(name, self.timings))}
        if not known:
            return f"{cases}: no other candidate ran"
        nearest = max(known, key=lambda name: known[name].median)
        return f"{cases}: of {len(known)} others the nearest, {nearest}, is {_words(known[nearest])} as fast"

    @property
    def cpp(self) -> str:
        """The row as ``csrc/cuda/tunings.h`` has it."""
        numbers = "{}" if self.policy == "gather" else "{" + ", ".join(self.policy.split()) + "}"
        octets = ", kFewOctets" if self.site.few else ""
        scope = f"{{{self.where.architecture}, {_STORAGES[self.site.case.dtype]}, {self.site.width}{octets}}}"
        room = self.site.chosen.split()[0]
        texts = ", ".join(_quoted(text) for text in (self.where.gpu, self.where.date, self.where.command, self.figure))
        return f"{{{scope}, Pass::{self.site.pass_name}, {room}, {numbers}, {{{texts}}}}},"

    def to_json(self) -> dict[str, Any]:
        """Return the row's entry of the document."""
        return {
            **self.where._asdict(),
            "pass": self.site.pass_name,
            "dtype": self.site.case.dtype,
            "width": self.site.width,
            "few_octets": self.site.few,
            "chosen": self.site.chosen,
            "policy": self.policy,
            "verdict": self.verdict,
            "figure": self.figure,
            "cases": [timing.site.case.name for timing in self.timings],
            "cpp": self.cpp,
        }


def make_rows(timings: Sequence[Timing], where: Where, confirm: Confirm) -> tuple[Row, ...]:
    """Decide for every key, and make one row of neighboring widths that agree."""
    ordered = sorted((timing for timing in timings if timing.trials), key=lambda timing: timing.site.key)
    decisions = [decide(list(group), confirm) for _, group in itertools.groupby(ordered, lambda t: t.site.key)]
    rows = []
    for (_, policy), group in itertools.groupby(decisions, lambda d: (d.timings[0].site.key[:4], d.policy)):
        rows.append(Row(policy, tuple(timing for decision in group for timing in decision.timings), where))
    return tuple(rows)


def _words(ratio: Ratio) -> str:
    return f"{ratio.median:.3f}x ({ratio.low:.3f} .. {ratio.high:.3f})"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
