"""`s2bench attribute` and `s2bench bisect`: which commit did what, on this machine, without a server or a database."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from service.command_options import AsJson, DataDir, LocalDevice, console
from service.report import Exit, exit_code

if TYPE_CHECKING:
    from service.progress import ComparisonProgress
    from service.worker.attribution import StackResult
    from service.worker.bisection import Bisection
    from service.worker.comparison import ComparisonOptions

Result = TypeVar("Result")
Repository = Annotated[Path | None, typer.Option(help="Git repository; default: the one around here.")]
TimeBudget = Annotated[float | None, typer.Option(help="Start no further round after so many seconds.")]
NoSandbox = Annotated[bool, typer.Option("--no-sandbox", help="Run code of commits in plain child processes.")]


def attribute(
    commits: Annotated[str, typer.Argument(metavar="BASE..HEAD", help="Commits of one line, at most 20.")],
    repository: Repository = None,
    device: LocalDevice = "cpu",
    cases: Annotated[str, typer.Option(help="Glob over case names.")] = "*",
    max_rounds: Annotated[int, typer.Option(min=2, help="At most so many rounds of processes.")] = 48,
    time_budget_s: TimeBudget = None,
    data_dir: DataDir = None,
    no_sandbox: NoSandbox = False,
    as_json: AsJson = False,
) -> None:
    """Say which commit of a range did what: a Markdown table per case, a line per commit, and the whole."""
    from service.worker.attribution import attribute_commits

    options = _options(
        repository,
        device,
        cases,
        most=max_rounds,
        time_budget_s=time_budget_s,
        data_dir=data_dir,
        no_sandbox=no_sandbox,
    )
    result = _measured(device, lambda progress: attribute_commits(commits, options, progress))
    document = result.to_dict()
    print(json.dumps(document, indent=2) if as_json else _stack_text(result), end="\n" if as_json else "")
    raise typer.Exit(exit_code([*document["rows"], *document["commit_rows"]]))


def bisect(
    commits: Annotated[str, typer.Argument(metavar="GOOD..BAD", help="Commits of one line.")],
    case: Annotated[str, typer.Option(help="Name of the one case to follow.")],
    repository: Repository = None,
    device: LocalDevice = "cpu",
    max_pairs: Annotated[int, typer.Option(min=2, help="At most so many pairs of processes per comparison.")] = 48,
    data_dir: DataDir = None,
    no_sandbox: NoSandbox = False,
    as_json: AsJson = False,
) -> None:
    """Find the commit of a range that changed a case: every half is measured, and the commit against its parent."""
    from service.worker.bisection import bisect_commits

    options = _options(repository, device, case, most=max_pairs, data_dir=data_dir, no_sandbox=no_sandbox)
    found = _measured(device, lambda progress: bisect_commits(commits, case, options, progress))
    print(json.dumps(_bisection_document(found), indent=2) if as_json else _bisection_text(found), end="")
    raise typer.Exit(_bisection_exit(found))


def _options(
    repository: Path | None,
    device: str,
    cases: str,
    *,
    most: int,
    data_dir: Path | None,
    no_sandbox: bool,
    time_budget_s: float | None = None,
) -> ComparisonOptions:
    from service.worker.comparison import ComparisonOptions

    return ComparisonOptions(
        repository=repository or Path.cwd(),
        device=device,
        cases=cases,
        max_pairs=most,
        time_budget_s=time_budget_s,
        data_dir=data_dir,
        sandbox="none" if no_sandbox else "auto",
    )


def _measured(device: str, work: Callable[[ComparisonProgress], Result]) -> Result:
    """Do the work under a progress display; a failure ends the command as that of `compare` does."""
    from service.local_comparison import report_failure
    from service.progress import ComparisonProgress
    from service.worker.errors import JobError

    try:
        with ComparisonProgress(console(), device) as progress:
            return work(progress)
    except JobError as error:
        raise typer.Exit(report_failure(error)) from error
    except KeyboardInterrupt:
        print("s2bench: interrupted", file=sys.stderr)
        raise typer.Exit(Exit.INFRASTRUCTURE) from None


def _stack_text(result: StackResult) -> str:
    from service.stack_report import stack_tables

    document = result.to_dict()
    confined = "in bubblewrap" if result.sandbox == "bubblewrap" else "in plain child processes (no sandbox)"
    count = len(result.commits) - 1
    ends = f"`{result.commits[0].sha[:12]}` → `{result.commits[-1].sha[:12]}`"
    head = f"{ends}, {count} commit{'s' * (count > 1)} on {result.device.name}, {result.rounds} rounds {confined}\n\n"
    return head + stack_tables(document["commit_rows"], document["rows"])


def _bisection_document(found: Bisection) -> dict[str, object]:
    def ends(candidate: int, baseline: int) -> dict[str, object]:
        return {"commit": found.commits[candidate].sha, "baseline": found.commits[baseline].sha}

    change = found.finding.change
    return {
        "format": "s2bench bisection 1",
        "case": found.case,
        "commit": None if change is None else found.commits[change.candidate].sha,
        "comparisons": [
            ends(one.candidate, one.baseline)
            | {"verdict": str(one.verdict), "effect": one.effect, "interval": one.interval}
            for one in found.outcomes
        ],
        "unavailable": [ends(high, low) for low, high in found.finding.unavailable],
    }


def _bisection_text(found: Bisection) -> str:
    from service import markdown
    from service.report import percent_text

    lines = [_verdict_sentence(found), "", "| commit | against | delta | interval | verdict |"]
    lines += ["| --- | --- | ---: | ---: | --- |"]
    for one in found.outcomes:
        low, high = one.interval or (None, None)
        interval = "–" if low is None else f"{percent_text(low)} … {percent_text(high)}"
        ends = (found.commits[one.candidate].sha[:10], found.commits[one.baseline].sha[:10])
        cells = (*ends, percent_text(one.effect), interval, str(one.verdict))
        lines.append(f"| {' | '.join(map(markdown.plain, cells))} |")
    return "\n".join(lines) + "\n"


def _verdict_sentence(found: Bisection) -> str:
    from service import markdown
    from service.report import percent_text

    change, smallest = found.finding.change, found.finding.found
    name = markdown.named(found.case)
    if change is not None:
        commit = found.commits[change.candidate]
        subject = markdown.named(commit.subject)
        return f"`{commit.sha[:12]}` {subject}: {name} {change.verdict} by {percent_text(change.effect)}"
    if smallest is None:
        first = found.outcomes[0].verdict
        return f"No change of {name} was found in the range ({first})"
    ends = (found.commits[smallest.baseline].sha[:12], found.commits[smallest.candidate].sha[:12])
    what = f"`{ends[0]}..{ends[1]}` holds a change of {name} ({percent_text(smallest.effect)})"
    return f"{what}, but no single commit could be proven to be the one"


def _bisection_exit(found: Bisection) -> Exit:
    """Return 1 for a commit that made the case slower, 0 for one that made it faster or where nothing changed."""
    change = found.finding.change
    if change is not None:
        return exit_code([{"verdict": str(change.verdict)}])
    first = str(found.outcomes[0].verdict)
    return Exit.OK if first == "unchanged" else Exit.INCONCLUSIVE
