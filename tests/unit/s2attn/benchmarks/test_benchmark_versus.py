"""Side by side with another implementation: who is called, what the table says, and what ends it."""

import json
from pathlib import Path

import pytest
import torch

from s2attn.benchmarks import opponents
from s2attn.benchmarks.__main__ import main
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.operators import NeighborhoodOperator
from s2attn.benchmarks.opponents import OpponentUnavailableError, Rival
from s2attn.benchmarks.workload import Workload
from s2attn.ops.reference import reference_attention


class Reference:
    """An opponent that is always there: the torch reference, with its results multiplied by a factor."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def load(self, device: str) -> str:
        return "1.2.3"

    def plays(self, case: Case) -> bool:
        return case.operation == "forward" and not case.is_global

    def prepare(self, workload: Workload) -> Rival:
        operator, inputs = workload.operator, workload.inputs[0]
        assert isinstance(operator, NeighborhoodOperator)

        def forward(index: int) -> tuple[torch.Tensor, ...]:
            y, _ = reference_attention(*inputs[:3], operator.geometry, heads=workload.case.heads)
            return (self.factor * y,)

        return Rival(workload.case, forward, lambda found: {"y": found[0]})


def compare(tmp_path: Path, opponent: str, cases: str) -> tuple[int, dict]:
    out = tmp_path / "versus.json"
    code = main(["versus", opponent, "--cases", cases, "--rounds", "3", "--out", str(out)])
    return code, json.loads(out.read_text())


def test_a_row_has_a_ratio_errors_of_both_and_their_shares_of_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(opponents.OPPONENTS, "sdpa_mask", Reference())
    code, document = compare(tmp_path, "sdpa_mask", "cpu/forward/self/*")
    assert code == 0
    assert document["opponent_version"] == "1.2.3"
    (row,) = document["rows"]
    ours, theirs = row["ours"], row["theirs"]
    # a round is two samples of each
    assert len(ours["samples"]) == len(theirs["samples"]) == 6
    assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    assert max(ours["errors"]["y"], theirs["errors"]["y"]) < row["tolerance"]
    assert 0 < ours["share_of_floor"] < 1
    assert f"{row['ratio']['median']:.2f}x" in capsys.readouterr().out


def test_wrong_results_of_the_opponent_are_told_and_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(opponents.OPPONENTS, "sdpa_mask", Reference(1.01))
    code, document = compare(tmp_path, "sdpa_mask", "cpu/forward/self/*")
    assert code == 1
    assert document["rows"][0]["error"].startswith("their y: relative error 0.01")
    assert "their y: relative error" in capsys.readouterr().err


def test_global_attention_against_a_float_mask_agrees(tmp_path: Path) -> None:
    code, document = compare(tmp_path, "sdpa_mask", "full/cpu/*/global")
    assert code == 0
    operations = {row["definition"]["operation"] for row in document["rows"]}
    assert operations <= {"forward", "forward-backward"}
    assert "forward" in operations


def test_a_package_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(opponents.importlib, "import_module", missing)
    with pytest.raises(OpponentUnavailableError, match="torch_harmonics cannot be imported: No module named"):
        opponents.TorchHarmonics().load("cpu")
    assert main(["versus", "torch_harmonics"]) == 2
    assert "torch_harmonics cannot be imported" in capsys.readouterr().err


def test_cases_that_an_opponent_does_not_play_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versus", "sdpa_mask", "--cases", "cpu/forward/self/*"]) == 2
    assert "sdpa_mask plays none of the cases ['cpu/forward/self/24x48" in capsys.readouterr().err
