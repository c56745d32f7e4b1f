"""The text of checks and comments: the worst first, within the limit, and nothing from outside acts."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import markdown
from service.github.conclusion import conclude
from service.github.report import MARKER, MAX_CHARACTERS, DeviceFindings, Findings, Links, check_summary, comment_body

WRONG = [{"code": "numerics_failed", "detail": ""}]
LINKS = Links("https://github.com/octo/kernels", "https://bench.example")


def row(case: str, verdict: str = "unchanged", effect: float | None = 0.001, **changes: Any) -> dict[str, Any]:
    values = {
        "case": case,
        "device_class": "cpu",
        "unit": "ms",
        "before": 1.0,
        "after": 1.1,
        "effect": effect,
        "interval_low": 0.0,
        "interval_high": 0.1,
        "verdict": verdict,
        "reasons": [],
        "minimum_detectable_effect": None,
        "numerics": None,
    }
    return values | changes


def findings(*devices: DeviceFindings, name: str = "s2bench", **changes: Any) -> Findings:
    rows = [row for device in devices for row in device.rows]
    values = {
        "name": name,
        "job_url": "https://bench.example/jobs/1",
        "compare_url": "https://bench.example/compare",
        "head": "a" * 40,
        "baseline": "b" * 40,
        "cases": "*",
        "conclusion": conclude("done", rows, []),
        "devices": devices,
    }
    return Findings(**(values | changes))


# ---- text from outside ----

HOSTILE = [
    "<script>alert(1)</script>",
    "</code></td></table><img src=x onerror=alert(1)>",
    "| a | b |\n| --- | --- |",
    "\\| `code` \\`",
    "[click](javascript:alert(1)) ![x](https://evil.example/track.png)",
    "@everyone @octo/maintainers fixes #1 octo/kernels#2 GH-3",
    "https://evil.example www.evil.example mail@evil.example",
    "**bold** _it_ ~~no~~ # title\n- [ ] task\n> quote\n```\nfence",
    "-->\n<!-- s2bench: results -->",
    "right\u202eto left\u200b\x00\x07",
    "&lt;b&gt; &#60;",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_from_outside_stays_one_piece_of_plain_text(text: str) -> None:
    shown = markdown.outside(text)
    inner = shown.removeprefix("<code>").removesuffix("</code>")
    # all that is left of ASCII punctuation is what starts nothing, and character references
    assert not re.search(r"[^\w ,%/=\-…]", re.sub(r"&#\d+;", "", inner), re.ASCII) or not inner.isascii()
    assert "\n" not in shown
    assert html.unescape(inner) == re.sub(r"[\x00-\x1f\u200b\u202e]", " ", text)


@given(st.text())
def test_no_text_whatsoever_can_end_its_cell_or_its_line(text: str) -> None:
    inner = markdown.outside(text, 10_000).removeprefix("<code>").removesuffix("</code>")
    rest = re.sub(r"&#\d+;", "", inner)
    assert not set(rest) & set("\n\r|<>`*_[]()!@#&\\~:.\"'")
    assert "\u2028" not in rest


@pytest.mark.parametrize(
    "text", ["cpu/forward/self/360x720/c64h1/fp32/tc0.03", "gpu:NVIDIA H200", "long_name", "a.b", "half+up (1)"]
)
def test_a_name_that_cannot_act_stays_readable(text: str) -> None:
    assert markdown.named(text) == text


@pytest.mark.parametrize(
    "text",
    [*HOSTILE, "_a_", "a__b", "see www.example", "http://x", "x@y", "#1", ":smile:", "GH-1", "a|b", "a" * 300, "é", ""],
)
def test_any_other_name_is_code(text: str) -> None:
    assert markdown.named(text) == markdown.outside(text)


def test_a_long_text_is_cut() -> None:
    assert len(markdown.outside("x" * 10_000, 200)) == len("<code></code>") + 200


@pytest.mark.parametrize(
    "text", ["1.234 ms", "+10.00 %", "-0.44 … +0.83 % (detectable: 1.25 %)", "failed (numerics_failed)", "–"]
)
def test_numbers_and_words_of_ours_stay_as_they_are(text: str) -> None:
    assert markdown.plain(text) == text


@pytest.mark.parametrize(
    "text", [*HOSTILE, "_a_", "a__b", "www.example", "http://x", "x@y", "#1", ":smile:", "a.b", "a" * 300]
)
def test_other_words_become_code(text: str) -> None:
    assert markdown.plain(text).startswith("<code>")


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_is_in_a_comment_however_it_comes(text: str) -> None:
    reasons = [{"code": "numerics_failed", "detail": text}, {"code": text, "detail": text}]
    bad = row(text, "failed", None, reasons=reasons, unit=text, numerics={"status": "failed"})
    kernels = {"kernels": [{"name": text, "arch": text, "registers": 1}]}
    device = DeviceFindings(
        device_class=text,
        state="done",
        rows=[bad, row("x", "regressed", 0.2)],
        error={"code": text, "message": text},
        environment={"gpu_name": text, "torch": text},
        sandbox=text,
        before_resources=kernels,
        after_resources={"kernels": [{"name": text, "arch": text, "registers": text}]},
    )
    body = comment_body([findings(device, name=text, accepted=text)], LINKS)
    acting = re.sub(r"<code>[^<]*</code>", "", body)
    for piece in ("<script", "<img", "](javascript", "](https://evil", "@", "#1", "GH-3", "evil", "**bold", "&#"):
        assert piece not in acting
    assert body.count("<!--") == 1
    assert len(set(re.findall(r"\n### .*", body))) == 1
    for line in body.splitlines():
        if line.startswith("|"):
            assert line.count("|") == 7, line


def test_a_glob_cannot_leave_its_code_block() -> None:
    body = check_summary(findings(DeviceFindings("cpu", "done", [row("x")]), cases="```'$(reboot)`"), LINKS)
    fence = re.search(r"\n(`{4,})\n(.*)\n\1\n", body, re.DOTALL)
    assert fence is not None
    assert fence[2].endswith("--cases '```'\"'\"'$(reboot)`'")


# ---- order and limits ----


def test_the_verdict_is_first_and_the_worst_rows_follow() -> None:
    rows = [
        row("ok"),
        row("small", "regressed", 0.02),
        row("large", "regressed", 0.4),
        row(
            "wrong",
            "failed",
            None,
            reasons=[{"code": "numerics_failed", "detail": "NaN"}],
            numerics={"status": "failed"},
        ),
        row("faster", "improved", -0.3),
        row("hot", "throttled", None),
    ]
    body = comment_body([findings(DeviceFindings("cpu", "done", rows))], LINKS)
    lines = body.splitlines()
    assert lines[0] == MARKER
    assert lines[1] == "### ❌ s2bench: 1 failed, 2 regressed, 1 throttled, 1 improved, 1 unchanged"
    places = [body.index(f">{name}<") for name in ("wrong", "large", "small", "hot", "faster", "ok")]
    assert places == sorted(places)
    assert "1 unchanged</summary>" in body
    assert not re.search(r"^ {4}", body, re.MULTILINE)  # would be code


def test_no_table_without_rows() -> None:
    assert check_summary(findings(DeviceFindings("cpu", "done", [row("a")])), LINKS).count("| case |") == 1
    assert "unchanged</summary>" not in check_summary(
        findings(DeviceFindings("cpu", "done", [row("a", "improved")])), LINKS
    )


def test_every_device_class_and_every_check_has_its_table() -> None:
    first = findings(DeviceFindings("cpu", "done", [row("a")]), DeviceFindings("gpu:NVIDIA H200", "done", [row("b")]))
    second = findings(
        DeviceFindings("gpu:NVIDIA H200", "queued", []), name="nightly", conclusion=conclude("queued", [], [])
    )
    body = comment_body([first, second], LINKS)
    assert [line for line in body.splitlines() if line.startswith("#### ")] == [
        "#### cpu",
        "#### <code>gpu&#58;NVIDIA H200</code>",
        "#### <code>gpu&#58;NVIDIA H200</code>",
    ]
    assert "### ⏳ nightly: Waiting for a device" in body
    assert "--device cpu" in body
    assert "--device cuda" in body


def test_resources_are_shown_where_a_case_changed() -> None:
    before = {"kernels": [{"name": "f", "arch": "sm_90", "registers": 32, "spill_store_bytes": 0, "shared_bytes": 0}]}
    after = {"kernels": [{"name": "f", "arch": "sm_90", "registers": 255, "spill_store_bytes": 64, "shared_bytes": 0}]}
    changed = DeviceFindings("cpu", "done", [row("a", "regressed", 0.1)], None, {}, None, before, after)
    body = comment_body([findings(changed)], LINKS)
    assert "registers 32 → 255, spill stores (bytes) 0 → 64" in body
    same = DeviceFindings("cpu", "done", [row("a")], None, {}, None, before, after)
    assert "registers" not in comment_body([findings(same)], LINKS)


def side(time_ms: float, **values: Any) -> dict[str, Any]:
    return {"time_ms": time_ms, "share": 0.5, "calls": 1.0} | values


def kernels(case: str = "a", count: int = 1, name: str = "gather<(int)64>") -> list[dict[str, Any]]:
    before = side(2.0, registers=128, spill_load_bytes=0, occupancy=0.5, sass_bytes=4096)
    after = side(3.0, registers=255, spill_load_bytes=64, occupancy=0.25, sass_bytes=4096)
    row = {"case": case, "kind": "kernel", "before": before, "after": after, "effect": 0.5}
    return [row | {"kernel": f"{name}{number or ''}"} for number in range(count)]


def test_kernels_of_changed_cases_are_broken_down_with_their_resources() -> None:
    rows = [row("a", "regressed", 0.1), row("b")]
    changed = DeviceFindings("cpu", "done", rows, kernels=[*kernels(), *kernels("b", name="quiet")])
    body = comment_body([findings(changed)], LINKS)
    line = next(line for line in body.splitlines() if "gather" in line)
    assert line.count(" | ") == 8
    assert "| 2.000 ms | 3.000 ms | +50.00 % | 128 → 255 | 0 B → 64 B | 50 % → 25 % | 4096 B |" in line
    assert "<code>gather&#60;&#40;int&#41;64&#62;</code>" in line
    assert "quiet" not in body
    assert "not judged" in body
    same = DeviceFindings("cpu", "done", [row("a")], kernels=kernels())
    assert "gather" not in comment_body([findings(same)], LINKS)


def test_many_kernels_are_cut_and_give_way_to_the_tables() -> None:
    hostile = "<b>|@all\n" * 500
    changed = DeviceFindings("cpu", "done", [row("a", "regressed", 0.1)], kernels=kernels(count=500, name=hostile))
    body = comment_body([findings(changed)], LINKS)
    assert "488 more kernels changed less." in body
    assert "<b>" not in body
    crowd = [
        DeviceFindings(f"gpu:{n}", "done", [row("a", "regressed", 0.1)], kernels=kernels(count=50, name=hostile))
        for n in range(8)
    ]
    body = comment_body([findings(*crowd)], LINKS)
    assert len(body) <= MAX_CHARACTERS
    assert "more rows" not in body
    assert "Reproduce" in body
    assert "not judged" not in body


def test_the_command_names_the_pairs_when_they_are_fewer_than_usual() -> None:
    found = findings(DeviceFindings("cpu", "done", [row("x")]), max_pairs=8)
    assert "--cases '*' --max-pairs 8\n" in check_summary(found, LINKS)


@pytest.mark.parametrize("count", [0, 1, 100, 2000])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_limit_is_kept_and_the_mildest_are_left_out(count: int, devices: int) -> None:
    names = [f"cpu/{'x' * 60}/{number:05d}" for number in range(count)]
    found = [
        DeviceFindings(f"gpu:{one}", "done", [row(name, "regressed", 0.01 + n / 1e4) for n, name in enumerate(names)])
        for one in range(devices)
    ]
    body = comment_body([findings(*found)], LINKS)
    assert len(body) <= MAX_CHARACTERS
    shown = [int(number) for number in re.findall(r"/(\d{5})<", body)]
    if count * devices < 200:
        assert len(shown) == count * devices
        assert "more rows" not in body
    else:
        assert min(shown) >= count - len(shown)
        assert len(body) > MAX_CHARACTERS - 1000
        hidden = sum(int(number) for number in re.findall(r"^(\d+) more rows: \[all of them\]", body, re.MULTILINE))
        assert hidden == count * devices - len(shown)
    assert "Reproduce" in body


def test_more_devices_than_there_is_room_for() -> None:
    found = [DeviceFindings(f"gpu:{'y' * 110}{n}", "done", [row("a")]) for n in range(2000)]
    body = comment_body([findings(*found)], LINKS)
    assert len(body) <= MAX_CHARACTERS
    assert body.splitlines()[1].startswith("### ✅")


# ---- conclusion ----


@pytest.mark.parametrize(
    ("state", "rows", "accepted", "expected"),
    [
        ("queued", [], [], ("queued", None)),
        ("preparing", [], [], ("in_progress", None)),
        ("measuring", [row("a", "regressed")], [False], ("in_progress", None)),
        ("done", [row("a", "regressed")], [False], ("completed", "failure")),
        ("done", [row("a", "regressed")], [True], ("completed", "neutral")),
        ("done", [row("a", "regressed"), row("b", "regressed")], [True, False], ("completed", "failure")),
        ("failed", [row("a", "regressed")], [False], ("completed", "failure")),
        ("failed", [row("a")], [False], ("completed", "neutral")),
        ("canceled", [], [], ("completed", "neutral")),
        ("expired", [], [], ("completed", "neutral")),
        ("done", [row("a", "failed", reasons=WRONG)], [False], ("completed", "failure")),
        ("done", [row("a", "failed", reasons=[{"code": "candidate_benchmark_crashed", "detail": ""}])], [False],
         ("completed", "neutral")),
        ("done", [row("a"), row("b", "improved")], [False, False], ("completed", "success")),
        ("done", [row("a"), row("b", "throttled")], [False, False], ("completed", "neutral")),
    ],
)  # fmt: skip
def test_only_what_was_confirmed_fails(state: str, rows: Any, accepted: Any, expected: tuple[str, str | None]) -> None:
    found = conclude(state, rows, [{"code": "build_failed", "message": ""}], accepted)
    assert (found.status, found.conclusion) == expected
    assert 0 < len(found.title) <= 255


# ---- stacks ----


def commit_row(case: str, position: int, verdict: str = "unchanged", **changes: Any) -> dict[str, Any]:
    values = {"position": position, "commit": f"{position:x}" * 40, "subject": f"number {position}"}
    return row(case, verdict, **(values | changes))


def stack(rows: list[dict[str, Any]], commit_rows: list[dict[str, Any]]) -> str:
    found = findings(DeviceFindings("cpu", "done", rows), name="s2bench per commit", kind="stack")
    return comment_body([replace(found, commit_rows=commit_rows)], LINKS)


def test_a_stack_says_which_commit_did_what_and_how_to_repeat_it() -> None:
    rows = [row("quiet"), row("slow", "regressed", 0.1)]
    commits = [commit_row("quiet", 1), commit_row("slow", 1), commit_row("slow", 2, "regressed", effect=0.1)]
    body = stack(rows, commits)
    assert body.index("<code>slow</code> on cpu") < body.index("<code>quiet</code> on cpu")
    lines = body[body.index("<code>slow</code> on cpu") :].splitlines()[4:7]
    assert [line.split(" | ")[0] for line in lines] == ["| 1111111111", "| 2222222222", "| all"]
    assert lines[1].endswith("| regressed |")
    assert f"s2bench attribute {'b' * 40}..{'a' * 40} --device cpu" in body


def test_a_comparison_has_no_table_of_commits() -> None:
    assert "| commit |" not in comment_body([findings(DeviceFindings("cpu", "done", [row("a")]))], LINKS)


@pytest.mark.parametrize(("commits", "words"), [([], "No single commit could be proven"), ([2], "2222222222")])
def test_a_bisection_names_one_commit_or_says_that_it_cannot(commits: list[int], words: str) -> None:
    device = DeviceFindings("cpu", "done", [row("slow", "regressed", 0.1)])
    found = findings(device, name="bisect slow", kind="bisect", cases="slow")
    rows = [commit_row("slow", position, "regressed") for position in commits]
    body = comment_body([replace(found, commit_rows=rows)], LINKS)
    assert words in body
    assert body.count("could be proven") == (not commits)
    assert f"s2bench bisect {'b' * 40}..{'a' * 40} --device cpu --case slow" in body


@pytest.mark.parametrize("cases", [1, 4, 500])
def test_what_a_stack_has_no_room_for_is_counted(cases: int) -> None:
    names = [f"case{number:04d}" for number in range(cases)]
    commits = [commit_row(name, position) for name in names for position in range(1, 16)]
    body = stack([row(name) for name in names], commits)
    assert len(body) <= MAX_CHARACTERS
    assert body.count("| commit |") == min(cases, 4)
    assert (f"{cases - 4} more cases: [all of them]" in body) == (cases > 4)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_comes_out_of_a_subject(text: str) -> None:
    acting = re.sub(r"<code>[^<]*</code>", "", stack([row("a")], [commit_row("a", 1, subject=text)]))
    for piece in ("<script", "<img", "](javascript", "@", "#1", "evil", "**bold", "&#"):
        assert piece not in acting
