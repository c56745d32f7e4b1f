"""CPU load, stolen time and frequency from ``/proc``."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from s2attn.benchmarks.telemetry import NoSource, Source, Value


def cpu_source() -> Source:
    """Return the CPU telemetry of this machine."""
    if not Path("/proc/stat").exists():
        return NoSource("this system has no /proc/stat")
    return ProcSource()


class HighWater:
    """Increments of a noisy counter that can only grow in truth.

    CPU time comes in ticks of 10 ms, one's own CPU time in nanoseconds: their difference wavers by a tick per CPU. Only
    what exceeds the largest value seen so far is counted, so noise is not summed up and no share is negative; the
    sum of all increments is off by one tick per CPU at most.
    """

    def __init__(self, start: float) -> None:
        self._peak = start

    def advance(self, value: float) -> float:
        """Return by how much the value exceeds all values before."""
        gained = max(0.0, value - self._peak)
        self._peak += gained
        return gained


class Reading(NamedTuple):
    """Sums up to a moment. Foreign is what the CPUs were busy with since boot, less this process's own CPU time."""

    at_s: float
    foreign_s: float
    steal_s: float
    involuntary_switches: int
    delay_s: float | None


class ProcSource:
    """CPU state of the affinity's CPUs from ``/proc``.

    Each row tells of the time since the row before: ``steal_share`` and ``foreign_share`` are parts of the CPU time
    that the affinity's CPUs had (all CPUs busy with foreign work: 1.0), ``run_delay_share`` the part of the time that
    the measuring thread was ready but waited for a CPU, ``involuntary_switches`` a count.
    """

    name = "proc"
    columns: tuple[str, ...] = (
        "frequency_mhz",
        "steal_share",
        "foreign_share",
        "involuntary_switches",
        "run_delay_share",
    )

    def __init__(self) -> None:
        self.note: str | None = None
        self._cpus = frozenset(os.sched_getaffinity(0))
        self._tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self._stat = os.open("/proc/stat", os.O_RDONLY)
        self._schedstat = _open_if_there(f"/proc/self/task/{os.getpid()}/schedstat")  # of the main thread
        self._frequency = FrequencyReader(sorted(self._cpus))
        self._last = self._cumulative()
        self._foreign = HighWater(self._last.foreign_s)
        self._steal = HighWater(self._last.steal_s)

    def read(self) -> list[Value]:
        """Return frequency, shares and switches since the reading before."""
        now, before = self._cumulative(), self._last
        self._last = now
        elapsed_s = max(now.at_s - before.at_s, 1e-6)
        capacity_s = elapsed_s * len(self._cpus)
        delay = None
        if now.delay_s is not None and before.delay_s is not None:
            delay = round((now.delay_s - before.delay_s) / elapsed_s, 4)
        return [
            self._frequency.read(),
            round(min(1.0, self._steal.advance(now.steal_s) / capacity_s), 4),
            round(min(1.0, self._foreign.advance(now.foreign_s) / capacity_s), 4),
            now.involuntary_switches - before.involuntary_switches,
            delay,
        ]

    def counters(self) -> dict[str, Value]:
        """Return the process's context switches and CPU time."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "involuntary_switches": usage.ru_nivcsw,
            "voluntary_switches": usage.ru_nvcsw,
            "process_cpu_s": round(usage.ru_utime + usage.ru_stime, 6),
        }

    def close(self) -> None:
        """Close the files."""
        for descriptor in (self._stat, self._schedstat, *self._frequency.files):
            if descriptor is not None:
                os.close(descriptor)

    def _cumulative(self) -> Reading:
        busy, steal = cpu_ticks(os.pread(self._stat, 1 << 16, 0), self._cpus)
        delay_s = None
        if self._schedstat is not None:
            delay_s = int(os.pread(self._schedstat, 256, 0).split()[1]) * 1e-9
        return Reading(
            at_s=time.perf_counter(),
            foreign_s=busy * self._tick_s - time.process_time(),
            steal_s=steal * self._tick_s,
            involuntary_switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
            delay_s=delay_s,
        )


def cpu_ticks(stat: bytes, cpus: frozenset[int]) -> tuple[int, int]:
    """Return busy and stolen clock ticks of some CPUs since boot, from the text of ``/proc/stat``.

    Busy is user, nice, system, irq and softirq (guests are part of user); idle and waiting for I/O are not.
    """
    busy = steal = 0
    for line in stat.split(b"\n")[1:]:
        if not line.startswith(b"cpu"):
            break
        fields = line.split()
        if int(fields[0][3:]) in cpus:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, fields[1:9])
            busy += user + nice + system + irq + softirq
            steal += stolen
    return busy, steal


class FrequencyReader:
    """Mean frequency in MHz of up to four CPUs, or None where no file tells it cheaply."""

    def __init__(self, cpus: list[int]) -> None:
        opened = [_open_if_there(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in cpus[:4]]
        self.files = [descriptor for descriptor in opened if descriptor is not None]
        self._parse = _parse_scaling
        # /proc/cpuinfo interrupts every CPU of the machine to read its clock: only on small ones
        if not self.files and (os.cpu_count() or 1) <= 8:
            cpuinfo = _open_if_there("/proc/cpuinfo")
            self.files = [] if cpuinfo is None else [cpuinfo]
            self._parse = _parse_cpuinfo

    def read(self) -> float | None:
        """Return the present mean frequency."""
        megahertz = [value for file in self.files for value in self._parse(os.pread(file, 1 << 16, 0))]
        return round(sum(megahertz) / len(megahertz), 1) if megahertz else None


def _parse_scaling(text: bytes) -> list[float]:
    return [int(text) / 1000]


def _parse_cpuinfo(text: bytes) -> list[float]:
    return [float(line.split(b":")[1]) for line in text.split(b"\n") if line.startswith(b"cpu MHz")]


def _open_if_there(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None
