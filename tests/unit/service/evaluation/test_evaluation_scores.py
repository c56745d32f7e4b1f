"""What is scored and how: jobs, histories, and that plain tests do what they say."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
import pytest

from service.evaluation.detectors import Alarm, Watched, available_detectors
from service.evaluation.device import SCENARIOS, SimulatedGpu
from service.evaluation.histories import APART, SimulatedHistory, simulate_history
from service.evaluation.history_score import HistoryScore, match, score
from service.evaluation.jobs import JobScore, JobTask, job_tasks
from service.evaluation.procedures import PROCEDURES
from service.stats.history_state import HistoryPoint
from service.stats.proportion import Proportion
from service.stats.verdict import Verdict


def run_jobs(procedure: str, scenario: str, effect: float, trials: int = 30) -> JobScore:
    return JobTask(procedure, scenario, effect, seed=5, first=0, trials=trials).run()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_service_calls_identical_code_no_change(scenario: str) -> None:
    assert run_jobs("s2bench", scenario, 0.0).false_alarms.count == 0


@pytest.mark.parametrize("scenario", ["quiet", "warm-up", "boost", "mixed"])
def test_the_service_finds_two_percent(scenario: str) -> None:
    assert run_jobs("s2bench", scenario, 0.02).found.rate >= 0.93
    faster = run_jobs("s2bench", scenario, -0.02)
    assert faster.found == Proportion(faster.verdicts["improved"], 30)
    assert faster.found.rate >= 0.93


def test_a_throttled_device_is_called_so_and_a_known_one_always() -> None:
    assert run_jobs("s2bench", "onset", 0.0).share(Verdict.THROTTLED).rate == 1.0
    assert run_jobs("s2bench, known device", "pinned", 0.0).share(Verdict.THROTTLED).rate == 1.0


def test_plain_tests_take_device_states_for_code() -> None:
    assert run_jobs("Welch's t", "mixed", 0.0, 150).false_alarms.rate > 0.3
    assert run_jobs("paired t", "neighbor", 0.0, 150).pairs == 150 * 8


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_every_procedure_finds_a_tenth_on_a_quiet_device_and_answers_by_seed(procedure: str) -> None:
    one, same = (run_jobs(procedure, "quiet", 0.1, 20) for _ in range(2))
    assert one.found.rate == 1.0
    assert one == same


def test_tasks_cover_every_trial_once_and_scores_add_up() -> None:
    tasks = [one for one in job_tasks(["paired t"], ["quiet"], [0.01], trials=120, seed=1) if one.effect == 0.0]
    assert sorted(trial for one in tasks for trial in range(one.first, one.first + one.trials)) == list(range(120))
    total = functools.reduce(operator.add, (one.run() for one in tasks))
    assert total == JobTask("paired t", "quiet", 0.0, 1, 0, 120).run()
    with pytest.raises(ValueError, match="expected a score of the same jobs"):
        total + JobScore("paired t", "boost", 0.0)


def test_alarms_are_matched_one_to_one_the_nearest_first() -> None:
    alarms = [Alarm(98, 99), Alarm(101, 101), Alarm(150, 150)]
    assert match(alarms, [100, 103, 200]) == {100: alarms[1]}
    assert match([Alarm(98, 99), Alarm(102, 102)], [100, 103]) == {103: Alarm(102, 102), 100: Alarm(98, 99)}
    assert match([], [5]) == {}


def test_a_history_is_scored_by_hand() -> None:
    points = tuple(HistoryPoint(at, 1.0) for at in range(200))
    history = SimulatedHistory(0, points, {50: 0.01, 100: -0.05})
    found = score("by hand", history, Watched([Alarm(51, 55), Alarm(140, 141)], jobs=4))
    assert (found.right, found.false, found.delays) == (1, 1, (5,))
    assert found.sizes == {0.01: Proportion(1, 1), 0.05: Proportion(0, 1)}
    assert found.f1 == pytest.approx(0.5)
    assert found.precision == Proportion(1, 2)
    assert found.per_thousand(found.jobs) == pytest.approx(20.0)
    both = found + score("by hand", history, Watched([Alarm(50, 50), Alarm(100, 101)]))
    assert (both.right, both.false, both.commits) == (3, 1, 400)
    assert both.delay == (1.0, pytest.approx(4.2))


def test_a_score_of_nothing_says_nothing() -> None:
    nothing = HistoryScore("none")
    assert nothing.f1 is None
    assert nothing.precision.rate is None
    assert nothing.delay is None
    assert nothing.per_thousand(0) is None


def test_histories_hold_what_they_say() -> None:
    some = [simulate_history(seed, 300) for seed in range(60)]
    assert 20 <= sum(bool(one.changes) for one in some) <= 40
    for one in some:
        places = [0, *one.changes, 300]
        assert min(np.diff(places)) >= APART
        assert len(one.points) == 300
    loud = next(one for one in some if max(map(abs, one.changes.values()), default=0) == 0.1)
    place = next(at for at, size in loud.changes.items() if abs(size) == 0.1)
    usable = {point.position: point.value for point in loud.points if point.status == "ok"}
    before = np.median([usable[at] for at in range(place - 20, place) if at in usable])
    after = np.median([usable[at] for at in range(place, place + 20) if at in usable])
    assert after / before - 1 == pytest.approx(loud.changes[place], abs=0.05)


def test_effects_of_a_range_multiply() -> None:
    history = SimulatedHistory(0, (), {3: 0.1, 5: -0.5})
    assert history.effect_between(2, 5) == pytest.approx(1.1 * 0.5 - 1)
    assert history.effect_between(3, 4) == 0.0


@pytest.mark.parametrize("detector", available_detectors())
def test_every_detector_sees_a_large_step(detector: str) -> None:
    random = np.random.default_rng(1)
    values = np.exp(np.where(np.arange(80) < 40, 0.0, math.log(1.2)) + random.normal(0.0, 0.002, 80))
    points = tuple(HistoryPoint(at, float(value)) for at, value in enumerate(values))
    history = SimulatedHistory(1, points, {40: 0.2})
    found = score(detector, history, available_detectors()[detector](history))
    assert found.right == 1


def test_the_public_detectors_are_there_to_be_compared_with() -> None:
    assert {"PELT (ruptures)", "kernel (ruptures)"} < set(available_detectors())


def test_the_service_watches_histories_without_a_false_alarm() -> None:
    detector = available_detectors()["s2bench"]
    histories = [simulate_history(seed, 200) for seed in range(8)]
    total = functools.reduce(operator.add, (score("s2bench", one, detector(one)) for one in histories))
    assert total.false == 0
    assert total.right >= 0.8 * total.recall.trials > 0
    assert total.jobs > 0


def test_what_runs_on_the_device_of_a_scenario_has_its_effect() -> None:
    device = SimulatedGpu(np.random.default_rng(1), SCENARIOS["quiet"], 0.5)
    assert device.pair(0, "AB").log_ratio == pytest.approx(math.log(1.5), abs=0.05)
