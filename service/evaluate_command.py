"""`s2bench evaluate`: how good the procedures are, on simulated devices."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.command_options import AsJson, print_json, stop
from service.report import Exit

if TYPE_CHECKING:
    from service.evaluation.run import Evaluation, EvaluationOptions


def evaluate(
    trials: Annotated[int, typer.Option(min=1, help="Simulated jobs per scenario and effect.")] = 300,
    series: Annotated[int, typer.Option(min=1, help="Simulated histories.")] = 100,
    commits: Annotated[int, typer.Option(min=60, help="Commits of a history.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 1,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one per core, 8 at most.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write evaluation.md, evaluation.json and plots (SVG) to this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score the procedures that judge jobs and histories on simulated devices; print the tables as Markdown."""
    from service.evaluation.report import markdown
    from service.evaluation.run import EvaluationOptions

    options = EvaluationOptions(trials=trials, series=series, commits=commits, seed=seed)
    if processes is not None:
        options = replace(options, processes=processes)
    if output is not None:
        _make_folder(output)
    found = _run(options)
    if output is not None:
        (output / "evaluation.md").write_text(markdown(found), encoding="utf-8")
        (output / "evaluation.json").write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
        _plot(found, output)
    print_json(found.to_dict()) if as_json else print(markdown(found), end="")


def _run(options: EvaluationOptions) -> Evaluation:
    """Evaluate under a progress bar, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from service.evaluation.run import evaluate as run

    console = Console(stderr=True)
    columns = (TextColumn("evaluating"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        try:
            return run(options, lambda done, total: bar.update(task, completed=done, total=total))
        except KeyboardInterrupt:
            stop("interrupted, nothing was written", Exit.INFRASTRUCTURE)


def _make_folder(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        stop(f"--output: got {output}, expected a folder that can be written: {error}", Exit.USAGE)


def _plot(found: Evaluation, output: Path) -> None:
    from service.evaluation.plots import can_plot, write_plots

    if can_plot():
        write_plots(found, output)
    else:
        print("s2bench: no plots: matplotlib is not installed (pip install 's2bench[plots]')", file=sys.stderr)
