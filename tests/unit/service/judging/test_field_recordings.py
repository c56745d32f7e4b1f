"""Judging on what a real GPU showed: identical code, and more work of known size (tests/data/field)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from field.recording import base_then_candidate, judge_again, load, save, table, tally, wrong_directions

RECORDINGS = Path(__file__).parents[3] / "data" / "field"


@pytest.fixture(scope="module")
def identical() -> dict[str, Any]:
    return load(RECORDINGS / "identical.json.gz")


@pytest.fixture(scope="module")
def more_work() -> dict[str, Any]:
    return load(RECORDINGS / "more-work.json.gz")


def test_identical_code_is_never_called_changed(identical: dict[str, Any]) -> None:
    verdicts = Counter(str(one.verdict) for one in judge_again(identical).values())
    assert verdicts == {"unchanged": 523, "inconclusive": 17}


def test_more_work_is_found_from_one_percent_on(more_work: dict[str, Any]) -> None:
    found = {more: dict(verdicts) for (_, more), verdicts in tally([more_work]).items()}
    assert found == {
        0.0: {"unchanged": 8},
        0.005: {"unchanged": 6, "inconclusive": 1},
        0.01: {"regressed": 7},
        0.02: {"regressed": 7},
        0.05: {"regressed": 7},
    }
    assert wrong_directions(more_work) == []


def test_the_effects_are_those_of_the_work_that_was_added(more_work: dict[str, Any]) -> None:
    for name, decision in judge_again(more_work).items():
        assert decision.effect == pytest.approx(more_work["cases"][name]["more"], abs=0.008), name


def test_today_s_verdicts_are_those_that_the_job_ended_with(more_work: dict[str, Any]) -> None:
    again = judge_again(more_work)
    assert {name: str(one.verdict) for name, one in again.items()} == {
        name: case["verdict"] for name, case in more_work["cases"].items()
    }


def test_the_same_samples_without_pairs_raise_false_alarms(identical: dict[str, Any]) -> None:
    assert base_then_candidate(identical) == {"welch": (196, 540), "ranks": (0, 540), "medians": (0, 540)}


def test_the_device_s_own_clock_explains_times_that_nvml_s_does_not(identical: dict[str, Any]) -> None:
    pairs = [pair for one in judge_again(identical).values() for pair in one.evidence["pairs"]]
    assert {pair["clock_before"] for pair in pairs} == {1980.0}
    times, cycles = ([pair[name] ** 2 for pair in pairs] for name in ("log_ratio", "log_cycle_ratio"))
    assert sum(cycles) < 0.75 * sum(times)


def test_a_recording_is_read_as_it_was_written(more_work: dict[str, Any], tmp_path: Path) -> None:
    save(more_work, tmp_path / "again.json.gz")
    assert load(tmp_path / "again.json.gz") == more_work
    assert "| more work | 1.0% |  | 7 |" in table([more_work])
    save({**more_work, "format": "another"}, tmp_path / "new.json.gz")
    with pytest.raises(ValueError, match="expected format 's2bench field recording 1', got 'another'"):
        load(tmp_path / "new.json.gz")
