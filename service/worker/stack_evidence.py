"""Gathers the documents of a stack of commits and turns them into rows per commit, wherever they came from.

Commits stand at positions, the baseline at 0. A commit whose measured files equal those of the commit before shares its
arm and is not run; one that does not build or computes wrong numbers is left out, and the commits beside it are
compared across it, case by case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from service.judging.judge import numerics_summary, what_is_wrong
from service.judging.rows import VerdictRow
from service.judging.stack import CaseSteps, CommitRow, StepCanaries, judge_stack
from service.stats.attribution import Attribution, RoundObservation, attribute, round_order
from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.verdict import CaseDecision, Reason, Verdict, reason
from service.worker.devices import MeasuringDevice
from service.worker.document import CaseResult, Document
from service.worker.errors import JobError
from service.worker.evidence import CaseSummary, numerics_of, observe_canary
from service.worker.telemetry import observe

MAX_COMMITS = 20
PROCESS_ARM = "B"  # what every process is told to be: the protocol knows two arms, and no commit may be told apart

Problem = tuple[Verdict, Reason]


@dataclass(frozen=True)
class StackCommit:
    """A commit of a stack."""

    sha: str
    subject: str


@dataclass(frozen=True)
class CaseStack:
    """One case of a stack: the whole as a verdict on the last commit against the baseline, and each commit's part."""

    summary: CaseSummary
    commits: tuple[CommitRow, ...]


@dataclass(frozen=True)
class MeasuredRound:
    """The documents of a round and of the canaries before them by position, and the positions in the order they ran."""

    index: int
    order: tuple[int, ...]
    documents: Mapping[int, Document]
    canaries: Mapping[int, Document]


@dataclass(frozen=True)
class _Line:
    """One case along the stack: the arms that can be compared, and what is wrong with the others."""

    case: CaseResult
    usable: tuple[int, ...]
    problems: Mapping[int, Problem]


class StackEvidence:
    """All documents of one attempt at a stack."""

    def __init__(self, device: MeasuringDevice, policy: JudgingPolicy, commits: Sequence[StackCommit]) -> None:
        self._device = device
        self._policy = policy
        self._commits = commits
        self._arm_of = list(range(len(commits)))
        self._errors: dict[int, JobError] = {}
        self._numerics: dict[int, Document] = {}
        self._rounds: list[MeasuredRound] = []
        self._judged: dict[str, Attribution] | None = None

    @property
    def budget(self) -> int:
        """Return the most rounds that may be measured."""
        return self._policy.looks[-1]

    @property
    def rounds_measured(self) -> int:
        """Return how many rounds there are."""
        return len(self._rounds)

    @property
    def arms(self) -> tuple[int, ...]:
        """Return the positions of the commits that are run: neither failed nor the same as the one before."""
        return tuple(at for at, arm in enumerate(self._arm_of) if at == arm and at not in self._errors)

    @property
    def last_error(self) -> JobError | None:
        """Return what the newest failed commit failed with."""
        return self._errors[max(self._errors)] if self._errors else None

    def share_builds(self, keys: Mapping[int, str]) -> None:
        """Have every commit whose build key is that of the commit right before it share its arm."""
        for position in sorted(keys):
            if keys.get(position - 1) == keys[position]:
                self._arm_of[position] = self._arm_of[position - 1]

    def fail(self, position: int, error: JobError) -> None:
        """Note that a commit cannot be measured."""
        self._errors[position] = error
        self._judged = None

    def has_numerics(self, position: int) -> bool:
        """Return whether a commit's numbers were checked."""
        return position in self._numerics

    def add_numerics(self, position: int, document: Document) -> None:
        """Add the check of a commit's numbers."""
        self._numerics[position] = document
        self._judged = None

    def next_order(self) -> tuple[int, ...]:
        """Return the positions that the next round runs, in order: commits that some case can be compared on."""
        lines = self._lines().values()
        wanted = sorted({at for line in lines if len(line.usable) > 1 for at in line.usable})
        return tuple(wanted[place] for place in round_order(self.rounds_measured, len(wanted)))

    def add_round(
        self,
        index: int,
        order: Sequence[int],
        documents: Mapping[int, Document],
        canaries: Mapping[int, Document] | None = None,
    ) -> None:
        """Add a round of processes, and what the canaries before them showed."""
        self._rounds.append(MeasuredRound(index, tuple(order), dict(documents), dict(canaries or {})))
        self._judged = None

    def needs_rounds(self) -> bool:
        """Return whether another round could decide something and may be taken."""
        if self.rounds_measured >= self.budget:
            return False
        comparable = [name for name, line in self._lines().items() if len(line.usable) > 1]
        return bool(comparable) and (not self._rounds or any(one.is_open for one in self._attribute().values()))

    def last_admissions(self) -> dict[str, bool]:
        """Return for each timed case whether the last round is admitted, as things stand."""
        return {name: bool(one.evidence["rounds"][-1]["admitted"]) for name, one in self._attribute().items()}

    def judge(self) -> list[CaseStack]:
        """Return the final result of every case, by name."""
        lines, found = self._lines(), self._attribute(final=True)
        return [self._case_stack(name, lines[name], found.get(name)) for name in sorted(lines)]

    # ---- cases ----

    def _lines(self) -> dict[str, _Line]:
        names = {case.name for document in self._numerics.values() for case in document.cases}
        return {name: self._line(name) for name in sorted(names)}

    def _line(self, name: str) -> _Line:
        known = [case for at in sorted(self._numerics) if (case := self._numerics[at].case(name)) is not None]
        case = known[-1]
        arms = [at for at, arm in enumerate(self._arm_of) if at == arm]
        problems = {at: problem for at in arms if (problem := self._problem(at, case)) is not None}
        return _Line(case, tuple(at for at in arms if at not in problems), problems)

    def _problem(self, position: int, case: CaseResult) -> Problem | None:
        """Return why a commit's time of a case cannot be compared with that of the newest definition."""
        error = self._errors.get(position)
        if error is not None and error.code != "no_cases":
            return Verdict.FAILED, Reason(error.code, error.message)
        own = self._numerics[position].case(case.name) if error is None else None
        if own is None:
            return Verdict.NOT_COMPARABLE, reason("case_absent")
        if own.status == "failed":
            return Verdict.FAILED, Reason("case_failed", own.error or "the case failed")
        if own.version != case.version:
            return Verdict.NOT_COMPARABLE, Reason("case_changed", f"the case is defined otherwise ({own.version})")
        numerics = numerics_of(own)
        wrong = None if numerics is None else what_is_wrong(numerics)
        if wrong is not None:
            return Verdict.FAILED, reason("numerics_failed", what=wrong)
        for one in self._rounds:
            timed = one.documents[position].case(case.name) if position in one.documents else None
            if position in one.documents and (timed is None or timed.status == "failed"):
                detail = timed.error if timed and timed.error else f"no result in round {one.index}"
                return Verdict.FAILED, Reason("case_failed", detail)
        return None

    def _attribute(self, *, final: bool = False) -> dict[str, Attribution]:
        if final or self._judged is None:
            cases = {}
            for name, line in self._lines().items() if self._rounds else ():
                if len(line.usable) > 1:
                    found = attribute(self._observations(name, line.usable), self._policy, final=final)
                    cases[name] = CaseSteps(line.case.group, line.usable[1:], found)
            self._judged = judge_stack(cases, self._policy, final=final, canaries=self._canaries())
        return self._judged

    def _canaries(self) -> StepCanaries:
        """Return the canaries of each commit that is run beside those of the one before it, and those of both ends."""
        arms = self.arms
        steps: dict[int | None, tuple[int, int]] = {end: (before, end) for before, end in pairwise(arms)}
        if len(arms) > 1:
            steps[None] = (arms[0], arms[-1])
        return {end: self._canary_pairs(*between) for end, between in steps.items()}

    def _canary_pairs(self, before: int, after: int) -> dict[str, list[PairObservation]]:
        found: dict[str, list[PairObservation]] = {}
        for one in self._rounds:
            if not {before, after} <= set(one.canaries):
                continue
            order: Literal["AB", "BA"] = "AB" if one.order.index(before) < one.order.index(after) else "BA"
            for canary in one.canaries[before].cases:
                arms = [observe_canary(one.documents[at], one.canaries[at], canary.name) for at in (before, after)]
                found.setdefault(canary.name, []).append(PairObservation(one.index, order, *arms))
        return found

    def _observations(self, name: str, usable: Sequence[int]) -> list[RoundObservation]:
        rounds = []
        for one in self._rounds:
            order = tuple(usable.index(at) for at in one.order if at in usable)
            arms = tuple(_observed(one.documents[at], name) for at in usable)
            rounds.append(RoundObservation(one.index, order, arms))
        return rounds

    # ---- rows ----

    def _case_stack(self, name: str, line: _Line, found: Attribution | None) -> CaseStack:
        rows = []
        for position in range(1, len(self._commits)):
            baseline, decision = self._step(position, line, found)
            commit = self._commits[position]
            row = self._row(line.case, decision, baseline, position)
            rows.append(CommitRow(position, commit.sha, self._commits[baseline].sha, commit.subject, row))
        whole = self._whole(line, found)
        evidence = dict(found.evidence) if found is not None else {}
        evidence["commits"] = [self._commits[at].sha for at in line.usable]
        row = self._row(line.case, whole, 0, len(self._commits) - 1)
        return CaseStack(CaseSummary(line.case, row, evidence, {}), tuple(rows))

    def _step(self, position: int, line: _Line, found: Attribution | None) -> tuple[int, CaseDecision]:
        """Return what a commit did, and the position of the commit that it is compared with."""
        arm = self._arm_of[position]
        if arm in line.problems:
            return position - 1, _decision(line.problems[arm])
        if arm != position:
            return position - 1, self._same(arm, line, found)
        at = line.usable.index(arm)
        if at == 0 or found is None:
            return position - 1, _decision((Verdict.NOT_COMPARABLE, reason("no_commit_before")))
        before = line.usable[at - 1]
        baseline = max(one for one in range(position) if self._arm_of[one] == before)
        decision = found.steps[at - 1]
        across = [self._commits[one].sha[:10] for one in range(baseline + 1, position)]
        if across:
            decision = replace(decision, reasons=(*decision.reasons, reason("combined", commits=", ".join(across))))
        return baseline, decision

    def _whole(self, line: _Line, found: Attribution | None) -> CaseDecision:
        last = self._arm_of[-1]
        if last in line.problems:
            return _decision(line.problems[last])
        if 0 in line.problems:
            why = line.problems[0][1]
            return _decision((Verdict.NOT_COMPARABLE, Reason(f"baseline_{why.code}", why.detail)))
        if last == 0:
            return self._same(0, line, found)
        assert found is not None
        return found.whole

    def _same(self, arm: int, line: _Line, found: Attribution | None) -> CaseDecision:
        """Return the decision on a commit that changes no measured file: exactly no effect, measured or not."""
        value = None
        if found is not None:
            at = line.usable.index(arm)
            value = found.steps[at - 1].after if at else found.steps[0].before
        return CaseDecision(Verdict.UNCHANGED, (reason("same_sources"),), effect=0.0, before=value, after=value)

    def _row(self, case: CaseResult, decision: CaseDecision, before: int, after: int) -> VerdictRow:
        checked = [self._checked(self._arm_of[at], case.name) for at in (after, before)]
        return VerdictRow.of(
            decision,
            case=case.name,
            case_version=case.version,
            group=case.group,
            device_class=self._device.device_class,
            unit=case.unit,
            gpu_uuid=self._device.gpu_uuid,
            numerics=numerics_summary(numerics_of(checked[0]), numerics_of(checked[1]), self._policy),
        )

    def _checked(self, arm: int, name: str) -> CaseResult | None:
        document = self._numerics.get(arm)
        return None if document is None else document.case(name)


def _observed(document: Document, name: str) -> ArmObservation:
    case = document.case(name)
    assert case is not None
    return observe(document, case)


def _decision(problem: Problem) -> CaseDecision:
    verdict, why = problem
    return CaseDecision(verdict, (why,))
