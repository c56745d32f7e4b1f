"""The commands as a user types them, against `s2bench up`, and the exit codes that scripts rely on."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from service.embedded import command, free_port

SELF = "cpu/forward/self"


@pytest.fixture
def own_lock(command_line, tmp_path):
    """A folder for temporary files of its own: the worker of the server holds the CPU's lock in the usual one."""
    command_line.environment["TMPDIR"] = str(tmp_path)
    yield
    del command_line.environment["TMPDIR"]


def submit(command_line, commit, baseline, *more):
    return command_line("submit", commit, "--baseline", baseline, "--max-pairs", "8", "--wait", *more)


def test_a_slower_commit_exits_1_and_prints_the_table(command_line):
    outcome = submit(command_line, "slower", "same")
    assert outcome.code == 1, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("### cpu: 1 regressed, ")
    assert lines[2] == "| case | before | after | delta | interval | verdict |"
    assert lines[4].startswith(f"| {SELF} |")
    assert lines[4].endswith("| regressed |")
    assert len(lines) == 7
    assert "pairs" in outcome.err


def test_identical_code_exits_0_or_4_and_json_carries_the_rows(command_line):
    outcome = submit(command_line, "same", "base", "--json")
    assert outcome.code in {0, 4}, outcome.err
    answer = outcome.json()
    assert answer["job"]["state"] == "done"
    assert {row["verdict"] for row in answer["rows"]} <= {"unchanged", "inconclusive", "throttled"}
    assert len(answer["rows"]) == 3


def test_a_commit_that_does_not_build_exits_1_with_its_log(command_line):
    outcome = submit(command_line, "broken", "base")
    assert outcome.code == 1
    assert "build_failed" in outcome.err
    assert "expected a kernel" in outcome.err


def test_a_stack_names_its_commits(command_line):
    outcome = submit(command_line, "slower", "base", "--stack", "--cases", SELF)
    assert outcome.code == 1, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == f"### {SELF} on cpu"
    assert lines[2] == "| commit | subject | before | after | delta | interval | verdict |"
    assert [line.split(" | ")[1] for line in lines[4:6]] == ["same", "slower"]
    assert [line.rstrip(" |").rpartition(" ")[2] for line in lines[5:7]] == ["regressed", "regressed"]
    assert "rounds" in outcome.err


def test_a_bisection_names_its_commit(command_line):
    outcome = submit(command_line, "slower", "base", "--bisect", "--cases", SELF)
    assert outcome.code == 1, outcome.err
    lines = [line for line in outcome.out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[1] for line in lines] == ["subject", "---", "slower", ""]


def test_status_and_cancel(command_line):
    job_id = submit(command_line, "same", "same", "--json").json()["job"]["id"]
    assert job_id in command_line("status").out
    shown = command_line("status", job_id, "--json").json()
    assert shown["job"]["state"] == "done"
    canceled = command_line("cancel", job_id)
    assert canceled.code == 0
    assert "done" in canceled.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "no-such-branch"], "commit"),
        (["submit", "base", "--repository", "nowhere"], "repository"),
        (["submit", "base", "--cases", ""], "cases"),
        (["status", str(uuid4())], "job_id"),
        (["status", "not-an-id"], "valid UUID"),
        (["submit", "base", "--device", "gpu/none"], "devices"),
        (["compare", "no-such-branch", "base"], "no-such-branch"),
        (["submit", "base", "--bisect"], "the name of one case"),
        (["submit", "base", "--bisect", "--stack"], "got both"),
        (["attribute", "base"], "BASE..HEAD"),
        (["attribute", "slower..base"], "reversed"),
        (["attribute", "base..no-such-branch"], "no-such-branch"),
        (["attribute", "base..same", "--cases", "gpu/*"], "matches none"),
        (["bisect", "base..slower"], "--case"),
        (["bisect", "base..base", "--case", SELF], "the same commit twice"),
        (["compare", "base", "same", "--device", "tpu"], "--device"),
        (["attribute", "base..same", "--device", "tpu"], "--device"),
        (["bisect", "base..same", "--case", SELF, "--device", "tpu"], "--device"),
        (["judge", "1,2", "2,3", "--device", "tpu"], "--device"),
    ],
)
def test_mistakes_exit_2_and_are_named(command_line, own_lock, arguments, words):
    outcome = command_line(*arguments)
    assert outcome.code == 2, outcome.out + outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_no_server_exits_3(command_line):
    outcome = command_line("status", "--server", f"http://127.0.0.1:{free_port()}")
    assert outcome.code == 3
    assert "no answer" in outcome.err


def test_compare_needs_no_server_and_saves_everything(command_line, own_lock, tmp_path):
    saved = tmp_path / "comparison.json"
    outcome = command_line("compare", "same", "slower", "--max-pairs", "8", "--save", str(saved))
    assert outcome.code == 1, outcome.err
    assert f"| {SELF} |" in outcome.out
    document = json.loads(saved.read_text())
    assert document["fresh_pairs"] >= 5
    said = f"8 pairs of fresh processes and {document['fresh_pairs']} more to confirm changes, in bubblewrap"
    assert said in outcome.out
    assert len(document["rows"]) == 3
    assert document["documents"]


def test_attribute_needs_no_server(command_line, own_lock):
    outcome = command_line("attribute", "base..slower", "--max-rounds", "8", "--cases", SELF)
    assert outcome.code == 1, outcome.err
    assert "2 commits on" in outcome.out
    assert "8 rounds in bubblewrap" in outcome.out
    assert re.search(r"^\| [0-9a-f]{10} \| slower \| .* \| regressed \|$", outcome.out, re.MULTILINE)
    answer = command_line("attribute", "same..slower", "--max-rounds", "8", "--cases", SELF, "--json").json()
    assert [row["subject"] for row in answer["commit_rows"]] == ["slower"]
    assert answer["rows"][0]["verdict"] == "regressed"


def test_bisect_names_the_commit(command_line, own_lock):
    outcome = command_line("bisect", "base..slower", "--case", SELF, "--max-pairs", "8")
    assert outcome.code == 1, outcome.err
    slower = command_line.repository.git("rev-parse", "slower")
    assert outcome.out.startswith(f"`{slower[:12]}` slower: {SELF} regressed by +")
    answer = command_line("bisect", "same..slower", "--case", SELF, "--max-pairs", "8", "--json").json()
    assert (answer["commit"], len(answer["comparisons"])) == (slower, 1)


def test_compare_imports_neither_engine_nor_database(command_line):
    program = (
        "import sys\n"
        "import service.cli, service.local_comparison, service.worker.attribution, service.worker.bisection\n"
        "print([name for name in ('dbos', 'sqlalchemy', 'fastapi', 'alembic', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_administration(command_line, tmp_path):
    fresh = str(tmp_path / "fresh")
    assert command_line("db", "check", "--data-dir", fresh).code == 3
    assert command_line("db", "upgrade", "--data-dir", fresh).code == 0
    assert "no drift" in command_line("db", "check", "--data-dir", fresh).out
    path = str(command_line.repository.path)
    assert command_line("repository", "add", "kernels", path, "--data-dir", fresh).code == 0
    secret = command_line("token", "create", "ci", "--data-dir", fresh).out.strip()
    assert len(secret) >= 43
    assert secret.encode() not in (tmp_path / "fresh" / "s2bench.db").read_bytes()
    assert command_line("token", "create", "ci", "--scope", "root", "--data-dir", fresh).code == 2
    (listed,) = command_line("token", "list", "--json", "--data-dir", fresh).json()
    assert (listed["name"], listed["scopes"], listed["revoked_at"]) == ("ci", ["submit"], None)
    assert command_line("token", "revoke", listed["id"], "--data-dir", fresh).out == "ci: revoked\n"
    assert "revoked" in command_line("token", "list", "--data-dir", fresh).out
    assert command_line("token", "revoke", str(uuid4()), "--data-dir", fresh).code == 2


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({}, 3, "run `s2bench db upgrade`"),
        ({"S2BENCH_PORT": "99999"}, 2, "port"),
        ({"S2BENCH_DATABASE_URL": "mysql://x"}, 2, "expected a SQLite file or PostgreSQL"),
        ({"S2BENCH_DATABASE_URL": "postgresql://127.0.0.1:1/x"}, 3, "database"),
    ],
)
def test_an_api_that_cannot_run_says_why_in_a_line(tmp_path, settings, code, words):
    environment = os.environ | {"S2BENCH_DATA_DIR": str(tmp_path)} | settings
    result = subprocess.run(command("api"), env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_names_what_it_finds(command_line):
    checks = {check["name"]: check for check in command_line("doctor", "--json").json()}
    assert {"torch", "git", "g++", "sandbox", "data directory", "database"} <= checks.keys()
    assert checks["database"]["status"] == "good"
    assert all(check["status"] in {"good", "note", "bad"} and check["detail"] for check in checks.values())


def children_of(pid: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found |= {int(entry.name)} | children_of(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_up_leaves_no_process_behind(tmp_path, number):
    port = free_port()
    arguments = command("up", "--port", str(port), "--data-dir", str(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(arguments, cwd=tmp_path, stdout=log, stderr=log, env=dict(os.environ))
    try:
        deadline = time.monotonic() + 60
        while not (answers(port) and len(children_of(process.pid)) >= 1):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
        time.sleep(1.0)
        children = children_of(process.pid)
        process.send_signal(number)
        code = process.wait(30)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), (tmp_path / "log").read_text()
        deadline = time.monotonic() + 20
        while alive := [pid for pid in children if is_running(pid)]:
            assert time.monotonic() < deadline, f"still running: {alive}"
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()


def test_report_of_two_measured_commits(command_line):
    name = command_line.repository.path.name
    command_line("submit", "slower", "--repository", name, "--baseline", "same", "--wait", "--device", "cpu")
    outcome = command_line("report", "same", "slower")
    assert outcome.code == 1, outcome.err
    assert outcome.out.startswith("### cpu: 1 regressed")
    assert re.search(r"\| cpu/forward/self \| .* \| regressed \|", outcome.out)
    rows = command_line("report", "same", "slower", "--repository", name, "--json").json()["rows"]
    assert {row["verdict"] for row in rows} >= {"regressed"}
    never = command_line("report", "slower", "broken")
    assert never.code == 4
    assert "was never measured against" in never.err
    command_line("submit", "same", "--repository", name, "--wait", "--device", "cpu")
    apart = command_line("report", "base", "slower")
    assert apart.code == 4, apart.err
    assert re.search(
        r"\| cpu/forward/self \| [\d.]+ ms \| [\d.]+ ms \| – \| – \| not_comparable \(measured_apart\) \|", apart.out
    )
    assert "was never measured against" in apart.err


def test_alerts_on_the_command_line(command_line):
    """`slower` is on main, so its regression is an alert."""
    command_line("submit", "slower", "--baseline", "same", "--wait", "--device", "cpu")
    found = command_line("alert", "list", "--state", "open", "--json").json()["items"]
    (alert,) = [one for one in found if one["head"] == command_line.repository.git("rev-parse", "slower")]
    assert alert["group"] in command_line("alert", "list").out
    refused = command_line("alert", "set", alert["id"], "--state", "expected")
    assert (refused.code, "reason" in refused.err) == (2, True)
    shown = command_line(
        "alert", "set", alert["id"], "--state", "expected", "--reason", "more exact", "--assignee", "ada"
    )
    assert shown.code == 0
    for text in ("expected", "(ada)", "more exact", "cpu/forward/self", "opened", "loopback"):
        assert text in shown.out
    assert command_line("alert", "show", alert["id"], "--json").json()["state"] == "expected"
    command_line("alert", "set", alert["id"], "--state", "open")
