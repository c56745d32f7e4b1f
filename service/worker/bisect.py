"""Takes the measurement of a bisection to the commit that changed a case, or to where nobody can be named.

    range -> (checkout -> build -> numerics -> pairs -> outcome) for the whole range, then for its halves -> end

Each comparison is that of a job of pairs. Its outcome is an event, stored with what it proves, so that whoever takes
the measurement over goes on at the next pair of the comparison under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.judging.stack import CommitRow
from service.models import Job, Measurement, State
from service.stats.investigation import Finding, Investigation, Outcome, advance
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict
from service.worker.bisection import MAX_RANGE, outcome_of
from service.worker.checkout import Checkout
from service.worker.errors import JobError, Kind
from service.worker.evidence import CaseSummary
from service.worker.pipeline import BASELINE, CANDIDATE, MeasurementRun
from service.worker.records import add_event, end_in_transaction
from service.worker.stack import line_of
from service.worker.stack_evidence import CaseStack
from service.worker.storing import Judged, RunKey, StoredRun, save_attributions, save_commit, save_verdicts

OUTCOME = "bisected"
STRIDE = 1000  # pairs of the n-th comparison are stored from n * STRIDE on; a job takes 200 at most


class BisectRun(MeasurementRun):
    """One worker's work on the measurement of a bisection."""

    _shas: tuple[str, ...] = ()
    _done = 0
    _search: Investigation | Finding
    _base_error: JobError | None = None

    def _next(self) -> tuple[str, Callable[[], bool]]:
        if not self._shas:
            return "checkout", self._find_range
        if isinstance(self._search, Finding):
            return "judge", self._end
        self._profiled = True  # whose kernels changed is a question for a comparison of the commit that was found
        name, work = super()._next()
        return name, lambda: self._attempt(work)

    # ---- steps: each returns whether the measurement has ended ----

    def _find_range(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "checkout")
        shas = line_of(self._mirror, self._assignment, MAX_RANGE)
        head, base = self._describe(shas[-1]), self._describe(shas[0])
        self._records.save_commits(self._id, self._assignment.repository_id, head, base)
        self._search = Investigation("", 0, len(shas) - 1)
        for event in self._records.events(self._id, OUTCOME):
            self._go_on(_outcome_from(event))
        self._shas = shas
        return False

    def _check_out(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "checkout")
        low, high = self._ends()
        infos = {letter: self._describe(sha) for letter, sha in ((BASELINE, low), (CANDIDATE, high))}
        repository_id = self._assignment.repository_id

        def work(session: Session, *_: object) -> dict[str, UUID]:
            return {letter: save_commit(session, repository_id, info) for letter, info in infos.items()}

        self._commits = self._records.write(self._id, work)
        checkouts: dict[str, Checkout] = {CANDIDATE: self._mirror.check_out(high)}
        self._try_baseline(lambda: self._check_out_into(checkouts, BASELINE, low))
        self._checkouts = checkouts
        return False

    def _judge(self) -> bool:
        """Draw the outcome of the comparison under way from its pairs."""
        assert self._evidence is not None
        summaries = self._evidence.judge()
        found = next((one for one in summaries if one.row.case == self._assignment.cases), None)
        if found is None:
            message = f"cases: expected the name of one case, got {self._assignment.cases!r}"
            raise JobError("no_cases", message, stage="judge")
        self._conclude(outcome_of(self._request(), found.row), found)
        return False

    def _end(self) -> bool:
        def work(session: Session, job: Job, measurement: Measurement) -> None:
            end_in_transaction(session, job, measurement)

        self._records.enter(self._id, State.JUDGING, "judge")
        self._records.write(self._id, work)
        return True

    # ---- what the steps share ----

    def _request(self) -> Investigation:
        assert isinstance(self._search, Investigation)
        return self._search

    def _ends(self) -> tuple[str, str]:
        request = self._request()
        return self._shas[request.low], self._shas[request.high]

    def _attempt(self, work: Callable[[], bool]) -> bool:
        """Do a step; a half whose newer end fails is undecided, the whole range has to be measurable."""
        try:
            return work()
        except JobError as error:
            if error.kind is not Kind.PERMANENT or self._done == 0:
                raise
            self._records.log(self._id, f"{error.message}\n{error.log_tail}".strip())
            request = self._request()
            self._conclude(Outcome(request.high, request.low, Verdict.NOT_COMPARABLE), None)
            return False

    def _conclude(self, outcome: Outcome, summary: CaseSummary | None) -> None:
        """Store an outcome with what it proves, and turn to the next comparison."""
        low, high = self._ends()
        ids = {low: self._commits[BASELINE], high: self._commits[CANDIDATE]}
        asked = self._assignment
        judged = Judged(self._id, asked.repository_id, asked.device_class, {}, self._device.gpu_uuid)
        proven = outcome.verdict in CHANGES and outcome.candidate - outcome.baseline == 1
        subject = self._mirror.describe(high).subject

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            if summary is not None and self._done == 0:
                save_verdicts(session, judged, [replace(summary, points={})])
            if summary is not None and proven:
                row = CommitRow(outcome.candidate, high, low, subject, summary.row)
                save_attributions(session, judged, [CaseStack(summary, (row,))], ids)
            add_event(session, job, OUTCOME, _event_of(outcome), measurement)

        self._records.write(self._id, work)
        effect = "" if outcome.effect is None else f" ({outcome.effect:+.2%})"
        self._records.log(self._id, f"{high[:10]} against {low[:10]}: {outcome.verdict}{effect}")
        self._go_on(outcome)

    def _go_on(self, outcome: Outcome) -> None:
        self._search = advance(self._request(), outcome)
        self._done += 1
        self._checkouts, self._builds, self._evidence, self._base_error = {}, {}, None, None

    def _baseline_failure(self) -> JobError | None:
        return self._base_error

    def _give_up_baseline(self, error: JobError) -> None:
        self._base_error = error
        self._records.log(self._id, f"{error.message}\n{error.log_tail}".strip())

    def _stored_runs(self) -> list[StoredRun]:
        first = self._done * STRIDE
        runs = [run for run in super()._stored_runs() if first <= run.pair_index < first + STRIDE]
        return [replace(run, pair_index=run.pair_index - first) for run in runs]

    def _key(self, purpose: str, index: int, order: str) -> RunKey:
        return super()._key(purpose, self._done * STRIDE + index, order)


def _event_of(outcome: Outcome) -> dict[str, Any]:
    return {
        "candidate": outcome.candidate,
        "baseline": outcome.baseline,
        "verdict": str(outcome.verdict),
        "effect": outcome.effect,
        "interval": None if outcome.interval is None else list(outcome.interval),
    }


def _outcome_from(event: dict[str, Any]) -> Outcome:
    interval = event["interval"]
    bounds = None if interval is None else (float(interval[0]), float(interval[1]))
    return Outcome(event["candidate"], event["baseline"], Verdict(event["verdict"]), event["effect"], bounds)
