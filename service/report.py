"""The table of a pull request: case, before, after, delta, interval, verdict; as Markdown and for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from service.markdown import line, named, plain

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]

SEVERITY = (
    "failed",
    "regressed",
    "environment",
    "throttled",
    "inconclusive",
    "not_comparable",
    "improved",
    "unchanged",
)
STYLES = {
    "failed": "bold red",
    "regressed": "red",
    "improved": "green",
    "unchanged": "dim",
}
HEADINGS = ("case", "before", "after", "delta", "interval", "verdict")
ENVIRONMENT_CODES = frozenset(
    {"sandbox_missing", "worker_lost", "checkout_failed", "device_unfit", "canary_failed", "internal_error"}
)


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    INCONCLUSIVE = 4


def sort_by_severity(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the worst verdict first; within a verdict the largest effect first, then by name."""
    return sorted(rows, key=lambda row: (SEVERITY.index(row["verdict"]), -abs(row["effect"] or 0.0), row["case"]))


def exit_code(rows: Sequence[Row]) -> Exit:
    """Return 1 where a case regressed or failed, 4 where evidence is missing (or there is none at all), else 0."""
    verdicts = {row["verdict"] for row in rows}
    if verdicts & {"regressed", "failed"}:
        return Exit.REGRESSION
    if not verdicts or verdicts - {"improved", "unchanged"}:
        return Exit.INCONCLUSIVE
    return Exit.OK


def failure_exit_code(error: Mapping[str, Any] | None) -> Exit:
    """Return 3 when the host was at fault, 1 when the commit was (it does not build, its benchmark crashes, ...)."""
    if error is None or error.get("code") in ENVIRONMENT_CODES:
        return Exit.INFRASTRUCTURE
    return Exit.REGRESSION


def time_text(value: float | None, unit: str) -> str:
    """Format a time with four significant digits and its unit; a missing one is a dash."""
    return "–" if value is None else f"{value:#.4g} {unit}"


def percent_text(ratio: float | None) -> str:
    """Format a ratio - 1 as a signed percentage; a missing one is a dash."""
    return "–" if ratio is None else f"{100 * ratio:+.2f} %"


def interval_text(row: Row) -> str:
    """Format the interval of the effect; `unchanged` also says what it could have seen."""
    if row["interval_low"] is None or row["interval_high"] is None:
        return "–"
    text = f"{100 * row['interval_low']:+.2f} … {100 * row['interval_high']:+.2f} %"
    visible = row.get("minimum_detectable_effect")
    if row["verdict"] == "unchanged" and visible is not None:
        text += f" (detectable: {100 * visible:.2f} %)"
    return text


def verdict_text(row: Row) -> str:
    """Format the verdict with its first reason's code, where it has one."""
    reasons = row["reasons"]
    if row["verdict"] in {"improved", "regressed", "unchanged"} or not reasons:
        return str(row["verdict"])
    return f"{row['verdict']} ({reasons[0]['code']})"


def cells(row: Row) -> tuple[str, ...]:
    """Return the six cells of a row as text, in the order of `HEADINGS`."""
    return (
        row["case"],
        time_text(row["before"], row["unit"]),
        time_text(row["after"], row["unit"]),
        percent_text(row["effect"]),
        interval_text(row),
        verdict_text(row),
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the rows, worst first, as a GitHub Markdown table ending in a newline."""
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    lines += [line(_shown(cells(row), names=1)) for row in sort_by_severity(rows)]
    return "\n".join(lines) + "\n"


def _shown(texts: Sequence[str], names: int) -> list[str]:
    """Return cells as Markdown; the first of them are names from the measured commit."""
    return [*map(named, texts[:names]), *map(plain, texts[names:])]


KERNEL_HEADINGS = ("case", "kernel", "before", "after", "delta", "registers", "spills", "occupancy", "SASS")
_MOST_KERNELS = 12
_LONGEST_NAME = 60


def kernel_table(rows: Sequence[Row]) -> str:
    """Return the kernels whose time changed most as a Markdown table; nothing where there are none."""
    if not rows:
        return ""
    chosen, left = most_changed(rows)
    lines = ["Kernel by kernel, from one profiled run of each commit (not judged):", ""]
    lines += [f"| {' | '.join(KERNEL_HEADINGS)} |", "| --- | --- |" + " ---: |" * (len(KERNEL_HEADINGS) - 2)]
    lines += [line(_shown(kernel_cells(row), names=2)) for row in chosen]
    return "\n".join([*lines, *(["", f"{left} more kernels changed less."] if left else [])]) + "\n"


def most_changed(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the kernels whose time changed most, and how many are left out."""
    chosen = sorted(rows, key=lambda row: -abs(_kernel_ms(row["after"]) - _kernel_ms(row["before"])))[:_MOST_KERNELS]
    return chosen, len(rows) - len(chosen)


def kernel_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a kernel as text, in the order of `KERNEL_HEADINGS`."""
    before, after = row["before"], row["after"]
    name = row["kernel"] if len(row["kernel"]) <= _LONGEST_NAME else row["kernel"][: _LONGEST_NAME - 1] + "…"
    return (
        row["case"],
        name,
        time_text(before and before["time_ms"], "ms"),
        time_text(after and after["time_ms"], "ms"),
        percent_text(row["effect"]),
        _change(before, after, "registers"),
        _change(before, after, "spill_load_bytes", " B"),
        _change(before, after, "occupancy", " %", scale=100),
        _change(before, after, "sass_bytes", " B"),
    )


def _kernel_ms(side: Row | None) -> float:
    return float(side["time_ms"]) if side else 0.0


def _change(before: Row | None, after: Row | None, name: str, unit: str = "", *, scale: int = 1) -> str:
    """Format a resource on both sides, once where it is the same."""
    values = [(side or {}).get(name) for side in (before, after)]
    texts = ["–" if value is None else f"{value * scale:.0f}{unit}" for value in values]
    return texts[0] if texts[0] == texts[1] else " → ".join(texts)


def markdown_report(rows: Sequence[Row]) -> str:
    """Return a heading with the number of each verdict, and a table, for each device class."""
    parts = []
    for device_class in sorted({row["device_class"] for row in rows}):
        own = [row for row in rows if row["device_class"] == device_class]
        counts = Counter(row["verdict"] for row in own)
        words = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in SEVERITY if counts[name])
        parts.append(f"### {named(device_class)}: {words}\n\n{markdown_table(own)}")
    return "\n".join(parts)


def terminal_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Return the rows, worst first, as a rich table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in HEADINGS:
        is_text = heading in {"case", "verdict"}
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for row in sort_by_severity(rows):
        style = STYLES.get(row["verdict"], "yellow")
        table.add_row(*(Text(cell) for cell in cells(row)[:-1]), Text(verdict_text(row), style=style))
    return table
