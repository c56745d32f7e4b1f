"""From the evidence of a job's cases to one decision each: numerics, pairs, multiplicity, environment, confirmation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from service.stats.admission import CaseHistory
from service.stats.confirmation import confirm
from service.stats.environment import with_environment
from service.stats.multiplicity import discoveries
from service.stats.pairs import PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES, decide
from service.stats.verdict import CaseDecision, Reason, Verdict, reason


@dataclass(frozen=True)
class CaseFailure:
    """Why a case has no usable timings. `code` is a JobError's code, or "missing" when an arm lacks the case."""

    arm: Literal["A", "B"]
    code: str
    detail: str = ""


@dataclass(frozen=True)
class CaseInput:
    """All evidence on one case; numerics as in the benchmark document (None: not measured).

    `fresh` are the pairs measured to confirm a change that `pairs` found.
    """

    pairs: Sequence[PairObservation]
    numerics: Mapping[str, Any] | None
    baseline_numerics: Mapping[str, Any] | None
    group: str
    failure: CaseFailure | None = None
    history: CaseHistory | None = None
    fresh: Sequence[PairObservation] = ()


def judge_cases(
    cases: Mapping[str, CaseInput],
    policy: JudgingPolicy,
    final: bool,
    canaries: Mapping[str, Sequence[PairObservation]] | None = None,
) -> dict[str, CaseDecision]:
    """Return a decision for every case; verdict None means that it wants more pairs (never when `final`).

    A case that wants pairs has no `claim`; one that wants fresh pairs has the change as its claim that they are to
    confirm. That begins when no case wants pairs any more, or `policy.looks[-1]` of them are spent.

    Failed candidate numerics come before any speed; a baseline that failed or computes wrong numbers, and a case that
    one arm lacks, give not_comparable. Changes must survive the false discovery rate over the job's cases; one that
    does not goes on measuring, or ends inconclusive. Once nothing is open, the surroundings are examined
    (`with_environment`), and what they do not explain has to be confirmed (`confirm`).
    """
    spent = final or max((len(case.pairs) for case in cases.values()), default=0) >= policy.looks[-1]
    decisions = {name: _barred(case, policy) or _timed(case, policy, spent) for name, case in cases.items()}
    decisions = with_discoveries(decisions, policy, spent)
    if any(one.verdict is None for one in decisions.values()):
        return decisions
    groups = {name: case.group for name, case in cases.items()}
    decisions = with_environment(decisions, groups, judge_canaries(canaries or {}, policy), policy)
    return {name: _confirmed(one, cases[name], policy, final) for name, one in decisions.items()}


def judge_canaries(canaries: Mapping[str, Sequence[PairObservation]], policy: JudgingPolicy) -> dict[str, CaseDecision]:
    """Return the decision on each canary: judged like a case, at the level of what is believed without fresh pairs."""
    return {name: decide(pairs, policy.unconfirmed(), final=True) for name, pairs in canaries.items()}


def numerics_summary(
    candidate: Mapping[str, Any] | None, baseline: Mapping[str, Any] | None, policy: JudgingPolicy
) -> dict[str, Any] | None:
    """Return the row's {candidate_error, baseline_error, tolerance, status}; None when the candidate has no numerics.

    Errors are the worst relative error over the outputs, None when not finite; status is ok, grew or failed.
    """
    if candidate is None:
        return None
    status = "failed" if what_is_wrong(candidate) else "grew" if _grew(candidate, baseline, policy) else "ok"
    return {
        "candidate_error": _worst(candidate),
        "baseline_error": None if baseline is None else _worst(baseline),
        "tolerance": _tolerance(candidate),
        "status": status,
    }


def _barred(case: CaseInput, policy: JudgingPolicy) -> CaseDecision | None:
    """Return the decision of a case whose speed must not be judged; None where nothing stands against that."""
    failure = case.failure
    if failure is not None and failure.arm == "B" and failure.code != "missing":
        return CaseDecision(Verdict.FAILED, (_failure_reason("candidate", failure),))
    wrong = None if case.numerics is None else what_is_wrong(case.numerics)
    if wrong is not None:
        measured = len(case.pairs)
        return CaseDecision(Verdict.FAILED, (reason("numerics_failed", what=wrong),), pairs_rejected=measured)
    if failure is not None:
        side = "baseline" if failure.arm == "A" else "candidate"
        return CaseDecision(Verdict.NOT_COMPARABLE, (_failure_reason(side, failure),))
    wrong = None if case.baseline_numerics is None else what_is_wrong(case.baseline_numerics)
    if wrong is not None:
        why = reason("baseline_numerics_failed", what=wrong)
        return CaseDecision(Verdict.NOT_COMPARABLE, (why,), pairs_rejected=len(case.pairs))
    return None


def _timed(case: CaseInput, policy: JudgingPolicy, final: bool) -> CaseDecision:
    decision = decide(case.pairs, policy, final=final, history=case.history)
    if case.numerics is None:
        return replace(decision, reasons=(*decision.reasons, reason("numerics_not_measured")))
    if _grew(case.numerics, case.baseline_numerics, policy):
        why = reason(
            "numerics_error_grew",
            before=_worst(case.baseline_numerics or {}),
            after=_worst(case.numerics),
            tolerance=_tolerance(case.numerics) or math.nan,
        )
        return replace(decision, reasons=(*decision.reasons, why))
    return decision


def _confirmed(decision: CaseDecision, case: CaseInput, policy: JudgingPolicy, final: bool) -> CaseDecision:
    if decision.verdict not in CHANGES:
        return decision
    return confirm(decision, case.pairs, case.fresh, policy, final=final, history=case.history)


def with_discoveries(
    decisions: Mapping[str, CaseDecision], policy: JudgingPolicy, final: bool
) -> dict[str, CaseDecision]:
    """Return the decisions without the changes that Benjamini-Hochberg over the job's timed cases does not keep."""
    p_values = {name: one.p_value for name, one in decisions.items() if one.p_value is not None}
    kept = discoveries(p_values, policy.false_discovery_rate)
    why = reason("not_significant_among_cases", cases=len(p_values), rate=policy.false_discovery_rate)
    demoted = Verdict.INCONCLUSIVE if final else None
    return {
        name: replace(one, verdict=demoted, reasons=(why, *one.reasons))
        if one.verdict in CHANGES and name not in kept
        else one
        for name, one in decisions.items()
    }


def _failure_reason(side: str, failure: CaseFailure) -> Reason:
    if failure.code == "missing":
        return reason(f"{side}_missing")
    return Reason(f"{side}_{failure.code}", failure.detail or f"the {side} ended with {failure.code}")


def what_is_wrong(numerics: Mapping[str, Any]) -> str | None:
    """Return what is wrong with these numerics, None when nothing is. The errors count, whatever the status says."""
    if not numerics.get("finite", True):
        return "NaN or infinity in an output"
    tolerance = _tolerance(numerics)
    for output, errors in (numerics.get("errors") or {}).items():
        relative = errors.get("relative")
        if relative is None or not math.isfinite(relative):
            return f"the error of {output} is not a number"
        if tolerance is not None and relative > tolerance:
            return f"relative error of {output} is {relative:.2e}, tolerance {tolerance:.1e}"
    return None if numerics.get("status") == "ok" else f"status {numerics.get('status')!r}"


def _grew(numerics: Mapping[str, Any], baseline: Mapping[str, Any] | None, policy: JudgingPolicy) -> bool:
    """Return whether the error is `numerics_growth` times the baseline's; under 1 % of the tolerance never."""
    after, before = _worst(numerics), None if baseline is None else _worst(baseline)
    if after is None or before is None:
        return False
    return after > max(policy.numerics_growth * before, 0.01 * (_tolerance(numerics) or 0.0))


def _tolerance(numerics: Mapping[str, Any]) -> float | None:
    tolerance = (numerics.get("tolerance") or {}).get("relative")
    return None if tolerance is None else float(tolerance)


def _worst(numerics: Mapping[str, Any]) -> float | None:
    """Return the largest relative error over the outputs; None when there is none or one is not finite."""
    errors = [one.get("relative") for one in (numerics.get("errors") or {}).values()]
    if not errors or any(error is None or not math.isfinite(error) for error in errors):
        return None
    return float(max(errors))
