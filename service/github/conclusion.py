"""What a check says in one word and one line. Pure.

It fails only for what was confirmed: a regression, or wrong numbers. Whatever could not be found out is neutral and
says why: a throttled device, too little evidence, a commit that does not build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.models.jobs import TERMINAL, State
from service.report import SEVERITY

Row = Mapping[str, Any]
GOOD = frozenset({"improved", "unchanged"})
TITLE_CHARACTERS = 200


@dataclass(frozen=True)
class Conclusion:
    """Status and conclusion in GitHub's words, and a title; `conclusion` is set exactly when it is completed."""

    status: str
    conclusion: str | None
    title: str


def wrong_numbers(row: Row) -> bool:
    """Say whether a case computes wrong numbers, which is a failure; other failed cases are a lack of evidence."""
    return row["verdict"] == "failed" and any(reason["code"] == "numerics_failed" for reason in row["reasons"])


def is_failure(row: Row) -> bool:
    """Say whether a row makes its check fail."""
    return row["verdict"] == "regressed" or wrong_numbers(row)


def conclude(
    state: str, rows: Sequence[Row], errors: Sequence[Mapping[str, Any]], accepted: Sequence[bool] = ()
) -> Conclusion:
    """Return what the check of a job says.

    Parameters
    ----------
    state
        Of the job.
    rows
        Its verdict rows so far.
    errors
        Of its measurements that failed: {"code", "message", ...}.
    accepted
        For each row whether a person has accepted what it shows; default: none.
    """
    if state == State.QUEUED:
        return Conclusion("queued", None, "Waiting for a device")
    if state not in TERMINAL:
        return Conclusion("in_progress", None, f"{state.capitalize()} now")
    taken = list(accepted) or [False] * len(rows)
    failing = [is_failure(row) for row in rows]
    if any(fails and not known for fails, known in zip(failing, taken, strict=True)):
        return Conclusion("completed", "failure", counted(rows))
    if state != State.DONE:
        return Conclusion("completed", "neutral", _why_not_done(state, errors))
    if not rows:
        return Conclusion("completed", "neutral", "No case was measured")
    if any(failing):
        return Conclusion("completed", "neutral", f"Accepted: {counted(rows)}")
    unsure = [row for row in rows if row["verdict"] not in GOOD]
    if unsure:
        return Conclusion("completed", "neutral", f"Not known: {counted(rows)}")
    return Conclusion("completed", "success", counted(rows))


def counted(rows: Sequence[Row]) -> str:
    """Return how many cases have which verdict, the worst first."""
    counts = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in SEVERITY if counts[name]) or "nothing"


def _why_not_done(state: str, errors: Sequence[Mapping[str, Any]]) -> str:
    if state == State.CANCELED:
        return "Canceled"
    if state == State.EXPIRED:
        return "No worker took it in time"
    codes = sorted({str(error["code"]) for error in errors})
    return f"Could not be measured: {', '.join(codes) or 'unknown reason'}"[:TITLE_CHARACTERS]
