"""Runs benchmark processes of checkouts, for numerics or for one arm of a pair, and reads what they write."""

from __future__ import annotations

import fnmatch
import glob
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from service.worker.build import BuildResult
from service.worker.checkout import Checkout
from service.worker.devices import MeasuringDevice
from service.worker.document import PROTOCOL, Document, Expected, read_file
from service.worker.errors import Canceled, JobError
from service.worker.host import Host, never_stop
from service.worker.sandbox import Child, Outcome, Places, make_writable, package_path, run_child

_DOCUMENT = "document.json"
_LISTING_BYTES = 8 * 2**20
USAGE_STATUS = 2
# -P keeps the working folder, which the child can write to, off the module path.
MODULE = (sys.executable, "-P", "-m", "s2attn.benchmarks")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison, ready to run: A is the baseline, B the candidate."""

    letter: str
    checkout: Checkout
    build: BuildResult


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run: `purpose` is numerics, pair, confirm, round or profile.

    It measures the cases that the glob `cases` matches, or `only` those with certain names.
    """

    arm: Arm
    purpose: str
    cases: str
    device: MeasuringDevice
    only: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Return the stage that a failure of the process belongs to."""
        return {"pair": "pairs", "round": "rounds"}.get(self.purpose, self.purpose)

    @property
    def numerics_mode(self) -> str:
        """Return what the process is told about numerics: they are checked once, never beside timed samples."""
        return "only" if self.purpose == "numerics" else "skip"


@dataclass(frozen=True)
class ProcessResult:
    """What a process wrote: the document, its bytes, and the end of its log."""

    document: Document
    raw: bytes
    log: str
    wall_s: float


def run_process(spec: ProcessSpec, host: Host, stop: Callable[[], bool] = never_stop) -> ProcessResult:
    """Run one fresh process and return its document."""

    def command(places: Places) -> list[str]:
        arguments = ["run", "--protocol", str(PROTOCOL), "--arm", spec.arm.letter]
        for pattern in [glob.escape(name) for name in spec.only] or [spec.cases]:
            arguments += ["--cases", pattern]
        arguments += ["--device", spec.device.kind, "--numerics", spec.numerics_mode]
        if host.limits.samples is not None:
            arguments += ["--samples", str(host.limits.samples)]
        return [*MODULE, *arguments, "--out", str(places.output / _DOCUMENT)]

    with child_of(spec, host, command) as child:
        outcome = run_child(child, host.sandbox, stop)
        _judge(outcome, spec, host)
        expected = Expected(
            arm=spec.arm.letter,
            package_path=package_path(child, host.sandbox),
            device=spec.device.kind,
            numerics_mode=spec.numerics_mode,
            stage=spec.stage,
            max_bytes=host.limits.document_bytes,
        )
        try:
            document, raw = read_file(child.output / _DOCUMENT, expected)
        except JobError as error:
            error.log_tail = error.log_tail or outcome.log
            raise
    return ProcessResult(document, raw, outcome.log, outcome.wall_s)


def check_selection(spec: ProcessSpec, host: Host, stop: Callable[[], bool] = never_stop) -> None:
    """Raise `no_cases` when the checkout lists no case for the device that the glob matches."""
    with child_of(spec, host, lambda _: [*MODULE, "list", "--device", spec.device.kind]) as child:
        outcome = run_child(replace(child, stdout_bytes=_LISTING_BYTES), host.sandbox, stop)
    name = spec.arm.checkout.sha[:10]
    if outcome.stopped:
        raise Canceled(f"listing the cases of {name} was stopped")
    try:
        names = [str(case["name"]) for case in json.loads(outcome.stdout)["cases"]]
    except (ValueError, KeyError, TypeError) as error:
        message = f"{name} does not list its cases (exit status {outcome.status})"
        raise JobError("bad_document", message, stage=spec.stage, log_tail=outcome.log) from error
    if not any(fnmatch.fnmatchcase(name, spec.cases) for name in names):
        message = f"cases: {spec.cases!r} matches none of the {len(names)} {spec.device.kind} cases of {name}"
        raise JobError("no_cases", message, stage=spec.stage, log_tail="\n".join(names))


@contextmanager
def child_of(
    spec: ProcessSpec, host: Host, command: Callable[[Places], list[str]], *, timeout_s: float | None = None
) -> Iterator[Child]:
    """Yield a child of the arm with folders of its own, removed at the end.

    One that is timed on a CPU loads a copy of its library, made for it: where a file's pages lie in memory, they stay
    for all processes that load it, and small cases are up to 2 % faster or slower for it (decision 0024).
    """
    folder = host.data_dir / "runs" / uuid4().hex
    output = folder / "output"
    output.mkdir(parents=True)
    make_writable(output, host.sandbox)
    timed_on_cpu = spec.device.kind == "cpu" and spec.purpose != "numerics"
    try:
        yield Child(
            command=command,
            checkout=spec.arm.checkout.path,
            cache=shutil.copytree(spec.arm.build.cache, folder / "cache") if timed_on_cpu else spec.arm.build.cache,
            output=output,
            timeout_s=timeout_s or host.limits.process_timeout_s,
            device_nodes=spec.device.nodes,
            cpus=host.measuring_cpus if timed_on_cpu else host.cpus,
            environment={**spec.device.environment, "PYTHONHASHSEED": "0"},
            file_bytes=4 * host.limits.document_bytes,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _judge(outcome: Outcome, spec: ProcessSpec, host: Host) -> None:
    what = f"the {spec.purpose} process of {spec.arm.checkout.sha[:10]}"
    if outcome.stopped:
        raise Canceled(f"{what} was stopped")
    if outcome.timed_out:
        message = f"{what} did not end within {host.limits.process_timeout_s:g} s"
        raise JobError("benchmark_timeout", message, stage=spec.stage, log_tail=outcome.log)
    if outcome.status == USAGE_STATUS:
        check_selection(spec, host)
    if outcome.status != 0:
        message = f"{what} ended with status {outcome.status}"
        raise JobError("benchmark_crashed", message, stage=spec.stage, log_tail=outcome.log)
