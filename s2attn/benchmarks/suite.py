"""The benchmark cases of this commit, and how some of them are chosen by name."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence
from typing import Any

from s2attn.benchmarks.cases import Case, Device, Operation

CPU_SUITE = "cpu-quick"
GPU_SUITE = "gpu"
FULL_SUITE = "gpu-full"
CPU_FULL_SUITE = "cpu-full"

# What may be asked for by name, and the suites of cases that it holds.
SELECTIONS: dict[str, frozenset[str]] = {
    "quick": frozenset({CPU_SUITE}),
    "gpu": frozenset({GPU_SUITE}),
    "full": frozenset({CPU_SUITE, GPU_SUITE, FULL_SUITE, CPU_FULL_SUITE}),
}
_DEFAULT = SELECTIONS["quick"] | SELECTIONS["gpu"]

Shape = tuple[int, int]

_OPERATIONS: tuple[Operation, ...] = ("forward", "backward")
_MODULE_OPERATIONS: tuple[Operation, ...] = ("module-forward", "module-forward-backward")
_GLOBAL_OPERATIONS: tuple[Operation, ...] = ("forward", "forward-backward", *_MODULE_OPERATIONS)
_DTYPES = ("float32", "float16", "bfloat16")


class NoSuchCaseError(LookupError):
    """A pattern matches no case."""


def _cpu(operation: Operation, in_shape: Shape, out_shape: Shape, *, channels: int, **fields: Any) -> Case:
    fields = {"suite": CPU_SUITE, **fields, "channels_in": channels, "channels_out": channels, "threads": 1}
    return Case(device="cpu", operation=operation, in_shape=in_shape, out_shape=out_shape, **fields)


def _gpu(operation: Operation, in_shape: Shape, out_shape: Shape, **fields: Any) -> Case:
    # three sets of inputs of the smallest case are 150 MB, more than twice the largest L2 of today
    fields |= {"channels_in": 64, "channels_out": 64, "input_sets": 3}
    return Case(device="cuda", operation=operation, suite=GPU_SUITE, in_shape=in_shape, out_shape=out_shape, **fields)


def _full(operation: Operation, shapes: tuple[Shape, Shape], dtype: str, **fields: Any) -> Case:
    """Return a case of the full suite; its sets of inputs are as large together as those of the float32 ones."""
    fields = {"channels": 64, "heads": 1, **fields}
    channels = fields.pop("channels")
    fields |= {"channels_in": channels, "channels_out": channels, "dtype": dtype}
    in_shape, out_shape = shapes
    # one set of a quarter degree or of 256 channels is 400 MB at least; several would not fit smaller GPUs
    large = channels > 64 or max(in_shape[0], out_shape[0]) > 360
    fields["input_sets"] = 1 if large else 3 if dtype == "float32" else 6
    return Case(device="cuda", operation=operation, suite=FULL_SUITE, in_shape=in_shape, out_shape=out_shape, **fields)


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

# The configurations of the public package's published timings, a quarter degree with the smaller cutoff, and more
# channels per head.
_DEGREE, _HALF, _QUARTER = (180, 360), (360, 720), (721, 1440)
_FULL_CONFIGURATIONS: tuple[tuple[tuple[Shape, Shape], dict[str, Any]], ...] = (
    ((_DEGREE, _DEGREE), {"theta_cutoff": 0.017, "psi_nnz": 1934}),
    ((_DEGREE, _DEGREE), {"theta_cutoff": 0.03, "psi_nnz": 7340}),
    ((_DEGREE, _DEGREE), {"theta_cutoff": 0.1, "psi_nnz": 60808}),
    ((_HALF, _HALF), {"theta_cutoff": 0.017, "psi_nnz": 18368}),
    ((_HALF, _HALF), {"theta_cutoff": 0.03, "psi_nnz": 57744}),
    ((_HALF, _HALF), {"theta_cutoff": 0.03, "psi_nnz": 57744, "channels": 256, "heads": 4}),
    ((_HALF, _HALF), {"theta_cutoff": 0.03, "psi_nnz": 57744, "channels": 128}),
    ((_HALF, _DEGREE), {"theta_cutoff": 0.03, "psi_nnz": 29952}),
    ((_HALF, _DEGREE), {"theta_cutoff": 0.1, "psi_nnz": 241954}),
    ((_DEGREE, _HALF), {"theta_cutoff": 0.03, "psi_nnz": 29952}),
    ((_DEGREE, _HALF), {"theta_cutoff": 0.1, "psi_nnz": 241954}),
    ((_QUARTER, _QUARTER), {"theta_cutoff": 0.017, "psi_nnz": 151153}),
    ((_QUARTER, _QUARTER), {"theta_cutoff": 0.03, "psi_nnz": 428391}),
)

# Global attention: the public package's one configuration.
_GLOBAL: dict[str, Any] = {"theta_cutoff": None, "psi_nnz": None}
_GLOBAL_CONFIGURATIONS: tuple[tuple[tuple[Shape, Shape], dict[str, Any]], ...] = (((_DEGREE, _DEGREE), _GLOBAL),)

# The layer: once small, once large, once in each direction. All of them are small enough to be compared at every point,
# which the gradients of the projections need.
_MODULE_CONFIGURATIONS = tuple(_FULL_CONFIGURATIONS[index] for index in (1, 4, 7, 9))

_ALL_FULL = tuple(
    _full(operation, shapes, dtype, **fields)
    for operations, configurations in (
        (_OPERATIONS, _FULL_CONFIGURATIONS),
        (_MODULE_OPERATIONS, _MODULE_CONFIGURATIONS),
        (_GLOBAL_OPERATIONS, _GLOBAL_CONFIGURATIONS),
    )
    for operation in operations
    for shapes, fields in configurations
    for dtype in _DTYPES
)
_GPU_NAMES = {case.name for case in _GPU_CASES}
_FULL_CASES = tuple(case for case in _ALL_FULL if case.name not in _GPU_NAMES)

# Global attention once more, small, where there is no GPU: the operator and the layer, with their gradients.
_CPU_FULL_CASES = tuple(
    _cpu(operation, (24, 48), (24, 48), channels=16, suite=CPU_FULL_SUITE, **_GLOBAL)
    for operation in ("forward", "forward-backward", "module-forward-backward")
)


def all_cases() -> tuple[Case, ...]:
    """Return every case of this commit, in the order they run."""
    return _CPU_CASES + _CPU_FULL_CASES + _GPU_CASES + _FULL_CASES


def select(
    patterns: Sequence[str], device: Device | None, *, threads: int | None = None, suite: str | None = None
) -> tuple[Case, ...]:
    """Choose cases by name.

    Parameters
    ----------
    patterns
        Shell patterns over whole names (``*`` also matches ``/``); a case is chosen when any matches. A pattern that
        begins with the name of one of `SELECTIONS` and a slash, such as ``full/*`` or ``full/cuda/forward/*``, looks
        among the cases of that selection; so does a whole name among all cases.
    device
        Only cases of this device; None for all.
    threads
        Threads of CPU cases instead of the suite's own; part of the definition, so it changes their version.
    suite
        Which of `SELECTIONS` the other patterns look in. Default: ``quick`` and ``gpu`` together.

    Raises
    ------
    NoSuchCaseError
        A pattern matches nothing, named with what there is.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = _matching(pattern, suite)
        here = {case.name for case in found if device in (None, case.device)}
        if not here:
            raise NoSuchCaseError(_nothing_matches(pattern, device, suite, [case.name for case in found]))
        chosen |= here
    cases = [case for case in all_cases() if case.name in chosen]
    if threads is not None:
        cases = [dataclasses.replace(case, threads=threads) if case.device == "cpu" else case for case in cases]
    return tuple(cases)


def _members(suite: str | None) -> list[Case]:
    suites = _DEFAULT if suite is None else SELECTIONS[suite]
    return [case for case in all_cases() if case.suite in suites]


def _matching(pattern: str, suite: str | None) -> list[Case]:
    """Return the cases of any device that one pattern chooses."""
    prefix, slash, rest = pattern.partition("/")
    if slash and prefix in SELECTIONS:
        pattern, suite = rest, prefix
    found = [case for case in _members(suite) if fnmatch.fnmatchcase(case.name, pattern)]
    return found or [case for case in all_cases() if case.name == pattern]


def _nothing_matches(pattern: str, device: Device | None, suite: str | None, elsewhere: list[str]) -> str:
    where = f"for device {device}" if device else "at all"
    if elsewhere:
        hint = f"other devices have {elsewhere}"
    elif any(device in (None, case.device) for case in _matching(f"full/{pattern}", None)):
        hint = f"the full suite has some: full/{pattern}"
    else:
        hint = f"there are {[case.name for case in _members(suite) if device in (None, case.device)]}"
    return f"no case {where} matches {pattern!r}; {hint}"
