"""The sequential decision on one case: looks at planned numbers of pairs, each with its share of the level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from service.stats.admission import Admission, AdmissionTable, CaseHistory, rejection_reasons
from service.stats.interval import Estimate, estimate, is_suspiciously_stable, sign_test
from service.stats.pairs import Floats, PairObservation, timer_step
from service.stats.planning import minimum_detectable_effect, needed_hint
from service.stats.policy import JudgingPolicy
from service.stats.verdict import CaseDecision, Reason, Verdict, reason

CHANGES = frozenset({Verdict.REGRESSED, Verdict.IMPROVED})


@dataclass(frozen=True)
class Look:
    """One look: what `measured` pairs said, of which those at `positions` were admitted. Intervals in log units."""

    measured: int
    positions: tuple[int, ...]
    estimated: Estimate
    interval: tuple[float, float]
    equivalence: tuple[float, float]
    p_value: float
    detectable: float
    verdict: Verdict | None
    reasons: tuple[Reason, ...]


def decide(
    pairs: Sequence[PairObservation],
    policy: JudgingPolicy,
    *,
    final: bool,
    history: CaseHistory | None = None,
    earlier: Sequence[PairObservation] = (),
) -> CaseDecision:
    """Judge one case on all of its pairs so far.

    The job is replayed pair by pair: at each planned number of measured pairs, or as soon afterwards as three quarters
    of that number (and half of those measured) are admitted, a look takes place at level alpha / number of looks
    (Bonferroni), and the first look that decides stands. Log margins: regressed when the interval lies above +margin,
    improved when below -margin, both only beyond `min_effect`, backed by a sign test, by more than a timer step and,
    unless the power cap sets the clocks, by cycles; unchanged when the equivalence interval lies inside +-equivalence
    and the device was not power limited. The same pairs always give the same decision, whoever asks and however often.
    Source: group sequential testing (Pocock 1977, Biometrika 64) with Bonferroni's bound instead of Pocock's,
    thresholds from this project's simulations; the guards derived here.

    Parameters
    ----------
    pairs : sequence of PairObservation
        In the order measured.
    policy : JudgingPolicy
        `policy.with_budget(n)` for a budget that is not one of its looks.
    final : bool
        No further pair will come: one last look at what is there if a look is left, and then always a verdict.
    history : CaseHistory, optional
        What earlier jobs have shown of this case on this device.
    earlier : sequence of PairObservation, optional
        Pairs of the same job that were judged before: their clocks and scatter count in admission, their times nowhere.

    Returns
    -------
    CaseDecision
        With verdict None when undecided and not `final`.

    Raises
    ------
    ValueError
        When the indices of `pairs` do not increase.
    """
    indices = [pair.index for pair in pairs]
    if any(b <= a for a, b in pairwise(indices)):
        raise ValueError(f"pairs: expected increasing indices, got {indices}")
    table = AdmissionTable.of(pairs, policy, history, earlier)
    looks, admissions = _replay(pairs, table, final), table.admissions()
    decided = next((look for look in looks if look.verdict is not None), None)
    shown = decided or (looks[-1] if looks else None)
    decision = CaseDecision(None) if shown is None else from_look(pairs, shown, looks.index(shown), policy)
    if decided is None:
        decision = without_verdict(decision, pairs, admissions, policy, final)
    p_values = [look.p_value for look in looks]
    return replace(
        decision,
        p_value=min(1.0, min(p_values) * len(policy.looks)) if p_values else None,
        evidence=_evidence(pairs, admissions, looks, policy),
    )


def _replay(pairs: Sequence[PairObservation], table: AdmissionTable, final: bool) -> list[Look]:
    """Return all looks that these pairs allow, in order, also those after the first that decides."""
    return [
        take_look(pairs[:measured], positions, table.policy, table.history.pair_sd)
        for measured, positions in looks_at(table, final=final)
    ]


def looks_at(table: AdmissionTable, *, final: bool) -> list[tuple[int, tuple[int, ...]]]:
    """Return when the looks of a job take place, as telemetry alone decides: (measured, admitted positions) of each."""
    policy, total = table.policy, len(table.own)
    looks: list[tuple[int, tuple[int, ...]]] = []
    at_most = np.cumsum([not codes for codes in table.own])
    # a job that ends early, by the clock and not by its times, may take its first look at what there is
    first = min(policy.looks[0], max(total, policy.min_pairs)) if final else policy.looks[0]
    for measured in range(first, total + 1):
        planned = len(looks)
        if planned == len(policy.looks):
            break
        last_chance = final and measured == total
        needed = policy.min_pairs if last_chance else policy.pairs_for_look(planned)
        if at_most[measured - 1] < needed or not (last_chance or measured >= policy.looks[planned]):
            continue
        usable = table.admitted(measured)
        if int(usable.sum()) < max(needed, policy.min_admitted_share * measured):
            continue
        positions = tuple(int(at) for at in np.flatnonzero(usable))
        if not looks or looks[-1][1] != positions:
            looks.append((measured, positions))
    return looks


def take_look(
    pairs: Sequence[PairObservation], positions: tuple[int, ...], policy: JudgingPolicy, usual_sd: float | None = None
) -> Look:
    """Return what the pairs at these positions say, all pairs measured so far being given."""
    admitted = [pairs[at] for at in positions]
    values = np.array([pair.log_ratio for pair in admitted], dtype=np.float64)
    estimated = estimate(values, policy, usual_sd)
    look = Look(
        measured=len(pairs),
        positions=positions,
        estimated=estimated,
        interval=estimated.interval(policy.look_alpha),
        equivalence=estimated.interval(policy.look_equivalence_alpha),
        p_value=estimated.p_beyond(policy.regression_margin),
        detectable=minimum_detectable_effect(estimated, policy),
        verdict=None,
        reasons=(),
    )
    verdict, reasons = _change(look, values, admitted, policy)
    if verdict is None:
        verdict, doubts = _no_change(look, admitted, policy)
        reasons += doubts
    return replace(look, verdict=verdict, reasons=reasons + _stability(estimated, policy, usual_sd))


def _change(
    look: Look, values: Floats, admitted: Sequence[PairObservation], policy: JudgingPolicy
) -> tuple[Verdict | None, tuple[Reason, ...]]:
    """Return a change that this look proves, or None with what stood against it."""
    center = look.estimated.center
    effect = math.expm1(center)
    slower, faster = look.interval[0] > policy.regression_margin, look.interval[1] < -policy.regression_margin
    if not (slower or faster):
        return None, ()
    if abs(center) <= policy.min_effect:
        return None, (reason("below_minimum_effect", effect=effect, minimum=policy.min_effect),)
    agree, p = sign_test(values, center)
    if p > policy.sign_level:
        return None, (reason("signs_disagree", agree=agree, admitted=values.size),)
    step = timer_step(admitted)
    if abs(center) <= step * (1.0 + 1e-6) and step <= policy.max_timer_step:
        return None, (reason("timer_resolution", step=step),)
    cycles = _cycles(admitted, policy)
    doubt = () if cycles is None else _cycles_doubt(center, cycles.center)
    limited = _power_limited(admitted, policy)
    if doubt and not limited:
        return None, doubt
    margin = math.copysign(policy.regression_margin, center)
    said = reason("slower" if slower else "faster", effect=effect, margin=margin)
    return (Verdict.REGRESSED if slower else Verdict.IMPROVED), (said, *doubt, *limited)


def _no_change(
    look: Look, admitted: Sequence[PairObservation], policy: JudgingPolicy
) -> tuple[Verdict | None, tuple[Reason, ...]]:
    """Return "unchanged" where the equivalence interval proves it and the power cap does not forbid it."""
    low, high = look.equivalence
    if not (-policy.equivalence < low and high < policy.equivalence):
        return None, ()
    limited = _power_limited(admitted, policy)
    if limited:
        return None, limited
    said = reason(
        "equivalent",
        level=policy.equivalence_level,
        equivalence=policy.equivalence,
        detectable=look.detectable,
    )
    return Verdict.UNCHANGED, (said,)


def _stability(estimated: Estimate, policy: JudgingPolicy, usual_sd: float | None) -> tuple[Reason, ...]:
    if usual_sd is not None and is_suspiciously_stable(estimated.observed_sd, usual_sd):
        return (reason("suspiciously_stable", sd=estimated.observed_sd, usual=usual_sd),)
    if estimated.observed_sd == 0.0:
        return (reason("zero_variance", floor=policy.sd_floor),)
    return ()


def _power_limited(admitted: Sequence[PairObservation], policy: JudgingPolicy) -> tuple[Reason, ...]:
    """Return the regime as a reason when too many pairs ran at the power cap."""
    shares = [max(pair.baseline.power_capped_share, pair.candidate.power_capped_share) for pair in admitted]
    capped = sum(share > policy.max_throttled_share for share in shares)
    if capped <= policy.power_limited_share * len(admitted):
        return ()
    return (reason("power_limited", capped=capped, admitted=len(admitted)),)


def _cycles(admitted: Sequence[PairObservation], policy: JudgingPolicy) -> Estimate | None:
    """Estimate for cycles = time * clock; None unless every admitted pair has both clocks."""
    ratios = [pair.log_cycle_ratio for pair in admitted]
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < max(len(ratios), 2):
        return None
    return estimate(np.array(known, dtype=np.float64), policy)


def _cycles_doubt(time: float, cycles: float) -> tuple[Reason, ...]:
    """A change of the work shows in cycles as in time; under half of it means that the clock did the moving.

    At the power cap that can be the code's doing (it draws more power), elsewhere it is the surroundings'.
    """
    if cycles * math.copysign(1.0, time) >= 0.5 * abs(time):
        return ()
    return (reason("cycles_disagree", effect=math.expm1(time), cycles=math.expm1(cycles)),)


def from_look(pairs: Sequence[PairObservation], look: Look, number: int, policy: JudgingPolicy) -> CaseDecision:
    """Return a look, the `number`th (from 0), as a decision on its case."""
    admitted = [pairs[at] for at in look.positions]
    cycles = _cycles(admitted, policy)
    return CaseDecision(
        look.verdict,
        look.reasons,
        effect=math.expm1(look.estimated.center),
        interval=_as_effects(look.interval),
        interval_cycles=None if cycles is None else _as_effects(cycles.interval(policy.look_alpha)),
        minimum_detectable_effect=look.detectable,
        pairs_used=len(look.positions),
        pairs_rejected=look.measured - len(look.positions),
        before=float(np.median([pair.baseline.median for pair in admitted])),
        after=float(np.median([pair.candidate.median for pair in admitted])),
        look=number,
    )


def _as_effects(interval: tuple[float, float]) -> tuple[float, float]:
    return math.expm1(interval[0]), math.expm1(interval[1])


def without_verdict(
    shown: CaseDecision,
    pairs: Sequence[PairObservation],
    admissions: Sequence[Admission],
    policy: JudgingPolicy,
    final: bool,
) -> CaseDecision:
    """Return the decision where no look decided: throttled, inconclusive, or (not final) still open.

    Counts are those of all pairs measured. A throttled job shows no effect: what was measured there is evidence, no
    result. A power cap rejects no pair by itself, but explains clocks that do.
    """
    measured, used = len(admissions), sum(admission.admitted for admission in admissions)
    counted = replace(shown, pairs_used=used, pairs_rejected=measured - used)
    limited = _power_limited(pairs, policy)
    hopeless = measured >= policy.hopeless_after and used < policy.hopeless_share * measured
    if hopeless or (final and measured and used < policy.min_admitted_share * measured):
        return _unusable(counted, admissions, policy, limited)
    if not final:
        return counted
    ratios = np.array([pair.log_ratio for pair, a in zip(pairs, admissions, strict=True) if a.admitted])
    hint = ""
    if used >= 2:
        estimated = estimate(ratios, policy)
        hint = needed_hint(estimated.center, estimated.sd, policy)
    code = "too_few_pairs" if shown.look is None else "budget_spent"
    said = reason(code, admitted=used, measured=measured, first=policy.min_pairs, hint=hint)
    reasons = (said, *(shown.reasons or limited), *rejection_reasons(admissions, policy))
    return replace(counted, verdict=Verdict.INCONCLUSIVE, reasons=reasons)


def _unusable(
    shown: CaseDecision, admissions: Sequence[Admission], policy: JudgingPolicy, limited: tuple[Reason, ...]
) -> CaseDecision:
    """Return the decision of a job whose pairs were mostly rejected.

    Reasons are in the order of their weight, the main cause first: a table has room for one.
    """
    causes = rejection_reasons(admissions, policy)
    said = reason("under_half_admitted", admitted=shown.pairs_used, measured=len(admissions))
    verdict = Verdict.INCONCLUSIVE if causes[0].code == "too_few_samples" else Verdict.THROTTLED
    reasons = (*causes, *limited, said)
    return CaseDecision(verdict, reasons, pairs_used=shown.pairs_used, pairs_rejected=shown.pairs_rejected)


def _evidence(
    pairs: Sequence[PairObservation], admissions: Sequence[Admission], looks: Sequence[Look], policy: JudgingPolicy
) -> dict[str, Any]:
    """Return what a person needs to draw the decision again: ratios, means and intervals in log units, times
    and clocks as measured."""
    return {
        "policy": {
            "name": policy.name,
            "version": policy.version,
            "looks": list(policy.looks),
            "alpha": policy.alpha,
            "regression_margin": policy.regression_margin,
            "equivalence": policy.equivalence,
        },
        "pairs": [
            {
                "index": pair.index,
                "order": pair.order,
                "log_ratio": pair.log_ratio,
                "log_clock_ratio": pair.log_clock_ratio,
                "log_cycle_ratio": pair.log_cycle_ratio,
                "clock_before": pair.baseline.sm_clock,
                "clock_after": pair.candidate.sm_clock,
                "device_clock_before": pair.baseline.device_clock,
                "device_clock_after": pair.candidate.device_clock,
                "power_capped_before": pair.baseline.power_capped_share,
                "power_capped_after": pair.candidate.power_capped_share,
                "before": pair.baseline.median,
                "after": pair.candidate.median,
                "scatter_before": pair.baseline.scatter,
                "scatter_after": pair.candidate.scatter,
                "admitted": admission.admitted,
                "reasons": list(admission.reasons),
            }
            for pair, admission in zip(pairs, admissions, strict=True)
        ],
        "looks": [look_evidence(number, look, pairs, policy) for number, look in enumerate(looks)],
    }


def look_evidence(number: int, look: Look, pairs: Sequence[PairObservation], policy: JudgingPolicy) -> dict[str, Any]:
    """Return a look in plain JSON types."""
    estimated = look.estimated
    cycles = _cycles([pairs[at] for at in look.positions], policy)
    return {
        "look": number,
        "measured": look.measured,
        "n": len(look.positions),
        "admitted": [pairs[at].index for at in look.positions],
        "mean": estimated.center,
        "sd": estimated.sd,
        "observed_sd": estimated.observed_sd,
        "trimmed": estimated.trimmed,
        "standard_error": estimated.standard_error,
        "interval": list(look.interval),
        "equivalence_interval": list(look.equivalence),
        "cycles": cycles and {"mean": cycles.center, "interval": list(cycles.interval(policy.look_alpha))},
        "p_value": look.p_value,
        "minimum_detectable_effect": look.detectable,
        "verdict": look.verdict and str(look.verdict),
    }
