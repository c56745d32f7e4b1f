import json
import subprocess
import sys
from pathlib import Path

import pytest

from s2attn.benchmarks.__main__ import main
from s2attn.benchmarks.suite import all_cases

RUN = ["run", "--arm", "A", "--protocol", "1"]


def test_list_prints_cases_with_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--device", "cpu", "--cases", "*/backward/*"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["protocol"] == 1
    assert len(listing["cases"]) == 3
    for entry in listing["cases"]:
        assert set(entry) == {"name", "version", "group", "device", "suite", "definition"}
        assert len(entry["version"]) == 16
    assert main(["list"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cases"]) == 16
    assert main(["list", "--suite", "full"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cases"]) == len(all_cases())


def test_a_glob_without_a_case_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--cases", "nothing/*", "--out", str(tmp_path / "a.json")]) == 2
    assert "no case for device cpu matches 'nothing/*'" in capsys.readouterr().err
    assert main(["list", "--cases", "nothing/*"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_protocol_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--arm", "A", "--protocol", "2", "--cases", "*", "--out", str(tmp_path / "a.json")]
    assert main(arguments) == 2
    assert "protocol 2 is unknown here, expected 1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        [*RUN, "--cases", "*", "--out", "x", "--samples", "0"],
        [*RUN, "--cases", "*", "--out", "x", "--numerics", "maybe"],
        [*RUN, "--cases", "*", "--out", "x", "--suite", "slow"],
        ["run", "--arm", "C", "--protocol", "1", "--cases", "*", "--out", "x"],
    ],
)
def test_a_request_that_makes_no_sense_is_exit_code_2(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert capsys.readouterr().err


def test_a_document_that_cannot_be_written_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "missing" / "a.json"
    assert (
        main([*RUN, "--cases", "cpu/forward/self/*", "--numerics", "skip", "--samples", "1", "--out", str(target)]) == 1
    )
    assert "no document could be written" in capsys.readouterr().err


def test_a_fresh_process_measures_one_case(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    command = [sys.executable, "-m", "s2attn.benchmarks", "run", "--arm", "B", "--protocol", "1", "--out", str(target)]
    command += ["--cases", "cpu/forward/down/*", "--numerics", "skip", "--samples", "3"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == finished.stderr == ""
    document = json.loads(target.read_text())
    assert document["arm"] == "B"
    assert Path(document["package_path"]).name == "s2attn"
    (case,) = document["cases"]
    assert (case["metric"], case["unit"], case["status"]) == ("time", "ms", "ok")
    assert len(case["samples"]) == 3


def test_the_process_imports_no_compiler() -> None:
    program = "import sys, s2attn.benchmarks.__main__; print('torch._dynamo' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert finished.stdout.strip() == "False"
