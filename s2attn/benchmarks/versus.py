"""Side by side with another implementation: the same inputs, in one process, in turns that favor nobody.

Only the operator call is timed, with what each has saved from its own forward.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from s2attn.benchmarks.cases import Case, Device
from s2attn.benchmarks.ceilings import Ceilings, measure_ceilings
from s2attn.benchmarks.document import CaseRecord
from s2attn.benchmarks.environment import describe_environment, describe_gpu
from s2attn.benchmarks.floors import count_pairs, count_work, floor_ms
from s2attn.benchmarks.measure import failure_of
from s2attn.benchmarks.numerics import TOLERANCES, Comparison, compare_outputs, exact_outputs
from s2attn.benchmarks.opponents import OPPONENTS, Opponent
from s2attn.benchmarks.ratios import Ratio, ratio_of_rounds
from s2attn.benchmarks.rounds import time_rounds
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.workload import prepare
from s2attn.ops import registration


@dataclass
class Side:
    """One implementation of one case: its samples, and its errors against float64 by output."""

    record: CaseRecord
    errors: dict[str, float | None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Median of the samples."""
        return statistics.median(self.record.samples)

    @property
    def worst_error(self) -> float:
        """Largest relative L2 error of an output; infinite where one could not be compared."""
        return max(math.inf if error is None else error for error in self.errors.values())

    def compare(self, compared: dict[str, Comparison]) -> None:
        """Keep what a comparison with float64 found."""
        self.errors = {name: entry.errors["relative"] for name, entry in compared.items()}
        self.reasons = [entry.reason for entry in compared.values() if entry.reason]


@dataclass
class Row:
    """One case of the table; ``error`` where it has no numbers, or wrong ones."""

    case: Case
    ours: Side
    theirs: Side
    floor_ms: float
    ratio: Ratio | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row's entry of the document."""
        return {
            "name": self.case.name,
            "definition": self.case.definition,
            "error": self.error,
            "ratio": self.ratio._asdict() if self.ratio else None,
            "floor_ms": self.floor_ms,
            "tolerance": TOLERANCES[self.case.dtype],
            **{
                name: {
                    "samples": side.record.samples,
                    "queued": side.record.queued,
                    "errors": side.errors,
                    "share_of_floor": self.floor_ms / side.median_ms if side.record.samples else None,
                }
                for name, side in (("ours", self.ours), ("theirs", self.theirs))
            },
        }


@dataclass(frozen=True)
class Comparisons:
    """What a comparison found out: the ceilings of the device and a row per case."""

    opponent: str
    opponent_version: str
    device: Device
    ceilings: Ceilings
    rows: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """Whether a case has no ratio, or wrong numbers on either side."""
        return any(row.error for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the document of the comparison."""
        gpu = describe_gpu() if self.device == "cuda" else {}
        return {
            "opponent": self.opponent,
            "opponent_version": self.opponent_version,
            "environment": describe_environment(self.device, registration.loaded().get(self.device), gpu),
            "ceilings": dataclasses.asdict(self.ceilings),
            "rows": [row.to_json() for row in self.rows],
        }


def move_cases(cases: Sequence[Case], device: Device, threads: int | None) -> tuple[Case, ...]:
    """Return the cases as they are on a device: those of another device change theirs, and lose what only fits there.

    A ratio belongs to no series, so a case may be compared where its suite does not measure it.
    """
    moved: dict[str, Case] = {}
    for case in cases:
        if case.device != device:
            threads_here = (threads or 1) if device == "cpu" else None
            case = dataclasses.replace(case, device=device, threads=threads_here, calls_per_sample=1)
        moved.setdefault(case.name, case)
    return tuple(moved.values())


def run_comparison(cases: Sequence[Case], opponent: str, device: Device, *, rounds: int, clock: Clock) -> Comparisons:
    """Measure the ceilings of the device, then the cases one by one; prints the table as it grows.

    Raises
    ------
    OpponentUnavailableError
        The other implementation cannot run on this device.
    S2AttnError
        Our kernels are missing and cannot be built here.
    """
    version = OPPONENTS[opponent].load(device)
    registration.load(device)
    if device == "cpu":
        torch.set_num_threads(max(case.threads or 1 for case in cases))
    ceilings = measure_ceilings(device)
    _print_head(ceilings, device)
    rows = []
    for case in cases:
        rows.append(_compare_case(case, OPPONENTS[opponent], ceilings, rounds=rounds, clock=clock))
        _print_row(rows[-1])
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return Comparisons(opponent, version, device, ceilings, tuple(rows))


def _compare_case(case: Case, opponent: Opponent, ceilings: Ceilings, *, rounds: int, clock: Clock) -> Row:
    ours, theirs = Side(CaseRecord(case)), Side(CaseRecord(case))
    row = Row(case, ours, theirs, floor_ms(count_work(case, count_pairs(case)), case.dtype, ceilings))
    with failure_of(ours.record), torch.no_grad():
        workload = prepare(case)
        rival = opponent.prepare(workload)
        exact = exact_outputs(workload)
        ours.compare(compare_outputs(workload.outputs(), exact, workload))
        theirs.compare(compare_outputs(rival.outputs(), exact, workload))
        time_rounds(((workload, ours.record), (rival, theirs.record)), rounds, clock)
        row.ratio = ratio_of_rounds(ours.record.samples, theirs.record.samples)
    wrong = [f"{whose} {reason}" for whose, side in (("our", ours), ("their", theirs)) for reason in side.reasons]
    row.error = ours.record.error or "; ".join(wrong) or None
    return row


def _print_head(ceilings: Ceilings, device: Device) -> None:
    """Print the rates of the device, and the head of the table."""
    rates = ", ".join(f"{name} {rate:.4g} TFLOP/s" for name, rate in ceilings.tflops.items())
    threads = f", {torch.get_num_threads()} threads" if device == "cpu" else ""
    print(f"ceilings of this {device}{threads}: copy {1e3 * ceilings.copy_tb_per_s:.4g} GB/s, {rates}")
    print(
        f"{'case':58} {'dtype':8} {'ours ms':>10} {'theirs ms':>10} {'ratio':>8} {'interval':>17} "
        f"{'floor ms':>9} {'ours':>6} {'theirs':>6} {'our error':>9} {'their error':>11}",
        flush=True,
    )


def _print_row(row: Row) -> None:
    """Print one line of the table: shares are of the floor, errors relative to float64; faults follow on stderr."""
    if row.ratio is not None:
        ours, theirs = row.ours, row.theirs
        print(
            f"{row.case.name:58} {row.case.dtype:8} {ours.median_ms:10.4f} {theirs.median_ms:10.4f} "
            f"{row.ratio.median:7.2f}x {f'{row.ratio.low:.2f} .. {row.ratio.high:.2f}':>17} {row.floor_ms:9.4f} "
            f"{row.floor_ms / ours.median_ms:6.1%} {row.floor_ms / theirs.median_ms:6.1%} "
            f"{ours.worst_error:9.1e} {theirs.worst_error:11.1e}",
            flush=True,
        )
        unqueued = sum(not queued for side in (ours, theirs) for queued in side.record.queued)
        if unqueued:
            print(f"{row.case.name}: launch time may be inside {unqueued} samples", file=sys.stderr)
    if row.error:
        print(f"{row.case.name}: {row.error}", file=sys.stderr)
