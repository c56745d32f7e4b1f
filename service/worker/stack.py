"""Takes the measurement of a stack from its checkouts to its verdicts: like a pair, with every commit as an arm.

    checkout -> build -> numerics -> rounds (judged after each, until every step of every case is decided) -> verdicts

Arms carry letters by position, the baseline A. A commit that fails is noted as an event, so that whoever takes the
measurement over does not try it again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from string import ascii_uppercase
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.models import Job, Measurement, State
from service.stats.attribution import round_order
from service.stats.pairs import pair_order
from service.stats.policy import JudgingPolicy
from service.worker.build import build_key
from service.worker.checkout import Mirror
from service.worker.document import Document, Expected, read_document
from service.worker.errors import JobError, Kind
from service.worker.measure import Arm, ProcessResult, ProcessSpec, run_process
from service.worker.pipeline import MeasurementRun
from service.worker.records import Assignment, add_event, end_in_transaction
from service.worker.stack_evidence import MAX_COMMITS, PROCESS_ARM, StackCommit, StackEvidence
from service.worker.storing import Judged, StoredRun, save_attributions, save_commit, save_verdicts

LETTERS = ascii_uppercase[: MAX_COMMITS + 1]


class StackRun(MeasurementRun):
    """One worker's work on the measurement of a stack."""

    _stack: StackEvidence | None = None
    _are_built = False
    _are_checked = False
    _ids: dict[str, UUID]

    def _next(self) -> tuple[str, Callable[[], bool]]:
        if self._stack is None:
            return "checkout", self._check_out
        if not self._are_built:
            return "build", self._build
        if not self._are_checked:
            return "numerics", self._check_numerics
        if self._stack.needs_rounds():
            return "rounds", self._measure_round
        return "judge", self._judge

    # ---- steps: each returns whether the measurement has ended ----

    def _check_out(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "checkout")
        shas = line_of(self._mirror, self._assignment, MAX_COMMITS)
        infos = [self._describe(sha) for sha in shas]
        self._records.save_commits(self._id, self._assignment.repository_id, infos[-1], infos[0])
        repository_id = self._assignment.repository_id

        def work(session: Session, *_: object) -> list[UUID]:
            return [save_commit(session, repository_id, info) for info in infos]

        ids = self._records.write(self._id, work)
        self._commits, self._ids = dict(zip(LETTERS, ids, strict=False)), dict(zip(shas, ids, strict=True))
        policy = JudgingPolicy.for_device(self._assignment.device_class).unconfirmed()
        policy = policy.with_budget(max(2, int(self._assignment.policy.get("max_pairs", policy.looks[-1]))))
        stack = StackEvidence(self._device, policy, [StackCommit(info.sha, info.subject) for info in infos])
        failed = {event["position"]: _error_of(event) for event in self._records.events(self._id, "commit_failed")}
        for position, error in failed.items():
            stack.fail(position, error)
        for position, sha in enumerate(shas):  # of those that failed later too: who shares their arm must not change
            if position not in failed or failed[position].stage != "checkout":
                self._try_commit(stack, position, partial(self._check_out_commit, position, sha))
        keys = {LETTERS.index(one): build_key(checkout, self._device) for one, checkout in self._checkouts.items()}
        stack.share_builds(keys)
        self._stack = stack
        return False

    def _check_out_commit(self, position: int, sha: str) -> None:
        self._checkouts[LETTERS[position]] = self._mirror.check_out(sha)

    def _build(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "build")
        stack = self._known_stack()
        for position in stack.arms:
            self._try_commit(stack, position, partial(self._build_commit, LETTERS[position]))
        self._are_built = True
        return False

    def _build_commit(self, letter: str) -> None:
        self._builds[letter] = self._build_arm(letter)

    def _check_numerics(self) -> bool:
        self._records.enter(self._id, State.MEASURING, "numerics")
        stack = self._known_stack()
        self._add_stored(stack)
        for position in stack.arms:
            if not stack.has_numerics(position):
                self._try_commit(stack, position, partial(self._check_commit, stack, position))
        if not stack.arms and stack.last_error is not None:
            raise stack.last_error
        self._are_checked = True
        return False

    def _check_commit(self, stack: StackEvidence, position: int) -> None:
        letter = LETTERS[position]
        result = run_process(self._spec(letter, "numerics"), self._host, self._cancel.stop)
        key = self._key("numerics", 0, "AB")
        self._records.write(self._id, lambda session, *_: self._save_runs(session, key, {letter: result}))
        stack.add_numerics(position, result.document)

    def _measure_round(self) -> bool:
        self._records.enter(self._id, State.MEASURING, "rounds")
        stack = self._known_stack()
        index, order = stack.rounds_measured, stack.next_order()
        results: dict[str, ProcessResult] = {}
        canaries: dict[str, ProcessResult] = {}
        for position in order:
            canaries[LETTERS[position]] = self._canary.measure(PROCESS_ARM)
            if not self._try_commit(stack, position, partial(self._time_commit, LETTERS[position], results)):
                return False  # the next round goes without it
        timed, watched = ({at: one[LETTERS[at]].document for at in order} for one in (results, canaries))
        stack.add_round(index, order, timed, watched)
        admitted = stack.last_admissions()
        self._save_pair(self._key("round", index, pair_order(index)), results, canaries, admitted)
        self._rest(admitted)
        return False

    def _time_commit(self, letter: str, results: dict[str, ProcessResult]) -> None:
        results[letter] = run_process(self._spec(letter, "round"), self._host, self._cancel.stop)

    def _judge(self) -> bool:
        """Store a verdict on the whole and one per commit, case by case.

        Alerts and series stay as they are: they follow comparisons of one commit with its baseline.
        """
        self._records.enter(self._id, State.JUDGING, "judge")
        stacks = self._known_stack().judge()
        asked = self._assignment
        judged = Judged(self._id, asked.repository_id, asked.device_class, {}, self._device.gpu_uuid)
        counts = dict(Counter(one.summary.row.verdict for one in stacks))

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            save_verdicts(session, judged, [one.summary for one in stacks])
            save_attributions(session, judged, stacks, self._ids)
            add_event(session, job, "verdict", {"verdicts": counts}, measurement)
            end_in_transaction(session, job, measurement)

        self._records.write(self._id, work)
        return True

    # ---- what the steps share ----

    def _known_stack(self) -> StackEvidence:
        assert self._stack is not None
        return self._stack

    def _spec(self, letter: str, purpose: str) -> ProcessSpec:
        arm = Arm(PROCESS_ARM, self._checkouts[letter], self._builds[letter])
        return ProcessSpec(arm, purpose, self._assignment.cases, self._device)

    def _add_stored(self, stack: StackEvidence) -> None:
        """Add what earlier owners of this attempt have stored: numbers, and rounds, which are never halves."""
        rounds: defaultdict[int, dict[int, Document]] = defaultdict(dict)
        canaries: defaultdict[int, dict[int, Document]] = defaultdict(dict)
        for run in self._stored_runs():
            position, document = LETTERS.index(run.arm), self._read(run)
            if run.purpose == "numerics":
                stack.add_numerics(position, document)
            else:
                (canaries if run.purpose == "canary" else rounds)[run.pair_index][position] = document
        for index in sorted(rounds):
            ran = sorted(rounds[index])
            order = [ran[place] for place in round_order(index, len(ran))]
            stack.add_round(index, order, rounds[index], canaries[index])

    def _read(self, run: StoredRun) -> Document:
        mode = "only" if run.purpose == "numerics" else "skip"
        stage = "rounds" if run.purpose == "round" else run.purpose
        return read_document(run.raw, Expected(PROCESS_ARM, None, self._device.kind, mode, stage))

    def _try_commit(self, stack: StackEvidence, position: int, work: Callable[[], object]) -> bool:
        """Do something with a commit; a failure that is its own doing is noted, and the others go on without it."""
        try:
            work()
        except JobError as error:
            if error.kind is not Kind.PERMANENT:
                raise
            self._records.event(self._id, "commit_failed", {"position": position} | error.to_dict())
            self._records.log(self._id, f"{error.message}: it is left out\n{error.log_tail}".strip())
            stack.fail(position, error)
            return False
        return True


def line_of(mirror: Mirror, asked: Assignment, most: int) -> tuple[str, ...]:
    """Return the SHAs that a job is about, along first parents, the baseline first; raises when there are too many."""
    head = mirror.resolve(asked.commit, "commit")
    if asked.baseline == "auto":
        base = mirror.baseline_of(head, asked.default_branch)
    else:
        base = mirror.resolve(asked.baseline, "baseline")
    if base is None:
        raise JobError("no_parent", f"{head[:10]} has no parent to compare with", stage="checkout")
    return (base, *mirror.line(base, head, most))


def _error_of(event: dict[str, Any]) -> JobError:
    return JobError(event["code"], event["message"], stage=event["stage"], log_tail=event["log_tail"])
