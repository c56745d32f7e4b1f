"""Ways to watch a history: the service's own with and without jobs, plain tests, and public detectors if installed."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from service.evaluation.device import SCENARIOS, SimulatedGpu
from service.evaluation.histories import SimulatedHistory
from service.stats.history import resolve, update
from service.stats.history_policy import HistoryPolicy
from service.stats.history_state import ChangePoint, ChangeStatus, SeriesState
from service.stats.investigation import Outcome, Request
from service.stats.pairs import MAD_TO_SD, Floats
from service.stats.policy import JudgingPolicy
from service.stats.procedure import run_job
from service.stats.verdict import Verdict

BEFORE, AFTER = 20, 5  # commits that the rolling test compares


@dataclass(frozen=True)
class Alarm:
    """A commit that is said to have changed the level, and the newest commit when that was said."""

    position: int
    raised_at: int


@dataclass
class Watched:
    """The alarms over one history, and the jobs that they cost."""

    alarms: list[Alarm] = field(default_factory=list)
    jobs: int = 0


Detector = Callable[[SimulatedHistory], Watched]


class _Jobs:
    """Answers the service's requests for jobs by jobs on simulated devices that have the true effect of the range."""

    def __init__(self, history: SimulatedHistory) -> None:
        self._history = history
        self.count = 0

    def outcome(self, request: Request) -> Outcome:
        """Run one job of the candidate against the baseline, as a worker does."""
        self.count += 1
        random = np.random.default_rng([self._history.seed, 0x4A4F42, self.count])
        effect = self._history.effect_between(request.baseline, request.candidate)
        gpu = SimulatedGpu(random, SCENARIOS["mixed"], effect)
        decision = run_job(gpu.pair, gpu.rest, JudgingPolicy())
        assert decision.verdict is not None
        return Outcome(request.candidate, request.baseline, decision.verdict, decision.effect, decision.interval)


def service_detector(history: SimulatedHistory) -> Watched:
    """Watch as the service does: a suspicion asks for a job, only a confirmed change is an alarm."""
    jobs = _Jobs(history)
    changes = _follow(history, jobs.outcome)
    confirmed = [one for one in changes if one.status is ChangeStatus.CONFIRMED]
    return Watched([Alarm(one.position, one.raised_at) for one in confirmed], jobs.count)


def service_without_jobs(history: SimulatedHistory) -> Watched:
    """Watch as the service does where no job can run: commits that an unconfirmed change names."""
    changes = _follow(history, lambda one: Outcome(one.candidate, one.baseline, Verdict.NOT_COMPARABLE))
    named = [one for one in changes if one.status is ChangeStatus.UNCONFIRMED and one.named]
    return Watched([Alarm(one.position, one.raised_at) for one in named])


def _follow(history: SimulatedHistory, answer: Callable[[Request], Outcome]) -> list[ChangePoint]:
    state, policy = SeriesState(), HistoryPolicy()
    changes: list[ChangePoint] = []
    for point in history.points:
        state, actions = update(state, point, policy)
        while actions:
            changes += [one for one in actions if isinstance(one, ChangePoint)]
            request = next((one for one in actions if isinstance(one, Request)), None)
            if request is None:
                break
            state, actions = resolve(state, answer(request), policy)
    return changes


def five_percent_step(history: SimulatedHistory) -> Watched:
    """Alarm at each commit that is 5 % off the one before."""
    values, positions = history.values()
    found = np.flatnonzero(np.abs(np.diff(np.log(values))) > math.log(1.05)) + 1
    return Watched([Alarm(positions[at], positions[at]) for at in found])


def rolling_welch(history: SimulatedHistory) -> Watched:
    """Alarm where Welch's t test of 5 commits against the 20 before is below 0.1 % and its lowest in ten commits."""
    from scipy.stats import ttest_ind

    values, positions = history.values()
    logs = np.log(values)
    p = np.ones(logs.size)
    for at in range(BEFORE, logs.size - AFTER + 1):
        p[at] = ttest_ind(logs[at : at + AFTER], logs[at - BEFORE : at], equal_var=False).pvalue
    lowest = [at for at in range(logs.size) if p[at] < 0.001 and p[at] == p[max(0, at - AFTER) : at + AFTER + 1].min()]
    return Watched([Alarm(positions[at], positions[at + AFTER - 1]) for at in lowest])


def pelt(history: SimulatedHistory) -> Watched:
    """Segment the whole history by PELT on squared error (Killick et al. 2012), of the package `ruptures`."""
    import ruptures

    values, positions = history.values()
    signal = np.log(values) / _step_scatter(np.log(values))
    found = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(signal[:, None]).predict(pen=3.0 * math.log(values.size))
    return Watched([Alarm(positions[at], positions[-1]) for at in found[:-1]])


def kernel_segmentation(history: SimulatedHistory) -> Watched:
    """Segment the whole history by a Gaussian kernel (Arlot et al. 2019), of the package `ruptures`."""
    import ruptures

    values, positions = history.values()
    found = ruptures.KernelCPD(kernel="rbf", min_size=3).fit(np.log(values)[:, None])
    return Watched([Alarm(positions[at], positions[-1]) for at in found.predict(pen=3.0 * math.log(values.size))[:-1]])


def _step_scatter(logs: Floats) -> float:
    """Return the scatter of single values from the differences of neighbors, which a few steps do not move."""
    steps = np.diff(logs)
    return max(MAD_TO_SD * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2.0), 1e-9)


def available_detectors() -> Mapping[str, Detector]:
    """Return the detectors that can run here, by name."""
    public: dict[str, Detector] = {"PELT (ruptures)": pelt, "kernel (ruptures)": kernel_segmentation}
    return {
        "s2bench": service_detector,
        "s2bench without jobs": service_without_jobs,
        "5 % against the previous commit": five_percent_step,
        "rolling Welch's t": rolling_welch,
        **(public if importlib.util.find_spec("ruptures") else {}),
    }
