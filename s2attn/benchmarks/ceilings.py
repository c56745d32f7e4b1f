"""What a device can do at best, measured where the cases are measured: copying, and products of large matrices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from s2attn.benchmarks.cases import Device

# Large against every cache, and long enough (some milliseconds) for the clocks and the threads to settle.
COPY_BYTES: dict[str, int] = {"cpu": 1 << 28, "cuda": 1 << 30}
MATRIX_ROWS: dict[str, int] = {"cpu": 2048, "cuda": 8192}
REPEATS = 10


@dataclass(frozen=True)
class Ceilings:
    """Rates of one device.

    Attributes
    ----------
    copy_tb_per_s
        Terabytes per second read and written together, while one large tensor is copied.
    tflops
        Teraflops of a square product of matrices: ``fp32`` (on a GPU without tensor cores), on a GPU also ``tf32`` and
        ``bf16``.
    """

    copy_tb_per_s: float
    tflops: dict[str, float]

    def rate(self, dtype: str) -> float:
        """Return the teraflops for a storage dtype: half types use the matrix units, where a device has them."""
        return self.tflops["fp32"] if dtype == "float32" else self.tflops.get("bf16", self.tflops["fp32"])


def measure_ceilings(device: Device, *, cuda: Any = torch.cuda) -> Ceilings:
    """Measure a device, a CPU with the threads that torch has now: the fastest of `REPEATS` after one that is dropped.

    The half types are computed in float32 by CPU kernels, so a CPU has one rate.
    """
    source = torch.ones(COPY_BYTES[device] // 4, device=device)
    copy_s = _fastest_s(partial(torch.empty_like(source).copy_, source), device, cuda)
    copy_tb_per_s = 2e-12 * source.nbytes / copy_s
    del source
    with _fp32_precision("ieee"):
        rates = {"fp32": _matrix_rate(torch.float32, device, cuda)}
    if device == "cuda":
        with _fp32_precision("tf32"):
            rates["tf32"] = _matrix_rate(torch.float32, device, cuda)
        rates["bf16"] = _matrix_rate(torch.bfloat16, device, cuda)
    return Ceilings(copy_tb_per_s, rates)


def _matrix_rate(dtype: torch.dtype, device: Device, cuda: Any) -> float:
    rows = MATRIX_ROWS[device]
    a = torch.rand((rows, rows), device=device).to(dtype)
    return 2e-12 * rows**3 / _fastest_s(partial(torch.mm, a, a, out=torch.empty_like(a)), device, cuda)


def _fastest_s(call: Callable[[], object], device: Device, cuda: Any) -> float:
    call()
    return min(_seconds_cuda(call, cuda) if device == "cuda" else _seconds_cpu(call) for _ in range(REPEATS))


def _seconds_cpu(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _seconds_cuda(call: Callable[[], object], cuda: Any) -> float:
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end))


@contextmanager
def _fp32_precision(precision: str) -> Iterator[None]:
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    backend.fp32_precision = precision
    try:
        yield
    finally:
        backend.fp32_precision = before
