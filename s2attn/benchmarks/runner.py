"""One process of one arm: prepare the cases, check their numbers, take their samples, and describe it all."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

import s2attn
from s2attn.benchmarks.cases import Case, Device
from s2attn.benchmarks.device_clock import DeviceClock, calibrate_spin
from s2attn.benchmarks.document import PROTOCOL, CaseRecord
from s2attn.benchmarks.environment import describe_environment, describe_gpu
from s2attn.benchmarks.measure import failure_of, measure_cpu, measure_cuda, wake
from s2attn.benchmarks.numerics import check_workload
from s2attn.benchmarks.nvml import NvmlSource, gpu_source
from s2attn.benchmarks.proc import cpu_source
from s2attn.benchmarks.telemetry import Clock, NoSource, Source, Telemetry
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.ops import registration

Numerics = Literal["with", "only", "skip"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a process is asked to do."""

    arm: Literal["A", "B"]
    device: Device
    numerics: Numerics
    samples: int


def run_cases(cases: tuple[Case, ...], options: RunOptions, clock: Clock) -> dict[str, Any]:
    """Measure the cases and return the whole document. A case that fails is a record with its error, never a raise."""
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    records = [CaseRecord(case) for case in cases]
    # before the telemetry: a compiler that runs here must not count as foreign load
    load_kernels(options.device, records)
    source, gpu = _device_source(options.device)
    telemetry = Telemetry(source, clock)
    telemetry.start()
    try:
        if options.device == "cpu":
            _run_on_cpu(records, options, clock)
        else:
            _run_on_gpu(records, options, clock)
    finally:
        telemetry.stop()
    for record in records:
        if record.failed:
            print(f"{record.case.name}: {record.error}", file=sys.stderr)
    return {
        "protocol": PROTOCOL,
        "arm": options.arm,
        "package_path": str(Path(s2attn.__file__).resolve().parent),
        "s2attn_version": s2attn.__version__,
        "started_at": started_at,
        "wall_s": clock.seconds(),
        "numerics_mode": options.numerics,
        "environment": describe_environment(options.device, registration.loaded().get(options.device), gpu),
        "telemetry": telemetry.to_json(),
        "cases": [record.to_json() for record in records],
    }


def load_kernels(device: Device, records: list[CaseRecord]) -> None:
    """Load the kernels once; if that fails, every case has failed, and no case tries (and builds) again."""
    first = records[0]
    with failure_of(first):
        registration.load(device)
    if first.error is not None:
        for record in records:
            record.fail(first.error)


def _device_source(device: Device) -> tuple[Source, dict[str, Any]]:
    """Return the telemetry of the device and what it says of the device itself."""
    if device == "cpu":
        return cpu_source(), {}
    try:
        gpu = describe_gpu()
    except (RuntimeError, AssertionError) as error:  # torch raises either without CUDA; the cases will say so too
        return NoSource(f"no CUDA device: {error}"), {}
    source = gpu_source(gpu["gpu_uuid"])
    return source, gpu | (source.describe() if isinstance(source, NvmlSource) else {})


def _run_on_cpu(records: list[CaseRecord], options: RunOptions, clock: Clock) -> None:
    # numerics and preparation of the suite on the threads of its samples, so that no pool of other threads lingers
    torch.set_num_threads(min(record.case.threads or 1 for record in records))
    work = [(workload, record) for record in records if (workload := _prepared(record, options)) is not None]
    if options.numerics != "only":
        measure_cpu(work, clock, options.samples)


def _run_on_gpu(records: list[CaseRecord], options: RunOptions, clock: Clock) -> None:
    spin = None
    for record in records:
        workload = _prepared(record, options)
        if workload is None or options.numerics == "only":
            continue
        with failure_of(record):
            if spin is None:
                wake(torch.cuda)
                spin = calibrate_spin(DeviceClock(torch.device("cuda")))
            measure_cuda(workload, record, clock, options.samples, spin=spin)


def _prepared(record: CaseRecord, options: RunOptions) -> Workload | None:
    """Prepare a case and check its numbers if asked; None where the case failed, with the error in its record."""
    with failure_of(record):
        if not record.failed:
            workload = prepare(record.case)
            record.backend, record.variant = workload.backend, workload.variant
            if options.numerics != "skip":
                record.numerics = check_workload(workload)
            return workload
    return None
