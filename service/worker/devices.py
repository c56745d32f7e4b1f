"""The devices of this machine that can be measured, and the locks that keep each to one measurement at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from service.worker.errors import JobError

_GPU_INFORMATION = Path("/proc/driver/nvidia/gpus")
# Where container runtimes put the driver's libraries when the image's own linker cache does not know them.
_CONTAINER_DRIVER = Path("/usr/local/nvidia/lib64")
_SHARED_NODES = ("nvidiactl", "nvidia-uvm")


@dataclass(frozen=True)
class MeasuringDevice:
    """A CPU or one GPU: `kind` is what benchmarks call it, `device_class` what queues and series call it."""

    kind: str  # cpu | cuda
    device_class: str
    uuid: str
    name: str
    nodes: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gpu_uuid(self) -> str | None:
        """Return the GPU's UUID, None for a CPU."""
        return self.uuid if self.kind == "cuda" else None


def find_devices() -> list[MeasuringDevice]:
    """Return this machine's CPU and every NVIDIA GPU that its driver shows."""
    return [cpu(), *gpus()]


def find_device(kind: str, uuid: str | None = None) -> MeasuringDevice:
    """Return the CPU, or the first GPU or the one with `uuid`."""
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: expected cpu or cuda, got {kind!r}")
    found = [device for device in find_devices() if device.kind == kind and uuid in (None, device.uuid)]
    if not found:
        wanted = f"GPU {uuid}" if uuid else "an NVIDIA GPU"
        raise JobError("device_unfit", f"device: this machine shows no driver for {wanted}", stage="prepare")
    return found[0]


def cpu() -> MeasuringDevice:
    """Return this machine's CPU; its UUID stays the same until the machine or its CPU model changes."""
    model = _cpu_model()
    digest = hashlib.sha256(f"{_machine_id()}\0{model}".encode()).hexdigest()[:16]
    return MeasuringDevice("cpu", "cpu", f"CPU-{digest}", model, info={"cpus": os.cpu_count()})


def gpus() -> list[MeasuringDevice]:
    """Return the GPUs that the NVIDIA driver shows and that have a device node here, by device number."""
    facts = _facts_of_driver() or _facts_of_nvidia_smi()
    found = [_gpu(*fact) for fact in facts if Path(f"/dev/nvidia{fact[0]}").exists()]
    return sorted(found, key=lambda device: int(device.info["minor"]))


def _gpu(minor: int, uuid: str, name: str) -> MeasuringDevice:
    nodes = tuple(Path("/dev") / node for node in (*_SHARED_NODES, f"nvidia{minor}"))
    environment = {"CUDA_VISIBLE_DEVICES": uuid}
    if _CONTAINER_DRIVER.is_dir():
        environment["LD_LIBRARY_PATH"] = str(_CONTAINER_DRIVER)
    return MeasuringDevice(
        "cuda",
        f"gpu:{name}",
        uuid,
        name,
        nodes=tuple(node for node in nodes if node.exists()),
        environment=environment,
        info={"minor": minor},
    )


def _facts_of_driver() -> list[tuple[int, str, str]]:
    """Return (device number, UUID, model) from the driver's files, without starting anything."""
    found = []
    for folder in _GPU_INFORMATION.glob("*") if _GPU_INFORMATION.is_dir() else []:
        facts = _read_facts(folder / "information")
        minor, uuid, name = facts.get("Device Minor"), facts.get("GPU UUID"), facts.get("Model")
        if minor is not None and uuid is not None and name is not None:
            found.append((int(minor), uuid, name))
    return found


def _facts_of_nvidia_smi() -> list[tuple[int, str, str]]:
    """Return the same from nvidia-smi, for containers that hide the driver's files."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    result = subprocess.run([program, "-q", "-x"], capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        return []
    found = []
    for gpu in ElementTree.fromstring(result.stdout).iter("gpu"):
        minor, uuid, name = (gpu.findtext(tag) for tag in ("minor_number", "uuid", "product_name"))
        if minor is not None and minor.isdigit() and uuid is not None and name is not None:
            found.append((int(minor), uuid, name))
    return found


class DeviceLock:
    """A lock on a device of this machine, held until `release` or the end of the process, however it ends.

    A worker holds the one for `serve` as long as it runs. Who measures holds the one for `measure` meanwhile: one at a
    time on a device, and on the CPU nobody while anyone measures on a GPU.
    """

    def __init__(
        self, device: MeasuringDevice, folder: Path | None = None, *, use: Literal["measure", "serve"] = "measure"
    ) -> None:
        self.device = device
        folder = folder or Path(tempfile.gettempdir()) / "s2bench-locks"
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o1777)  # every user's processes meet here
        if use == "serve":
            self._wanted = {folder / f"{device.uuid}.serve.lock": fcntl.LOCK_EX}
        else:
            host = fcntl.LOCK_EX if device.kind == "cpu" else fcntl.LOCK_SH
            self._wanted = {folder / f"{device.uuid}.lock": fcntl.LOCK_EX, folder / "host.lock": host}
        self._descriptors: list[int] = []

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it."""
        for path, kind in self._wanted.items():
            descriptor = _open_lock(path)
            self._descriptors.append(descriptor)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
        return True

    def acquire(self, timeout_s: float) -> None:
        """Wait for the lock; raise `device_busy` when it does not come free in time."""
        deadline = time.monotonic() + timeout_s
        while not self.try_acquire():
            if time.monotonic() > deadline:
                message = f"{self.device.name} is in use by another s2bench process of this machine"
                raise JobError("device_busy", message, stage="prepare")
            time.sleep(min(0.5, timeout_s))

    def release(self) -> None:
        """Give the lock back."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _open_lock(path: Path) -> int:
    # Reading suffices for a lock, so that one user's file serves every user; a link is never followed.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o444)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o444:
            os.fchmod(descriptor, 0o444)
        return descriptor


def _read_facts(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs if value.strip()}


def _machine_id() -> str:
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.is_file() and (text := path.read_text().strip()):
            return text
    return platform.node()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
