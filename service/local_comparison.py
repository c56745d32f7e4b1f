"""`s2bench compare`: two commits on this machine, without a server or a database."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from service.kernels import informative
from service.progress import ComparisonProgress
from service.report import Exit, exit_code, failure_exit_code, kernel_table, markdown_table
from service.worker.comparison import Comparison, ComparisonOptions, compare_commits
from service.worker.errors import JobError


@dataclass(frozen=True)
class Output:
    """Where the results of a comparison go."""

    console: Console
    save: Path | None
    as_json: bool


def run_comparison(baseline: str, candidate: str, options: ComparisonOptions, output: Output) -> Exit:
    """Compare, print the Markdown table (or JSON) on standard output, save on request; return the exit code."""
    try:
        with ComparisonProgress(output.console, options.device) as progress:
            comparison = compare_commits(baseline, candidate, options, progress)
    except JobError as error:
        return report_failure(error)
    except KeyboardInterrupt:
        print("s2bench: interrupted, nothing was saved", file=sys.stderr)
        return Exit.INFRASTRUCTURE
    document = comparison.to_dict()
    if output.save is not None:
        output.save.write_text(json.dumps(document, indent=1), encoding="utf-8")
    rows = [row.to_dict() for row in comparison.rows]
    if output.as_json:
        print(json.dumps(document, indent=2))
    else:
        print(header(comparison), markdown_table(rows), sep="\n", end="")
        kernels = kernel_table(informative(comparison.kernels()))
        if kernels:
            print("\n" + kernels, end="")
    return exit_code(rows)


def header(comparison: Comparison) -> str:
    """Say what was compared, where and how, in one Markdown paragraph."""
    confined = "in bubblewrap" if comparison.sandbox == "bubblewrap" else "in plain child processes (no sandbox)"
    fresh = f" and {comparison.fresh_pairs} more to confirm changes" if comparison.fresh_pairs else ""
    return (
        f"`{comparison.baseline_sha[:12]}` → `{comparison.candidate_sha[:12]}` on {comparison.device_name}, "
        f"{comparison.pairs} pairs of fresh processes{fresh}, {confined}\n"
    )


def report_failure(error: JobError) -> Exit:
    """Print a failed comparison: code, message and the end of its log."""
    print(f"s2bench: {error.code} at {error.stage}: {error.message}", file=sys.stderr)
    if error.log_tail:
        print(error.log_tail, file=sys.stderr)
    if error.code in {"unknown_ref", "bad_range", "no_cases"}:
        return Exit.USAGE
    return failure_exit_code({"code": error.code})
