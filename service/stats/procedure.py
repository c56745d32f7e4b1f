"""One case's job from the first pair to the verdict, whoever takes the pairs."""

from __future__ import annotations

from collections.abc import Callable

from service.stats.admission import CaseHistory
from service.stats.pairs import PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.sequential import decide
from service.stats.verdict import CaseDecision


def run_job(
    sample_pair: Callable[[int, str], PairObservation],
    rest: Callable[[int], object],
    policy: JudgingPolicy,
    history: CaseHistory | None = None,
) -> CaseDecision:
    """Take pairs in alternating order until the case is decided or `policy.looks[-1]` pairs are measured.

    Parameters
    ----------
    sample_pair : callable
        (index, order) -> PairObservation; runs one pair of fresh processes.
    rest : callable
        Called after a rejected pair with the number of rejections in a row (1, 2, ...), so that rests can grow.
    policy : JudgingPolicy
        `policy.with_budget(n)` for a budget that is not its last look.
    history : CaseHistory, optional
        What earlier jobs have shown of this case on this device.

    Returns
    -------
    CaseDecision
        Always with a verdict; its evidence lists every pair.
    """
    pairs: list[PairObservation] = []
    rejected_in_a_row = 0
    budget = policy.looks[-1]
    while len(pairs) < budget:
        pairs.append(sample_pair(len(pairs), pair_order(len(pairs))))
        decision = decide(pairs, policy, final=len(pairs) == budget, history=history)
        if decision.verdict is not None:
            return decision
        if decision.evidence["pairs"][-1]["admitted"]:
            rejected_in_a_row = 0
        else:
            rejected_in_a_row += 1
            rest(rejected_in_a_row)
    raise AssertionError("a final decision always has a verdict")
