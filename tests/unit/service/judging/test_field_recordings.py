"""Judging on what real GPUs showed: identical code, more work of known size, no fit device (tests/data/field)."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from field.recording import Recording, base_then_candidate, judge_again, load, save, table, tally, wrong_directions

RECORDINGS = Path(__file__).parents[3] / "data" / "field"


@cache
def recorded(name: str) -> Recording:
    return load(RECORDINGS / f"{name}.json.gz")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("identical", {"unchanged": 523, "inconclusive": 17}), ("identical-2", {"unchanged": 536, "inconclusive": 4})],
)
def test_identical_code_is_never_called_changed(name: str, expected: dict[str, int]) -> None:
    assert Counter(str(one.verdict) for one in judge_again(recorded(name)).values()) == expected


def test_more_work_is_found_from_one_percent_on() -> None:
    found = {more: dict(verdicts) for (_, more), verdicts in tally([recorded("more-work")]).items()}
    assert found == {
        0.0: {"unchanged": 8},
        0.005: {"unchanged": 6, "inconclusive": 1},
        0.01: {"regressed": 7},
        0.02: {"regressed": 7},
        0.05: {"regressed": 7},
    }
    assert wrong_directions(recorded("more-work")) == []


def test_the_effects_are_those_of_the_work_that_was_added() -> None:
    for name, decision in judge_again(recorded("more-work")).items():
        assert decision.effect == pytest.approx(recorded("more-work")["cases"][name]["more"], abs=0.008), name


def test_beside_a_second_process_no_pair_is_admitted_and_it_is_the_reason() -> None:
    """Identical code, whose arms differed by up to 6.3 %; the canary GEMM took 5.26 ms instead of 2.68 ms."""
    recording = recorded("second-process")
    decisions = judge_again(recording).values()
    assert {(str(one.verdict), one.reasons[0].code, one.effect) for one in decisions} == {
        ("throttled", "foreign_process", None)
    }
    pairs = [pair for one in decisions for pair in one.evidence["pairs"]]
    assert len(pairs) == 48
    assert max(abs(pair["log_ratio"]) for pair in pairs) > 0.06


def test_at_the_power_cap_no_change_is_told_nor_ruled_out_and_the_cap_is_said() -> None:
    """Clocks wandered: arms of identical code differed by up to 7.3 % in time, 1 % in cycles."""
    recording = recorded("power-cap")
    decisions = judge_again(recording)
    assert Counter(str(one.verdict) for one in decisions.values()) == {"throttled": 9, "inconclusive": 3}
    for one in decisions.values():
        assert one.effect is None
        assert "power_limited" in {why.code for why in one.reasons}
    same = [
        pair
        for name, case in recording["cases"].items()
        if not case["more"]
        for pair in decisions[name].evidence["pairs"]
    ]
    assert max(abs(pair["log_ratio"]) for pair in same) > 0.07
    assert max(abs(pair["log_cycle_ratio"]) for pair in same) < 0.011


@pytest.mark.parametrize("name", ["identical-2", "more-work", "power-cap", "second-process"])
def test_today_s_verdicts_are_those_that_the_job_ended_with(name: str) -> None:
    again = judge_again(recorded(name))
    assert {case: str(one.verdict) for case, one in again.items()} == {
        case: values["verdict"] for case, values in recorded(name)["cases"].items()
    }


@pytest.mark.parametrize(("name", "welch"), [("identical", 196), ("identical-2", 246)])
def test_the_same_samples_without_pairs_raise_false_alarms(name: str, welch: int) -> None:
    assert base_then_candidate(recorded(name)) == {"welch": (welch, 540), "ranks": (0, 540), "medians": (0, 540)}


def test_the_device_s_own_clock_explains_times_that_nvml_s_does_not() -> None:
    pairs = [pair for one in judge_again(recorded("identical")).values() for pair in one.evidence["pairs"]]
    assert {pair["clock_before"] for pair in pairs} == {1980.0}
    times, cycles = ([pair[name] ** 2 for pair in pairs] for name in ("log_ratio", "log_cycle_ratio"))
    assert sum(cycles) < 0.75 * sum(times)


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    more_work = recorded("more-work")
    save(more_work, tmp_path / "again.json.gz")
    assert load(tmp_path / "again.json.gz") == more_work
    assert "| more work | 1.0% |  | 7 |" in table([more_work])
    save({**more_work, "format": "another"}, tmp_path / "new.json.gz")
    with pytest.raises(ValueError, match="expected format 's2bench field recording 1', got 'another'"):
        load(tmp_path / "new.json.gz")
