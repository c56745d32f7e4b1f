"""Lends each of a worker's devices to one measurement at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service.engine import WorkerStopping
from service.worker.devices import MeasuringDevice


class DevicePool:
    """The devices whose locks this worker holds."""

    def __init__(self, devices: Sequence[MeasuringDevice], stopping: threading.Event) -> None:
        self._free = list(devices)
        self._all = list(devices)
        self._busy: set[str] = set()
        self._unfit: dict[str, str] = {}
        self._stopping = stopping
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, device_class: str) -> Iterator[MeasuringDevice]:
        """Yield a device of the class, waiting for one to come free."""
        device = self._take(device_class)
        try:
            yield device
        finally:
            with self._changed:
                self._busy.discard(device.uuid)
                if device.uuid not in self._unfit:
                    self._free.append(device)
                self._changed.notify_all()

    def take_out(self, device: MeasuringDevice, reason: str) -> None:
        """Lend a device no more."""
        with self._changed:
            self._unfit[device.uuid] = reason
            self._changed.notify_all()

    def classes(self) -> dict[str, int]:
        """Return the number of devices by device class."""
        return dict(Counter(device.device_class for device in self._all))

    def statuses(self) -> dict[str, tuple[str, str | None]]:
        """Return (ready, busy or unfit; why) by device UUID."""
        with self._changed:
            return {device.uuid: self._status(device.uuid) for device in self._all}

    def _status(self, uuid: str) -> tuple[str, str | None]:
        if uuid in self._unfit:
            return "unfit", self._unfit[uuid]
        return ("busy" if uuid in self._busy else "ready"), None

    def _take(self, device_class: str) -> MeasuringDevice:
        with self._changed:
            while True:
                for device in self._free:
                    if device.device_class == device_class:
                        self._free.remove(device)
                        self._busy.add(device.uuid)
                        return device
                self._changed.wait(0.5)
                if self._stopping.is_set():
                    raise WorkerStopping
