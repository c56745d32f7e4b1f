"""``python -m s2attn.benchmarks list | run | profile | versus | tune``: the cases of this commit, and what uses them.

Exit codes of ``list``, ``run`` and ``profile``: 0 with a document, also when cases failed; 1 when none can be written;
2 for a request that makes no sense. Of ``versus``: 0 when every case has a ratio and right numbers on both sides, 1
when one has not, 2 also when the opponent is not installed. Of ``tune``: 0 when every case was timed, 1 when one was
not, 2 also without a GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.document import PROTOCOL, write_document
from s2attn.benchmarks.opponents import OPPONENTS, OpponentUnavailableError
from s2attn.benchmarks.runner import RunOptions, run_cases
from s2attn.benchmarks.suite import SELECTIONS, NoSuchCaseError, select
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.tune import NoGpuError, is_tunable, run_tuning
from s2attn.benchmarks.versus import move_cases, run_comparison
from s2attn.errors import KernelsNotBuilt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    clock = Clock()
    options = _parser().parse_args(arguments)
    if options.command == "versus":
        return _versus(options, clock)
    if options.command == "tune":
        return _tune(options, clock)
    try:
        cases = select(options.cases or ["*"], options.device, threads=options.threads, suite=options.suite)
    except NoSuchCaseError as error:
        print(f"s2attn.benchmarks: {error}", file=sys.stderr)
        return 2
    if options.command == "list":
        print(json.dumps({"protocol": PROTOCOL, "cases": [case.listing() for case in cases]}, allow_nan=False))
        return 0
    if options.protocol != PROTOCOL:
        print(f"s2attn.benchmarks: protocol {options.protocol} is unknown here, expected {PROTOCOL}", file=sys.stderr)
        return 2
    if options.command == "profile" and options.counters and options.device == "cpu":
        print("s2attn.benchmarks: counters: got --device cpu, expected cuda, which has them", file=sys.stderr)
        return 2
    try:
        write_document(_document(options, cases, clock), options.out)
    except (OSError, ValueError) as error:
        print(f"s2attn.benchmarks: no document could be written to {options.out}: {error}", file=sys.stderr)
        return 1
    return 0


def _document(options: argparse.Namespace, cases: tuple[Case, ...], clock: Clock) -> dict[str, Any]:
    if options.command == "profile":
        # not for a process that takes samples: the profiler brings torch's compiler along, which takes seconds
        from s2attn.benchmarks.counters import Counters
        from s2attn.benchmarks.profile import profile_cases

        counters = Counters(options.counters_timeout_s) if options.counters else None
        return profile_cases(cases, options.device, clock, calls=options.calls, counters=counters)
    run = RunOptions(arm=options.arm, device=options.device, numerics=options.numerics, samples=options.samples)
    return run_cases(cases, run, clock)


def _versus(options: argparse.Namespace, clock: Clock) -> int:
    try:
        cases = _cases_of_comparison(options)
        found = run_comparison(cases, options.opponent, options.device, rounds=options.rounds, clock=clock)
    except (OpponentUnavailableError, NoSuchCaseError) as error:
        print(f"s2attn.benchmarks: {error}", file=sys.stderr)
        return 2
    if options.out:
        write_document(found.to_json(), options.out)
    return 1 if found.failed else 0


def _cases_of_comparison(options: argparse.Namespace) -> tuple[Case, ...]:
    patterns = options.cases or ["cpu/*" if options.device == "cpu" else "full/cuda/*"]
    chosen = move_cases(
        select(patterns, None, threads=options.threads, suite=options.suite), options.device, options.threads
    )
    cases = tuple(case for case in chosen if OPPONENTS[options.opponent].plays(case))
    if not cases:
        raise NoSuchCaseError(f"{options.opponent} plays none of the cases {[case.name for case in chosen]}")
    return cases


def _tune(options: argparse.Namespace, clock: Clock) -> int:
    patterns = options.cases or ["full/cuda/*"]
    command = shlex.join(["python", "-m", "s2attn.benchmarks", "tune", *(f"--cases={name}" for name in patterns)])
    try:
        cases = tuple(case for case in select(patterns, "cuda", suite=options.suite) if is_tunable(case))
        if not cases:
            raise NoSuchCaseError(f"none of the cases of {patterns} has a policy to choose")
        found = run_tuning(cases, rounds=options.rounds, clock=clock, command=command)
    except (NoGpuError, NoSuchCaseError, KernelsNotBuilt) as error:
        print(f"s2attn.benchmarks: {error}", file=sys.stderr)
        return 2
    if options.out:
        write_document(found.to_json(), options.out)
    return 1 if found.errors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m s2attn.benchmarks", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print the cases as JSON")
    listing.add_argument("--device", choices=["cpu", "cuda"], default=None, help="only cases of this device")
    run = commands.add_parser("run", help="measure cases and write one document")
    profile = commands.add_parser("profile", help="time the kernels of cases one by one and write one document")
    for command in (run, profile):
        command.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device to use (default: cpu)")
        command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the document goes")
        command.add_argument("--protocol", type=int, required=True, help=f"version of the document; known: {PROTOCOL}")
    run.add_argument("--arm", choices=["A", "B"], required=True, help="which side of a pair this process is")
    run.add_argument("--numerics", choices=["with", "only", "skip"], default="with", help="check against float64")
    run.add_argument("--samples", type=_positive, default=15, metavar="N", help="samples per case (default: 15)")
    profile.add_argument("--calls", type=_positive, default=10, metavar="N", help="calls per case (default: 10)")
    profile.add_argument(
        "--counters", action="store_true", help="also read hardware counters by ncu, where they can be"
    )
    profile.add_argument(
        "--counters-timeout-s", type=_positive, default=120, metavar="S", help="seconds for all counters (default: 120)"
    )
    against = commands.add_parser("versus", help="time cases side by side with another implementation")
    against.add_argument("opponent", choices=sorted(OPPONENTS), help="the other implementation")
    against.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="where all of them run (default: cpu)"
    )
    tuning = commands.add_parser("tune", help="time the neighbors of tile policies and write rows for their table")
    tuning.add_argument(
        "--device", choices=["cuda"], default="cuda", help="what has policies to choose (default: cuda)"
    )
    for command in (against, tuning):
        command.add_argument(
            "--rounds", type=_positive, default=10, metavar="N", help="two samples of each (default: 10)"
        )
        command.add_argument("--out", type=Path, metavar="FILE", help="where a JSON document goes, beside the table")
    for command in (listing, run, profile, against, tuning):
        command.add_argument(
            "--cases",
            action="append",
            metavar="GLOB",
            required=command in (run, profile),
            help="names to choose; may be repeated",
        )
        command.add_argument(
            "--suite", choices=SELECTIONS, help="where the globs look (default: quick and gpu); also as GLOB suite/..."
        )
    for command in (listing, run, profile, against):
        command.add_argument("--threads", type=_positive, metavar="N", help="CPU threads instead of the suite's one")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected a positive integer")
    return value


if __name__ == "__main__":
    sys.exit(main())
