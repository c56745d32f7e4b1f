"""The benchmark cases of this commit, and how some of them are chosen by name."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

from s2attn.benchmarks.cases import Case, Device, Operation

CPU_SUITE = "cpu-quick"
GPU_SUITE = "gpu"

Shape = tuple[int, int]

_OPERATIONS: tuple[Operation, ...] = ("forward", "backward")


class NoSuchCaseError(LookupError):
    """A pattern matches no case."""


def _cpu(operation: Operation, in_shape: Shape, out_shape: Shape, *, channels: int, **fields: Any) -> Case:
    fields |= {"channels_in": channels, "channels_out": channels, "threads": 1}
    return Case(device="cpu", operation=operation, suite=CPU_SUITE, in_shape=in_shape, out_shape=out_shape, **fields)


def _gpu(operation: Operation, in_shape: Shape, out_shape: Shape, **fields: Any) -> Case:
    # three sets of inputs of the smallest case are 150 MB, more than twice the largest L2 of today
    fields |= {"channels_in": 64, "channels_out": 64, "input_sets": 3}
    return Case(device="cuda", operation=operation, suite=GPU_SUITE, in_shape=in_shape, out_shape=out_shape, **fields)


# Each sample takes about 3 ms on one thread: long against the timer and a context switch, short enough for 6 cases in
# turns within a third of a second. Several calls on small grids rather than one on a large grid: beside a busy
# neighbor, medians of processes scattered by 6-10 % with 1.2 MB of keys and values, by 2 % with 0.3 MB (CPU time, 2
# vCPU EPYC with 1 MiB of L2 each, 2026-11).
_CPU_CASES = (
    _cpu("forward", (24, 48), (24, 48), theta_cutoff=0.6, psi_nnz=3338, channels=32, calls_per_sample=6),
    _cpu("forward", (32, 64), (16, 32), theta_cutoff=0.6, psi_nnz=3826, channels=16, calls_per_sample=12),
    _cpu("forward", (16, 32), (32, 64), theta_cutoff=0.6, psi_nnz=3826, channels=16, calls_per_sample=12),
    _cpu("backward", (24, 48), (24, 48), theta_cutoff=0.5, psi_nnz=2432, channels=16, calls_per_sample=4),
    _cpu("backward", (32, 64), (16, 32), theta_cutoff=0.6, psi_nnz=3826, channels=16, calls_per_sample=4),
    _cpu("backward", (16, 32), (32, 64), theta_cutoff=0.6, psi_nnz=3826, channels=16, calls_per_sample=4),
)

# 1 degree twice, half degree, half to 1 degree, 1 to half degree.
_GPU_CASES = tuple(
    _gpu(operation, in_shape, out_shape, theta_cutoff=theta_cutoff, psi_nnz=psi_nnz)
    for operation in _OPERATIONS
    for in_shape, out_shape, theta_cutoff, psi_nnz in (
        ((180, 360), (180, 360), 0.017, 1934),
        ((180, 360), (180, 360), 0.03, 7340),
        ((360, 720), (360, 720), 0.03, 57744),
        ((360, 720), (180, 360), 0.03, 29952),
        ((180, 360), (360, 720), 0.03, 29952),
    )
)


def all_cases() -> tuple[Case, ...]:
    """Return every case of this commit, in the order they run."""
    return _CPU_CASES + _GPU_CASES


def select(patterns: Sequence[str], device: Device | None, *, threads: int | None = None) -> tuple[Case, ...]:
    """Choose cases by name.

    Parameters
    ----------
    patterns
        Shell patterns over whole names (``*`` also matches ``/``); a case is chosen when any matches.
    device
        Only cases of this device; None for all.
    threads
        Threads of CPU cases instead of the suite's own; part of the definition, so it changes their version.

    Raises
    ------
    NoSuchCaseError
        A pattern matches nothing, named with what there is.
    """
    available = [case for case in all_cases() if device in (None, case.device)]
    for pattern in patterns:
        if not _matching(available, pattern):
            where = f"for device {device}" if device else "at all"
            elsewhere = [case.name for case in _matching(all_cases(), pattern)]
            hint = f"other devices have {elsewhere}" if elsewhere else f"there are {[case.name for case in available]}"
            raise NoSuchCaseError(f"no case {where} matches {pattern!r}; {hint}")
    chosen = [case for case in available if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)]
    if threads is not None:
        chosen = [dataclasses.replace(case, threads=threads) if case.device == "cpu" else case for case in chosen]
    return tuple(chosen)


def _matching(cases: Iterable[Case], pattern: str) -> list[Case]:
    return [case for case in cases if fnmatch.fnmatchcase(case.name, pattern)]
