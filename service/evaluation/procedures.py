"""Ways to judge one job: the service's own, and plain tests that benchmark tools use, all on the same devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from service.evaluation.device import TOP_CLOCK, SimulatedGpu
from service.stats.admission import CaseHistory
from service.stats.pairs import Floats, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.verdict import Verdict

BLOCK = 60  # samples of an arm that is measured in one block: the time of four short processes
PAIRS = 8  # of the plain paired test: what the service's first look takes
# What earlier jobs have shown of a case on the simulated device, for a service that remembers it.
KNOWN_DEVICE = CaseHistory(clock_top=TOP_CLOCK, clock_low=0.925 * TOP_CLOCK, scatter=0.0025)


@dataclass(frozen=True)
class Answer:
    """What a procedure said of a job, and how many pairs of processes it took."""

    verdict: Verdict
    pairs: int


Procedure = Callable[[SimulatedGpu], Answer]


def service_procedure(gpu: SimulatedGpu) -> Answer:
    """Judge as a worker does for a case that it sees for the first time."""
    return _run_service(gpu, None)


def service_with_history(gpu: SimulatedGpu) -> Answer:
    """Judge as the service can when it knows the clocks and the scatter that this device usually shows."""
    return _run_service(gpu, KNOWN_DEVICE)


def _run_service(gpu: SimulatedGpu, history: CaseHistory | None) -> Answer:
    decision = run_job(gpu.pair, gpu.rest, JudgingPolicy(), history)
    assert decision.verdict is not None
    return Answer(decision.verdict, decision.pairs_measured)


def five_percent(gpu: SimulatedGpu) -> Answer:
    """Compare the medians of two blocks of samples: a change is more than 5 %."""
    before, after = _blocks(gpu)
    return _told(float(np.median(after) - np.median(before)), lambda shift: abs(shift) > math.log(1.05), 2)


def welch_test(gpu: SimulatedGpu) -> Answer:
    """Compare two blocks of samples by Welch's t test at 5 % (Welch 1947, Biometrika 34)."""
    from scipy.stats import ttest_ind

    before, after = _blocks(gpu)
    p = float(ttest_ind(after, before, equal_var=False).pvalue)
    return _told(float(after.mean() - before.mean()), lambda _: p < 0.05, 2)


def rank_test(gpu: SimulatedGpu) -> Answer:
    """Compare two blocks of samples by ranks at 0.2 %, and medians beyond 2 % (Mann & Whitney 1947)."""
    from scipy.stats import mannwhitneyu

    before, after = _blocks(gpu)
    p = float(mannwhitneyu(before, after).pvalue)
    shift = float(np.median(after) - np.median(before))
    return _told(shift, lambda size: p < 0.002 and abs(size) > math.log(1.02), 2)


def paired_test(gpu: SimulatedGpu) -> Answer:
    """Test the log ratios of eight interleaved pairs by Student's t at 5 %, without looking at telemetry."""
    from scipy.stats import ttest_1samp

    ratios = np.array([gpu.pair(index, pair_order(index)).log_ratio for index in range(PAIRS)])
    p = float(ttest_1samp(ratios, 0.0).pvalue)
    return _told(float(ratios.mean()), lambda _: p < 0.05, PAIRS)


def _blocks(gpu: SimulatedGpu) -> tuple[Floats, Floats]:
    """Return the log samples of the baseline and then of the candidate, each in one block of two processes."""
    arms = []
    for arm in "AB":
        arms.append(np.concatenate([np.log(gpu.observe(arm, BLOCK // 2).samples) for _ in range(2)]))
    return arms[0], arms[1]


def _told(shift: float, is_change: Callable[[float], bool], pairs: int) -> Answer:
    if not is_change(shift):
        return Answer(Verdict.UNCHANGED, pairs)
    return Answer(Verdict.REGRESSED if shift > 0.0 else Verdict.IMPROVED, pairs)


PROCEDURES: Mapping[str, Procedure] = {
    "s2bench": service_procedure,
    "s2bench, known device": service_with_history,
    "5 % of medians": five_percent,
    "Welch's t": welch_test,
    "rank test and 2 %": rank_test,
    "paired t": paired_test,
}
