"""The process that measures canaries: it answers, is fresh each time, and ends with whoever asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_fixtures import make_host, wait_until

from service.worker.canary import Canaries, Canary
from service.worker.devices import MeasuringDevice, cpu
from service.worker.errors import JobError, Kind
from service.worker.sandbox import Mode, Sandbox

ROOT = Path(__file__).parents[4]
PLAIN = Sandbox(Mode.NONE)


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    """The canaries of this machine's CPU, ready to answer at once."""
    with Canary(cpu(), make_host(tmp_path_factory.mktemp("host"), PLAIN)) as one:
        one.measure("A")
        yield one


def process_of(canary: Canary) -> int:
    """Return the process that is ready, started if need be."""
    canary.measure("A")
    assert canary._process is not None
    return canary._process.pid


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that nobody waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_an_answer_is_a_document_with_samples_of_both(canary: Canary) -> None:
    result = canary.measure("B")
    assert (result.document.arm, result.document.protocol) == ("B", 1)
    assert result.document.model_validate_json(result.raw) == result.document
    cases = {case.name: case for case in result.document.cases}
    assert set(cases) == {"canary/cpu/gemm", "canary/cpu/copy"}
    for case in cases.values():
        assert (len(case.samples), case.unit, case.group, case.warmups) == (15, "ms", "canary", 3)
        assert min(case.samples) > 0.05
        assert case.sample_start_s == sorted(case.sample_start_s)
    gemm = {"canary": "gemm", "library": "numpy", "n": 384, "dtype": "float32"}
    assert cases["canary/cpu/gemm"].definition == gemm
    assert {case.backend for case in cases.values()} == {"numpy"}


def test_an_answer_takes_no_second_once_the_process_is_there(canary: Canary) -> None:
    started = time.monotonic()
    answers = [canary.measure(arm) for arm in "ABBA"]
    assert (time.monotonic() - started) / len(answers) < 1.0
    assert len({case.version for answer in answers for case in answer.document.cases}) == 2


def test_nothing_of_the_workers_environment_is_passed_on(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2BENCH_DATABASE_URL", "postgresql://user:secret@host/db")
    canary.close()
    environment = Path(f"/proc/{process_of(canary)}/environ").read_bytes()
    assert b"secret" not in environment


def test_a_process_that_is_gone_is_said_and_the_next_question_starts_anew(canary: Canary) -> None:
    os.kill(process_of(canary), signal.SIGKILL)
    with pytest.raises(JobError, match=r"canaries of .* could not be measured") as caught:
        canary.measure("A")
    assert (caught.value.code, caught.value.kind, caught.value.stage) == ("canary_failed", Kind.TRANSIENT, "canary")
    assert canary.measure("A").document.cases


def test_an_answer_that_does_not_come_in_time_is_given_up_with_its_process(canary: Canary) -> None:
    pid = process_of(canary)
    with pytest.raises(JobError, match="no answer in time"):
        canary.measure("A", timeout_s=0.0)
    assert not is_alive(pid)
    assert canary.measure("A").document.cases


def test_a_device_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    absent = MeasuringDevice("cuda", "gpu:None", "GPU-0", "a GPU that is not there", environment=environment)
    with Canary(absent, make_host(tmp_path, PLAIN)) as canary, pytest.raises(JobError) as caught:
        canary.measure("A")
    assert "a GPU that is not there" in caught.value.message
    assert "Traceback" in caught.value.log_tail
    assert "CUDA" in caught.value.log_tail or "NVIDIA" in caught.value.log_tail


def test_a_device_keeps_its_canaries_until_all_are_closed(tmp_path: Path) -> None:
    canaries, host = Canaries(), make_host(tmp_path, PLAIN)
    first = canaries.of(cpu(), host)
    assert canaries.of(cpu(), host) is first
    pid = process_of(first)
    assert is_alive(pid)
    canaries.close()
    assert not is_alive(pid)


def test_no_process_outlives_a_killed_worker(tmp_path: Path) -> None:
    source = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from service.worker.canary import Canary\n"
        "from service.worker.devices import cpu\n"
        "from service.worker.host import Host\n"
        "from service.worker.sandbox import Mode, Sandbox\n"
        f"canary = Canary(cpu(), Host(Path({str(tmp_path)!r}), Sandbox(Mode.NONE)))\n"
        "canary.measure('A')\n"
        "print(canary._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    worker = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert worker.returncode == -signal.SIGKILL, worker.stderr
    pid = int(worker.stdout)
    wait_until(lambda: not is_alive(pid), 20, "the end of the canaries' process")
