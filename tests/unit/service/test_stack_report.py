"""The tables of a stack: the oldest commit first, the whole last, and text from commits that stays in its cell."""

from __future__ import annotations

from typing import Any

from service.stack_report import COMMIT_HEADINGS, by_case, commit_cells, stack_tables


def commit_row(position: int, verdict: str = "unchanged", case: str = "cpu/forward", **changes: Any) -> dict[str, Any]:
    values = {
        "case": case,
        "device_class": "cpu",
        "position": position,
        "commit": f"{position}" * 40,
        "subject": f"number {position}",
        "unit": "ms",
        "before": 1.0,
        "after": 1.1,
        "effect": 0.1,
        "interval_low": 0.09,
        "interval_high": 0.11,
        "verdict": verdict,
        "reasons": [],
        "minimum_detectable_effect": 0.012,
    }
    return values | changes


def test_a_table_per_case_with_the_whole_in_its_last_line() -> None:
    rows = [commit_row(2), commit_row(1, "regressed"), commit_row(1, case="cpu/backward")]
    whole = commit_row(0, "regressed", effect=0.21)
    lines = stack_tables(rows, [whole]).splitlines()
    assert [line for line in lines if line.startswith("###")] == ["### cpu/backward on cpu", "### cpu/forward on cpu"]
    table = lines[lines.index("### cpu/forward on cpu") + 2 :]
    assert table[0] == f"| {' | '.join(COMMIT_HEADINGS)} |"
    assert table[2].startswith(
        "| 1111111111 | number 1 | 1.000 ms | 1.100 ms | +10.00 % | +9.00 … +11.00 % | regressed"
    )
    assert table[3].endswith("(detectable: 1.20 %) | unchanged |")
    assert table[4].startswith("| all |  | 1.000 ms | 1.100 ms | +21.00 % |")


def test_a_line_that_stands_for_more_or_less_says_so() -> None:
    combined = commit_row(2, "regressed", reasons=[{"code": "combined", "detail": "together with 1111111111"}])
    same = commit_row(3, effect=0.0, interval_low=None, reasons=[{"code": "same_sources", "detail": "nothing differs"}])
    failed = commit_row(1, "failed", effect=None, reasons=[{"code": "build_failed", "detail": "no"}])
    assert [commit_cells(row)[-1] for row in (failed, combined, same)] == [
        "failed (build_failed)",
        "regressed, together with 1111111111",
        "unchanged, nothing differs",
    ]


def test_subjects_are_cut_and_stay_in_their_cells() -> None:
    hostile = commit_row(1, subject="| <b>x</b> | `y`\n" + "z" * 500)
    (line,) = [line for line in stack_tables([hostile], []).splitlines() if line.startswith("| 1111111111")]
    assert line.replace("\\|", "").count("|") == len(COMMIT_HEADINGS) + 1
    assert "<b>" not in line
    assert len(line) < 250


def test_rows_are_grouped_by_device_class_and_case() -> None:
    rows = [commit_row(1, device_class="gpu:X"), commit_row(2), commit_row(1)]
    assert {key: [row["position"] for row in found] for key, found in by_case(rows).items()} == {
        ("cpu", "cpu/forward"): [1, 2],
        ("gpu:X", "cpu/forward"): [1],
    }
