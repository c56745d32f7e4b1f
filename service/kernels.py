"""Kernel by kernel: the profiles of two commits side by side. What a profile holds: `service.worker.profile`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]

# An operator with this much of a case's time is the case: its row would say again what the verdict says.
_WHOLE_CASE = 0.9


def pair_kernels(before: Sequence[Entry] | None, after: Sequence[Entry] | None) -> list[dict[str, Any]]:
    """Return one row per case and kernel: `before` and `after` (None where a side has it not), and the `effect`.

    Cases in the order of the candidate, kernels by the longer of their two times. Kernels belong together by name: one
    that was renamed, or got another template argument, is gone on one side and new on the other.
    """
    sides = [{case["name"]: case["kernels"] for case in profile or ()} for profile in (before, after)]
    names = dict.fromkeys([*sides[1], *sides[0]])
    return [row for name in names for row in _rows(name, *(side.get(name, ()) for side in sides))]


def _rows(case: str, before: Iterable[Entry], after: Iterable[Entry]) -> list[dict[str, Any]]:
    old, new = ({kernel["name"]: kernel for kernel in kernels} for kernels in (before, after))
    rows = [_row(case, old.get(name), new.get(name)) for name in dict.fromkeys([*new, *old])]
    return sorted(rows, key=lambda row: -max(row[side]["time_ms"] for side in ("before", "after") if row[side]))


def _row(case: str, before: Entry | None, after: Entry | None) -> dict[str, Any]:
    shown = after or before
    assert shown is not None
    both = before is not None and after is not None and before["time_ms"] > 0
    return {
        "case": case,
        "kernel": shown["name"],
        "kind": shown["kind"],
        "before": before,
        "after": after,
        "effect": after["time_ms"] / before["time_ms"] - 1 if both and before and after else None,
    }


def informative(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that say more than the case's own time: of CPU cases only those that several operators share.

    Those of many small ones together are left out too.
    """
    told = {row["case"] for row in rows if row["kind"] == "operator" and _largest_share(row) >= _WHOLE_CASE}
    return [row for row in rows if row["case"] not in told and row["kind"] != "rest"]


def _largest_share(row: Mapping[str, Any]) -> float:
    return max(float(row[side]["share"]) for side in ("before", "after") if row[side])
