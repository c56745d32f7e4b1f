"""Asks a device's canaries: one GEMM and one copy that no commit can change, measured before each process of an arm.

If they move between the arms, the surroundings moved (`service.stats.environment`). Before and not after: in the order
AB BA the canary before A then follows the baseline as often as the candidate, and so does the one before B. So what an
arm leaves behind (heat, caches) is in both alike.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from service.worker.devices import MeasuringDevice
from service.worker.document import Expected, read_document
from service.worker.errors import JobError, Kind
from service.worker.host import Host
from service.worker.measure import ProcessResult
from service.worker.sandbox import extra_site_folders

STAGE = "canary"
TIMEOUT_S = 120.0
_SCRIPT = Path(__file__).with_name("canary_process.py")
_LOG_BYTES = 8000


class Canary:
    """The canaries of one device, in a process of the worker's own that is started when it is first asked.

    It runs code of this package and of numpy or torch alone: it needs no sandbox, but gets an empty environment too.
    """

    def __init__(self, device: MeasuringDevice, host: Host) -> None:
        self._device = device
        self._cpus = host.measuring_cpus if device.kind == "cpu" else host.cpus
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Canary:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def measure(self, arm: str, timeout_s: float = TIMEOUT_S) -> ProcessResult:
        """Return what the canaries show now, as a document of protocol 1 under the letter of the arm that follows.

        Raises
        ------
        JobError
            canary_failed, which is transient: the next call starts anew.
        """
        started = time.monotonic()
        process = self._process or self._start()
        request = {"arm": arm, "cpus": list(self._cpus)}
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            raw = _read_line(process, started + timeout_s)
            document = read_document(raw, Expected(arm, None, self._device.kind, "skip", STAGE))
        except (OSError, JobError) as error:
            log = self._read_log()
            self.close()
            message = f"the canaries of {self._device.name} could not be measured: {error}"
            raise JobError("canary_failed", message, stage=STAGE, log_tail=log, kind=Kind.TRANSIENT) from error
        return ProcessResult(document, raw, "", time.monotonic() - started)

    def close(self) -> None:
        """End the process, if there is one."""
        process, log = self._process, self._log
        self._process = self._log = None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with process:
                pass
        if log is not None:
            log.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        home = tempfile.gettempdir()
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "LANG": "C.UTF-8",
            "PYTHONPATH": ":".join(str(folder) for folder in extra_site_folders()),
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",  # a CPU's canaries are calls of one thread
            **self._device.environment,
        }
        # -P keeps the script's folder off the module path; a session of its own keeps Ctrl-C from it
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT), self._device.kind],
            env=environment,
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        return self._process

    def _read_log(self) -> str:
        assert self._log is not None
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_BYTES))
        return self._log.read().decode("utf-8", "replace")


class Canaries:
    """The canaries of a worker's devices; they stay ready from one measurement to the next."""

    def __init__(self) -> None:
        self._by_device: dict[str, Canary] = {}

    def of(self, device: MeasuringDevice, host: Host) -> Canary:
        """Return the canaries of a device, which is lent to one measurement at a time."""
        return self._by_device.setdefault(device.uuid, Canary(device, host))

    def close(self) -> None:
        """End all processes."""
        for canary in self._by_device.values():
            canary.close()


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return the next line that the process writes, without its end."""
    assert process.stdout is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise OSError("no answer in time")
            block = os.read(process.stdout.fileno(), 65536)
            if not block:
                raise OSError("the process ended")
            line += block
    return line.rstrip(b"\n")
