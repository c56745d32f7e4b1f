"""Did the surroundings move instead of the code? Canaries, and many unrelated kernel groups moving at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES
from service.stats.verdict import CaseDecision, Reason, Verdict, reason

CLAIMS = CHANGES | {Verdict.UNCHANGED}


def with_environment(
    decisions: Mapping[str, CaseDecision],
    groups: Mapping[str, str],
    canaries: Mapping[str, CaseDecision],
    policy: JudgingPolicy,
) -> dict[str, CaseDecision]:
    """Return the decisions with those that the surroundings explain turned into "environment".

    A moved canary (same code in both arms) takes back every claim of the job. Without one, cases that became slower (or
    faster) together are taken back when more than `crowd_share` of the kernel groups did, of at least `crowd_groups`
    groups. Cases of one group share their code, so only groups count as unrelated; with few groups one commit can well
    touch a third of them, so the rule is silent there. Derived here.

    Parameters
    ----------
    decisions : mapping
        CaseDecision by case.
    groups : mapping
        Kernel group by case.
    canaries : mapping
        CaseDecision by canary, judged like cases; may be empty.
    policy : JudgingPolicy
        Gives `canary_effect`, `crowd_share` and `crowd_groups`.
    """
    moved = _moved_canary(canaries, policy)
    if moved is not None:
        return {name: _taken_back(one, moved) if one.verdict in CLAIMS else one for name, one in decisions.items()}
    result = dict(decisions)
    for verdict, direction in ((Verdict.REGRESSED, "slower"), (Verdict.IMPROVED, "faster")):
        movers = [name for name, one in decisions.items() if one.verdict is verdict]
        moving = {groups[name] for name in movers}
        judged = {groups[name] for name, one in decisions.items() if one.verdict in CLAIMS or one.look is not None}
        if len(judged) >= policy.crowd_groups and len(moving) > policy.crowd_share * len(judged):
            why = reason("groups_moved_together", moved=len(moving), groups=len(judged), direction=direction)
            result.update({name: _taken_back(decisions[name], why) for name in movers})
    return result


def _moved_canary(canaries: Mapping[str, CaseDecision], policy: JudgingPolicy) -> Reason | None:
    """Return the reason that names the first canary with a proven change beyond `canary_effect`.

    A change of time that cycles do not show counts as well: a clock that moved is what a canary is there to tell.
    """
    for name, one in canaries.items():
        moved = one.verdict in CHANGES or any(why.code == "cycles_disagree" for why in one.reasons)
        if moved and one.effect is not None and abs(one.effect) > policy.canary_effect:
            return reason("canary_moved", canary=name, effect=one.effect)
    return None


def _taken_back(decision: CaseDecision, why: Reason) -> CaseDecision:
    return replace(decision, verdict=Verdict.ENVIRONMENT, reasons=(why, *decision.reasons))
