"""The composite Action: its script runs as it stands against a real server, and what it installs suffices."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ACTION = Path(__file__).parents[3] / "service" / "deploy" / "action" / "action.yml"
INPUTS = re.compile(r"\$\{\{.*?\}\}")


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]}


def run_measure(steps: Any, command_line: Any, folder: Path, **inputs: str) -> tuple[int, str, str]:
    """Run the step `measure` with inputs as a runner does; return exit code, summary and output."""
    bin_dir = folder / "s2bench" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "s2bench").write_text(f'#!/bin/sh\nexec {sys.executable} -m service.cli "$@"\n')
    (bin_dir / "s2bench").chmod(0o755)
    summary = folder / "summary.md"
    given = {"PULL_REQUEST": "", "RUN": f"1-{folder.name}", "DEVICES": "cpu\n", "CASES": "*", "BASELINE": "auto"}
    given |= {"ALLOW_INCONCLUSIVE": "true", "REPOSITORY": command_line.repository.path.name} | inputs
    environment = command_line.environment | {f"INPUT_{name}": value for name, value in given.items()}
    environment |= {"RUNNER_TEMP": str(folder), "GITHUB_STEP_SUMMARY": str(summary)}
    script = steps["measure"]["run"]
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    text = summary.read_text() if summary.exists() else ""
    return result.returncode, text, result.stdout + result.stderr


def test_a_regression_fails_and_its_table_is_in_the_summary(steps: Any, command_line: Any, tmp_path: Path) -> None:
    sha = command_line.repository.git("rev-parse", "slower")
    code, summary, output = run_measure(steps, command_line, tmp_path, COMMIT=sha, BASELINE="same", PULL_REQUEST="7")
    assert code == 1, output
    assert re.search(r"\| cpu/forward/self \| .* regressed \|", summary)


def test_hostile_inputs_run_nothing(steps: Any, command_line: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    for number, hostile in enumerate([f"$(touch {marker})", f"`touch {marker}`", f"'; touch {marker} #", "--help"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, summary, output = run_measure(steps, command_line, folder, COMMIT=hostile)
        assert code == 2, output
        assert summary == ""
    assert not marker.exists()


def test_no_input_is_pasted_into_a_script(steps: Any) -> None:
    for step in steps.values():
        assert INPUTS.search(step["run"]) is None


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
