"""Raw samples of cases: how calls are warmed up, queued, timed and stamped. No statistics here.

CPU: the cases take turns, one sample each, so that a disturbance of some ten milliseconds costs every case one sample
and not one case its median. GPU: case after case, every sample queued behind a spin kernel, so that the host is ahead
and no launch time is inside the events (medians of processes then scatter by 0.04-0.2 % instead of 0.7-4 %, H200).
That spin and a short one behind the sample read the SM clock.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.device_clock import Spin
from s2attn.benchmarks.document import CaseRecord
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.workload import Workload

WARMUPS = 3
# NVML reports a clock that rose from idle up to 0.2 s late (H200, driver 580, 2026-11).
WAKE_S = 0.3
_WAKE_CYCLES = 2_000_000


class Timed(Protocol):
    """What a sample times: a `Workload`, or another implementation of the same case."""

    @property
    def case(self) -> Case:
        """Definition that the sample belongs to."""

    def call(self, index: int, /) -> tuple[torch.Tensor, ...]:
        """Run once on the input set ``index`` (modulo their number)."""


class BadSampleError(ArithmeticError):
    """A measured time that is no positive finite number."""


@contextlib.contextmanager
def failure_of(record: CaseRecord) -> Iterator[None]:
    """Turn an exception of one case into its error text, so that the other cases still run."""
    try:
        yield
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.name}, line {last.lineno} of {_module_path(last.filename)}"
        record.fail(f"{type(error).__name__}: {error} (in {place})")


def measure_cpu(work: Iterable[tuple[Workload, CaseRecord]], clock: Clock, samples: int) -> None:
    """Warm up and time CPU cases in turns; records are filled in place."""
    by_threads: dict[int, list[tuple[Workload, CaseRecord]]] = {}
    for workload, record in work:
        by_threads.setdefault(workload.case.threads or 1, []).append((workload, record))
    for threads, group in by_threads.items():
        torch.set_num_threads(threads)
        for workload, record in group:
            with failure_of(record), torch.no_grad():
                for index in range(WARMUPS):
                    workload.call(index)
                record.warmups = WARMUPS
        with no_garbage_collection(), torch.no_grad():
            for index in range(samples):
                for workload, record in group:
                    if not record.failed:
                        with failure_of(record):
                            sample_cpu(workload, record, clock, index)


def sample_cpu(workload: Timed, record: CaseRecord, clock: Clock, index: int) -> None:
    """Take one sample of a CPU case."""
    # On one thread its CPU time: beside a busy neighbor the medians of eight processes scattered by 1.4 to 2.1 %, those
    # of the wall clock by 2.1 to 6.3 % (quick suite, 2 vCPU AMD EPYC, 2026-11-30).
    time_ns = time.thread_time_ns if workload.case.threads == 1 else time.perf_counter_ns
    calls = workload.case.calls_per_sample
    wall_start_ns = time.perf_counter_ns()
    start_ns = time_ns()
    for _ in range(calls):
        workload.call(index)
    end_ns = time_ns()
    wall_end_ns = time.perf_counter_ns()
    elapsed_ms = _checked((end_ns - start_ns) * 1e-6 / calls, record)
    stamps = (clock.seconds(wall_start_ns), clock.seconds(wall_end_ns))
    _append(record, elapsed_ms, stamps, host_enqueue_ms=(wall_end_ns - wall_start_ns) * 1e-6 / calls)


def wake(cuda: Any, seconds: float = WAKE_S) -> None:
    """Keep the device busy until its clock and NVML's late readings of it have risen from idle."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        cuda._sleep(_WAKE_CYCLES)
        cuda.synchronize()


def measure_cuda(
    workload: Workload, record: CaseRecord, clock: Clock, samples: int, *, spin: Spin, cuda: Any = torch.cuda
) -> None:
    """Warm up and time one GPU case, each sample queued behind a spin kernel; the record is filled in place."""
    with failure_of(record), torch.no_grad():
        enqueue_ms = 0.0
        for index in range(WARMUPS):
            start_ns = time.perf_counter_ns()
            workload.call(index)
            enqueue_ms = (time.perf_counter_ns() - start_ns) * 1e-6
        cuda.synchronize()
        record.warmups = WARMUPS
        spin = spin.hiding(enqueue_ms)
        flush = flush_buffer(workload.inputs[0].q.device, cuda) if workload.case.flush_l2 else None
        with no_garbage_collection():
            for index in range(samples):
                if flush is not None:
                    flush.zero_()
                sample_cuda(workload, record, clock, index, spin=spin, cuda=cuda)


def sample_cuda(workload: Timed, record: CaseRecord, clock: Clock, index: int, *, spin: Spin, cuda: Any) -> None:
    """Take one sample of a GPU case, queued behind a spin and with a short spin behind it."""
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    spin.clock.spin(0, spin.cycles)
    host_start_ns = time.perf_counter_ns()
    start.record()
    outputs = workload.call(index)
    end.record()
    host_end_ns = time.perf_counter_ns()
    # the start event lies right behind the spin: while it has not happened, the device has not begun and nothing of
    # the host's launch time can be in the sample
    queued = not start.query()
    spin.clock.spin(1, spin.after_cycles)
    end.synchronize()
    seen_ns = time.perf_counter_ns()
    del outputs
    elapsed_ms = _checked(float(start.elapsed_time(end)), record)
    stamps = (clock.seconds(seen_ns - round(elapsed_ms * 1e6)), clock.seconds(seen_ns))
    before_mhz, after_mhz = spin.clock.read_mhz()
    _append(record, elapsed_ms, stamps, host_enqueue_ms=(host_end_ns - host_start_ns) * 1e-6, queued=queued)
    record.device_clock_before_mhz.append(before_mhz)
    record.device_clock_after_mhz.append(after_mhz)


def _checked(elapsed_ms: float, record: CaseRecord) -> float:
    if not math.isfinite(elapsed_ms) or elapsed_ms <= 0:
        raise BadSampleError(f"sample {len(record.samples)} is {elapsed_ms} ms, expected a positive finite number")
    return elapsed_ms


def _append(
    record: CaseRecord, elapsed_ms: float, stamps_s: tuple[float, float], *, host_enqueue_ms: float, queued: bool = True
) -> None:
    record.samples.append(round(elapsed_ms, 6))
    record.sample_start_s.append(stamps_s[0])
    record.sample_end_s.append(stamps_s[1])
    record.host_enqueue_ms.append(round(host_enqueue_ms, 6))
    record.queued.append(queued)


def flush_buffer(device: torch.device, cuda: Any) -> torch.Tensor:
    """Return a buffer of twice the L2 cache; writing it evicts what the cache holds."""
    size_bytes = 2 * int(cuda.get_device_properties(device).L2_cache_size)
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector out of the samples. No collection before: it would take longer than the samples."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _module_path(filename: str) -> str:
    """Return the last two parts of a path: enough to find the place, nothing of the machine."""
    return "/".join(filename.split("/")[-2:])
