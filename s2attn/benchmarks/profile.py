"""Which kernels a case runs, how long each takes, and what it needs of the device: apart from timed runs.

On a GPU the kernels and their launch parameters are the profiler's records (CUPTI). On a CPU the operators of torch are
told apart, by their own time: what goes on inside one of them, such as the compiled kernels of this package, is one
entry.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import s2attn
from s2attn.benchmarks.cases import Case, Device
from s2attn.benchmarks.counters import Counters
from s2attn.benchmarks.document import PROTOCOL, CaseRecord
from s2attn.benchmarks.environment import describe_environment, describe_gpu
from s2attn.benchmarks.measure import WARMUPS, failure_of, wake
from s2attn.benchmarks.occupancy import theoretical_occupancy
from s2attn.benchmarks.runner import load_kernels
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.ops import registration
from s2attn.resources import comparable_name

KIND = "profile"
SOURCES: dict[Device, str] = {"cpu": "operators of torch by their own time", "cuda": "kernel records of the profiler"}
# Kernels or operators with less of a case's time are summed up in one entry.
_LEAST_SHARE = 0.002
_TRACE_KINDS = {"kernel": "kernel", "gpu_memset": "memset", "gpu_memcpy": "memcpy"}

Resources = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Launch:
    """One record of the profiler; on a CPU all calls of one operator together."""

    name: str
    kind: str
    time_ms: float
    calls: int = 1
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: int | None = None
    shared_bytes: int | None = None


def profile_cases(
    cases: tuple[Case, ...], device: Device, clock: Clock, *, calls: int, counters: Counters | None
) -> dict[str, Any]:
    """Profile each case over some calls and return the document. A case that fails has its error, never a raise."""
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    records = [CaseRecord(case) for case in cases]
    load_kernels(device, records)
    gpu: dict[str, Any] = {}
    if device == "cuda" and not records[0].failed:
        gpu = describe_gpu()
        wake(torch.cuda)
    entries = [_profile_case(record, calls, gpu.get("compute_capability", "")) for record in records]
    if counters is not None:
        for entry in entries:
            counters.read_into(entry)
    return {
        "protocol": PROTOCOL,
        "kind": KIND,
        "device": device,
        "source": SOURCES[device],
        "calls": calls,
        "package_path": str(Path(s2attn.__file__).resolve().parent),
        "s2attn_version": s2attn.__version__,
        "started_at": started_at,
        "wall_s": clock.seconds(),
        "environment": describe_environment(device, registration.loaded().get(device), gpu),
        "counters": counters.to_json() if counters else None,
        "cases": entries,
    }


def _profile_case(record: CaseRecord, calls: int, compute_capability: str) -> dict[str, Any]:
    kernels: list[dict[str, Any]] = []
    with failure_of(record), torch.no_grad():
        if not record.failed:
            torch.set_num_threads(record.case.threads or 1)
            workload = prepare(record.case)
            record.backend, record.variant = workload.backend, workload.variant
            launches = _launches(workload, calls)
            kernels = merge(launches, calls, _build_resources(record.case.device), compute_capability)
    return {
        "name": record.case.name,
        "version": record.case.version,
        "status": "failed" if record.failed else "ok",
        "error": record.error,
        "backend": record.backend,
        "variant": record.variant,
        "time_ms": math.fsum(kernel["time_ms"] for kernel in kernels),
        "kernels": kernels,
    }


def _launches(workload: Workload, calls: int) -> list[Launch]:
    """Warm the case up and record some calls of it."""
    on_gpu = workload.case.device == "cuda"
    for index in range(WARMUPS):
        workload.call(index)
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    if on_gpu:
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=[activity]) as profiler:
        for index in range(calls):
            workload.call(index)
        if on_gpu:
            torch.cuda.synchronize()
    if on_gpu:
        return launches_of_trace(_trace(profiler))
    return [
        Launch(event.key, "operator", event.self_cpu_time_total * 1e-3, event.count)
        for event in profiler.key_averages()
    ]


def _trace(profiler: torch.profiler.profile) -> dict[str, Any]:
    handle, name = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiler.export_chrome_trace(name)
        trace: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8", errors="replace"))
    finally:
        os.unlink(name)
    return trace


def launches_of_trace(trace: Mapping[str, Any]) -> list[Launch]:
    """Return what ran on the device, from a Chrome trace of torch's profiler (times there are microseconds).

    A kernel that started before the one before it had ended counts from then on: it waited, and no time counts twice.
    """
    launches = []
    ended = -math.inf
    events = [event for event in trace["traceEvents"] if event.get("cat") in _TRACE_KINDS and event.get("ph") == "X"]
    for event in sorted(events, key=lambda event: event["ts"]):
        details = event.get("args", {})
        end = event["ts"] + event["dur"]
        time_us = max(end - max(event["ts"], ended), 0.0)
        ended = max(end, ended)
        launches.append(
            Launch(
                name=event["name"],
                kind=_TRACE_KINDS[event["cat"]],
                time_ms=time_us * 1e-3,
                grid=_triple(details.get("grid")),
                block=_triple(details.get("block")),
                registers=details.get("registers per thread"),
                shared_bytes=details.get("shared memory"),
            )
        )
    return launches


def _triple(value: Any) -> tuple[int, ...] | None:
    return tuple(int(extent) for extent in value) if value else None


def merge(
    launches: Iterable[Launch], calls: int, resources: Resources, compute_capability: str
) -> list[dict[str, Any]]:
    """Return one entry per kernel, longest first: its launches per call of the case, and their time (all together).

    Launch parameters are those of the longest launch of the kernel; registers, spills and size of the machine code are
    the compiler's for kernels of this package, by name.
    """
    by_name: dict[str, list[Launch]] = {}
    for launch in launches:
        by_name.setdefault(launch.name, []).append(launch)
    total_ms = math.fsum(launch.time_ms for group in by_name.values() for launch in group)
    entries, rest = [], []
    for group in by_name.values():
        share = math.fsum(launch.time_ms for launch in group) / total_ms if total_ms > 0 else 0.0
        if share < _LEAST_SHARE:
            rest.append(group)
            continue
        entry = _entry(group, calls, total_ms)
        _add_resources(entry, resources.get(comparable_name(entry["name"]), {}), compute_capability)
        entries.append(entry)
    entries.sort(key=lambda entry: -float(entry["time_ms"]))
    if rest:
        together = [Launch("others", "rest", one.time_ms, one.calls) for group in rest for one in group]
        entries.append(_entry(together, calls, total_ms))
    return entries


def _entry(group: list[Launch], calls: int, total_ms: float) -> dict[str, Any]:
    time_ms = math.fsum(launch.time_ms for launch in group)
    longest = max(group, key=lambda launch: launch.time_ms)
    return {
        "name": longest.name,
        "kind": longest.kind,
        "calls": sum(launch.calls for launch in group) / calls,
        "time_ms": time_ms / calls,
        "share": time_ms / total_ms if total_ms > 0 else 0.0,
        "grid": list(longest.grid) if longest.grid else None,
        "block": list(longest.block) if longest.block else None,
        "registers": longest.registers,
        "shared_bytes": longest.shared_bytes,
    }


def _add_resources(entry: dict[str, Any], resources: Mapping[str, Any], compute_capability: str) -> None:
    static = resources.get("shared_bytes")
    if static is not None and entry["shared_bytes"] is not None:
        entry["dynamic_shared_bytes"] = entry["shared_bytes"] - static
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes", "sass_bytes"):
        if name in resources:
            entry[name] = resources[name]
    if entry["block"] is None or entry["registers"] is None:
        return
    occupancy = theoretical_occupancy(
        compute_capability,
        threads=math.prod(entry["block"]),
        registers=entry["registers"],
        shared_bytes=entry["shared_bytes"] or 0,
    )
    if occupancy is not None:
        entry |= {"occupancy": occupancy.share, "occupancy_limit": occupancy.limited_by}


def _build_resources(device: Device) -> Resources:
    """Return the compiler's report on the kernels that were loaded, by comparable name."""
    record = registration.loaded().get(device)
    kernels: Any = record.resources.get("kernels", []) if record else []
    return {comparable_name(str(kernel["name"])): kernel for kernel in kernels}
