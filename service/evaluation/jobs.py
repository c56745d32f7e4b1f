"""Scores ways to judge a job on simulated devices: false alarms on identical code, and planted changes found."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.evaluation.device import SCENARIOS, SimulatedGpu
from service.evaluation.procedures import PROCEDURES
from service.stats.proportion import Proportion
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict

CHUNK = 50  # trials of one task: a few seconds at most


@dataclass(frozen=True)
class JobTask:
    """Some trials of one procedure in one scenario with one true effect (ratio - 1)."""

    procedure: str
    scenario: str
    effect: float
    seed: int
    first: int
    trials: int

    def run(self) -> JobScore:
        """Judge these jobs. A trial's device depends on the seed, the scenario and its number alone."""
        verdicts: Counter[str] = Counter()
        pairs = 0
        for trial in range(self.first, self.first + self.trials):
            random = np.random.default_rng([self.seed, zlib.crc32(self.scenario.encode()), trial])
            answer = PROCEDURES[self.procedure](SimulatedGpu(random, SCENARIOS[self.scenario], self.effect))
            verdicts[str(answer.verdict)] += 1
            pairs += answer.pairs
        return JobScore(self.procedure, self.scenario, self.effect, verdicts, pairs)


@dataclass(frozen=True)
class JobScore:
    """How often each verdict was given, and the pairs that all of it took."""

    procedure: str
    scenario: str
    effect: float
    verdicts: Mapping[str, int] = field(default_factory=dict)
    pairs: int = 0

    @property
    def trials(self) -> int:
        """Return the number of jobs."""
        return sum(self.verdicts.values())

    @property
    def false_alarms(self) -> Proportion:
        """Return how many jobs were called a change; meant for identical code."""
        return Proportion(sum(self.verdicts.get(one, 0) for one in CHANGES), self.trials)

    @property
    def found(self) -> Proportion:
        """Return how many jobs called the change that was planted."""
        right = Verdict.REGRESSED if self.effect > 0.0 else Verdict.IMPROVED
        return Proportion(self.verdicts.get(right, 0), self.trials)

    def share(self, verdict: Verdict) -> Proportion:
        """Return how many jobs got a verdict."""
        return Proportion(self.verdicts.get(verdict, 0), self.trials)

    def __add__(self, other: JobScore) -> JobScore:
        if (self.procedure, self.scenario, self.effect) != (other.procedure, other.scenario, other.effect):
            raise ValueError(f"other: expected a score of the same jobs, got {other.procedure}, {other.scenario}")
        verdicts = dict(Counter(self.verdicts) + Counter(other.verdicts))
        return JobScore(self.procedure, self.scenario, self.effect, verdicts, self.pairs + other.pairs)


def job_tasks(
    procedures: Sequence[str], scenarios: Sequence[str], effects: Sequence[float], *, trials: int, seed: int
) -> Iterator[JobTask]:
    """Yield all tasks: identical code (effect 0) and each planted effect, in every scenario, by every procedure."""
    for scenario in scenarios:
        for effect in (0.0, *effects):
            for procedure in procedures:
                for first in range(0, trials, CHUNK):
                    yield JobTask(procedure, scenario, effect, seed, first, min(CHUNK, trials - first))
