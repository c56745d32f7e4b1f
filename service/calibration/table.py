"""Calibrations as text: one table for the API's sums and for those of a machine without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service import markdown

Sum = Mapping[str, Any]

HEADINGS = ("device class", "group", "false alarms", "rate", "95 % interval", "noise floor", "detectable", "undecided")
DECIDED = ("regressed", "improved", "unchanged")


def calibration_table(sums: Sequence[Sum]) -> str:
    """Return the sums as a Markdown table ending in a newline, a dash where nothing is known."""
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- | --- |" + " ---: |" * (len(HEADINGS) - 2)]
    for one in sums:
        cells = _cells(one)
        lines.append(markdown.line([*map(markdown.named, cells[:2]), *map(markdown.plain, cells[2:])]))
    return "\n".join(lines) + "\n"


def _cells(one: Sum) -> tuple[str, ...]:
    false = one["false_alarms"]
    known = false["rate"] is not None
    return (
        one["device_class"],
        one.get("group") or "all",
        f"{false['count']} / {false['trials']}" if known else "–",
        _percent(false["rate"]),
        f"{_percent(false['low'])} … {_percent(false['high'])}" if known else "–",
        _percent(one["noise_floor"]),
        _percent(one["minimum_detectable_effect"]),
        _undecided(one["verdicts"]),
    )


def _undecided(verdicts: Mapping[str, int]) -> str:
    """Name the verdicts that say nothing of a false alarm."""
    left = {name: count for name, count in verdicts.items() if name not in DECIDED}
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in left.items()) or "–"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.2f} %"
