"""Measures the canaries of a device: one GEMM and one copy, fixed code that no commit under test can change.

Run by `service.worker.canary` with the worker's own interpreter, never imported. It imports torch once and then answers
each line on standard input ({"arm", "device", "cpus"}) with one line on standard output, a document of protocol 1,
measured in a fork of itself. So every answer is a fresh process, as the arms are, without the seconds that torch takes
(2.2-3.4 s; a fork with its samples 0.1-0.2 s, 2 vCPU AMD EPYC, torch 2.13, 2026-11-30), and between the answers nothing
of it is on a GPU: a process that kept a context there would count as a foreign one.

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
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import torch

PROTOCOL = 1
SAMPLES = 15
WARMUPS = 3
LONGEST_S = 60
SPIN_CYCLES = 1_000_000  # 0.5 ms at 1.98 GHz
WAKE_S = 0.3  # a GPU's clock has risen from idle by then
# On a CPU a GEMM of about 1.3 ms and a copy that misses the caches; on a GPU 2 and 0.3 ms (fp32, H200's data sheet).
SIZES: dict[str, dict[str, int]] = {
    "cpu": {"gemm_n": 384, "copy_bytes": 16 * 2**20},
    "cuda": {"gemm_n": 4096, "copy_bytes": 512 * 2**20},
}

Call = Callable[[], object]
Timing = tuple[float, float, bool]  # milliseconds, those of the host's enqueueing, whether it was queued in time


class Sample(NamedTuple):
    """One timed call, with when it was taken."""

    begin_s: float
    end_s: float
    elapsed_ms: float
    enqueue_ms: float
    queued: bool


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_S)  # ends a fork that hangs, also when nobody waits for it any more
            os._exit(answer(json.loads(line)))
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def answer(request: dict[str, Any]) -> int:
    """Measure, print the document, and return the exit status."""
    try:
        if request["cpus"]:
            os.sched_setaffinity(0, request["cpus"])
        document = measure(request["arm"], request["device"])
    except Exception:
        traceback.print_exc()
        return 1
    print(json.dumps(document, allow_nan=False), flush=True)
    return 0


def measure(arm: str, device: str) -> dict[str, Any]:
    """Return the document of one fresh process: the samples of both canaries, taken in turns."""
    start_ns, started_at = time.perf_counter_ns(), datetime.now(UTC).isoformat(timespec="milliseconds")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls, definitions = make_calls(device)
    time_call = time_on_cpu if device == "cpu" else time_on_gpu
    for call in calls.values():
        for _ in range(WARMUPS):
            call()
    if device == "cuda":
        wake()
    taken: dict[str, list[Sample]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(SAMPLES):
        for name, call in calls.items():
            begin_ns = time.perf_counter_ns()
            timing = time_call(call)
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
        "environment": {"python": platform.python_version(), "torch": torch.__version__},
        "telemetry": {"source": "none", "columns": [], "rows": [], "counters": {}},
        "cases": [case(name, device, definitions[name], samples) for name, samples in taken.items()],
    }


def make_calls(device: str) -> tuple[dict[str, Call], dict[str, dict[str, Any]]]:
    """Return what is timed, by name, and how it is defined."""
    n, size_bytes = SIZES[device]["gemm_n"], SIZES[device]["copy_bytes"]
    left, right = (torch.rand(n, n, device=device) for _ in range(2))
    product = torch.empty(n, n, device=device)
    source = torch.rand(size_bytes // 4, device=device)
    target = torch.empty_like(source)
    calls: dict[str, Call] = {
        "gemm": lambda: torch.mm(left, right, out=product),
        "copy": lambda: target.copy_(source),
    }
    definitions = {
        "gemm": {"canary": "gemm", "n": n, "dtype": "float32"},
        "copy": {"canary": "copy", "bytes": size_bytes},
    }
    return calls, definitions


def time_on_cpu(call: Call) -> Timing:
    """Return the CPU time of a call, as for CPU cases on one thread."""
    start_ns = time.thread_time_ns()
    call()
    elapsed_ms = (time.thread_time_ns() - start_ns) * 1e-6
    return elapsed_ms, elapsed_ms, True


def time_on_gpu(call: Call) -> Timing:
    """Return a call's time between two events behind a spin kernel, so that no launch time is in it."""
    cuda: Any = torch.cuda
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda._sleep(SPIN_CYCLES)
    host_start_ns = time.perf_counter_ns()
    start.record()
    call()
    end.record()
    host_ms = (time.perf_counter_ns() - host_start_ns) * 1e-6
    queued = not start.query()
    end.synchronize()
    return float(start.elapsed_time(end)), host_ms, queued


def wake() -> None:
    """Spin until a GPU's clock has risen from idle, without the heat of real work."""
    cuda: Any = torch.cuda
    end_s = time.perf_counter() + WAKE_S
    while time.perf_counter() < end_s:
        cuda._sleep(SPIN_CYCLES)
        cuda.synchronize()


def case(name: str, device: str, definition: dict[str, Any], samples: list[Sample]) -> dict[str, Any]:
    """Return the entry of one canary; its version is the hash of its definition."""
    return {
        "name": f"canary/{device}/{name}",
        "version": hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16],
        "group": "canary",
        "device": device,
        "definition": definition,
        "status": "ok",
        "error": None,
        "backend": "torch",
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
