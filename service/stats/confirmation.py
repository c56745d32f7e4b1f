"""Re-measurement: a change is told only when fresh pairs, independent of those that found it, show it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from service.stats.admission import CaseHistory
from service.stats.pairs import PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES, decide
from service.stats.verdict import CaseDecision, Verdict, reason


def fresh_order(number: int) -> Literal["AB", "BA"]:
    """Order of fresh pair `number` (from 0): BA, AB, BA, ...; what kept step with the first order turns its sign."""
    return pair_order(number + 1)


def confirm(
    found: CaseDecision,
    first: Sequence[PairObservation],
    fresh: Sequence[PairObservation],
    policy: JudgingPolicy,
    *,
    final: bool,
    history: CaseHistory | None = None,
) -> CaseDecision:
    """Return the decision on a case whose first pairs found a change, given the fresh pairs so far.

    The times of the fresh pairs alone are judged, by `decide` with `policy.confirming()`. The change stands when they
    show it again; when they show anything else, or nothing within the last look, the case is inconclusive, or throttled
    if that is what they are. Both sets of pairs being independent, a false change passes with a probability of at most
    `policy.told_alpha`. Effect and interval stay those of the first pairs. Derived here.

    Parameters
    ----------
    found : CaseDecision
        Regressed or improved; its verdict becomes the `claim` of what is returned.
    first : sequence of PairObservation
        The pairs that found it: they tell what clocks and scatter this job has seen.
    fresh : sequence of PairObservation
        In the order measured.
    policy : JudgingPolicy
        The one that `found` was made by.
    final : bool
        No further pair will come; after `policy.confirm_looks[-1]` pairs that is so anyway.
    history : CaseHistory, optional
        What earlier jobs have shown of this case on this device.

    Returns
    -------
    CaseDecision
        With verdict None while fresh pairs are wanted and not `final`.

    Raises
    ------
    ValueError
        When `found` is no change.
    """
    if found.verdict not in CHANGES:
        raise ValueError(f"found: expected a decision that says regressed or improved, got {found.verdict!r}")
    final = final or len(fresh) >= policy.confirm_looks[-1]
    again = decide(fresh, policy.confirming(), final=final, history=history, earlier=first)
    evidence = {**found.evidence, "confirmation": _evidence(again)}
    claimed = replace(found, claim=found.verdict, evidence=evidence)
    if again.verdict is None:
        return replace(claimed, verdict=None)
    if again.verdict is found.verdict:
        said = reason("confirmed", admitted=again.pairs_used, effect=again.effect)
        return replace(claimed, reasons=(*found.reasons, said))
    return _not_confirmed(claimed, again)


def _not_confirmed(claimed: CaseDecision, again: CaseDecision) -> CaseDecision:
    measured = again.pairs_used + again.pairs_rejected
    if not measured:
        why = reason("not_measured_again", effect=claimed.effect)
        return replace(claimed, verdict=Verdict.INCONCLUSIVE, reasons=(why, *claimed.reasons))
    instead = "" if again.effect is None else f" (they show {again.effect:+.2%})"
    why = reason("not_confirmed", effect=claimed.effect, admitted=again.pairs_used, measured=measured, instead=instead)
    if again.verdict is Verdict.THROTTLED:
        # as everywhere: what was measured around a throttled state is evidence, no result
        shown = CaseDecision(Verdict.THROTTLED, claim=claimed.claim, evidence=claimed.evidence)
        shown = replace(shown, pairs_used=claimed.pairs_used, pairs_rejected=claimed.pairs_rejected)
        return replace(shown, reasons=(why, *again.reasons))
    return replace(claimed, verdict=Verdict.INCONCLUSIVE, reasons=(why, *again.reasons))


def _evidence(again: CaseDecision) -> dict[str, object]:
    return {
        **again.evidence,
        "verdict": again.verdict and str(again.verdict),
        "effect": again.effect,
        "interval": again.interval and list(again.interval),
    }
