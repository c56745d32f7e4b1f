"""Two ways to run one case, timed in one process in turns that favor neither.

A round times the first, the second, the second, the first, the next round the other way round: what drifts during a
round (clocks, heat, a busy neighbor) falls on both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.device_clock import DeviceClock, calibrate_spin
from s2attn.benchmarks.document import CaseRecord
from s2attn.benchmarks.measure import (
    WARMUPS,
    Timed,
    flush_buffer,
    no_garbage_collection,
    sample_cpu,
    sample_cuda,
    wake,
)
from s2attn.benchmarks.telemetry import Clock

Sampler = Callable[[Timed, CaseRecord, int], None]


def time_rounds(pair: tuple[tuple[Timed, CaseRecord], tuple[Timed, CaseRecord]], rounds: int, clock: Clock) -> None:
    """Warm both up, then time rounds of first, second, second, first and of second, first, first, second in turns.

    The records of the pair get two samples of each round.
    """
    case = pair[0][0].case
    if case.device == "cpu":
        torch.set_num_threads(case.threads or 1)
    enqueue_ms = 0.0
    for timed, record in pair:
        for index in range(WARMUPS):
            start_s = time.perf_counter()
            timed.call(index)
            last_ms = 1e3 * (time.perf_counter() - start_s)
        enqueue_ms = max(enqueue_ms, last_ms)
        record.warmups = WARMUPS
    sample = _cpu_sampler(clock) if case.device == "cpu" else _cuda_sampler(case, clock, enqueue_ms)
    with no_garbage_collection():
        for index in range(rounds):
            first, second = pair if index % 2 == 0 else reversed(pair)
            for timed, record in (first, second, second, first):
                sample(timed, record, index)


def _cpu_sampler(clock: Clock) -> Sampler:
    return lambda timed, record, index: sample_cpu(timed, record, clock, index)


def _cuda_sampler(case: Case, clock: Clock, enqueue_ms: float) -> Sampler:
    cuda: Any = torch.cuda
    wake(cuda)
    device = torch.device("cuda")
    spin = calibrate_spin(DeviceClock(device)).hiding(enqueue_ms)
    flush = flush_buffer(device, cuda) if case.flush_l2 else None

    def sample(timed: Timed, record: CaseRecord, index: int) -> None:
        if flush is not None:
            flush.zero_()
        sample_cuda(timed, record, clock, index, spin=spin, cuda=cuda)

    return sample
