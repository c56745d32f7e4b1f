"""GPU clocks, event reasons, power, temperature, foreign processes and error counters from NVML.

pynvml is optional: without it the telemetry has no rows and says so. NVML refreshes its readings about every 100 ms
(H200, 2026-11): they name a state and cannot correct a single sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from s2attn.benchmarks.telemetry import NoSource, Source, Value

# Listing processes costs more than a clock reading: every fifth row is 5 Hz.
_PROCESS_EVERY = 5


def gpu_source(gpu_uuid: str) -> Source:
    """Return the NVML telemetry of one GPU, or a source without rows that says why there is none.

    Parameters
    ----------
    gpu_uuid
        UUID as NVML spells it (``GPU-...``); visible indices of CUDA and NVML differ.
    """
    try:
        import pynvml
    except ImportError as error:
        return NoSource(f"pynvml is not installed: {error}")
    try:
        pynvml.nvmlInit()
        return NvmlSource(pynvml, gpu_uuid)
    except pynvml.NVMLError as error:
        return NoSource(f"NVML: {error}")


class NvmlSource:
    """State of one GPU, through the given pynvml module.

    ``reasons`` is NVML's bit mask of clock event reasons (0 none, 4 software power cap). ``foreign_processes`` counts
    compute processes other than this one: this process holds a context while it reads, so all but one of the list are
    foreign (process ids cannot be compared across namespaces).
    """

    name = "nvml"
    columns: tuple[str, ...] = (
        "sm_clock_mhz",
        "mem_clock_mhz",
        "reasons",
        "power_w",
        "temperature_c",
        "foreign_processes",
        "xid_errors",
    )

    def __init__(self, nvml: Any, gpu_uuid: str) -> None:
        self.note: str | None = None
        self._nvml = nvml
        self._device = nvml.nvmlDeviceGetHandleByUUID(gpu_uuid)
        # renamed in 2023; drivers and bindings of both names are in use
        self._reasons: Callable[[Any], int] = (
            getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )
        self._rows_read = 0
        self._foreign: int | None = None
        self._xid_errors = 0
        self._events = self._watch_xid()

    def read(self) -> list[Value]:
        """Return the current readings; what this GPU does not tell is None."""
        nvml, device = self._nvml, self._device
        if self._rows_read % _PROCESS_EVERY == 0:
            self._foreign = self._count_foreign()
        self._rows_read += 1
        self._drain_xid()
        return [
            self._ask(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM),
            self._ask(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_MEM),
            self._ask(self._reasons, device),
            _scaled(self._ask(nvml.nvmlDeviceGetPowerUsage, device), 1e-3),
            self._ask(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU),
            self._foreign,
            self._xid_errors if self._events is not None else None,
        ]

    def counters(self) -> dict[str, Value]:
        """Return error counts, energy and time spent under each clock limit."""
        nvml, device = self._nvml, self._device
        total_energy_mj = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, device)
        counters: dict[str, Value] = {
            "ecc_uncorrected": self._ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                device,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            "ecc_corrected": self._ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                device,
                nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            "xid_errors": self._xid_errors if self._events is not None else None,
            "energy_j": _scaled(total_energy_mj, 1e-3),
        }
        for name, policy in (("power", nvml.NVML_PERF_POLICY_POWER), ("thermal", nvml.NVML_PERF_POLICY_THERMAL)):
            status = self._ask(nvml.nvmlDeviceGetViolationStatus, device, policy)
            counters[f"{name}_violation_s"] = None if status is None else _scaled(status.violationTime, 1e-9)
        return counters

    def describe(self) -> dict[str, Value | str]:
        """Return what stays the same while a process runs: driver, limits, largest clocks."""
        nvml, device = self._nvml, self._device
        driver = self._ask(nvml.nvmlSystemGetDriverVersion)
        return {
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "power_limit_w": _scaled(self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, device), 1e-3),
            "max_sm_clock_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, device, nvml.NVML_CLOCK_SM),
            "max_mem_clock_mhz": self._ask(nvml.nvmlDeviceGetMaxClockInfo, device, nvml.NVML_CLOCK_MEM),
        }

    def close(self) -> None:
        """Free the event set. NVML itself stays initialized until the process ends."""
        if self._events is not None:
            self._nvml.nvmlEventSetFree(self._events)
            self._events = None

    def _ask(self, query: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return query(*arguments)
        except self._nvml.NVMLError:
            return None

    def _count_foreign(self) -> int | None:
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, self._device)
        return None if processes is None else max(0, len(processes) - 1)

    def _watch_xid(self) -> Any:
        """Return an event set that Xid errors of this GPU arrive in, or None where that is not allowed."""
        nvml = self._nvml
        events = None
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._device, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            self.note = f"Xid errors cannot be watched: {error}"
            if events is not None:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)
            return None
        return events

    def _drain_xid(self) -> None:
        while self._events is not None:
            try:
                self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError_Timeout:
                return
            except self._nvml.NVMLError as error:
                self.note = f"Xid errors could not be read: {error}"
                self._events = None
                return
            self._xid_errors += 1


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)
