"""`s2bench doctor`: what a person should know of this host before trusting measurements taken on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {"good": "green", "note": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Check:
    """One finding: `status` is good, note (works, with a limit) or bad (measuring cannot work)."""

    name: str
    status: str
    detail: str

    def to_dict(self) -> dict[str, str]:
        """Return the finding as JSON-able values."""
        return asdict(self)


def examine(data_dir: Path | None) -> list[Check]:
    """Run every check."""
    return [
        check_python(),
        check_program("git", required=True),
        check_program("g++", required=True),
        check_program("ccache", required=False),
        check_nvcc(),
        check_sandbox(),
        *check_gpus(),
        check_load(),
        check_steal(),
        check_data_dir(data_dir),
        check_database(data_dir),
    ]


def check_python() -> Check:
    """Name the interpreter and the torch that measured processes will use."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check("torch", "bad", f"not installed for {sys.executable}")
    return Check("torch", "good", f"{torch} under Python {sys.version.split()[0]}")


def check_program(name: str, *, required: bool) -> Check:
    """Find a program and name its version."""
    path = shutil.which(name)
    if path is None:
        return Check(name, "bad" if required else "note", "not found on PATH")
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check(name, "good", (result.stdout or result.stderr).splitlines()[0])


def check_nvcc() -> Check:
    """Find the CUDA compiler; it is needed only where a GPU is measured."""
    from shutil import which

    path = which("nvcc") or which("nvcc", path="/usr/local/cuda/bin")
    if path is None:
        return Check("nvcc", "note", "not found: GPU kernels cannot be built here")
    result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Check("nvcc", "good", result.stdout.strip().splitlines()[-1])


def check_sandbox() -> Check:
    """Try a sandboxed process."""
    from service.worker.sandbox import why_unusable

    reason = why_unusable()
    if reason is None:
        return Check("sandbox", "good", "bubblewrap works")
    return Check("sandbox", "note", f"{reason}: a worker needs --no-sandbox here")


def check_gpus() -> list[Check]:
    """List GPUs with clocks, throttle reasons, power, temperature and foreign processes."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [Check("gpu", "note", f"none usable ({error}); CPU cases only")]
    try:
        return [describe_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def describe_gpu(index: int) -> Check:
    """Describe one GPU."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    sm = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    sm_max = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    power_w = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    temperature_c = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    detail = (
        f"{pynvml.nvmlDeviceGetName(handle)}: SM {sm} of {sm_max} MHz, {power_w:.0f} W, {temperature_c} °C, "
        f"event reasons {reasons:#x}, {len(processes)} compute processes"
    )
    harmless = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    return Check(f"gpu {index}", "note" if processes or reasons & ~harmless else "good", detail)


def check_load() -> Check:
    """Compare the load average with the number of CPUs."""
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    return Check("load", "note" if load > cpus / 2 else "good", f"{load:.2f} over the last minute on {cpus} CPUs")


def check_steal() -> Check:
    """Read the share of time that the hypervisor took since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    share = fields[7] / max(1, sum(fields[:8]))
    return Check("steal", "note" if share > 0.01 else "good", f"{100 * share:.2f} % of CPU time since boot")


def check_data_dir(data_dir: Path | None) -> Check:
    """Name the data directory and its free space."""
    from service.settings import Settings

    path = data_dir or Settings().data_dir
    existing = next(parent for parent in (path, *path.resolve().parents) if parent.exists())
    free_gib = shutil.disk_usage(existing).free / 2**30
    writable = os.access(existing, os.W_OK)
    status = "bad" if not writable else "note" if free_gib < 5 else "good"
    return Check("data directory", status, f"{path}: {free_gib:.0f} GiB free" + ("" if writable else ", not writable"))


def check_database(data_dir: Path | None) -> Check:
    """Connect to the database, where there is one already."""
    from service import db
    from service.settings import Settings

    settings = Settings(data_dir=data_dir) if data_dir else Settings()
    if (
        settings.database_url.startswith("sqlite")
        and not Path(settings.database_url.removeprefix("sqlite:///")).exists()
    ):
        return Check("database", "note", f"{settings.public_database_url}: not made yet (`s2bench db upgrade`)")
    problems = db.check(settings.database_url)
    if problems:
        return Check("database", "bad", f"{settings.public_database_url}: {problems[0]}")
    return Check("database", "good", f"{settings.public_database_url}: up to date")


def checks_table(checks: list[Check]) -> Table:
    """Return the findings as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("check", "", "finding"):
        table.add_column(heading)
    for check in checks:
        table.add_row(check.name, Text(check.status, style=STYLES[check.status]), Text(check.detail))
    return table
