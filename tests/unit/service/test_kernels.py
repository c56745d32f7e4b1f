"""Kernels of two commits side by side, and their short table."""

from __future__ import annotations

from typing import Any

import pytest

from service.kernels import informative, pair_kernels
from service.report import kernel_table


def kernel(name: str, time_ms: float, kind: str = "kernel", share: float = 0.5, **values: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "calls": 1.0, "time_ms": time_ms, "share": share} | values


def case(name: str, *kernels: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "kernels": list(kernels)}


def test_kernels_belong_together_by_case_and_name() -> None:
    before = [case("b", kernel("gather", 2.0), kernel("gone", 0.1)), case("only before", kernel("x", 1.0))]
    after = [case("a", kernel("gather", 1.0)), case("b", kernel("fill", 0.5), kernel("gather", 3.0))]
    rows = pair_kernels(before, after)
    assert [(row["case"], row["kernel"], row["effect"]) for row in rows] == [
        ("a", "gather", None),
        ("b", "gather", pytest.approx(0.5)),
        ("b", "fill", None),
        ("b", "gone", None),
        ("only before", "x", None),
    ]
    assert rows[3]["after"] is None
    assert pair_kernels(None, None) == []


def test_swapping_the_sides_inverts_the_ratio() -> None:
    one, two = [case("a", kernel("gather", 2.0))], [case("a", kernel("gather", 3.0))]
    there, back = pair_kernels(one, two)[0]["effect"], pair_kernels(two, one)[0]["effect"]
    assert (1 + there) * (1 + back) == pytest.approx(1.0)
    assert pair_kernels([case("a", kernel("gather", 0.0))], two)[0]["effect"] is None


def test_an_operator_that_is_the_whole_case_is_no_news() -> None:
    profile = [
        case("whole", kernel("forward", 1.0, "operator", 0.97), kernel("empty", 0.03, "operator", 0.03)),
        case("parts", kernel("mm", 0.6, "operator", 0.6), kernel("others", 0.4, "rest", 0.4)),
        case("gpu", kernel("gather", 1.0, "kernel", 1.0)),
    ]
    told = informative(pair_kernels(profile, profile))
    assert [(row["case"], row["kernel"]) for row in told] == [("parts", "mm"), ("gpu", "gather")]


def test_the_table_shows_what_changed() -> None:
    resources = {"registers": 40, "spill_load_bytes": 0, "occupancy": 0.75, "sass_bytes": 4096}
    rows = pair_kernels(
        [case("forward|x", kernel("gather<half>", 2.0, **resources))],
        [case("forward|x", kernel("gather<half>", 1.5, **(resources | {"registers": 64, "occupancy": 0.5})))],
    )
    text = kernel_table(rows)
    assert text.startswith("Kernel by kernel, from one profiled run of each commit (not judged):\n\n| case | kernel |")
    assert "| <code>forward&#124;x</code> | <code>gather&#60;half&#62;</code> | 2.000 ms | 1.500 ms | -25.00 % " in text
    assert "| 40 → 64 | 0 B | 75 % → 50 % | 4096 B |" in text


def test_the_table_is_short_and_starts_with_the_largest_change() -> None:
    before = [case("a", *(kernel(f"k{n}", 10.0) for n in range(20)))]
    after = [case("a", *(kernel(f"k{n}", 10.0 + n) for n in range(20)), kernel("n" * 100, 0.001))]
    lines = kernel_table(pair_kernels(before, after)).splitlines()
    assert len(lines) == 4 + 12 + 2
    assert "| k19 |" in lines[4]
    assert lines[-1] == "9 more kernels changed less."
    assert kernel_table([]) == ""
