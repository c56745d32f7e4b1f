"""One case's job from the first pair to the verdict, whoever takes the pairs."""

from __future__ import annotations

from collections.abc import Callable

from service.stats.admission import CaseHistory
from service.stats.confirmation import confirm, fresh_order
from service.stats.pairs import PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES, decide
from service.stats.verdict import CaseDecision

Judge = Callable[[list[PairObservation], bool], CaseDecision]


def run_job(
    sample_pair: Callable[[int, str], PairObservation],
    rest: Callable[[int], object],
    policy: JudgingPolicy,
    history: CaseHistory | None = None,
) -> CaseDecision:
    """Take pairs in alternating order until the case is decided, and fresh ones to confirm a change.

    Parameters
    ----------
    sample_pair : callable
        (index, order) -> PairObservation; runs one pair of fresh processes. The index counts on over both parts.
    rest : callable
        Called after a rejected pair with the number of rejections in a row (1, 2, ...), so that rests can grow.
    policy : JudgingPolicy
        At most `policy.looks[-1]` pairs are taken, and `policy.confirm_looks[-1]` more to confirm a change;
        `policy.with_budget(n)` for a budget that is not its last look.
    history : CaseHistory, optional
        What earlier jobs have shown of this case on this device.

    Returns
    -------
    CaseDecision
        Always with a verdict; its evidence lists every pair.
    """

    def find(pairs: list[PairObservation], final: bool) -> CaseDecision:
        return decide(pairs, policy, final=final, history=history)

    found, first = _take_pairs(lambda index: sample_pair(index, pair_order(index)), find, policy.looks[-1], rest)
    if found.verdict not in CHANGES:
        return found

    def confirm_it(fresh: list[PairObservation], final: bool) -> CaseDecision:
        return confirm(found, first, fresh, policy, final=final, history=history)

    return _take_pairs(
        lambda number: sample_pair(len(first) + number, fresh_order(number)), confirm_it, policy.confirm_looks[-1], rest
    )[0]


def _take_pairs(
    take: Callable[[int], PairObservation], judge: Judge, budget: int, rest: Callable[[int], object]
) -> tuple[CaseDecision, list[PairObservation]]:
    """Take pairs until they are judged; return the decision and the pairs."""
    pairs: list[PairObservation] = []
    rejected_in_a_row = 0
    while len(pairs) < budget:
        pairs.append(take(len(pairs)))
        decision = judge(pairs, len(pairs) == budget)
        if decision.verdict is not None:
            return decision, pairs
        judged = decision.evidence.get("confirmation", decision.evidence)
        if judged["pairs"][-1]["admitted"]:
            rejected_in_a_row = 0
        else:
            rejected_in_a_row += 1
            rest(rejected_in_a_row)
    raise AssertionError("a final decision always has a verdict")
