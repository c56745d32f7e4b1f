"""Hardware counters of each kernel of a case, by Nsight Compute's ``ncu``, where it is installed and may read them.

``ncu`` runs one call of a case in a process of its own and replays each kernel until all metrics are read. Its clock
control is switched off: the device's settings stay as they are. Options and CSV format: Nsight Compute CLI, "Command
Line Options" and "Output Pages".
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from s2attn.resources import comparable_name
from s2attn.toolchain import find_nvcc

_DURATION = "gpu__time_duration.sum"
# ncu's metric -> name in the document
METRICS = {
    "dram__bytes.sum": "dram_bytes",
    "lts__t_bytes.sum": "l2_bytes",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_throughput_percent",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_pipe_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved_occupancy_percent",
}


class Counters:
    """Reads counters case by case until the time is used up or it turns out that they cannot be read here."""

    def __init__(self, budget_s: float) -> None:
        self._tool = find_ncu()
        self._ends_at_s = time.monotonic() + budget_s
        self._reason = None if self._tool else "ncu is neither on PATH nor in the CUDA toolkit"
        self._cases = 0

    def read_into(self, entry: dict[str, Any]) -> None:
        """Add ``counters`` to the kernels of a profiled case, where they can be read."""
        remaining_s = self._ends_at_s - time.monotonic()
        if self._reason is None and remaining_s <= 0:
            self._reason = f"the time for counters was used up after {self._cases} cases"
        if self._tool is None or self._reason is not None or entry["status"] != "ok":
            return
        command = ncu_command(self._tool, entry["name"])
        try:
            finished = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=remaining_s)
        except subprocess.TimeoutExpired:
            self._reason = f"the time for counters was used up at {entry['name']}"
            return
        except OSError as error:
            self._reason = f"ncu could not be started: {error}"
            return
        counters = parse_ncu(finished.stdout.splitlines())
        if finished.returncode != 0 or not counters:
            self._reason = why_unreadable(finished.stdout + "\n" + finished.stderr, finished.returncode)
            return
        known = [kernel for kernel in entry["kernels"] if comparable_name(kernel["name"]) in counters]
        for kernel in known:
            kernel["counters"] = counters[comparable_name(kernel["name"])]
        self._cases += 1 if known else 0
        if not known:
            self._reason = f"ncu knows the kernels of {entry['name']} by other names: {', '.join(counters)}"[:2000]

    def to_json(self) -> dict[str, Any]:
        """Return how many cases have counters, and why others have none."""
        return {"cases": self._cases, "reason": self._reason}


def find_ncu() -> str | None:
    """Return ncu on PATH or beside nvcc."""
    nvcc = find_nvcc()
    beside = nvcc.with_name("ncu") if nvcc else Path("ncu")
    return shutil.which("ncu") or (str(beside) if beside.is_file() and os.access(beside, os.X_OK) else None)


def ncu_command(tool: str, case: str) -> list[str]:
    """Return the command that counts one call of a case."""
    options = ["--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "demangled"]
    options += ["--clock-control", "none", "--profile-from-start", "off"]
    options += ["--metrics", ",".join([*METRICS, _DURATION])]
    # -P as this process: a worker keeps the working folder off the module path
    python = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
    return [tool, *options, *python, "-m", "s2attn.benchmarks.one_call", case]


def parse_ncu(lines: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the metrics of each kernel, by comparable name, from ncu's raw page as CSV.

    Before the table come ncu's messages and whatever the program prints. The table has a row of headings, one of units,
    and one per launch. Of several launches bytes are summed up, and percentages averaged by duration.
    """
    table = [line for line in lines if line.startswith('"')]
    start = next((at for at, line in enumerate(table) if line.startswith('"ID",')), None)
    if start is None:
        return {}
    rows = list(csv.DictReader(table[start:]))[1:]  # the first has the units, which --print-units base fixes
    by_kernel: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_kernel.setdefault(comparable_name(row["Kernel Name"]), []).append(row)
    return {name: _combined(launches) for name, launches in by_kernel.items()}


def _combined(launches: list[dict[str, str]]) -> dict[str, float]:
    durations = [_number(launch.get(_DURATION)) or 0.0 for launch in launches]
    total = sum(durations) or 1.0
    found: dict[str, float] = {}
    for metric, name in METRICS.items():
        values = [_number(launch.get(metric)) for launch in launches]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        by_duration = sum(value * duration for value, duration in zip(known, durations, strict=True)) / total
        found[name] = sum(known) if name.endswith("_bytes") else by_duration
    return found


def _number(text: str | None) -> float | None:
    """Return a number with its thousands separated by commas; None for ``n/a`` and for nothing."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def why_unreadable(output: str, status: int) -> str:
    """Return ncu's own words on why it read nothing."""
    lines = [line.strip() for line in output.splitlines()]
    said = next((line for line in lines if line.startswith("==ERROR==")), None)
    said = said or next((line for line in lines if line.startswith("==WARNING==")), None)
    return said.split("==", 2)[2].strip() if said else f"ncu ended with status {status} and read no kernel"
