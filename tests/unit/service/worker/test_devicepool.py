"""A device is lent once at a time, and the CPU only while no GPU of the host is lent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.engine import WorkerStopping
from service.worker.devicepool import DevicePool
from service.worker.devices import DeviceLock, MeasuringDevice

CPU = MeasuringDevice("cpu", "cpu", "cpu-0", "a CPU")
GPUS = [MeasuringDevice("cuda", "gpu:H200", f"GPU-{number}", "NVIDIA H200") for number in range(2)]


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def pool(stopping: threading.Event, tmp_path: Path) -> DevicePool:
    return DevicePool([CPU, *GPUS], stopping, tmp_path)


class Borrower:
    """Borrows a device in a thread of its own and keeps it until told."""

    def __init__(self, pool: DevicePool, device_class: str) -> None:
        self._pool, self._class = pool, device_class
        self.device: MeasuringDevice | None = None
        self.stopped = False
        self._done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._pool.borrow(self._class) as self.device:
                self._done.wait(30)
        except WorkerStopping:
            self.stopped = True

    def end(self) -> None:
        self._done.set()
        self.thread.join(30)


@pytest.fixture
def borrow(pool: DevicePool, stopping: threading.Event) -> Iterator[Callable[[str], Borrower]]:
    made: list[Borrower] = []

    def one(device_class: str) -> Borrower:
        before = list(pool._line)
        borrower = Borrower(pool, device_class)
        made.append(borrower)
        wait_until(lambda: borrower.device is not None or any(one not in before for one in list(pool._line)))
        return borrower

    yield one
    stopping.set()
    for borrower in made:
        borrower.end()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def waits(borrower: Borrower) -> bool:
    time.sleep(0.1)
    return borrower.device is None


def test_gpus_of_a_host_are_measured_side_by_side(borrow: Callable[[str], Borrower], pool: DevicePool) -> None:
    first, second, third = (borrow("gpu:H200") for _ in range(3))
    wait_until(lambda: first.device is not None and second.device is not None)
    assert first.device is not second.device
    assert waits(third)
    assert [status for status, _ in pool.statuses().values()] == ["ready", "busy", "busy"]
    first.end()
    wait_until(lambda: third.device is first.device)


def test_the_cpu_waits_for_gpus_and_they_for_it(borrow: Callable[[str], Borrower]) -> None:
    gpu = borrow("gpu:H200")
    wait_until(lambda: gpu.device is not None)
    cpu = borrow("cpu")
    later = borrow("gpu:H200")  # its GPU is free, but the CPU's measurement has waited longer
    assert waits(cpu)
    assert waits(later)
    gpu.end()
    wait_until(lambda: cpu.device is CPU)
    assert waits(later)
    cpu.end()
    wait_until(lambda: later.device is not None)


def test_nobody_waits_behind_a_device_that_is_gone(borrow: Callable[[str], Borrower], pool: DevicePool) -> None:
    for gpu in GPUS:
        pool.take_out(gpu, "fell off the bus")
    lost = borrow("gpu:H200")
    cpu = borrow("cpu")
    wait_until(lambda: cpu.device is CPU)
    assert waits(lost)
    assert pool.statuses()["GPU-0"] == ("unfit", "fell off the bus")


def test_a_stop_ends_the_waiting(
    borrow: Callable[[str], Borrower], pool: DevicePool, stopping: threading.Event
) -> None:
    cpu = borrow("cpu")
    wait_until(lambda: cpu.device is not None)
    waiting = borrow("gpu:H200")
    stopping.set()
    wait_until(lambda: waiting.stopped)
    assert not pool._line


def test_a_command_of_this_machine_measures_on_what_is_not_lent(
    borrow: Callable[[str], Borrower], tmp_path: Path
) -> None:
    command = DeviceLock(GPUS[0], tmp_path)
    assert command.try_acquire()
    other = borrow("gpu:H200")
    wait_until(lambda: other.device is GPUS[1])
    waiting = borrow("gpu:H200")
    assert waits(waiting)
    command.release()
    wait_until(lambda: waiting.device is GPUS[0])
    assert not command.try_acquire()
    waiting.end()
    assert command.try_acquire()
    command.release()


def test_a_stop_ends_the_waiting_for_a_command(
    borrow: Callable[[str], Borrower], stopping: threading.Event, tmp_path: Path
) -> None:
    command = DeviceLock(GPUS[1], tmp_path)
    assert command.try_acquire()
    cpu = borrow("cpu")  # which waits for everyone who measures on a GPU
    assert waits(cpu)
    stopping.set()
    wait_until(lambda: cpu.stopped)
    command.release()


def test_a_class_holds_up_itself_and_what_it_disturbs(
    pool: DevicePool, stopping: threading.Event, tmp_path: Path
) -> None:
    assert pool.held_up_by("cpu") == pool.held_up_by("gpu:H200") == {"cpu", "gpu:H200"}
    assert DevicePool(GPUS, stopping, tmp_path).held_up_by("gpu:H200") == {"gpu:H200"}
