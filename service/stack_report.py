"""The tables of a stack: which commit did what, case by case, and the whole in the last line; as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service import markdown
from service.report import interval_text, percent_text, time_text, verdict_text

Row = Mapping[str, Any]

COMMIT_HEADINGS = ("commit", "subject", "before", "after", "delta", "interval", "verdict")
_SAID = ("combined", "same_sources")
_LONGEST_SUBJECT = 60


def commit_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a commit as text, in the order of `COMMIT_HEADINGS`."""
    subject = row["subject"] or ""
    subject = subject if len(subject) <= _LONGEST_SUBJECT else subject[: _LONGEST_SUBJECT - 1] + "…"
    return row["commit"][:10], subject, *_numbers(row)


def whole_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of the last line of a case's table, from its verdict row."""
    return "all", "", *_numbers(row)


def by_case(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of commits by device class and case, the oldest commit first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda one: (one["device_class"], one["case"], one["position"])):
        found.setdefault((row["device_class"], row["case"]), []).append(row)
    return found


def stack_tables(commit_rows: Sequence[Row], whole_rows: Sequence[Row]) -> str:
    """Return a Markdown table per case and device class, in the order of their names."""
    wholes = {(row["device_class"], row["case"]): row for row in whole_rows}
    parts = []
    for (device_class, case), rows in by_case(commit_rows).items():
        lines = [*map(commit_cells, rows), *(whole_cells(one) for one in [wholes.get((device_class, case))] if one)]
        table = [f"| {' | '.join(COMMIT_HEADINGS)} |", "| --- | --- | ---: | ---: | ---: | ---: | --- |"]
        table += [f"| {' | '.join(_shown(cells))} |" for cells in lines]
        title = f"### {markdown.named(case)} on {markdown.named(device_class)}"
        parts.append("\n".join([title, "", *table]) + "\n")
    return "\n".join(parts)


def _shown(cells: Sequence[str]) -> list[str]:
    commit, subject, *rest = cells
    return [commit, markdown.named(subject) if subject else "", *map(markdown.plain, rest)]


def _numbers(row: Row) -> tuple[str, ...]:
    return (
        time_text(row["before"], row["unit"]),
        time_text(row["after"], row["unit"]),
        percent_text(row["effect"]),
        interval_text(row),
        _verdict(row),
    )


def _verdict(row: Row) -> str:
    """Return the verdict, and in words whether the line stands for more than its commit or for less."""
    notes = [reason["detail"] for reason in row["reasons"] if reason["code"] in _SAID]
    return ", ".join([verdict_text(row), *notes])
