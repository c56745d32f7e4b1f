"""`s2bench calibrate` and `evaluate` as a user types them."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from worker_fixtures import FakeRepository

from service.embedded import free_port

HEAD = "| device class | group | false alarms | rate | 95 % interval | noise floor | detectable | undecided |"
SELF = "cpu/forward/self"


@pytest.fixture
def own_lock(command_line, tmp_path):
    """Lets a command measure beside the server's worker, which holds the lock of the CPU in its folder."""
    command_line.environment["TMPDIR"] = str(tmp_path)
    yield
    del command_line.environment["TMPDIR"]


def test_a_server_calibrates_and_its_running_rates_are_printed(command_line):
    outcome = command_line("calibrate", "same", "--max-pairs", "8", "--jobs", "2", timeout_s=280)
    assert outcome.code in {0, 4}, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "All calibrations of the last 90 days:"
    assert lines[2] == HEAD
    assert [line.split(" | ")[:2] for line in lines[4:]] == [
        ["| cpu", "all"],
        ["| cpu", "cpu.backward"],
        ["| cpu", "cpu.forward"],
    ]
    assert "0 false alarms in" in outcome.err
    assert "of 6" in outcome.err
    assert outcome.err.count("/jobs/") == 2


def test_json_holds_jobs_rows_and_rates(command_line):
    answer = command_line("calibrate", "same", "--max-pairs", "8", "--cases", SELF, "--device", "cpu", "--json").json()
    (job,) = answer["jobs"]
    assert job["commit"] == job["baseline"]
    assert (job["priority"], job["reason"]) == (1000, "calibrate")
    assert [row["case"] for row in answer["rows"]] == [SELF]
    assert answer["calibration"]["devices"][0]["jobs"] >= 1


def test_without_a_server_it_runs_here(command_line, own_lock, tmp_path):
    saved = tmp_path / "calibration.json"
    nowhere = f"http://127.0.0.1:{free_port()}"
    outcome = command_line("calibrate", "same", "--max-pairs", "8", "--server", nowhere, "--save", str(saved))
    assert outcome.code in {0, 4}, outcome.err
    assert f"on this machine: no server answers at {nowhere}" in outcome.err
    assert outcome.out.splitlines()[0] == HEAD
    (document,) = json.loads(saved.read_text())
    assert document["baseline"] == document["candidate"]
    assert len(document["rows"]) == 3


def test_a_false_alarm_exits_1_and_is_loud(command_line, own_lock, tmp_path):
    broken = FakeRepository(tmp_path / "broken")
    broken.commit("head", slower_as_candidate={SELF: 1.3})
    arguments = ("--local", "--max-pairs", "8", "--cases", SELF, "--repository", str(broken.path), "--json")
    outcome = command_line("calibrate", *arguments)
    assert outcome.code == 1, outcome.err
    assert f"FALSE ALARM: {SELF} regressed, +" in outcome.err
    every, group = outcome.json()["groups"]
    assert (every["group"], group["group"]) == (None, "cpu.forward")
    assert every["false_alarms"]["rate"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "--remote", "--save", "x.json"], "--save"),
        (["calibrate", "--remote", "--device", "cuda"], "--device: got cuda"),
        (["calibrate", "--remote", "--cases", ""], "cases"),
        (["calibrate", "--local", "no-such-branch"], "no-such-branch"),
        (["calibrate", "--jobs", "0"], "--jobs"),
        (["evaluate", "--trials", "0"], "--trials"),
        (["evaluate", "--output", "/dev/null/here"], "--output"),
    ],
)
def test_mistakes_exit_2_and_are_named(command_line, arguments, words):
    outcome = command_line(*arguments)
    assert outcome.code == 2, outcome.out + outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_a_server_that_must_answer_and_does_not_exits_3(command_line):
    outcome = command_line("calibrate", "same", "--remote", "--server", f"http://127.0.0.1:{free_port()}")
    assert outcome.code == 3
    assert "no answer" in outcome.err


def test_evaluate_prints_tables_and_writes_a_report_with_plots(command_line, tmp_path):
    folder = tmp_path / "report"
    small = ["--trials", "1", "--series", "1", "--commits", "60", "--processes", "1"]
    outcome = command_line("evaluate", *small, "--output", str(folder))
    assert outcome.code == 0, outcome.err
    assert outcome.out == (folder / "evaluation.md").read_text()
    assert outcome.out.startswith("`s2bench evaluate --trials 1 --series 1 --commits 60 --seed 1`")
    assert json.loads((folder / "evaluation.json").read_text())["format"] == "s2bench evaluation 1"
    for name in ("false_alarms", "power", "histories"):
        assert ET.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")


def test_neither_command_imports_engine_or_database_on_a_bare_host(command_line):
    program = (
        "import sys\n"
        "import service.cli, service.calibrate_command, service.evaluate_command, service.evaluation.run\n"
        "import service.worker.comparison, service.stats.calibration\n"
        "print([name for name in ('dbos', 'sqlalchemy', 'fastapi', 'alembic', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
