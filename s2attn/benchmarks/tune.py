"""Times the neighbors of the chosen tile policies on the GPU at hand, and writes rows for ``csrc/cuda/tunings.h``.

A build of its own holds the neighbors: what differs from a row by one step of one number. Each of them takes turns with
the present choice (`rounds`), for one pass at a time. A step that wins is a new row; its neighbors are those of the
next call, so a few calls walk to where nothing nearby is faster.
"""

from __future__ import annotations

import dataclasses
import datetime
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.document import CaseRecord
from s2attn.benchmarks.environment import describe_environment, describe_gpu
from s2attn.benchmarks.measure import failure_of
from s2attn.benchmarks.numerics import ExactOutputs, compare_outputs, exact_outputs
from s2attn.benchmarks.operators import NeighborhoodOperator, cuda_facts
from s2attn.benchmarks.ratios import ratio_of_rounds
from s2attn.benchmarks.rounds import time_rounds
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.tunings import Row, Site, Timing, Trial, Where, make_rows
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.geometry import neighborhood
from s2attn.ops import registration
from s2attn.toolchain import TUNING_VARIABLE

REQUEST_VARIABLE = "S2ATTN_CUDA_TILE"

# The passes of an operation, and the gradients (dq, dk, dv) that each of them makes.
PASSES: dict[str, dict[str, tuple[bool, bool, bool]]] = {
    "forward": {"forward": (True, True, True)},
    "backward": {"backward_query": (True, False, False), "backward_key": (False, True, True)},
}


class NoGpuError(RuntimeError):
    """There is nothing to tune for."""


@dataclass(frozen=True)
class Tuning:
    """What a call found out: timings, rows, and why cases have none."""

    where: Where
    rounds: int
    timings: tuple[Timing, ...]
    rows: tuple[Row, ...]
    errors: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the document of the call."""
        return {
            "kind": "tuning",
            "environment": describe_environment("cuda", registration.loaded().get("cuda"), describe_gpu()),
            "rounds": self.rounds,
            "errors": self.errors,
            "timings": [_timing_json(timing) for timing in self.timings],
            "rows": [row.to_json() for row in self.rows],
        }


@dataclass(frozen=True, eq=False)
class Candidate:
    """A workload whose calls take one policy for one pass."""

    workload: Workload
    request: str

    @property
    def case(self) -> Case:
        """Case of the workload."""
        return self.workload.case

    def call(self, index: int, /) -> tuple[torch.Tensor, ...]:
        """Run once on the input set ``index`` (modulo their number)."""
        os.environ[REQUEST_VARIABLE] = self.request
        return self.workload.call(index)

    def outputs(self) -> dict[str, torch.Tensor]:
        """Return the outputs of the first input set."""
        os.environ[REQUEST_VARIABLE] = self.request
        return self.workload.outputs()


def is_tunable(case: Case) -> bool:
    """Whether policies are chosen for a case: the operator of neighborhood attention on a GPU."""
    return case.device == "cuda" and not case.is_global and case.operation in PASSES


def run_tuning(cases: Sequence[Case], *, rounds: int, clock: Clock, command: str) -> Tuning:
    """Time the candidates of all cases, then decide; prints what it finds as it goes.

    Raises
    ------
    NoGpuError
        torch sees no GPU.
    S2AttnError
        The kernels cannot be built here.
    """
    where = _load(command)
    timings: list[Timing] = []
    errors: dict[str, str] = {}
    with torch.no_grad():
        for case in cases:
            record = CaseRecord(case)
            with failure_of(record):
                timings += _time_case(case, rounds, clock)
            if record.error:
                errors[case.name] = record.error
                print(f"{case.name}: {record.error}", file=sys.stderr)
            _free_memory()
        rows = make_rows(timings, where, lambda site, name: _confirm(site, name, rounds, clock))
    _print_rows(rows)
    return Tuning(where, rounds, tuple(timings), rows, errors)


def _load(command: str) -> Where:
    if not torch.cuda.is_available():
        raise NoGpuError("tune: torch sees no GPU here, and a tuning is measured on the GPU that it is for")
    os.environ[TUNING_VARIABLE] = "1"
    registration.load("cuda")
    major, minor = torch.cuda.get_device_capability()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Where(10 * major + minor, describe_gpu()["gpu_name"], date, str(torch.__version__), command)


@contextmanager
def _restored_environment() -> Iterator[None]:
    before = os.environ.get(REQUEST_VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(REQUEST_VARIABLE, None)
        if before is not None:
            os.environ[REQUEST_VARIABLE] = before


def _time_case(case: Case, rounds: int, clock: Clock) -> list[Timing]:
    workload = prepare(case)
    exact = exact_outputs(workload)
    timings = []
    for pass_name in PASSES[case.operation]:
        chosen, *others = torch.ops.s2attn.cuda_candidates(*cuda_facts(workload.problem), pass_name) or [""]
        site = Site(case, pass_name, _width(workload, pass_name), _octets(workload, pass_name), chosen)
        trials = []
        for name in others:
            trials.append(_try(workload, site, name, exact, rounds=rounds, clock=clock))
            _print_trial(site, trials[-1])
        if not others:
            print(f"{case.name}: {pass_name}: no tile serves it", flush=True)
        timings.append(Timing(site, tuple(trials)))
    return timings


def _confirm(site: Site, name: str, rounds: int, clock: Clock) -> Trial:
    trial = _try(prepare(site.case), site, name, None, rounds=rounds, clock=clock)
    print("once more, ", end="")
    _print_trial(site, trial)
    _free_memory()
    return trial


def _try(workload: Workload, site: Site, name: str, exact: ExactOutputs | None, *, rounds: int, clock: Clock) -> Trial:
    """Compare a candidate with float64, where that is known, then time it beside the choice."""
    candidate, chosen = CaseRecord(site.case), CaseRecord(site.case)
    ratio, wrong = None, ""
    # restored: what is asked for here no other problem may know
    with _restored_environment(), failure_of(candidate):
        if exact is not None:
            compared = compare_outputs(Candidate(workload, f"{site.pass_name} {name}").outputs(), exact, workload)
            wrong = "; ".join(entry.reason for entry in compared.values() if entry.reason)
        alone = _of_pass(workload, site.pass_name)
        pair = (
            (Candidate(alone, f"{site.pass_name} {name}"), candidate),
            (Candidate(alone, f"{site.pass_name} {site.chosen}"), chosen),
        )
        time_rounds(pair, rounds, clock)
        ratio = ratio_of_rounds(candidate.samples, chosen.samples)
    return Trial(name, ratio, candidate.error or wrong or None)


def _of_pass(workload: Workload, pass_name: str) -> Workload:
    """Return the workload with no more than the gradients of one pass."""
    needs = PASSES[workload.case.operation][pass_name]
    operator = cast("NeighborhoodOperator", workload.operator)
    return dataclasses.replace(workload, operator=dataclasses.replace(operator, needs=needs))


def _width(workload: Workload, pass_name: str) -> int:
    geometry = neighborhood(workload.problem)
    table = geometry.key_table if pass_name == "backward_key" else geometry.query_table
    return -(-len(table.arcs) // (len(table.arc_off) - 1))


def _octets(workload: Workload, pass_name: str) -> int:
    case, geometry = workload.case, neighborhood(workload.problem)
    by_key = pass_name == "backward_key"
    residues = (geometry.key_table if by_key else geometry.query_table).residues
    nlat, nlon = case.in_shape if by_key else case.out_shape
    return case.batch * case.heads * -(-nlat * residues // 2) * -(-nlon // residues // 8)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _timing_json(timing: Timing) -> dict[str, Any]:
    site = timing.site
    return {
        "name": site.case.name,
        "definition": site.case.definition,
        "pass": site.pass_name,
        "width": site.width,
        "octets": site.octets,
        "chosen": site.chosen,
        "trials": [
            {"candidate": name, "ratio": ratio._asdict() if ratio else None, "error": error}
            for name, ratio, error in timing.trials
        ],
    }


def _print_trial(site: Site, trial: Trial) -> None:
    found = f"{trial.ratio.median:6.3f}x {trial.ratio.low:.3f} .. {trial.ratio.high:.3f}" if trial.ratio else "failed"
    print(f"{site.case.name:52} {site.pass_name:14} {site.chosen} -> {trial.candidate:18} {found}", flush=True)
    if trial.error:
        print(f"{site.case.name}: {trial.candidate}: {trial.error}", file=sys.stderr)


def _print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        few = ", few octets" if row.site.few else ""
        print(f"{row.verdict}: {row.site.pass_name}, {row.site.case.dtype}, width {row.site.width}{few}: {row.figure}")
    if rows:
        print("\nrows for kTileTable of csrc/cuda/tunings.h, each before the row for any GPU with the same channels:")
    for row in rows:
        print(f"    {row.cpp}")
