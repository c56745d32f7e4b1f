"""The composite Action: its steps run as they stand, from a clean copy of the tree, against a real server.

The step `install` makes its virtual environment from the package index, as on a runner.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from github_fake import REPOSITORY, FakeGitHub, fake_github

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "service" / "deploy" / "action" / "action.yml"
INPUTS = re.compile(r"\$\{\{.*?\}\}")


def actions() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    return found


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in actions()["runs"]["steps"]}


@pytest.fixture(scope="module")
def github() -> Iterator[FakeGitHub]:
    with fake_github() as running:
        yield running


def run_step(script: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def runner(steps: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A runner on which the step `install` has run: the variables of its environment that name folders."""
    folder = tmp_path_factory.mktemp("runner")
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "tree" / name)
    variables = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_ACTION_PATH": str(folder / "tree" / "service" / "deploy" / "action"),
    }
    result = run_step(steps["install"]["run"], os.environ | variables, folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return variables


def run_measure(
    steps: Any, runner: dict[str, str], command_line: Any, folder: Path, **inputs: str
) -> tuple[int, str, str]:
    """Run the step `measure` with inputs; return exit code, summary and output."""
    summary = folder / "summary.md"
    defaults = {name.upper().replace("-", "_"): one.get("default", "") for name, one in actions()["inputs"].items()}
    given = {name: value for name, value in defaults.items() if "$" not in value}
    given |= {"PULL_REQUEST": "", "RUN": f"1-{folder.name}", "REPOSITORY": command_line.repository.path.name} | inputs
    environment = command_line.environment | runner | {f"INPUT_{name}": value for name, value in given.items()}
    environment |= {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_RUN_ID": "5", "GITHUB_REPOSITORY": REPOSITORY}
    environment |= {"GITHUB_SERVER_URL": "https://github.example"}
    result = run_step(steps["measure"]["run"], environment | {"GITHUB_API_URL": inputs.get("API", "")}, folder)
    text = summary.read_text() if summary.exists() else ""
    return result.returncode, text, result.stdout + result.stderr


def test_what_is_installed_is_the_tree_of_the_action(runner: dict[str, str]) -> None:
    bin_dir = Path(runner["RUNNER_TEMP"]) / "s2bench" / "bin"
    where = run_step(f"'{bin_dir}/python' -c 'import service; print(service.__file__)'", dict(os.environ), bin_dir)
    assert where.stdout.startswith(runner["RUNNER_TEMP"]), where
    listed = run_step(f"'{bin_dir}/pip' list --format=freeze", dict(os.environ), bin_dir).stdout
    assert "s2bench==" in listed
    assert not re.search("torch|numpy|sqlalchemy", listed, re.IGNORECASE)


def test_a_regression_fails_and_its_table_is_in_the_summary_and_one_comment(
    steps: Any, runner: dict[str, str], command_line: Any, github: FakeGitHub, tmp_path: Path
) -> None:
    tag = command_line.repository.git
    token = github.workflow_token()
    given = {"BASELINE": "same", "PULL_REQUEST": "7", "API": github.url, "GITHUB_TOKEN": token}
    code, summary, output = run_measure(
        steps, runner, command_line, tmp_path, COMMIT=tag("rev-parse", "slower"), **given
    )
    assert code == 1, output
    assert re.search(r"\| cpu/forward/self \| .* regressed \|", summary)
    (comment,) = github.comments.values()
    assert comment["body"].splitlines()[1] == "### ❌ s2bench: regressed, or failed"
    assert summary in comment["body"]
    assert "https://github.example/octo/kernels/actions/runs/5" in comment["body"]
    assert token not in output + summary + comment["body"]
    code, _, output = run_measure(
        steps, runner, command_line, tmp_path, COMMIT=tag("rev-parse", "base"), **given | {"RUN": "second"}
    )
    assert code == 0, output
    (comment,) = github.comments.values()
    assert "regression" in comment["body"].splitlines()[1]
    assert "✅" in comment["body"] or "⚪" in comment["body"]


def test_a_comment_that_may_not_be_made_is_a_warning(
    steps: Any, runner: dict[str, str], command_line: Any, github: FakeGitHub, tmp_path: Path
) -> None:
    sha = command_line.repository.git("rev-parse", "broken")
    given = {"BASELINE": "same", "PULL_REQUEST": "8", "API": github.url, "GITHUB_TOKEN": "of a fork"}
    code, _, output = run_measure(steps, runner, command_line, tmp_path, COMMIT=sha, **given)
    assert code == 1, output
    assert "::warning::s2bench: no comment was made (401)" in output
    assert "of a fork" not in output


def test_hostile_inputs_run_nothing(steps: Any, runner: dict[str, str], command_line: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for number, hostile in enumerate([f"$(touch {marker})", f"`touch {marker}`", f"'; touch {marker} #", "--help"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, summary, output = run_measure(steps, runner, command_line, folder, COMMIT=hostile)
        assert code == 2, output
        assert summary == ""
    assert not marker.exists()


def test_no_input_is_pasted_into_a_script(steps: Any) -> None:
    for step in steps.values():
        assert INPUTS.search(step["run"]) is None


def test_the_comment_is_cut_at_a_line_and_found_by_its_author() -> None:
    from service.deploy.action import comment

    body = comment.body_of("| line |\n" * 20_000, 1, "https://x")
    assert 65_000 < len(body) <= 65_535
    assert body.endswith("| line |\n\nThe rest is in the summary of the run.\n\n[the run](https://x)\n")
    with (
        fake_github() as github,
        httpx2.Client(
            base_url=f"{github.url}/repos/{REPOSITORY}/", headers={"Authorization": f"token {github.workflow_token()}"}
        ) as client,
    ):
        for number in range(250):  # more than two pages, of somebody else with the marker
            forged = {"id": 10_000 + number, "number": 7, "body": comment.MARKER, "user": {"login": "mallory"}}
            github.comments[10_000 + number] = forged
        for text in ("one", "two"):
            comment.put(client, 7, "github-actions[bot]", comment.MARKER + text)
        assert [one["body"] for one in github.comments.values()][250:] == [comment.MARKER + "two"]


def test_what_is_installed_suffices_for_submit(steps: Any) -> None:
    """Everything else of s2bench's dependencies is made impossible to import."""
    installed = set(re.findall(r'"([a-z0-9]+)>=', steps["install"]["run"]))
    assert installed == {"httpx2", "pydantic", "rich", "typer"}
    blocked = [
        "torch",
        "numpy",
        "scipy",
        "sqlalchemy",
        "alembic",
        "dbos",
        "fastapi",
        "starlette",
        "uvicorn",
        "structlog",
    ]
    blocked += ["plotly", "psycopg", "gidgethub", "apprise", "jinja2", "limits", "pydantic_settings", "sse_starlette"]
    program = (
        f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from service.cli import main\nsys.argv = ['s2bench', 'submit', '--wait', '--repository=x', 'main']\nmain()\n"
    )
    environment = os.environ | {"S2BENCH_SERVER": "http://127.0.0.1:9"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 3, result.stderr
    assert "no answer from http://127.0.0.1:9" in result.stderr
