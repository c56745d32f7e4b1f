"""Devices of this machine and the locks on them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.worker import devices
from service.worker.devices import DeviceLock, MeasuringDevice, cpu, find_device
from service.worker.errors import JobError

INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 120
GPU UUID: \t GPU-11111111-2222-3333-4444-555555555555
Video BIOS: \t ??.??.??.??.??
Device Minor: \t {minor}
"""
XML = """<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>NVIDIA L4</product_name>
<uuid>GPU-aa</uuid><minor_number>0</minor_number></gpu><gpu id="00000000:02:00.0"><product_name>NVIDIA L4</product_name>
<uuid>GPU-bb</uuid><minor_number>N/A</minor_number></gpu></nvidia_smi_log>"""


def test_the_cpu_keeps_its_identity() -> None:
    assert cpu() == cpu()
    assert cpu().uuid.startswith("CPU-")
    assert (cpu().kind, cpu().device_class, cpu().gpu_uuid) == ("cpu", "cpu", None)
    assert cpu().name


def test_gpus_are_read_from_the_drivers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text(INFORMATION.format(minor=3))
    (tmp_path / "0000:02:00.0").mkdir()
    monkeypatch.setattr(devices, "_GPU_INFORMATION", tmp_path)
    assert devices._facts_of_driver() == [(3, "GPU-11111111-2222-3333-4444-555555555555", "NVIDIA H200")]
    gpu = devices._gpu(3, "GPU-1", "NVIDIA H200")
    assert (gpu.kind, gpu.device_class, gpu.gpu_uuid) == ("cuda", "gpu:NVIDIA H200", "GPU-1")
    assert gpu.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_gpus_are_read_from_nvidia_smi_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{XML}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert devices._facts_of_nvidia_smi() == [(0, "GPU-aa", "NVIDIA L4")]


def test_a_device_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: [])
    with pytest.raises(JobError, match="no driver for an NVIDIA GPU") as caught:
        find_device("cuda")
    assert caught.value.code == "device_unfit"
    with pytest.raises(ValueError, match="expected cpu or cuda"):
        find_device("tpu")


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    first, second = DeviceLock(cpu(), tmp_path), DeviceLock(cpu(), tmp_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    with pytest.raises(JobError) as caught:
        second.acquire(0.05)
    assert caught.value.code == "device_busy"
    first.release()
    second.acquire(5.0)
    second.release()


def test_who_measures_on_the_cpu_is_alone_and_gpus_are_measured_side_by_side(tmp_path: Path) -> None:
    first, second = (
        DeviceLock(MeasuringDevice("cuda", "gpu:H200", f"GPU-{number}", "NVIDIA H200"), tmp_path) for number in range(2)
    )
    host = DeviceLock(cpu(), tmp_path)
    assert first.try_acquire()
    assert second.try_acquire()
    assert not host.try_acquire()
    first.release()
    assert not host.try_acquire()
    second.release()
    assert host.try_acquire()
    assert not first.try_acquire()
    host.release()
    assert first.try_acquire()
    first.release()


def test_a_worker_that_serves_a_device_lets_others_measure_on_it(tmp_path: Path) -> None:
    serving, another = (DeviceLock(cpu(), tmp_path, use="serve") for _ in range(2))
    assert serving.try_acquire()
    assert not another.try_acquire()
    measuring = DeviceLock(cpu(), tmp_path)
    assert measuring.try_acquire()
    measuring.release()
    serving.release()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    source = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from service.worker.devices import DeviceLock, cpu\n"
        "assert DeviceLock(cpu(), Path(sys.argv[2])).try_acquire()\n"
        "print('locked', flush=True)\n"
        "sys.stdin.read()\n"
    )
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        [sys.executable, "-c", source, str(root), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        lock = DeviceLock(cpu(), tmp_path)
        assert not lock.try_acquire()
        process.kill()
        process.wait()
        assert lock.try_acquire()
        lock.release()
