"""Lends each of a worker's devices to one measurement at a time, and the CPU only while no GPU of the host is lent.

A measurement of the CPU counts the load of every other process against itself, and what feeds a GPU is such a load.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.engine import WorkerStopping
from service.worker.devices import DeviceLock, MeasuringDevice


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A measurement that has no device yet."""

    device_class: str


class DevicePool:
    """The devices that this worker serves. Commands of this machine may measure on one that is not lent."""

    def __init__(
        self, devices: Sequence[MeasuringDevice], stopping: threading.Event, lock_dir: Path | None = None
    ) -> None:
        self._all = list(devices)
        self._locks = {device.uuid: DeviceLock(device, lock_dir) for device in devices}
        self._busy: set[str] = set()
        self._unfit: dict[str, str] = {}
        self._line: list[_Waiting] = []
        self._stopping = stopping
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, device_class: str) -> Iterator[MeasuringDevice]:
        """Yield a device of the class, waiting for one to come free and for what would disturb it to end."""
        device = self._take(device_class)
        try:
            yield device
        finally:
            with self._changed:
                self._busy.discard(device.uuid)
                self._locks[device.uuid].release()
                self._changed.notify_all()

    def take_out(self, device: MeasuringDevice, reason: str) -> None:
        """Lend a device no more."""
        with self._changed:
            self._unfit[device.uuid] = reason
            self._changed.notify_all()

    def classes(self) -> dict[str, int]:
        """Return the number of devices by device class."""
        return dict(Counter(device.device_class for device in self._all))

    def held_up_by(self, device_class: str) -> set[str]:
        """Return the device classes whose measurements wait for one of this class: its own, and those it disturbs."""
        own = [device for device in self._all if device.device_class == device_class]
        others = {other.device_class for other in self._all if any(_disturbs(device, other) for device in own)}
        return {device_class, *others}

    def statuses(self) -> dict[str, tuple[str, str | None]]:
        """Return (ready, busy or unfit; why) by device UUID."""
        with self._changed:
            return {device.uuid: self._status(device.uuid) for device in self._all}

    def _status(self, uuid: str) -> tuple[str, str | None]:
        if uuid in self._unfit:
            return "unfit", self._unfit[uuid]
        return ("busy" if uuid in self._busy else "ready"), None

    def _take(self, device_class: str) -> MeasuringDevice:
        waiting = _Waiting(device_class)
        with self._changed:
            self._line.append(waiting)
            try:
                while True:
                    device = self._first_free(waiting)
                    if device is not None:
                        self._busy.add(device.uuid)
                        return device
                    self._changed.wait(0.5)
                    if self._stopping.is_set():
                        raise WorkerStopping
            finally:
                self._line.remove(waiting)
                self._changed.notify_all()

    def _first_free(self, waiting: _Waiting) -> MeasuringDevice | None:
        """Lock and return a device that a measurement may have now; who came earlier and is disturbed goes first."""
        before = self._line[: self._line.index(waiting)]
        for device in self._of_class(waiting.device_class):
            working = [other for other in self._all if other.uuid in self._busy]
            earlier = [other for one in before for other in self._of_class(one.device_class)]
            if device.uuid in self._busy or any(_disturbs(device, other) for other in (*working, *earlier)):
                continue
            if self._locks[device.uuid].try_acquire():
                return device
        return None

    def _of_class(self, device_class: str) -> list[MeasuringDevice]:
        return [one for one in self._all if one.device_class == device_class and one.uuid not in self._unfit]


def _disturbs(one: MeasuringDevice, other: MeasuringDevice) -> bool:
    return (one.kind == "cpu") != (other.kind == "cpu")
