"""The whole evaluation, small: tables, JSON, plots, and the same numbers from one process and from two."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from service.evaluate_command import _plot
from service.evaluation.plots import can_plot, write_plots
from service.evaluation.procedures import PROCEDURES
from service.evaluation.report import at_most, markdown, percent
from service.evaluation.run import Evaluation, EvaluationOptions, evaluate
from service.stats.proportion import Proportion

SMALL = EvaluationOptions(trials=2, effects=(0.02,), series=2, commits=80, seed=3, processes=1)


@pytest.fixture(scope="module")
def small() -> Evaluation:
    heard: list[tuple[int, int]] = []
    found = evaluate(SMALL, lambda done, total: heard.append((done, total)))
    assert [done for done, _ in heard] == list(range(1, heard[-1][1] + 1))
    return found


def test_two_processes_give_the_same_numbers(small: Evaluation) -> None:
    options = EvaluationOptions(trials=2, effects=(0.02,), series=2, commits=80, seed=3, processes=2)
    assert evaluate(options).to_dict() == small.to_dict()


def test_the_tables_hold_a_row_per_scenario_and_detector(small: Evaluation) -> None:
    text = markdown(small)
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("| ")]
    assert [len(lines) - 2 for lines in tables] == [9, 9, len(small.histories)]
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1
    assert "--trials 2 --series 2 --commits 80 --seed 3" in text
    assert "nan" not in text


def test_everything_is_json(small: Evaluation) -> None:
    document = json.loads(json.dumps(small.to_dict()))
    identical = [row for row in document["jobs"] if row["effect"] == 0]
    assert len(identical) == 9 * len(PROCEDURES)
    assert all(sum(row["verdicts"].values()) == 2 for row in document["jobs"])
    assert document["histories"][0]["commits"] == 160


def test_the_plots_are_images_and_the_same_for_the_same_numbers(small: Evaluation, tmp_path: Path) -> None:
    assert can_plot()
    (tmp_path / "again").mkdir()
    for path in write_plots(small, tmp_path):
        assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    again = write_plots(small, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [(tmp_path / path.name).read_bytes() for path in again]


def test_without_matplotlib_the_plots_are_missed_in_words(
    small: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("service.evaluation.plots.can_plot", lambda: False)
    _plot(small, tmp_path)
    assert "matplotlib is not installed (pip install 's2bench[plots]')" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_a_dash_and_none_is_not_never() -> None:
    assert percent(Proportion(0, 0)) == at_most(Proportion(0, 0)) == "–"
    assert at_most(Proportion(0, 300)) == "0.0 % (≤ 1.2)"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trials": 0}, "trials: expected 1 or more, got 0"),
        ({"commits": 59}, "commits: expected 60 or more, got 59"),
        ({"effects": (0.0,)}, "effects: expected ratios above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationOptions(**values)  # type: ignore[arg-type]
