import itertools
import math
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.device_clock import AFTER_MS, SPIN_MS, DeviceClock, Spin, calibrate_spin
from s2attn.benchmarks.document import CaseRecord
from s2attn.benchmarks.measure import WARMUPS, measure_cpu, measure_cuda
from s2attn.benchmarks.telemetry import Clock

KILOHERTZ = 1_980_000.0
GAP_MS = 0.002


class FakeWorkload:
    """Counts calls, remembers which inputs were asked for, and fails at a given one."""

    def __init__(self, case: Case, fails_at: int | None = None) -> None:
        self.case = case
        self.fails_at = fails_at
        self.indices: list[int] = []
        self.inputs = [SimpleNamespace(q=torch.zeros(1))]

    def call(self, index: int) -> tuple[torch.Tensor, ...]:
        if self.fails_at == len(self.indices):
            raise RuntimeError("kernel gave up")
        self.indices.append(index)
        return (torch.zeros(1),)


class FakeCuda:
    """A device whose clock advances by what is queued: spins of known cycles and kernels of known times.

    `kilohertz` may change from spin to spin; a timer that stands still stamps zeros.
    """

    def __init__(self, kernel_ms: list[float], *, host_is_ahead: bool = True) -> None:
        self.kernel_ms = iter(kernel_ms)
        self.kilohertz = itertools.repeat(KILOHERTZ)
        self.timer_advances = True
        self.spun_ms: list[float] = []
        self.cycles, self.timer_ns = 7_000, 9_000
        self.now_ms = 0.0
        self.host_is_ahead = host_is_ahead
        self.synchronized = 0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = math.nan

            def record(self) -> None:
                fake.now_ms += GAP_MS / 2
                self.at_ms = fake.now_ms

            def query(self) -> bool:
                return not fake.host_is_ahead

            def synchronize(self) -> None:
                fake.synchronized += 1

            def elapsed_time(self, other: "Event") -> float:
                return other.at_ms - self.at_ms

        self.Event = Event

    def spin(self, stamps: torch.Tensor, cycles: int) -> None:
        elapsed_ms = cycles / next(self.kilohertz)
        self.now_ms += GAP_MS / 2 + elapsed_ms
        after_ns = self.timer_ns + round(1e6 * elapsed_ms)
        times = (self.timer_ns, after_ns) if self.timer_advances else (0, 0)
        stamps.copy_(torch.tensor([self.cycles, self.cycles + cycles, *times]))
        self.cycles, self.timer_ns = self.cycles + cycles, after_ns
        self.spun_ms.append(elapsed_ms)

    def synchronize(self) -> None:
        self.synchronized += 1

    def run_kernel(self) -> None:
        self.now_ms += next(self.kernel_ms)


class FakeGpuWorkload(FakeWorkload):
    def __init__(self, case: Case, cuda: FakeCuda) -> None:
        super().__init__(case)
        self.cuda = cuda

    def call(self, index: int) -> tuple[torch.Tensor, ...]:
        self.cuda.run_kernel()
        return super().call(index)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCuda]:
    """Make a fake device on which the operator `s2attn::spin` spins."""

    def make(kernel_ms: list[float], **options: bool) -> FakeCuda:
        cuda = FakeCuda(kernel_ms, **options)
        monkeypatch.setattr(torch.ops.s2attn, "spin", cuda.spin, raising=False)
        return cuda

    return make


def half_millisecond() -> Spin:
    return Spin(DeviceClock(torch.device("cpu")), 990_000, 0.5)


def test_cpu_cases_take_turns_and_stamps_fit_the_samples(make_case) -> None:
    clock = Clock()
    work = [
        (FakeWorkload(case), CaseRecord(case))
        for case in (make_case(calls_per_sample=3), make_case(operation="backward"))
    ]
    threads = torch.get_num_threads()
    try:
        measure_cpu(work, clock, samples=5)
    finally:
        torch.set_num_threads(threads)
    for workload, record in work:
        calls = workload.case.calls_per_sample
        assert workload.indices == [*range(WARMUPS), *(index for index in range(5) for _ in range(calls))]
        assert not record.failed
        assert record.warmups == WARMUPS
        assert all(cpu <= wall for cpu, wall in zip(record.samples, record.host_enqueue_ms, strict=True))
        assert record.queued == [True] * 5
        assert record.device_clock_before_mhz == record.device_clock_after_mhz == []
        for wall, start_s, end_s in zip(
            record.host_enqueue_ms, record.sample_start_s, record.sample_end_s, strict=True
        ):
            assert end_s - start_s == pytest.approx(calls * wall * 1e-3, abs=5e-6)
    turns = [stamp for pair in zip(*(record.sample_start_s for _, record in work), strict=True) for stamp in pair]
    assert turns == sorted(turns)
    assert turns[-1] <= clock.seconds()


def test_a_case_that_raises_keeps_its_samples_and_spares_the_others(make_case) -> None:
    failing, sound = make_case(), make_case(operation="backward")
    work = [
        (FakeWorkload(failing, fails_at=WARMUPS + 2), CaseRecord(failing)),
        (FakeWorkload(sound), CaseRecord(sound)),
    ]
    measure_cpu(work, Clock(), samples=4)
    entry = work[0][1].to_json()
    assert entry["status"] == "failed"
    assert entry["error"].startswith("RuntimeError: kernel gave up (in call, line ")
    assert len(entry["samples"]) == len(entry["sample_start_s"]) == len(entry["queued"]) == 2
    assert len(work[1][1].samples) == 4
    assert work[1][1].to_json()["status"] == "ok"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_sample_that_is_no_time_fails_the_case(make_case, gpu, bad: float) -> None:
    case = make_case(device="cuda", threads=None)
    cuda = gpu([0.5] * (WARMUPS + 2) + [bad - GAP_MS / 2])
    record = CaseRecord(case)
    measure_cuda(FakeGpuWorkload(case, cuda), record, Clock(), 5, spin=half_millisecond(), cuda=cuda)
    entry = record.to_json()
    assert entry["status"] == "failed"
    assert "BadSampleError: sample 2 is" in entry["error"]
    columns = ("samples", "device_clock_before_mhz", "device_clock_after_mhz")
    assert [len(entry[name]) for name in columns] == [2, 2, 2]


def test_calibration_goes_by_the_highest_clock_and_knows_no_gaps(gpu) -> None:
    cuda = gpu([])
    cuda.kilohertz = itertools.chain([345_000.0, 1_200_000.0], itertools.repeat(KILOHERTZ))
    spin = calibrate_spin(DeviceClock(torch.device("cpu")), milliseconds=0.5)
    assert spin.cycles == pytest.approx(0.5 * KILOHERTZ, rel=1e-4)
    assert spin.after_cycles == pytest.approx(AFTER_MS * KILOHERTZ, rel=1e-4)
    longer = spin.hiding(1.0)
    assert (longer.milliseconds, longer.cycles) == (3.0, pytest.approx(3.0 * KILOHERTZ, rel=1e-4))
    assert longer.after_cycles == spin.after_cycles
    assert spin.hiding(0.1) == spin
    assert spin.hiding(1e3).milliseconds == 20.0


def test_a_timer_that_stands_still_is_no_clock(gpu, make_case) -> None:
    case = make_case(device="cuda", threads=None)
    cuda = gpu([1.0] * (WARMUPS + 2))
    cuda.timer_advances = False
    spin = calibrate_spin(DeviceClock(torch.device("cpu")))
    assert spin.cycles == pytest.approx(SPIN_MS * 1e3 * 1500)
    record = CaseRecord(case)
    measure_cuda(FakeGpuWorkload(case, cuda), record, Clock(), 2, spin=spin, cuda=cuda)
    assert not record.failed
    assert record.device_clock_before_mhz == record.device_clock_after_mhz == [None, None]


def test_gpu_samples_are_times_of_the_device_with_its_clock_and_the_check_of_the_host(make_case, gpu) -> None:
    case = make_case(device="cuda", threads=None, input_sets=3)
    times = [1.0, 1.1, 1.2, 1.3, 1.4]
    cuda = gpu([9.0] * WARMUPS + times)
    spin = calibrate_spin(DeviceClock(torch.device("cpu")))
    cuda.spun_ms.clear()
    cuda.kilohertz = itertools.cycle([KILOHERTZ, 0.75 * KILOHERTZ])
    clock, record = Clock(), CaseRecord(case)
    workload = FakeGpuWorkload(case, cuda)
    measure_cuda(workload, record, clock, len(times), spin=spin, cuda=cuda)
    assert not record.failed, record.error
    assert record.samples == pytest.approx([t + GAP_MS / 2 for t in times])
    assert record.queued == [True] * 5
    assert record.device_clock_before_mhz == pytest.approx([1e-3 * KILOHERTZ] * 5, rel=1e-4)
    assert record.device_clock_after_mhz == pytest.approx([0.75e-3 * KILOHERTZ] * 5, rel=1e-4)
    assert cuda.spun_ms == pytest.approx([0.5, AFTER_MS / 0.75] * 5, rel=1e-4)
    assert workload.indices == [*range(WARMUPS), *range(5)]
    for sample, start_s, end_s in zip(record.samples, record.sample_start_s, record.sample_end_s, strict=True):
        assert end_s - start_s == pytest.approx(sample * 1e-3, abs=2e-6)


def test_a_host_that_was_not_ahead_is_recorded(make_case, gpu) -> None:
    case = make_case(device="cuda", threads=None)
    cuda = gpu([1.0] * (WARMUPS + 2), host_is_ahead=False)
    record = CaseRecord(case)
    measure_cuda(FakeGpuWorkload(case, cuda), record, Clock(), 2, spin=half_millisecond(), cuda=cuda)
    assert record.queued == [False, False]


def test_a_host_that_enqueues_slowly_gets_a_longer_spin(make_case, gpu) -> None:
    case = make_case(device="cuda", threads=None)
    cuda = gpu([1.0] * (WARMUPS + 1))
    workload = FakeGpuWorkload(case, cuda)
    quick = workload.call

    def slow(index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(0.002)
        return quick(index)

    workload.call = slow  # type: ignore[method-assign]
    before = cuda.now_ms
    measure_cuda(workload, CaseRecord(case), Clock(), 1, spin=half_millisecond(), cuda=cuda)
    assert cuda.now_ms - before - (WARMUPS + 1) > 5.9  # 3 x 2 ms of spin instead of 0.5
