"""Adapters for a scorer of detectors: what the service itself calls, on simulated devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.stats.admission import CaseHistory
from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job

SAMPLES = 15
REST = 80  # samples' worth of rest after a rejected pair
# What jobs on the simulated device usually show: it begins at its full clock (1.0) and loses at most 3 % by warming up
# and 4 % by its boost state; samples scatter by 0.2-1.0 %.
HISTORY = CaseHistory(clock_top=1.0, clock_low=0.925, scatter=0.006)
NAMES = {"regressed": "regression", "improved": "improvement"}


def job_procedure(sim: Any) -> tuple[str, int]:
    """Return the service's verdict on one simulated job, in the scorer's words, and how many pairs it took."""

    def observe(arm: str) -> ArmObservation:
        log_times, clocks, throttled = sim.process(arm, SAMPLES)
        return ArmObservation(
            samples=np.exp(log_times), throttled_share=float(throttled.mean()), sm_clock=float(np.median(clocks))
        )

    def sample_pair(index: int, order: str) -> PairObservation:
        seen = {arm: observe(arm) for arm in order}
        return PairObservation(index, order, baseline=seen["A"], candidate=seen["B"])

    decision = run_job(sample_pair, lambda times: sim.rest(REST * times), JudgingPolicy(), HISTORY)
    verdict = str(decision.verdict)
    return NAMES.get(verdict, verdict), decision.pairs_used + decision.pairs_rejected
