"""Finds the commit of a range that changed a case, on this machine: every half measured as pairs of its two ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from service.judging.rows import VerdictRow
from service.stats.investigation import Finding, Investigation, Outcome, advance
from service.stats.verdict import Verdict
from service.worker.attribution import commits_of
from service.worker.checkout import Mirror
from service.worker.comparison import ComparisonOptions, ProgressListener, Silence, compare_commits, data_dir_of
from service.worker.errors import JobError, Kind
from service.worker.stack_evidence import StackCommit

MAX_RANGE = 1000


@dataclass(frozen=True)
class Bisection:
    """How a search ended; `outcomes` are its jobs in the order made, by positions in `commits` (the good end first)."""

    case: str
    unit: str
    commits: tuple[StackCommit, ...]
    outcomes: tuple[Outcome, ...]
    finding: Finding


def bisect_commits(
    text: str, case: str, options: ComparisonOptions, progress: ProgressListener | None = None
) -> Bisection:
    """Look in a range GOOD..BAD of first parents for the commit that changed one case.

    The whole range is measured first; a change is then looked for in its halves, each measured by its two ends. The
    last comparison is that of the commit against its parent, or nobody is named. A half whose newer end cannot be
    measured counts as undecided; the whole range has to be measurable.

    Raises
    ------
    JobError
        `no_cases` when the newer end of the range has no case of exactly this name; otherwise as `compare_commits`.
    """
    listener = progress or Silence()
    mirror = Mirror(data_dir_of(options), str(options.repository.absolute()))
    shas = commits_of(mirror, options, text, MAX_RANGE)
    commits = tuple(StackCommit(sha, mirror.describe(sha).subject) for sha in shas)
    chosen = replace(options, cases=case)
    first = _row(shas, Investigation("", 0, len(shas) - 1), chosen, listener)

    def measure(search: Investigation) -> Outcome:
        try:
            return outcome_of(search, _row(shas, search, chosen, listener))
        except JobError as error:
            if error.kind is not Kind.PERMANENT:
                raise
            listener.log(f"{error.message}: nothing is known of {shas[search.high][:10]}")
            return Outcome(search.high, search.low, Verdict.NOT_COMPARABLE)

    outcomes, finding = _search(len(shas) - 1, first, measure)
    return Bisection(case, first.unit, commits, tuple(outcomes), finding)


def _search(last: int, first: VerdictRow, measure: Callable[[Investigation], Outcome]) -> tuple[list[Outcome], Finding]:
    search = Investigation("", 0, last)
    outcomes = [outcome_of(search, first)]
    step = advance(search, outcomes[0])
    while isinstance(step, Investigation):
        outcomes.append(measure(step))
        step = advance(step, outcomes[-1])
    return outcomes, step


def _row(
    shas: tuple[str, ...], search: Investigation, options: ComparisonOptions, progress: ProgressListener
) -> VerdictRow:
    """Measure both ends of the range under test and return the row of the case."""
    progress.log(f"{shas[search.high][:10]} against {shas[search.low][:10]} ({search.high - search.low} commits)")
    rows = compare_commits(shas[search.low], shas[search.high], options, progress).rows
    found = next((row for row in rows if row.case == options.cases), None)
    if found is None:
        message = f"case: expected the name of one case, got {options.cases!r}, a pattern for {len(rows)}"
        raise JobError("no_cases", message, stage="judge")
    return found


def outcome_of(search: Investigation, row: VerdictRow) -> Outcome:
    """Return what the row of a case says of the range under test."""
    interval = None if row.interval_low is None or row.interval_high is None else (row.interval_low, row.interval_high)
    return Outcome(search.high, search.low, Verdict(row.verdict), row.effect, interval)
