"""From the attributions of all cases of a stack to what is said: many cases at once, surroundings, rows per commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.judging.judge import with_discoveries
from service.judging.rows import VerdictRow
from service.stats.attribution import Attribution
from service.stats.environment import with_environment
from service.stats.pairs import PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.sequential import decide
from service.stats.verdict import CaseDecision

# Canaries by name, between the commit that a step ends at and the one measured before it; None: the whole.
StepCanaries = Mapping[int | None, Mapping[str, Sequence[PairObservation]]]


@dataclass(frozen=True)
class CaseSteps:
    """One case of a stack: `ends` are the positions of the commits that the steps of `found` end at."""

    group: str
    ends: Sequence[int]
    found: Attribution


def judge_stack(
    cases: Mapping[str, CaseSteps], policy: JudgingPolicy, *, final: bool, canaries: StepCanaries | None = None
) -> dict[str, Attribution]:
    """Return the attributions with the changes that all cases of the job together leave standing.

    Changes have to survive the false discovery rate over every step and whole of every case; one that does not goes on
    measuring, or ends inconclusive. Once nothing is open, a commit at which a canary or unrelated kernel groups moved
    is `environment`, as for a pair; canaries are judged at the level of the steps.
    """
    decisions: dict[str, CaseDecision] = {}
    for name, case in cases.items():
        decisions |= {_key(end, name): one for end, one in zip(case.ends, case.found.steps, strict=True)}
        decisions[_key(None, name)] = case.found.whole
    decisions = with_discoveries(decisions, policy, final)
    if all(one.verdict is not None for one in decisions.values()):
        for end in {None, *(end for case in cases.values() for end in case.ends)}:
            together = {name: decisions[_key(end, name)] for name in cases if _key(end, name) in decisions}
            groups = {name: cases[name].group for name in together}
            watched = (canaries or {}).get(end, {})
            moved = {name: decide(pairs, policy, final=True) for name, pairs in watched.items()}
            together = with_environment(together, groups, moved, policy)
            decisions |= {_key(end, name): one for name, one in together.items()}
    return {
        name: replace(
            case.found,
            steps=tuple(decisions[_key(end, name)] for end in case.ends),
            whole=decisions[_key(None, name)],
        )
        for name, case in cases.items()
    }


def _key(end: int | None, case: str) -> str:
    return f"{'whole' if end is None else end} {case}"


@dataclass(frozen=True)
class CommitRow:
    """What one commit of a stack did to one case: a verdict row between it and `baseline`, the last measured before it.

    `position` counts the commits of the stack from 1, the oldest.
    """

    position: int
    commit: str
    baseline: str
    subject: str
    row: VerdictRow

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: the fields of the verdict row and those of the commit side by side."""
        own = {"position": self.position, "commit": self.commit, "baseline": self.baseline, "subject": self.subject}
        return own | self.row.to_dict()
