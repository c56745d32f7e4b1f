"""Benchmark processes of planted commits: every misbehavior ends in its own code, with the log, and leaves nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worker_fixtures import FORWARD_SELF, FakeRepository, make_host, processes_with

from service.worker.build import build
from service.worker.checkout import Mirror
from service.worker.devices import cpu
from service.worker.errors import Canceled, JobError
from service.worker.host import Host
from service.worker.measure import Arm, ProcessSpec, child_of, run_process
from service.worker.sandbox import Sandbox


def spec_of(
    repository: FakeRepository, host: Host, purpose: str = "pair", selection: str = "*", **behavior: Any
) -> ProcessSpec:
    """Commit a behavior and return a process of it."""
    mirror = Mirror(host.data_dir, str(repository.path))
    checkout = mirror.check_out(mirror.resolve(repository.commit(**behavior)))
    return ProcessSpec(Arm("B", checkout, build(checkout, cpu(), host)), purpose, selection, cpu())


def leftovers(host: Host) -> list[Path]:
    return list((host.data_dir / "runs").iterdir())


def test_a_pair_process_is_timed_on_one_cpu(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox)
    result = run_process(spec_of(repository, host, name="normal"), host)
    case = result.document.case(FORWARD_SELF)
    assert case is not None
    assert len(case.samples) == 15
    assert result.document.numerics_mode == "skip"
    assert result.document.environment.model_dump()["affinity"] == [max(host.cpus)]
    assert "measuring normal" in result.log
    assert leftovers(host) == []


def files_in(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """The inode and the content of every file, by its path in the folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder): (file.stat().st_ino, file.read_bytes()) for file in files}


@pytest.mark.parametrize("purpose", ["pair", "confirm", "round"])
def test_every_process_that_is_timed_on_a_cpu_has_a_copy_of_its_library(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox, purpose: str
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    spec = spec_of(repository, host, purpose)
    (spec.arm.build.cache / "key").mkdir()
    (spec.arm.build.cache / "key" / "s2attn_cpu.so").write_bytes(b"library")
    built = files_in(spec.arm.build.cache)
    with child_of(spec, host, lambda _: []) as first, child_of(spec, host, lambda _: []) as second:
        copies = [files_in(child.cache) for child in (first, second)]
    for path, (inode, content) in built.items():
        assert [copy[path][1] for copy in copies] == [content, content]
        assert len({inode, *(copy[path][0] for copy in copies)}) == 3
    assert leftovers(host) == []
    assert files_in(spec.arm.build.cache) == built


def test_others_load_what_was_built(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox)
    numerics = spec_of(repository, host, "numerics")
    on_gpu = replace(numerics, purpose="pair", device=replace(numerics.device, kind="cuda"))
    for spec in (numerics, on_gpu):
        with child_of(spec, host, lambda _: []) as child:
            assert child.cache == spec.arm.build.cache


def test_a_confirming_process_measures_the_named_cases_alone(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    """Names are no globs: one with brackets is found, and matches no other."""
    host = make_host(tmp_path / "data", sandbox)
    odd = "cpu/[ab]/*"
    spec = spec_of(repository, host, "confirm", cases=["cpu/a/x", odd, FORWARD_SELF])
    document = run_process(replace(spec, cases="*", only=(odd, FORWARD_SELF)), host).document
    assert [case.name for case in document.cases] == [odd, FORWARD_SELF]
    assert all(len(case.samples) == 15 for case in document.cases)


def test_a_numerics_process_takes_no_samples(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox, samples=7)
    spec = spec_of(repository, host, "numerics", wrong_cases=[FORWARD_SELF])
    case = run_process(spec, host).document.case(FORWARD_SELF)
    assert case is not None
    assert case.samples == []
    assert case.numerics is not None
    assert case.numerics.status == "failed"


@pytest.mark.parametrize(
    ("behavior", "code"),
    [
        ({"run": "crash"}, "benchmark_crashed"),
        ({"run": "exit"}, "benchmark_crashed"),
        ({"run": "hang"}, "benchmark_timeout"),
        ({"run": "close_and_hang"}, "benchmark_timeout"),
        ({"run": "no_document"}, "bad_document"),
        ({"run": "garbage"}, "bad_document"),
        ({"run": "link"}, "bad_document"),
        ({"run": "huge", "huge_bytes": 200_000}, "bad_document"),
        ({"run": "huge", "huge_bytes": 10**9}, "benchmark_crashed"),
        ({"run": "nan"}, "bad_samples"),
        ({"run": "inf"}, "bad_samples"),
        ({"run": "zero"}, "bad_samples"),
        ({"run": "negative"}, "bad_samples"),
        ({"run": "seconds"}, "bad_samples"),
        ({"run": "no_samples"}, "bad_samples"),
    ],
    ids=str,
)
def test_a_process_that_misbehaves(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox, behavior: dict[str, Any], code: str
) -> None:
    host = make_host(tmp_path / "data", sandbox, process_timeout_s=5.0, document_bytes=100_000)
    with pytest.raises(JobError) as caught:
        run_process(spec_of(repository, host, **behavior), host)
    assert caught.value.code == code
    assert caught.value.stage == "pairs"
    assert caught.value.log_tail
    assert leftovers(host) == []


def test_background_processes_end_with_their_process(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    marker = f"background-{time.monotonic_ns()}"
    run_process(spec_of(repository, host, run="background", marker=marker), host)
    assert processes_with(marker) == []


def test_a_document_written_twice_counts_as_it_is_at_the_end(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    assert run_process(spec_of(repository, host, run="twice"), host).document.arm == "B"


def test_a_glob_that_matches_nothing_names_what_there_is(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    with pytest.raises(JobError) as caught:
        run_process(spec_of(repository, host, "numerics", "gpu/*"), host)
    assert caught.value.code == "no_cases"
    assert FORWARD_SELF in caught.value.log_tail


def test_a_process_that_is_stopped_is_canceled(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox)
    with pytest.raises(Canceled):
        run_process(spec_of(repository, host, run="hang"), host, lambda: True)
    assert leftovers(host) == []


def test_a_confined_commit_finds_no_secret(repository: FakeRepository, tmp_path: Path, confined: Sandbox) -> None:
    host = make_host(tmp_path / "data", confined)
    secret = tmp_path / "secret"
    secret.write_text("very secret")
    found = run_process(
        spec_of(repository, host, run="snoop", secret=str(secret), port=1), host
    ).document.environment.model_dump()["found"]
    assert found["secret"].startswith("refused")
    assert found["network"].startswith("refused")
    assert found["checkout"].startswith("refused")
    assert found["cache"].startswith("refused")
    assert found["pid_count"] == 2
