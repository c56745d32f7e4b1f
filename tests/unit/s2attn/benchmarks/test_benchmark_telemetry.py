import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from s2attn.benchmarks.nvml import NvmlSource, gpu_source
from s2attn.benchmarks.proc import HighWater, ProcSource, Reading, cpu_source, cpu_ticks
from s2attn.benchmarks.telemetry import Clock, NoSource, Telemetry

STAT = b"""cpu  100 0 50 900 5 1 2 7 0 0
cpu0 60 0 30 400 5 1 1 4 0 0
cpu1 40 0 20 500 0 0 1 3 0 0
intr 12345 0 0
"""


class Faulty:
    """A source whose second reading fails."""

    name = "faulty"
    columns: tuple[str, ...] = ("value",)
    note: str | None = None
    reads = 0

    def read(self) -> list[float | int | None]:
        self.reads += 1
        if self.reads == 2:
            raise OSError("gone")
        return [self.reads]

    def counters(self) -> dict[str, float | int | None]:
        return {"reads": self.reads}

    def close(self) -> None:
        pass


def recorded(source: object, seconds: float = 0.15) -> dict:
    telemetry = Telemetry(source, Clock(), interval_s=0.01)
    telemetry.start()
    time.sleep(seconds)
    telemetry.stop()
    return telemetry.to_json()


def test_ticks_of_the_affinity_only() -> None:
    assert cpu_ticks(STAT, frozenset({0, 1})) == (92 + 61, 7)
    assert cpu_ticks(STAT, frozenset({1})) == (61, 3)


def test_high_water_ignores_wavering_and_loses_nothing() -> None:
    meter = HighWater(5.0)
    values = [4.0, 5.5, 5.2, 5.4, 7.0]
    gains = [meter.advance(value) for value in values]
    assert gains == [0.0, 0.5, 0.0, 0.0, 1.5]


def test_cpu_rows_are_monotone_finite_and_bounded() -> None:
    document = recorded(cpu_source(), 0.3)
    assert document["source"] == "proc"
    assert document["note"] is None
    times = [row[0] for row in document["rows"]]
    assert len(times) >= 3
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    for row in document["rows"]:
        values = dict(zip(document["columns"], row, strict=True))
        assert 0 <= values["foreign_share"] <= 1
        assert 0 <= values["steal_share"] <= 1
        assert values["involuntary_switches"] >= 0
    before, after = document["counters"]["process_cpu_s"]
    assert after >= before


def test_shares_are_parts_of_what_the_cpus_of_the_affinity_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    readings = iter(
        [
            Reading(10.0, foreign_s=5.00, steal_s=1.00, involuntary_switches=3, delay_s=0.10),
            Reading(10.1, foreign_s=5.00, steal_s=1.02, involuntary_switches=5, delay_s=0.11),
            Reading(10.2, foreign_s=4.99, steal_s=1.02, involuntary_switches=5, delay_s=0.11),  # a tick not yet counted
            Reading(10.3, foreign_s=5.05, steal_s=1.02, involuntary_switches=6, delay_s=None),
        ]
    )
    monkeypatch.setattr(ProcSource, "_cumulative", lambda self: next(readings))
    source = ProcSource()
    rows = [source.read()[1:] for _ in range(3)]
    source.close()
    assert rows == [[0.1, 0.0, 2, 0.1], [0.0, 0.0, 0, 0.0], [0.0, 0.25, 1, None]]


def test_a_failed_reading_is_counted_and_the_rest_goes_on() -> None:
    document = recorded(Faulty())
    assert document["note"] == "1 readings failed, the last with: OSError: gone"
    assert [1] in [row[1:] for row in document["rows"]]
    assert [2] not in [row[1:] for row in document["rows"]]
    assert len(document["rows"]) >= 2


def test_no_source_says_why_and_has_no_rows() -> None:
    document = recorded(NoSource("nothing to read"), 0.0)
    assert (document["source"], document["note"]) == ("none", "nothing to read")
    assert document["columns"] == document["rows"] == []


def test_without_pynvml_the_telemetry_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    source = gpu_source("GPU-1")
    assert source.name == "none"
    assert "pynvml is not installed" in str(source.note)


class NVMLError(Exception):
    """Stands for the binding's base error."""


class NVMLTimeoutError(NVMLError):
    """No event waits."""


class FakeNvml(ModuleType):
    """The part of pynvml that is used, for a GPU that knows no power and has two compute processes."""

    NVMLError, NVMLError_Timeout = NVMLError, NVMLTimeoutError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL, nvmlEventTypeXidCriticalError = 0, 1, 8  # noqa: N815

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.xid_waiting = 1
        self.opened: list[str] = []

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.opened.append(uuid)
        return uuid

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:  # noqa: N802
        raise NVMLError("not supported")

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> None:  # noqa: N802
        if not self.xid_waiting:
            raise NVMLTimeoutError
        self.xid_waiting -= 1

    def __getattr__(self, name: str) -> object:
        values = {
            "nvmlInit": None,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=0), SimpleNamespace(pid=0)],
            "nvmlEventSetCreate": object(),
            "nvmlDeviceRegisterEvents": None,
            "nvmlEventSetFree": None,
            "nvmlDeviceGetTotalEnergyConsumption": 5000,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=2_000_000_000),
            "nvmlSystemGetDriverVersion": b"580.1",
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMaxClockInfo": 1980,
        }
        if name not in values:
            raise AttributeError(name)
        return lambda *arguments: values[name]


def test_nvml_rows_and_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    source = gpu_source("GPU-abc")
    assert isinstance(source, NvmlSource)
    assert nvml.opened == ["GPU-abc"]
    row = dict(zip(source.columns, source.read(), strict=True))
    assert row == {
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 1980,
        "reasons": 4,
        "power_w": None,
        "temperature_c": 41,
        "foreign_processes": 1,
        "xid_errors": 1,
    }
    assert source.counters()["thermal_violation_s"] == 2.0
    assert source.describe()["driver"] == "580.1"
    assert source.describe()["power_limit_w"] == 700.0
    source.close()
