"""Comparisons without a server: the same verdicts, from nothing but git, numpy, scipy and pydantic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from worker_fixtures import BACKWARD_SELF, FORWARD_DOWN, FORWARD_SELF, FakeRepository

from service.judging.rows import VerdictRow
from service.worker.comparison import Comparison, ComparisonOptions, compare_commits
from service.worker.devices import DeviceLock, cpu
from service.worker.errors import JobError

ROOT = Path(__file__).parents[3]


class Listener:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.pairs: list[tuple[int, int, int]] = []
        self.texts: list[str] = []

    def stage(self, name: str, detail: str = "") -> None:
        self.stages.append(name)

    def pair(self, done: int, budget: int, rejected: int) -> None:
        self.pairs.append((done, budget, rejected))

    def log(self, text: str) -> None:
        self.texts.append(text)


def options_for(repository: FakeRepository, tmp_path: Path, **changes: object) -> ComparisonOptions:
    settings: dict[str, object] = {"data_dir": tmp_path / "data", "lock_dir": tmp_path, "rest_s": 0.01, "max_pairs": 10}
    return ComparisonOptions(repository=repository.path, **(settings | changes))  # type: ignore[arg-type]


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {row.case: row.verdict for row in comparison.rows}


@pytest.mark.parametrize("setting", ["auto", "none"])
def test_a_comparison_finds_what_is_planted(repository: FakeRepository, tmp_path: Path, setting: str) -> None:
    before = repository.commit("before")
    after = repository.commit("after", speed={FORWARD_SELF: 1.1, BACKWARD_SELF: 0.9}, wrong_cases=[FORWARD_DOWN])
    listener = Listener()
    comparison = compare_commits("HEAD~1", "main", options_for(repository, tmp_path, sandbox=setting), listener)
    assert (comparison.baseline_sha, comparison.candidate_sha) == (before, after)
    assert verdicts(comparison) == {FORWARD_SELF: "regressed", FORWARD_DOWN: "failed", BACKWARD_SELF: "improved"}
    assert comparison.sandbox == {"auto": "bubblewrap", "none": "none"}[setting]
    assert comparison.device_name == cpu().name
    assert listener.stages == ["checkout", "build", "build", "numerics", "pairs", "confirm", "profile", "judge"]
    assert listener.pairs == [(index + 1, 10, 0) for index in range(comparison.pairs)]
    assert any("no sandbox" in text for text in listener.texts) == (setting == "none")
    fresh = [document for document in comparison.documents if document["purpose"] == "confirm"]
    assert {case["name"] for document in fresh for case in document["cases"]} == {FORWARD_SELF, BACKWARD_SELF}
    assert [document["arm"] for document in fresh[:4]] == ["B", "A", "A", "B"]
    assert fresh[0]["pair"] == comparison.pairs
    confirmed = comparison.to_dict()["evidence"][FORWARD_SELF]["confirmation"]
    assert (confirmed["verdict"], len(confirmed["pairs"]) >= 5) == ("regressed", True)


def test_what_is_saved_is_plain_json_and_reads_back(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("before")
    repository.commit("after")
    comparison = compare_commits("HEAD~1", "HEAD", options_for(repository, tmp_path, max_pairs=2))
    saved = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert [VerdictRow.from_dict(row) for row in saved["rows"]] == comparison.rows
    purposes = Counter(document["purpose"] for document in saved["documents"])
    assert purposes == {"numerics": 2, "pair": 2 * comparison.pairs, "canary": 2 * comparison.pairs}
    assert all(one["cases"][0]["samples"] for one in saved["documents"] if one["purpose"] != "numerics")
    canaries = saved["evidence"][FORWARD_SELF]["canaries"]
    assert set(canaries) == {"canary/cpu/gemm", "canary/cpu/copy"}
    assert all(set(one["log_ratios"]) == {"0", "1"} for one in canaries.values())
    assert saved["builds"]["B"]["report"]["compiler"] == "fake 1.0"
    assert {letter: one["status"] for letter, one in saved["profiles"].items()} == {
        "A": "unsupported",
        "B": "unsupported",
    }


def test_kernels_of_both_commits_side_by_side(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("before", profile={"gather": 2.0})
    repository.commit("after", profile={"gather": 1.0, "fill": 0.5})
    options = options_for(repository, tmp_path, max_pairs=2, cases=FORWARD_SELF)
    gather, fill = compare_commits("HEAD~1", "HEAD", options).kernels()
    assert (gather["case"], gather["kernel"], gather["effect"]) == (FORWARD_SELF, "gather", -0.5)
    assert (fill["kernel"], fill["before"], fill["effect"]) == ("fill", None, None)


def test_a_profile_that_fails_is_told_and_changes_no_verdict(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("before")
    repository.commit("after", profile="crash")
    listener = Listener()
    options = options_for(repository, tmp_path, max_pairs=2, cases=FORWARD_SELF)
    comparison = compare_commits("HEAD~1", "HEAD", options, listener)
    assert set(verdicts(comparison)) == {FORWARD_SELF}
    assert comparison.kernels() == []
    assert any("has no profile of its kernels: ended with status 1" in text for text in listener.texts)


def test_a_commit_compared_with_itself_is_no_change(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("only")
    comparison = compare_commits("HEAD", "HEAD", options_for(repository, tmp_path))
    assert set(verdicts(comparison).values()) <= {"unchanged", "inconclusive"}


def test_a_selection_and_a_time_budget_bound_the_work(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("before")
    repository.commit("after")
    options = options_for(repository, tmp_path, cases="cpu/backward/*", time_budget_s=0.0)
    comparison = compare_commits("HEAD~1", "HEAD", options)
    assert comparison.pairs == 0
    assert verdicts(comparison) == {BACKWARD_SELF: "inconclusive"}


@pytest.mark.parametrize(
    ("behavior", "code"), [({"build": "fail"}, "build_failed"), ({"run": "crash"}, "benchmark_crashed")]
)
def test_a_bad_candidate_fails_and_a_bad_baseline_is_not_comparable(
    repository: FakeRepository, tmp_path: Path, behavior: dict[str, str], code: str
) -> None:
    repository.commit("good")
    repository.commit("bad", **behavior)
    with pytest.raises(JobError) as caught:
        compare_commits("HEAD~1", "HEAD", options_for(repository, tmp_path))
    assert caught.value.code == code
    assert caught.value.log_tail
    listener = Listener()
    comparison = compare_commits("HEAD", "HEAD~1", options_for(repository, tmp_path), listener)
    assert set(verdicts(comparison).values()) == {"not_comparable"}
    assert comparison.rows[0].reasons[0]["code"] == f"baseline_{code}"
    assert any("baseline cannot be used" in text for text in listener.texts)


@pytest.mark.parametrize(("cases", "rev", "code"), [("gpu/*", "HEAD", "no_cases"), ("*", "nothing", "unknown_ref")])
def test_requests_that_name_nothing(
    repository: FakeRepository, tmp_path: Path, cases: str, rev: str, code: str
) -> None:
    repository.commit("only")
    with pytest.raises(JobError) as caught:
        compare_commits("HEAD", rev, options_for(repository, tmp_path, cases=cases))
    assert caught.value.code == code


def test_a_device_in_use_is_waited_for_and_then_named(repository: FakeRepository, tmp_path: Path) -> None:
    repository.commit("only")
    lock = DeviceLock(cpu(), tmp_path)
    assert lock.try_acquire()
    listener = Listener()
    try:
        with pytest.raises(JobError) as caught:
            compare_commits("HEAD", "HEAD", options_for(repository, tmp_path, lock_timeout_s=0.1), listener)
    finally:
        lock.release()
    assert caught.value.code == "device_busy"
    assert any("waiting" in text for text in listener.texts)


def test_a_comparison_needs_neither_queue_nor_database_nor_server() -> None:
    source = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import service.worker.comparison\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}))"
    )
    output = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    for module in ("dbos", "sqlalchemy", "fastapi", "structlog", "pydantic_settings", "torch", "typer", "rich"):
        assert f"'{module}'" not in output
    assert "'pydantic'" in output
