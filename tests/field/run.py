"""A field test on a GPU: `python tests/field/run.py SCENARIO... --output DIR [--gpu 0] [--seconds 540]`.

Plants commits whose effect is known (`planting.py`), compares them as `s2bench compare` does, one job after the other
until the time is used up, and writes each job as a recording (`recording.py`). `table` instead of scenarios prints the
confusion table of the recordings in DIR, and what plain procedures say of those of identical code.

| scenario | what is compared |
| --- | --- |
| identical | the base with itself, 540 small cases, again and again |
| more-work, less-work | the base and the commit with 0, 0.5, 1, 2 and 5 % more work, 36 large cases |
| power-cap | both, with matrix products before each sample that hold the GPU at its power limit, 12 large cases |
| second-process | the base with itself while another process computes on the same GPU, 12 large cases |
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from planting import Planted, plant
from recording import Recording, base_then_candidate, load, record, save, table

from service.worker.build import build, build_key
from service.worker.checkout import Mirror
from service.worker.comparison import ComparisonOptions, Silence, compare_commits, held_device
from service.worker.devices import gpus

SMALL, LARGE, FEW_LARGE = "*/b[138]*", "*/b200", "*/self/*/b200"
_NEIGHBOR = """
import torch
a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
while True:
    for _ in range(50):
        a @ b
    torch.cuda.synchronize()
"""


@dataclass(frozen=True)
class Scenario:
    """Which commits, which cases, at most how many pairs, whether it is repeated while there is time."""

    name: str
    baseline: str
    candidate: str
    cases: str
    max_pairs: int
    again: bool = False
    neighbor: bool = False


SCENARIOS = {
    "identical": Scenario("identical code", "base", "base", SMALL, 6, again=True),
    "more-work": Scenario("more work", "base", "grown", LARGE, 8),
    "less-work": Scenario("less work", "grown", "base", LARGE, 8),
    "power-cap": Scenario("more work at the power cap", "capped", "capped_grown", FEW_LARGE, 6),
    "second-process": Scenario("identical code beside a second process", "base", "base", FEW_LARGE, 6, neighbor=True),
}


def main() -> None:
    """Run what was asked for."""
    arguments = _parser().parse_args()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    if arguments.scenarios == ["table"]:
        print_tables(output)
        return
    deadline = time.monotonic() + arguments.seconds
    found = gpus()
    if not 0 <= arguments.gpu < len(found):
        sys.exit(f"--gpu: got {arguments.gpu}, expected the number of one of this machine's {len(found)} GPUs")
    gpu = found[arguments.gpu]
    with tempfile.TemporaryDirectory() as scratch:
        planted = plant(Path(scratch) / "planted")
        data_dir = arguments.data_dir or Path(scratch) / "data"
        options = ComparisonOptions(
            repository=planted.path,
            device="cuda",
            gpu_uuid=gpu.uuid,
            data_dir=data_dir,
            sandbox=arguments.sandbox,
            profile=False,
        )
        build_once(planted, options)
        _say(f"GPU {arguments.gpu}: built, {deadline - time.monotonic():.0f} s left")
        for name in arguments.scenarios:
            for recording in run_scenario(SCENARIOS[name], planted, options, deadline):
                number = len(list(output.glob(f"{name}-{arguments.gpu}-*")))
                save(recording, output / f"{name}-{arguments.gpu}-{number}.json.gz")


def build_once(planted: Planted, options: ComparisonOptions) -> None:
    """Build the base, and give its build to the other commits: their kernels are the same."""
    with held_device(options, Silence()) as (host, device):
        mirror = Mirror(host.data_dir, str(planted.path))
        mirror.fetch()
        first = build(mirror.check_out(planted.base), device, host)
        for commit in planted.commits[1:]:
            folder = host.data_dir / "builds" / build_key(mirror.check_out(commit), device)
            if not folder.exists():
                shutil.copytree(first.cache.parent, folder)


def run_scenario(
    scenario: Scenario, planted: Planted, options: ComparisonOptions, deadline: float
) -> Iterator[Recording]:
    """Run a scenario once, or again as long as a job like the last one ends before the deadline."""
    baseline, candidate = getattr(planted, scenario.baseline), getattr(planted, scenario.candidate)
    longest = 0.0
    while time.monotonic() + longest < deadline:
        started = time.monotonic()
        left_s = deadline - started
        once = replace(options, cases=scenario.cases, max_pairs=scenario.max_pairs, time_budget_s=left_s)
        with _neighbor(options.gpu_uuid if scenario.neighbor else None):
            comparison = compare_commits(baseline, candidate, once, Silence())
        recording = record(comparison, scenario.name, {} if baseline == candidate else planted.more)
        yield recording
        longest = max(longest, time.monotonic() - started)
        pairs = f"{comparison.pairs} + {comparison.fresh_pairs} pairs"
        _say(f"{scenario.name}: {pairs}, {longest:.0f} s\n{table([recording])}")
        if not scenario.again:
            return


def print_tables(folder: Path) -> None:
    """Print the confusion table, and what plain procedures say of identical code on the same samples."""
    recordings = [load(path) for path in sorted(folder.glob("*.json.gz"))]
    print(table(recordings))
    found: dict[str, list[tuple[int, int]]] = {}
    for one in recordings:
        if one["scenario"] == SCENARIOS["identical"].name:
            for name, counts in base_then_candidate(one).items():
                found.setdefault(name, []).append(counts)
    for name, counts in found.items():
        print(f"base then candidate, {name}: {sum(a for a, _ in counts)} false alarms of {sum(b for _, b in counts)}")


@contextmanager
def _neighbor(gpu_uuid: str | None) -> Iterator[None]:
    """Keep another process busy on a GPU meanwhile."""
    if gpu_uuid is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOR], env={"CUDA_VISIBLE_DEVICES": gpu_uuid})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="+", choices=[*SCENARIOS, "table"], metavar="SCENARIO")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--gpu", type=int, default=0, help="number of the GPU (default: 0)")
    parser.add_argument("--seconds", type=float, default=540.0, help="time for all of it (default: 540)")
    parser.add_argument("--data-dir", type=Path, help="keeps builds for the next run")
    parser.add_argument("--sandbox", choices=["auto", "none"], default="auto")
    return parser


if __name__ == "__main__":
    main()
