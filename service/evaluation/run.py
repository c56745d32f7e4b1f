"""Runs all tasks of an evaluation, on several cores, and adds their scores up."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from service.evaluation.detectors import available_detectors
from service.evaluation.device import SCENARIOS
from service.evaluation.history_score import HistoryScore, HistoryTask, history_tasks
from service.evaluation.jobs import JobScore, JobTask, job_tasks
from service.evaluation.procedures import PROCEDURES

Task = JobTask | HistoryTask
Score = JobScore | HistoryScore
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EvaluationOptions:
    """How much to simulate: jobs per scenario and effect, histories and their length; the seed of everything."""

    trials: int = 300
    effects: tuple[float, ...] = (0.01, 0.02, 0.03)
    series: int = 100
    commits: int = 300
    seed: int = 1
    processes: int = field(default_factory=lambda: max(1, min(os.cpu_count() or 1, 8)))

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("series", 1), ("commits", 60), ("seed", 0), ("processes", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected {least} or more, got {getattr(self, name)!r}")
        if any(not 0.0 < effect < 1.0 for effect in self.effects):
            raise ValueError(f"effects: expected ratios above 0 and below 1, got {self.effects!r}")


@dataclass(frozen=True)
class Evaluation:
    """The scores of an evaluation: jobs by (scenario, effect, procedure), histories by detector."""

    options: EvaluationOptions
    jobs: dict[tuple[str, float, str], JobScore]
    histories: dict[str, HistoryScore]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON types; rates without trials are null."""
        options = self.options
        return {
            "format": "s2bench evaluation 1",
            "trials": options.trials,
            "seed": options.seed,
            "series": options.series,
            "commits": options.commits,
            "jobs": [_job_row(one) for one in self.jobs.values()],
            "histories": [_history_row(one) for one in self.histories.values()],
        }


def evaluate(options: EvaluationOptions, progress: Progress = lambda done, total: None) -> Evaluation:
    """Simulate and score; `progress` hears how many jobs and histories are done of how many."""
    tasks: list[Task] = [
        *job_tasks(list(PROCEDURES), list(SCENARIOS), options.effects, trials=options.trials, seed=options.seed),
        *history_tasks(list(available_detectors()), series=options.series, commits=options.commits, seed=options.seed),
    ]
    jobs: dict[tuple[str, float, str], JobScore] = {}
    histories: dict[str, HistoryScore] = {}
    for task in tasks:  # the order of the report, whichever task ends first
        if isinstance(task, JobTask):
            key = task.scenario, task.effect, task.procedure
            jobs.setdefault(key, JobScore(task.procedure, task.scenario, task.effect))
        else:
            histories.setdefault(task.detector, HistoryScore(task.detector))
    for done, one in enumerate(_run_all(tasks, options.processes), start=1):
        if isinstance(one, JobScore):
            jobs[one.scenario, one.effect, one.procedure] += one
        else:
            histories[one.detector] += one
        progress(done, len(tasks))
    return Evaluation(options, jobs, histories)


def _run_all(tasks: Iterable[Task], processes: int) -> Iterator[Score]:
    """Yield the scores of tasks as they end; with one process in this one."""
    if processes == 1:
        yield from (task.run() for task in tasks)
        return
    # spawn: the caller may have threads (a progress bar), which a fork would copy half
    context, on_interrupt = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, initializer=signal.signal, initargs=on_interrupt) as pool:
        pending: set[Future[Score]] = {pool.submit(_run, task) for task in tasks}
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(task: Task) -> Score:
    return task.run()


def _job_row(one: JobScore) -> dict[str, Any]:
    told = one.found if one.effect else one.false_alarms
    return {
        "procedure": one.procedure,
        "scenario": one.scenario,
        "effect": one.effect,
        "verdicts": {name: one.verdicts[name] for name in sorted(one.verdicts)},
        "false_alarms" if not one.effect else "found": told.to_dict(),
        "pairs_per_job": one.pairs / one.trials if one.trials else None,
    }


def _history_row(one: HistoryScore) -> dict[str, Any]:
    return {
        "detector": one.detector,
        "commits": one.commits,
        "f1": one.f1,
        "precision": one.precision.to_dict(),
        "recall": one.recall.to_dict(),
        "recall_by_size": [{"size": size, **found.to_dict()} for size, found in one.sizes.items()],
        "false_alarms_per_1000_commits": one.per_thousand(one.false),
        "jobs_per_1000_commits": one.per_thousand(one.jobs),
        "delay_median": one.delay and one.delay[0],
        "delay_p90": one.delay and one.delay[1],
    }
