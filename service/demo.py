"""`s2bench demo`: measure a real kernel change of this repository and show its verdicts.

A server of its own is started on a free port, the job is posted to it like anybody's, and the page of the job is served
until Ctrl-C when somebody watches (a terminal), or until the table is printed otherwise.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from service.client import Client
from service.embedded import free_port, running_server
from service.progress import JobProgress
from service.report import Exit, exit_code, failure_exit_code, terminal_table
from service.worker.sandbox import why_unusable

KERNEL_PATHS = (":(glob)csrc/*.cpp", ":(glob)csrc/*.h", "csrc/cpu")
KERNEL_CHANGES = 5
MAX_PAIRS = 16


class DemoError(Exception):
    """The demo cannot run here, in words."""


@dataclass(frozen=True)
class DemoCommits:
    """The two commits that the demo compares, and why these."""

    baseline: str
    candidate: str
    subject: str
    why: str


def git(root: Path, *arguments: str) -> str:
    """Run git in a work tree and return its output without the final newline."""
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise DemoError(f"git {arguments[0]} failed in {root}: {result.stderr.strip()}")
    return result.stdout.strip()


def choose_commits(root: Path) -> DemoCommits:
    """Return the newest commit on the first-parent line that changed a CPU kernel, and what was before the last five.

    Where nothing was before (a shallow clone, a single commit) HEAD is compared with itself: identical code, which must
    never be called a regression.
    """
    head = git(root, "rev-parse", "HEAD")
    newest = f"--max-count={KERNEL_CHANGES}"
    changes = git(root, "rev-list", "--first-parent", newest, head, "--", *KERNEL_PATHS).split()
    for count, change in reversed(list(enumerate(changes, start=1))):
        parents = git(root, "rev-list", "--parents", "--max-count=1", change).split()[1:]
        if parents and git(root, "ls-tree", "--name-only", parents[0], "s2attn/benchmarks/__main__.py"):
            subject = git(root, "log", "-1", "--format=%s", changes[0])
            what = "the newest change of a CPU kernel" if count == 1 else f"the last {count} changes of CPU kernels"
            return DemoCommits(parents[0], changes[0], subject, f"{what}, against what was before")
    subject = git(root, "log", "-1", "--format=%s", head)
    return DemoCommits(head, head, subject, "no earlier kernel is in this clone: HEAD against itself")


def run_demo(root: Path, data_dir: Path, console: Console, *, stay: bool) -> Exit:
    """Run the demo in a source tree; return the exit code of its verdicts."""
    commits = choose_commits(root)
    console.print(
        f"baseline  {commits.baseline[:12]}\ncandidate {commits.candidate[:12]}  {commits.subject}", markup=False
    )
    console.print(f"({commits.why})", style="dim", markup=False)
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / "server.log"
    arguments = ["--data-dir", str(data_dir), "--repository", str(root)]
    if (reason := why_unusable()) is not None:
        console.print(
            f"no sandbox on this host ({reason}): your own commits run in plain child processes", markup=False
        )
        arguments.append("--no-sandbox")
    started = time.monotonic()
    with running_server(arguments, free_port(), log_path) as url, Client(url) as client:
        job = client.submit(demo_job(root.name, commits))
        page = f"{url}/jobs/{job['id']}"
        console.print(f"live page {page}\nserver log {log_path}", markup=False, soft_wrap=True)
        with JobProgress(console) as progress:
            job = client.follow(job["id"], progress.show)
        code = show_result(console, client, job)
        console.print(f"finished in {time.monotonic() - started:.0f} s", style="dim")
        console.print(f"page      {page}", markup=False, soft_wrap=True)
        if stay:
            wait_for_interrupt(console)
        else:
            console.print(f"to look again: s2bench up --data-dir {data_dir}", markup=False, soft_wrap=True)
    return code


def demo_job(repository: str, commits: DemoCommits) -> dict[str, Any]:
    """Return the body of the demo's job."""
    return {
        "repository": repository,
        "commit": commits.candidate,
        "baseline": commits.baseline,
        "devices": ["cpu"],
        "cases": "cpu/*",
        "max_pairs": MAX_PAIRS,
        "reason": "s2bench demo",
    }


def show_result(console: Console, client: Client, job: dict[str, Any]) -> Exit:
    """Print a job's table and failures; return the exit code they mean."""
    rows = client.verdict_rows(job["id"])
    if rows:
        console.print(terminal_table(rows))
    for measurement in job["measurements"]:
        if measurement.get("sandbox"):
            console.print(f"{measurement['device_class']}: code of the commits ran in {sandbox_words(measurement)}")
        if measurement["error"]:
            show_failure(console, measurement)
    if job["state"] == "done":
        return exit_code(rows)
    errors = [measurement["error"] for measurement in job["measurements"] if measurement["error"]]
    return failure_exit_code(errors[0] if errors else job.get("error"))


def sandbox_words(measurement: dict[str, Any]) -> str:
    """Say how the processes of a measurement were confined."""
    if measurement["sandbox"] == "bubblewrap":
        return "a bubblewrap sandbox"
    return "plain child processes (no sandbox)"


def show_failure(console: Console, measurement: dict[str, Any]) -> None:
    """Print a failed measurement: code, message and the end of its log."""
    error = measurement["error"]
    console.print(
        f"{measurement['device_class']}: {error['code']} at {error['stage']}: {error['message']}",
        style="red",
        markup=False,
    )
    if error.get("log_tail"):
        console.print(error["log_tail"], style="dim", markup=False, highlight=False)


def wait_for_interrupt(console: Console, sleep: Callable[[float], None] = time.sleep) -> None:
    """Keep the page up until Ctrl-C."""
    console.print("the page stays up until Ctrl-C", style="dim")
    try:
        while True:
            sleep(3600)
    except KeyboardInterrupt:
        print(file=sys.stderr)
