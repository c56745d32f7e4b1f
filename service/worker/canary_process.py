"""Measures the canaries of a device: one GEMM and one copy, fixed code that no commit under test can change.

Run by `service.worker.canary` with the worker's own interpreter, never imported: `canary_process.py cpu|cuda`. It
imports its library once and then answers each line on standard input ({"arm", "cpus"}) with one line on standard
output, a document of protocol 1, measured in a fork of itself. So every answer is a fresh process, as the arms are,
without the time that an import takes, and between the answers nothing of it is on a GPU: a process that kept a context
there would count as a foreign one.

A CPU's canaries need numpy alone. Until the first answer that takes 0.3 s of CPU time, torch 2.9 s, at the same times
per sample (GEMM 1.4 ms, copy 2.0 ms; 2 vCPU AMD EPYC, numpy 2.4 and torch 2.13, 2026-11-30).

CUDA, written without a GPU at hand: each sample is queued behind a spin kernel, as in `s2attn.benchmarks.measure`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

PROTOCOL = 1
SAMPLES = 15
WARMUPS = 3
LONGEST_S = 60
SPIN_CYCLES = 1_000_000  # 0.5 ms at 1.98 GHz
WAKE_S = 0.3  # a GPU's clock has risen from idle by then

Call = Callable[[], object]
Timing = tuple[float, float, bool]  # milliseconds, those of the host's enqueueing, whether it was queued in time


class Sample(NamedTuple):
    """One timed call, with when it was taken."""

    begin_s: float
    end_s: float
    elapsed_ms: float
    enqueue_ms: float
    queued: bool


class Cpu:
    """numpy on one thread, by CPU time as CPU cases: a GEMM of about 1.4 ms, and a copy that misses the caches."""

    kind, library, version = "cpu", "numpy", np.__version__
    definitions: Mapping[str, dict[str, Any]] = {
        "gemm": {"canary": "gemm", "library": "numpy", "n": 384, "dtype": "float32"},
        "copy": {"canary": "copy", "library": "numpy", "bytes": 16 * 2**20},
    }

    def make_calls(self) -> dict[str, Call]:
        """Return what is timed, by name."""
        n, size_bytes = self.definitions["gemm"]["n"], self.definitions["copy"]["bytes"]
        random = np.random.default_rng(0)
        left, right = (random.random((n, n), np.float32) for _ in range(2))
        product = np.empty_like(left)
        source = np.ones(size_bytes // 4, np.float32)
        target = np.empty_like(source)
        return {"gemm": lambda: np.matmul(left, right, out=product), "copy": lambda: np.copyto(target, source)}

    def time_call(self, call: Call) -> Timing:
        """Return the CPU time of a call."""
        start_ns = time.thread_time_ns()
        call()
        elapsed_ms = (time.thread_time_ns() - start_ns) * 1e-6
        return elapsed_ms, elapsed_ms, True

    def wake(self) -> None:
        """Do nothing: the warm-ups suffice."""


class Gpu:
    """torch on a GPU: calls of about 2 and 0.3 ms (fp32, H200's data sheet)."""

    kind, library = "cuda", "torch"
    definitions: Mapping[str, dict[str, Any]] = {
        "gemm": {"canary": "gemm", "n": 4096, "dtype": "float32"},
        "copy": {"canary": "copy", "bytes": 512 * 2**20},
    }

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._cuda: Any = torch.cuda
        self.version = torch.__version__

    def make_calls(self) -> dict[str, Call]:
        """Return what is timed, by name."""
        torch, n, size_bytes = self._torch, self.definitions["gemm"]["n"], self.definitions["copy"]["bytes"]
        torch.manual_seed(0)
        left, right = (torch.rand(n, n, device="cuda") for _ in range(2))
        product = torch.empty(n, n, device="cuda")
        source = torch.rand(size_bytes // 4, device="cuda")
        target = torch.empty_like(source)
        return {"gemm": lambda: torch.mm(left, right, out=product), "copy": lambda: target.copy_(source)}

    def time_call(self, call: Call) -> Timing:
        """Return a call's time between two events behind a spin kernel, so that no launch time is in it."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda._sleep(SPIN_CYCLES)
        host_start_ns = time.perf_counter_ns()
        start.record()
        call()
        end.record()
        host_ms = (time.perf_counter_ns() - host_start_ns) * 1e-6
        queued = not start.query()
        end.synchronize()
        return float(start.elapsed_time(end)), host_ms, queued

    def wake(self) -> None:
        """Spin until the clock has risen from idle, without the heat of real work."""
        end_s = time.perf_counter() + WAKE_S
        while time.perf_counter() < end_s:
            self._cuda._sleep(SPIN_CYCLES)
            self._cuda.synchronize()


Device = Cpu | Gpu
DEVICES: Mapping[str, type[Device]] = {"cpu": Cpu, "cuda": Gpu}


def main() -> None:
    """Answer until standard input ends."""
    device = DEVICES[sys.argv[1]]()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_S)  # ends a fork that hangs, also when nobody waits for it any more
            os._exit(answer(device, json.loads(line)))
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def answer(device: Device, request: dict[str, Any]) -> int:
    """Measure, print the document, and return the exit status."""
    try:
        if request["cpus"]:
            os.sched_setaffinity(0, request["cpus"])
        document = measure(device, request["arm"])
    except Exception:
        traceback.print_exc()
        return 1
    print(json.dumps(document, allow_nan=False), flush=True)
    return 0


def measure(device: Device, arm: str) -> dict[str, Any]:
    """Return the document of one fresh process: the samples of both canaries, taken in turns."""
    start_ns, started_at = time.perf_counter_ns(), datetime.now(UTC).isoformat(timespec="milliseconds")
    calls = device.make_calls()
    for call in calls.values():
        for _ in range(WARMUPS):
            call()
    device.wake()
    taken: dict[str, list[Sample]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(SAMPLES):
        for name, call in calls.items():
            begin_ns = time.perf_counter_ns()
            timing = device.time_call(call)
            end_ns = time.perf_counter_ns()
            taken[name].append(Sample((begin_ns - start_ns) * 1e-9, (end_ns - start_ns) * 1e-9, *timing))
    return {
        "protocol": PROTOCOL,
        "arm": arm,
        "package_path": "service.worker.canary_process",
        "s2attn_version": "canary",
        "started_at": started_at,
        "wall_s": (time.perf_counter_ns() - start_ns) * 1e-9,
        "numerics_mode": "skip",
        "environment": {"python": platform.python_version(), device.library: device.version},
        "telemetry": {"source": "none", "columns": [], "rows": [], "counters": {}},
        "cases": [case(name, device, samples) for name, samples in taken.items()],
    }


def case(name: str, device: Device, samples: list[Sample]) -> dict[str, Any]:
    """Return the entry of one canary; its version is the hash of its definition."""
    definition = device.definitions[name]
    return {
        "name": f"canary/{device.kind}/{name}",
        "version": hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16],
        "group": "canary",
        "device": device.kind,
        "definition": definition,
        "status": "ok",
        "error": None,
        "backend": device.library,
        "variant": None,
        "metric": "time",
        "unit": "ms",
        "samples": [sample.elapsed_ms for sample in samples],
        "sample_start_s": [sample.begin_s for sample in samples],
        "sample_end_s": [sample.end_s for sample in samples],
        "host_enqueue_ms": [sample.enqueue_ms for sample in samples],
        "queued": [sample.queued for sample in samples],
        "warmups": WARMUPS,
    }


if __name__ == "__main__":
    main()
