"""What can be said of a case: the verdicts, the reason codes with their sentences, and the decision record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The eight things a job can say of a case."""

    IMPROVED = "improved"
    REGRESSED = "regressed"
    UNCHANGED = "unchanged"
    INCONCLUSIVE = "inconclusive"
    THROTTLED = "throttled"
    ENVIRONMENT = "environment"
    NOT_COMPARABLE = "not_comparable"
    FAILED = "failed"


SENTENCES = {
    # changes
    "slower": "{effect:+.2%}, and the whole interval is above {margin:+.1%}",
    "faster": "{effect:+.2%}, and the whole interval is below {margin:+.1%}",
    "equivalent": "{level:.0%} interval inside ±{equivalence:.1%}; a change of {detectable:.2%} would have shown",
    "below_minimum_effect": "{effect:+.2%} is real but under the {minimum:.1%} that counts as a change",
    "confirmed": "{admitted} fresh pairs, in the other order, show it again: {effect:+.2%}",
    # lack of evidence
    "too_few_pairs": "{admitted} admitted pairs of {measured}; a look needs {first} at least{hint}",
    "budget_spent": "undecided after {admitted} admitted pairs of {measured}{hint}",
    "unpaired": "{before} runs before and {after} after were not taken in pairs and show {effect:+.1%}{hint}",
    "signs_disagree": "the mean moved, but only {agree} of {admitted} pairs moved that way",
    "timer_resolution": "the difference is no more than one step of the timer ({step:.2%} of the time)",
    "not_significant_among_cases": "not significant beside the job's {cases} cases (false discovery rate {rate:.0%})",
    "not_confirmed": "{effect:+.2%} was found, but fresh pairs did not show it again: {admitted} of {measured} admitted"
    "{instead}",
    "not_measured_again": "{effect:+.2%} was found, but no fresh pair was measured to confirm it",
    "power_limited": "{capped} of {admitted} pairs ran at the power cap, which makes differences smaller: a change may"
    " be said there, 'unchanged' may not",
    # the state of the device
    "under_half_admitted": "only {admitted} of {measured} pairs could be used",
    "throttle_flagged": "{count} of {measured} pairs: more than {limit:.0%} of the samples were throttled",
    "clocks_differ": "{count} of {measured} pairs: the arms' clocks differ by more than {limit:.1%}",
    "device_clocks_differ": "{count} of {measured} pairs: the arms' clocks, read on the device, differ by more than"
    " {limit:.1%}",
    "clock_low": "{count} of {measured} pairs: a clock under {limit:.0%} of the job's upper clock",
    "clock_unseen": "{count} of {measured} pairs: a clock below what this device and case have shown so far",
    "clock_unreadable": "{count} of {measured} pairs: a clock could not be read although others could",
    "stable_at_low_clock": "{count} of {measured} pairs: suspiciously stable at a low clock, the mark of throttling",
    "power_cap_uneven": "{count} of {measured} pairs: the arms were power capped for different shares of the time",
    "foreign_process": "{count} of {measured} pairs: another process computed on the device",
    "device_error": "{count} of {measured} pairs: new ECC or Xid errors",
    "steal": "{count} of {measured} pairs: the hypervisor took more than {limit:.0%} of the time",
    "foreign_load": "{count} of {measured} pairs: other processes used more than {limit:.0%} of the CPU",
    "too_few_samples": "{count} of {measured} pairs: a process with fewer than {limit} samples",
    "suspiciously_stable": "pairs scatter by {sd:.3%}, far under the usual {usual:.3%}; the usual was used instead",
    "zero_variance": "all pairs agree exactly; a scatter of {floor:.2%} was assumed",
    "cycles_disagree": "time moved by {effect:+.2%} but cycles by {cycles:+.2%}: the clock moved, not the work",
    # the surroundings
    "canary_moved": "canary {canary} moved by {effect:+.2%} although its code is the same in both arms",
    "groups_moved_together": "{moved} of {groups} unrelated kernel groups became {direction} at once",
    # numbers and failures
    "numerics_failed": "wrong numbers: {what}",
    "numerics_error_grew": "error grew from {before:.2e} to {after:.2e} (tolerance {tolerance:.1e})",
    "numerics_not_measured": "the numbers of this case were not checked",
    "baseline_numerics_failed": "the baseline computes wrong numbers, so its speed is no yardstick: {what}",
    "baseline_missing": "the baseline has no such case",
    "candidate_missing": "the candidate no longer has this case",
    # commits of a stack
    "same_sources": "no file that is measured differs from the commit before",
    "case_absent": "the commit has no such case",
    "no_commit_before": "no commit before it could be measured on this case",
    "combined": "together with {commits}, which could not be measured by themselves",
}


@dataclass(frozen=True)
class Reason:
    """A snake_case code for programs and a sentence for people."""

    code: str
    detail: str

    def to_dict(self) -> dict[str, str]:
        """Return {"code", "detail"}."""
        return {"code": self.code, "detail": self.detail}


def reason(code: str, **values: object) -> Reason:
    """Return the reason `code` with its sentence filled in; an unknown code is a KeyError."""
    return Reason(code, SENTENCES[code].format(**values))


@dataclass(frozen=True)
class CaseDecision:
    """What the evidence of one case says.

    Parameters
    ----------
    verdict
        None while undecided.
    effect, interval
        Candidate over baseline minus 1 (positive is slower), with the two-sided interval of the deciding look.
    interval_cycles
        The same interval for cycles (time times clock); None where clocks are unreadable.
    minimum_detectable_effect
        Smallest slow-down that would have been called with the policy's power, relative.
    before, after
        Median over the admitted pairs of the processes' medians, in the samples' unit.
    look
        Number (from 0) of the look that these numbers belong to.
    p_value
        Smallest two-sided p of "no change beyond the margin" over the looks, times the number of looks.
    evidence
        JSON-able: every pair (index, order, log ratio, clock ratio, admitted, reasons) and every look.
    claim
        The change that was found first, where fresh pairs confirm it, have not confirmed it, or (verdict None) have
        yet to be measured.
    """

    verdict: Verdict | None
    reasons: tuple[Reason, ...] = ()
    effect: float | None = None
    interval: tuple[float, float] | None = None
    interval_cycles: tuple[float, float] | None = None
    minimum_detectable_effect: float | None = None
    pairs_used: int = 0
    pairs_rejected: int = 0
    before: float | None = None
    after: float | None = None
    look: int | None = None
    p_value: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    claim: Verdict | None = None

    @property
    def pairs_measured(self) -> int:
        """All pairs that the case took: used, rejected, and those that were to confirm its claim."""
        fresh = self.evidence.get("confirmation", {"pairs": ()})["pairs"]
        return self.pairs_used + self.pairs_rejected + len(fresh)
