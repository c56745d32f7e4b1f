"""Which commit of a stack did what: every commit measured once in every round, neighbors compared inside the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from service.stats.admission import Admission, AdmissionTable
from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.sequential import Look, from_look, look_evidence, looks_at, take_look, without_verdict
from service.stats.verdict import CaseDecision

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class RoundObservation:
    """One fresh process of every arm, one right after the other: the unit of evidence.

    Parameters
    ----------
    index : int
        Position in the job, from 0.
    order : tuple of int
        Positions of the arms in the order in which they ran.
    arms : tuple of ArmObservation
        By position, which is the order of the commits; the first is the baseline.
    """

    index: int
    order: tuple[int, ...]
    arms: tuple[ArmObservation, ...]

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"index: expected 0 or more, got {self.index!r}")
        if len(self.arms) < 2:
            raise ValueError(f"arms: expected 2 or more, got {len(self.arms)}")
        if sorted(self.order) != list(range(len(self.arms))):
            raise ValueError(f"order: expected each of {len(self.arms)} positions once, got {self.order!r}")

    def pair(self, span: Span) -> PairObservation:
        """Return the pair that two arms of this round are."""
        before, after = span
        first = self.order.index(before) < self.order.index(after)
        return PairObservation(self.index, "AB" if first else "BA", self.arms[before], self.arms[after])


@dataclass(frozen=True)
class Attribution:
    """What rounds say of one case: a decision for each step and one for the whole, all on the same rounds.

    The logs of the steps' effects add up to that of the whole exactly, and the whole's interval lies inside the sum of
    the steps' intervals. `evidence` is JSON-able: every round and every look.
    """

    steps: tuple[CaseDecision, ...]
    whole: CaseDecision
    evidence: dict[str, Any]

    @property
    def is_open(self) -> bool:
        """Say whether a step or the whole wants more rounds."""
        return any(one.verdict is None for one in (*self.steps, self.whole))


def round_order(index: int, arms: int) -> tuple[int, ...]:
    """Return the positions of the arms in the order in which round `index` runs them.

    Every second round runs the one before it backwards, which cancels what drifts linearly from process to process in
    every difference; each such couple begins one arm later, so that over `2 * arms` rounds every arm has been at every
    place twice. With two arms: AB, BA, BA, AB.
    """
    if arms < 2:
        raise ValueError(f"arms: expected 2 or more, got {arms!r}")
    shift = index // 2 % arms
    forward = (*range(shift, arms), *range(shift))
    return forward if index % 2 == 0 else forward[::-1]


def joint_policy(policy: JudgingPolicy, arms: int) -> JudgingPolicy:
    """Return the policy of each single claim when those on `arms - 1` steps and on the whole are to hold together.

    Levels are split evenly over the claims (Bonferroni). Nothing is trimmed: steps add up only if each is a mean over
    the same rounds.
    """
    claims = len(_spans(arms))
    level = 1.0 - (1.0 - policy.equivalence_level) / claims
    return replace(policy, alpha=policy.alpha / claims, equivalence_level=level, trim=0.0)


def attribute(rounds: Sequence[RoundObservation], policy: JudgingPolicy, *, final: bool) -> Attribution:
    """Judge every step between neighboring arms, and the whole from the first arm to the last.

    In each round a step is d = log(median after) - log(median before), and the whole is the sum of the steps. A round
    counts for all of them or for none: its arms are admitted together, by the rules for pairs. At each look (as
    `decide` has them) every step and the whole get the mean of d with Student's t interval at alpha / (looks * claims),
    claims being the steps and the whole, and a verdict by the rules of `decide`. The first look at which all have one
    ends the case, and until then nothing is said; so all numbers of a case come from the same rounds. With probability
    1 - alpha all intervals of all looks cover their true values together. Why the whole's interval lies inside the sum
    of the steps': the standard deviation of a sum is at most the sum of the standard deviations, also after each was
    raised to `sd_floor`. Derived here.

    Parameters
    ----------
    rounds : sequence of RoundObservation
        In the order measured, one or more, all with the same number of arms.
    policy : JudgingPolicy
        With the levels of one case; `joint_policy` splits them.
    final : bool
        No further round will come: one last look if one is left, and then always verdicts.

    Raises
    ------
    ValueError
        When there is no round, the numbers of arms differ or the indices do not increase.
    """
    counts = {len(one.arms) for one in rounds}
    if len(counts) != 1:
        raise ValueError(f"rounds: expected one or more with one number of arms, got numbers {sorted(counts)}")
    if any(b.index <= a.index for a, b in pairwise(rounds)):
        raise ValueError(f"rounds: expected increasing indices, got {[one.index for one in rounds]}")
    arms = counts.pop()
    joint = joint_policy(policy, arms)
    table = AdmissionTable.of_arms([one.arms for one in rounds], joint)
    pairs = {span: [one.pair(span) for one in rounds] for span in _spans(arms)}
    looks: list[dict[Span, Look]] = []
    for measured, positions in looks_at(table, final=final):
        looks.append({span: take_look(found[:measured], positions, joint) for span, found in pairs.items()})
        if all(look.verdict is not None for look in looks[-1].values()):
            break
    admissions = table.admissions()
    judged = _Judged(joint, len(pairs), looks, admissions, final)
    decisions = [judged.decision(span, found) for span, found in pairs.items()]
    steps = tuple(decisions[: arms - 1])
    return Attribution(steps, decisions[-1], _evidence(rounds, pairs, judged))


@dataclass(frozen=True)
class _Judged:
    policy: JudgingPolicy
    claims: int
    looks: list[dict[Span, Look]]
    admissions: list[Admission]
    final: bool

    def decision(self, span: Span, pairs: Sequence[PairObservation]) -> CaseDecision:
        """Return the decision on one span: open unless the last look ended the case or no round will come."""
        number = len(self.looks) - 1
        shown = self.looks[-1][span] if self.looks else None
        said = CaseDecision(None) if shown is None else from_look(pairs[: shown.measured], shown, number, self.policy)
        if said.verdict is None or not (self._ended() or self.final):
            said = without_verdict(replace(said, verdict=None), pairs, self.admissions, self.policy, self.final)
        return replace(said, p_value=None if shown is None else self._p_value(shown))

    def _ended(self) -> bool:
        return bool(self.looks) and all(look.verdict is not None for look in self.looks[-1].values())

    def _p_value(self, look: Look) -> float:
        return min(1.0, look.p_value * len(self.policy.looks) * self.claims)


def _spans(arms: int) -> list[Span]:
    """Return neighbors, then both ends; with two arms the one step is the whole."""
    return [*pairwise(range(arms)), *([(0, arms - 1)] if arms > 2 else [])]


def _evidence(
    rounds: Sequence[RoundObservation], pairs: dict[Span, list[PairObservation]], judged: _Judged
) -> dict[str, Any]:
    """Return what a person needs to draw the decisions again; spans are positions of arms, looks are in log units."""
    policy = judged.policy
    return {
        "policy": {
            "name": policy.name,
            "version": policy.version,
            "looks": list(policy.looks),
            "alpha": policy.alpha,
            "equivalence_level": policy.equivalence_level,
        },
        "rounds": [
            {
                "index": one.index,
                "order": list(one.order),
                "medians": [arm.median for arm in one.arms],
                "admitted": admission.admitted,
                "reasons": list(admission.reasons),
            }
            for one, admission in zip(rounds, judged.admissions, strict=True)
        ],
        "looks": [
            {"span": list(span)} | look_evidence(number, look, pairs[span], policy)
            for number, spans in enumerate(judged.looks)
            for span, look in spans.items()
        ],
    }
