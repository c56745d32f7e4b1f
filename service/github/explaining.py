"""What lies behind a changed case: its kernels' times, registers and spills, before and after. Pure.

None of it is judged. It is shown for the cases that regressed or improved, and for no others: a comment about what did
not change would hide what did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from service import markdown
from service.kernels import informative
from service.report import KERNEL_HEADINGS, kernel_cells, most_changed

Row = Mapping[str, Any]
MAX_NOTES = 20
_CHANGED = frozenset({"regressed", "improved"})
_RESOURCES = {
    "registers": "registers",
    "spill_store_bytes": "spill stores (bytes)",
    "spill_load_bytes": "spill loads (bytes)",
    "shared_bytes": "shared (bytes)",
}


def changed_cases(rows: Iterable[Row]) -> frozenset[str]:
    """Return the names of the cases that became slower or faster."""
    return frozenset(row["case"] for row in rows if row["verdict"] in _CHANGED)


def kernel_section(device_class: str, rows: Sequence[Row], kernels: Sequence[Row]) -> str:
    """Return the kernels of the changed cases as a table to be unfolded; `kernels` as `pair_kernels` gives them."""
    cases = changed_cases(rows)
    found = informative([dict(row) for row in kernels if row["case"] in cases])
    if not found:
        return ""
    shown, hidden = most_changed(found)
    lines = [_kernel_line(row) for row in shown]
    more = f"\n{hidden} more kernels changed less.\n" if hidden else ""
    title = f"Kernel by kernel on {markdown.plain(device_class)}, one profiled run of each commit, not judged"
    return "\n" + markdown.details(title, markdown.kernel_table(KERNEL_HEADINGS, lines) + more)


def resource_section(
    device_class: str, rows: Sequence[Row], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> str:
    """Return the kernels whose registers, shared memory or spills differ between two builds, if a case changed."""
    if not changed_cases(rows):
        return ""
    old, new = _kernels(before), _kernels(after)
    notes = []
    for kernel in sorted(old.keys() & new.keys()):
        changes = [
            f"{text} {markdown.plain(str(old[kernel].get(key)))} → {markdown.plain(str(new[kernel].get(key)))}"
            for key, text in _RESOURCES.items()
            if old[kernel].get(key) != new[kernel].get(key)
        ]
        if changes:
            notes.append(f"- {markdown.outside(kernel, 120)}: {', '.join(changes)}")
    return noted(f"Kernel resources on {markdown.plain(device_class)}", notes)


def noted(title: str, notes: Sequence[str]) -> str:
    """Return a title with the first of some notes below it; nothing where there are none."""
    if not notes:
        return ""
    more = f"\n- and {len(notes) - MAX_NOTES} more" if len(notes) > MAX_NOTES else ""
    return f"\n**{title}**\n" + "\n".join(notes[:MAX_NOTES]) + more + "\n"


def _kernel_line(row: Row) -> str:
    case, kernel, *numbers = kernel_cells(row)
    return markdown.line([markdown.outside(case, 120), markdown.outside(kernel), *map(markdown.plain, numbers)])


def _kernels(resources: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    found = (resources or {}).get("kernels")
    kernels = found if isinstance(found, list) else []
    return {f"{one.get('name')} ({one.get('arch')})": one for one in kernels if isinstance(one, dict)}
