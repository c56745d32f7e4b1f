"""Builds: one per key, failures with their log, and no trace of a build that was broken off."""

from __future__ import annotations

from pathlib import Path

import pytest
from worker_fixtures import FakeRepository, make_host

from service.worker.build import build, build_key
from service.worker.checkout import Checkout, Mirror
from service.worker.devices import MeasuringDevice, cpu
from service.worker.errors import Canceled, JobError
from service.worker.host import Host
from service.worker.sandbox import Sandbox


def check_out(repository: FakeRepository, data_dir: Path, sha: str) -> Checkout:
    mirror = Mirror(data_dir, str(repository.path))
    return mirror.check_out(mirror.resolve(sha))


def test_a_build_is_made_once_and_then_reused(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox)
    checkout = check_out(repository, host.data_dir, repository.commit("normal"))
    first = build(checkout, cpu(), host)
    assert not first.reused
    assert (first.cache / "library.so").read_text() == "kernels"
    assert first.report["compiler"] == "fake 1.0"
    assert "compiling normal" in first.log
    second = build(checkout, cpu(), host)
    assert second.reused
    assert (second.key, second.cache, second.log) == (first.key, first.cache, first.log)
    assert (host.data_dir / "ccache" / "fake_builds").read_text() == "normal\n"


def test_the_report_of_many_kernels_is_read_whole(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    host = make_host(tmp_path / "data", sandbox)
    checkout = check_out(repository, host.data_dir, repository.commit("large", kernels=1000))
    assert len(build(checkout, cpu(), host).report["resources"]["kernels"]) == 1000


def test_no_commit_writes_object_code_for_another_unless_asked(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = Host(tmp_path / "data", sandbox)
    build(check_out(repository, host.data_dir, repository.commit("normal")), cpu(), host)
    assert not (host.data_dir / "ccache").exists()


def test_commits_with_the_same_sources_share_a_build(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    first = repository.commit("same")
    (repository.path / "README").write_text("words")
    second = repository.commit_files("documentation")
    third = repository.commit("other")
    (repository.path / "csrc" / "kernel.cpp").write_text("// changed")
    fourth = repository.commit_files("kernel")
    keys = [build_key(check_out(repository, host.data_dir, sha), cpu()) for sha in (first, second, third, fourth)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_the_key_depends_on_the_device(repository: FakeRepository, tmp_path: Path, sandbox: Sandbox) -> None:
    checkout = check_out(repository, tmp_path / "data", repository.commit())
    gpu = MeasuringDevice("cuda", "gpu:X", "GPU-1", "X")
    other = MeasuringDevice("cuda", "gpu:Y", "GPU-2", "Y")
    assert len({build_key(checkout, device) for device in (cpu(), gpu, other)}) == 3


@pytest.mark.parametrize(
    ("behavior", "code", "evidence"),
    [
        ({"build": "fail"}, "build_failed", "error: expected a kernel"),
        ({"build": "no_report"}, "build_failed", "trust me"),
        ({"build": "hang"}, "build_timeout", "compiling"),
    ],
)
def test_a_build_that_does_not_succeed(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox, behavior: dict[str, str], code: str, evidence: str
) -> None:
    host = make_host(tmp_path / "data", sandbox, build_timeout_s=3.0)
    checkout = check_out(repository, host.data_dir, repository.commit("bad", **behavior))
    with pytest.raises(JobError) as caught:
        build(checkout, cpu(), host)
    assert caught.value.code == code
    assert caught.value.stage == "build"
    assert evidence in caught.value.log_tail
    assert not (host.data_dir / "builds" / build_key(checkout, cpu())).exists()


def test_a_build_that_is_stopped_is_canceled_and_starts_afresh(
    repository: FakeRepository, tmp_path: Path, sandbox: Sandbox
) -> None:
    host = make_host(tmp_path / "data", sandbox)
    checkout = check_out(repository, host.data_dir, repository.commit("slow", build_s=1.0))
    with pytest.raises(Canceled):
        build(checkout, cpu(), host, lambda: True)
    assert not build(checkout, cpu(), host).reused
