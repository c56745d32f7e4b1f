"""Stacks and bisections without a server: which commit of a range did what, and what is said when nobody can know."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from worker_fixtures import BACKWARD_SELF, FORWARD_DOWN, FORWARD_SELF, FakeRepository

from service.stack_report import stack_tables
from service.stats.verdict import Verdict
from service.worker.attribution import StackResult, attribute_commits, parse_range
from service.worker.bisection import bisect_commits
from service.worker.checkout import Mirror
from service.worker.comparison import ComparisonOptions
from service.worker.errors import JobError


def options_for(repository: FakeRepository, tmp_path: Path, **changes: object) -> ComparisonOptions:
    settings: dict[str, object] = {"data_dir": tmp_path / "data", "lock_dir": tmp_path, "rest_s": 0.01, "max_pairs": 12}
    return ComparisonOptions(repository=repository.path, **(settings | changes))  # type: ignore[arg-type]


def said(result: StackResult, case: str = FORWARD_SELF) -> list[str]:
    """Return the verdicts of a case's commits, and of the whole."""
    (found,) = [one for one in result.cases if one.summary.row.case == case]
    return [one.row.verdict for one in found.commits] + [found.summary.row.verdict]


class Listener:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.rounds: list[tuple[int, int, int]] = []
        self.texts: list[str] = []

    def stage(self, name: str, detail: str = "") -> None:
        self.stages.append(name)

    def pair(self, done: int, budget: int, rejected: int) -> None:
        self.rounds.append((done, budget, rejected))

    def log(self, text: str) -> None:
        self.texts.append(text)


def test_each_commit_gets_its_part_and_the_parts_add_up(repository: FakeRepository, tmp_path: Path) -> None:
    base = repository.commit("base")
    slow = repository.commit("slow", speed={FORWARD_SELF: 1.1})
    repository.commit_files("words only")
    fast = repository.commit("fast", speed={FORWARD_SELF: 1.05, BACKWARD_SELF: 0.9}, wrong_cases=[FORWARD_DOWN])
    listener = Listener()
    result = attribute_commits(f"{base[:9]}..HEAD", options_for(repository, tmp_path), listener)
    assert [one.subject for one in result.commits] == ["base", "slow", "words only", "fast"]
    assert said(result) == ["regressed", "unchanged", "improved", "regressed"]
    assert said(result, BACKWARD_SELF) == ["unchanged", "unchanged", "improved", "improved"]
    assert said(result, FORWARD_DOWN) == ["unchanged", "unchanged", "failed", "failed"]
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    rows = [row for row in document["commit_rows"] if row["case"] == FORWARD_SELF]
    (whole,) = [row for row in document["rows"] if row["case"] == FORWARD_SELF]
    assert sum(math.log1p(row["effect"]) for row in rows) == pytest.approx(math.log1p(whole["effect"]), abs=1e-12)
    assert (rows[0]["commit"], rows[2]["commit"]) == (slow, fast)
    assert [row["baseline"] for row in rows] == [one.sha for one in result.commits[:3]]
    assert rows[1]["reasons"][0]["code"] == "same_sources"
    assert (rows[1]["effect"], rows[1]["before"], rows[1]["after"]) == (0.0, rows[0]["after"], rows[2]["before"])
    assert rows[0]["effect"] == pytest.approx(0.1, abs=0.01)
    assert len(document["evidence"][FORWARD_SELF]["rounds"]) == result.rounds
    assert document["evidence"][FORWARD_SELF]["commits"] == [base, slow, fast]
    # what is the same is not built and not run: three arms, not four
    assert listener.stages == ["checkout", "build", "build", "build", "numerics", "rounds", "judge"]
    assert listener.rounds == [(index + 1, 12, 0) for index in range(result.rounds)]


def test_a_commit_that_does_not_build_is_named_and_measured_across(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("base")
    broken = repository.commit("broken", build="fail")
    repository.commit("slow", speed={FORWARD_SELF: 1.1})
    repository.commit("crash", run="crash", only_pairs=True)
    repository.commit("fine", speed={FORWARD_SELF: 1.1})
    listener = Listener()
    options = options_for(repository, tmp_path, cases=FORWARD_SELF)
    result = attribute_commits("HEAD~4..", options, listener)
    assert said(result) == ["failed", "regressed", "failed", "unchanged", "regressed"]
    rows = [one.to_dict() for one in result.cases[0].commits]
    assert [row["reasons"][0]["code"] for row in rows if row["verdict"] == "failed"] == [
        "build_failed",
        "benchmark_crashed",
    ]
    assert rows[1]["baseline"] == result.commits[0].sha
    assert rows[1]["reasons"][-1]["detail"] == f"together with {broken[:10]}, which could not be measured by themselves"
    text = stack_tables(rows, [result.cases[0].summary.row.to_dict()])
    assert f"regressed, together with {broken[:10]}" in text
    assert any("does not build" in one for one in listener.texts)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [("base", ["not_comparable", "unchanged", "not_comparable"]), ("head", ["unchanged", "failed", "failed"])],
)
def test_a_bad_end_takes_the_whole_away(
    repository: FakeRepository, tmp_path: Path, bad: str, expected: list[str]
) -> None:
    for name in ("base", "middle", "head"):
        repository.commit(name, **({"wrong_cases": [FORWARD_SELF]} if name == bad else {}))
    options = options_for(repository, tmp_path, cases=FORWARD_SELF, max_pairs=8)
    assert said(attribute_commits("HEAD~2..HEAD", options)) == expected


def test_cases_that_come_and_change_are_compared_where_they_can_be(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("base", cases=[BACKWARD_SELF])
    repository.commit("new case", cases=[BACKWARD_SELF, FORWARD_SELF])
    repository.commit("faster", cases=[BACKWARD_SELF, FORWARD_SELF], speed={FORWARD_SELF: 0.9})
    result = attribute_commits("HEAD~2..HEAD", options_for(repository, tmp_path, max_pairs=8))
    assert said(result) == ["not_comparable", "improved", "not_comparable"]
    codes = [one.row.reasons[0]["code"] for one in result.cases[1].commits]
    assert codes[0] == "no_commit_before"
    assert result.cases[1].summary.row.reasons[0]["code"] == "baseline_case_absent"
    assert said(result, BACKWARD_SELF) == ["unchanged"] * 3


def test_one_commit_is_a_stack_and_the_whole(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("base")
    repository.commit("slow", speed={FORWARD_SELF: 1.1})
    result = attribute_commits("HEAD~1..HEAD", options_for(repository, tmp_path, cases=FORWARD_SELF))
    (row,) = result.cases[0].commits
    assert said(result) == ["regressed", "regressed"]
    assert row.row.effect == result.cases[0].summary.row.effect


def test_commits_that_touch_nothing_measured_need_no_round(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("base")
    (repository.path / "README").write_text("words")
    repository.commit_files("words")
    result = attribute_commits("HEAD~1..HEAD", options_for(repository, tmp_path, cases=FORWARD_SELF))
    assert result.rounds == 0
    assert said(result) == ["unchanged", "unchanged"]


def test_a_time_budget_ends_it_after_a_round(repository: FakeRepository, tmp_path: Path) -> None:
    for name in ("base", "one", "two"):
        repository.commit(name)
    result = attribute_commits("HEAD~2..HEAD", options_for(repository, tmp_path, time_budget_s=0.0))
    assert result.rounds == 1
    assert said(result) == ["inconclusive"] * 3


def line_of(repository: FakeRepository, count: int) -> None:
    repository.commit("base")
    for number in range(count):
        repository.git("commit", "--quiet", "--allow-empty", "--message", f"number {number}")


BAD_RANGES = {
    "HEAD": "two revisions with two dots",
    "..HEAD": "two revisions with two dots",
    "HEAD~1...HEAD": "two revisions with two dots",
    "HEAD~1..HEAD..main": "two revisions with two dots",
    "HEAD..HEAD~1": r"part of .* \(reversed\?\)",
    "HEAD..HEAD": "the same commit twice",
    "HEAD~21..HEAD": "at most 20 commits, got 21",
}


@pytest.mark.parametrize("text", BAD_RANGES)
def test_ranges_that_are_none(repository: FakeRepository, tmp_path: Path, text: str) -> None:
    line_of(repository, 21)
    with pytest.raises(JobError, match=BAD_RANGES[text]) as caught:
        attribute_commits(text, options_for(repository, tmp_path))
    assert caught.value.code == "bad_range"


def test_twenty_commits_are_a_range(repository: FakeRepository, tmp_path: Path) -> None:
    line_of(repository, 21)
    mirror = Mirror(tmp_path / "data", str(repository.path))
    base, head = repository.git("rev-parse", "HEAD~20"), mirror.resolve("main")
    assert list(mirror.line(base, head, 20)) == repository.git("rev-list", "--reverse", f"{base}..{head}").split()


def test_a_commit_beside_the_line_is_no_base(repository: FakeRepository, tmp_path: Path) -> None:
    root = repository.commit("root")
    repository.git("switch", "--quiet", "--create", "side", root)
    side = repository.commit("side")
    repository.git("switch", "--quiet", "main")
    repository.commit("main")
    for name in ("side", side):
        with pytest.raises(JobError, match="on the first-parent line") as caught:
            attribute_commits(f"{name}..main", options_for(repository, tmp_path))
        assert caught.value.code == "bad_range"
    repository.git("merge", "--quiet", "--no-edit", "--strategy=ours", "side")
    with pytest.raises(JobError, match="on the first-parent line"):
        attribute_commits(f"{side}..main", options_for(repository, tmp_path))
    mirror = Mirror(tmp_path / "data", str(repository.path))
    mirror.fetch()
    assert len(mirror.line(root, mirror.resolve("main"), 20)) == 2  # the merge, without what it merged


@pytest.mark.parametrize(
    ("text", "cases", "code"), [("HEAD~1..nothing", "*", "unknown_ref"), ("HEAD~1..", "gpu/*", "no_cases")]
)
def test_ranges_and_globs_that_name_nothing(
    repository: FakeRepository, tmp_path: Path, text: str, cases: str, code: str
) -> None:
    line_of(repository, 0)
    repository.commit("one")
    with pytest.raises(JobError) as caught:
        attribute_commits(text, options_for(repository, tmp_path, cases=cases))
    assert caught.value.code == code


def test_the_head_may_be_left_out() -> None:
    assert parse_range("v1.2..") == ("v1.2", "HEAD")
    assert parse_range("a~1..origin/topic") == ("a~1", "origin/topic")


# ---- bisection ----


def commits(repository: FakeRepository, *behaviors: dict[str, Any]) -> list[str]:
    return [repository.commit(f"number {at}", **behavior) for at, behavior in enumerate(behaviors)]


SLOW: dict[str, Any] = {"speed": {FORWARD_SELF: 1.1}}


def test_a_bisection_names_the_commit_by_its_comparison_with_its_parent(
    repository: FakeRepository, tmp_path: Path
) -> None:
    shas = commits(repository, {}, {}, {}, {}, SLOW, SLOW, SLOW)
    listener = Listener()
    found = bisect_commits(f"{shas[0]}..main", FORWARD_SELF, options_for(repository, tmp_path, max_pairs=8), listener)
    assert found.finding.change is not None
    assert (found.finding.change.baseline, found.finding.change.candidate) == (3, 4)
    assert found.commits[4].subject == "number 4"
    assert found.finding.change.verdict is Verdict.REGRESSED
    assert found.finding.change.effect == pytest.approx(0.1, abs=0.01)
    assert [(one.baseline, one.candidate) for one in found.outcomes] == [(0, 6), (0, 3), (3, 6), (3, 4)]


def test_a_range_without_a_change_ends_after_one_comparison(repository: FakeRepository, tmp_path: Path) -> None:
    commits(repository, SLOW, SLOW, SLOW)
    found = bisect_commits("HEAD~2..HEAD", FORWARD_SELF, options_for(repository, tmp_path))
    assert (found.finding.change, found.finding.found) == (None, None)
    assert [one.verdict for one in found.outcomes] == [Verdict.UNCHANGED]


def test_a_commit_that_cannot_be_measured_leaves_a_range_and_accuses_nobody(
    repository: FakeRepository, tmp_path: Path
) -> None:
    commits(repository, {}, {"build": "fail"} | SLOW, SLOW)
    found = bisect_commits("HEAD~2..HEAD", FORWARD_SELF, options_for(repository, tmp_path, max_pairs=8))
    assert found.finding.change is None
    assert found.finding.found is not None
    assert (found.finding.found.baseline, found.finding.found.candidate) == (0, 2)
    assert found.finding.unavailable == ((0, 1), (1, 2))


@pytest.mark.parametrize("case", ["cpu/*", "cpu/none"])
def test_a_bisection_follows_one_case(repository: FakeRepository, tmp_path: Path, case: str) -> None:
    commits(repository, {}, SLOW)
    with pytest.raises(JobError) as caught:
        bisect_commits("HEAD~1..HEAD", case, options_for(repository, tmp_path, max_pairs=2))
    assert caught.value.code == "no_cases"
