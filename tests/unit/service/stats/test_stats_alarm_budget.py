import numpy as np
import pytest

from service.stats.alarm_budget import AlarmBudget


@pytest.mark.parametrize("waves", [[1], [500], [40, 12, 3, 1, 1, 1], [1] * 60])
def test_all_waves_together_never_spend_more_than_the_budget(waves):
    budget, spent = AlarmBudget(0.02), 0.0
    for jobs in waves:
        level, budget = budget.wave(jobs, alpha=0.001)
        spent += jobs * level
    assert 0.0 < spent <= 0.02


def test_false_alarms_of_a_commit_stay_within_the_budget_under_the_null():
    """Fifty innocent jobs, and follow-ups for whatever came near: p values are uniform however they were asked for."""
    random, alarms, commits = np.random.default_rng(5), 0, 4000
    for _ in range(commits):
        budget, jobs = AlarmBudget(0.2), 50
        while jobs:
            level, budget = budget.wave(jobs, alpha=0.5)
            p = random.random(jobs)
            alarms += int((p <= level).sum())
            jobs = int(((p > level) & (p <= 0.3)).sum())
    assert 0.1 < alarms / commits <= 0.2 + 3 * np.sqrt(0.2 / commits)


def test_a_lonely_series_is_judged_as_a_job_that_stands_alone():
    assert AlarmBudget(0.02).wave(1, alpha=0.001) == (0.001, AlarmBudget(0.01))


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="jobs: expected 1 or more, got 0"):
        AlarmBudget(0.02).wave(0, alpha=0.001)
    with pytest.raises(ValueError, match="left: expected"):
        AlarmBudget(0.0)
