"""Adapters for a scorer of detectors: what the service itself calls, on simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from service.stats.admission import CaseHistory
from service.stats.history import resolve, update
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import ChangePoint, ChangeStatus, HistoryPoint, SeriesState
from service.stats.investigation import Outcome, Request
from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.sequential import CHANGES
from service.stats.verdict import CaseDecision, Verdict

SAMPLES = 15
REST = 80  # samples' worth of rest after a rejected pair
# What jobs on the simulated device usually show: it begins at its full clock (1.0) and loses at most 3 % by warming up
# and 4 % by its boost state; samples scatter by 0.2-1.0 %.
HISTORY = CaseHistory(clock_top=1.0, clock_low=0.925, scatter=0.006)
NAMES = {"regressed": "regression", "improved": "improvement"}
LEAST_RUNS = 3  # of a commit's runs, fewer unthrottled ones make it under-sampled

Confirm = Callable[..., tuple[str, int]]


def judged_job(sim: Any, policy: JudgingPolicy | None = None) -> CaseDecision:
    """Return the service's decision on one simulated job."""

    def observe(arm: str) -> ArmObservation:
        log_times, clocks, throttled = sim.process(arm, SAMPLES)
        return ArmObservation(
            samples=np.exp(log_times), throttled_share=float(throttled.mean()), sm_clock=float(np.median(clocks))
        )

    def sample_pair(index: int, order: str) -> PairObservation:
        seen = {arm: observe(arm) for arm in order}
        return PairObservation(index, order, baseline=seen["A"], candidate=seen["B"])

    return run_job(sample_pair, lambda times: sim.rest(REST * times), policy or JudgingPolicy(), HISTORY)


def in_scorers_words(decision: CaseDecision) -> tuple[str, int]:
    """Return the verdict as the scorer calls it, and how many pairs it took, those that confirm a change included."""
    verdict = str(decision.verdict)
    return NAMES.get(verdict, verdict), decision.pairs_measured


def job_procedure(sim: Any) -> tuple[str, int]:
    """Return the service's verdict on one simulated job, in the scorer's words, and how many pairs it took."""
    return in_scorers_words(judged_job(sim))


def history_points(series: Mapping[str, Any]) -> Iterator[HistoryPoint]:
    """Yield a series' commits as the service stores them: medians over the runs that are not throttled."""
    if "runs" not in series:
        for position, value in enumerate(series["values"]):
            yield HistoryPoint(position, float(value))
        return
    for position, runs in enumerate(series["runs"]):
        usable = ~np.asarray(series["throttled"][position], dtype=bool)
        if usable.sum() < LEAST_RUNS:
            yield HistoryPoint(position, float(np.median(runs)), status="throttled")
            continue
        clock = float(np.median(np.asarray(series["clock"][position])[usable]))
        yield HistoryPoint(position, float(np.median(np.asarray(runs)[usable])), clock=clock)


class Jobs:
    """Answers requests by the scorer's jobs, which compare a commit with its parent and know no ranges.

    So a range is answered by the commits in it, the newest first, each judged once and each counted by the scorer.
    """

    def __init__(self, confirm: Confirm | None) -> None:
        self._confirm = confirm
        self._decided: dict[int, CaseDecision] = {}

    def outcome(self, request: Request) -> Outcome:
        """Return what a job of candidate against baseline says; without a scorer's jobs none can run."""
        verdict = Verdict.NOT_COMPARABLE if self._confirm is None else Verdict.UNCHANGED
        for position in range(request.candidate, request.baseline, -1):
            decision = None if self._confirm is None else self._decision(position)
            if decision is None or decision.verdict is Verdict.UNCHANGED:
                continue
            verdict = decision.verdict or verdict
            if verdict in CHANGES:
                return Outcome(request.candidate, request.baseline, verdict, decision.effect, decision.interval)
        return Outcome(request.candidate, request.baseline, verdict)

    def _decision(self, position: int) -> CaseDecision:
        if position in self._decided:
            return self._decided[position]
        kept: list[CaseDecision] = []

        def procedure(sim: Any) -> tuple[str, int]:
            kept.append(judged_job(sim))
            return in_scorers_words(kept[-1])

        assert self._confirm is not None
        self._confirm(position, ab=procedure)
        if kept[-1].verdict in CHANGES | {Verdict.UNCHANGED}:
            self._decided[position] = kept[-1]
        return kept[-1]


def history_detector(series: Mapping[str, Any], confirm: Confirm | None) -> list[tuple[int, int]]:
    """Return (commit, raised at) of every alarm over one series.

    With jobs only confirmed change points are alarms. Where no job can run the service says "unconfirmed"; those that
    name a commit are returned then.
    """
    state, jobs, policy = SeriesState(), Jobs(confirm), HistoryPolicy()
    changes: list[ChangePoint] = []
    for point in history_points(series):
        state, actions = update(state, point, policy)
        while actions:
            changes += [action for action in actions if isinstance(action, ChangePoint)]
            requests = [action for action in actions if isinstance(action, Request)]
            if not requests:
                break
            state, actions = resolve(state, jobs.outcome(requests[0]), policy)
    alarming = ChangeStatus.UNCONFIRMED if confirm is None else ChangeStatus.CONFIRMED
    return [(one.position, one.raised_at) for one in changes if one.status is alarming and one.named]
