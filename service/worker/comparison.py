"""Compares two commits on this machine, with nothing but git, the interpreter and the libraries that benchmarks need.

The same functions as in a worker, without queue and database: whoever has no server (a bare GPU host) gets the same
verdicts from the same procedure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from service.judging.rows import VerdictRow
from service.kernels import pair_kernels
from service.stats.policy import JudgingPolicy
from service.worker.build import BuildResult, build
from service.worker.canary import Canary
from service.worker.checkout import Checkout, Mirror, resolve_in
from service.worker.devices import DeviceLock, MeasuringDevice, find_device
from service.worker.document import Document
from service.worker.errors import JobError, Kind
from service.worker.evidence import CaseSummary, Evidence
from service.worker.host import Host, Limits
from service.worker.measure import Arm, ProcessResult, ProcessSpec, run_process
from service.worker.profile import profile_arm
from service.worker.sandbox import choose_sandbox

BASELINE, CANDIDATE = "A", "B"
DEFAULT_DATA_DIR = Path("~/.local/share/s2bench")


class ProgressListener(Protocol):
    """Hears how a comparison gets on."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""

    def pair(self, done: int, budget: int, rejected: int) -> None:
        """A pair was measured."""

    def log(self, text: str) -> None:
        """Something worth reading happened."""


class Silence:
    """A listener that hears nothing."""

    def stage(self, name: str, detail: str = "") -> None:
        """Ignore a stage."""

    def pair(self, done: int, budget: int, rejected: int) -> None:
        """Ignore a pair."""

    def log(self, text: str) -> None:
        """Ignore a text."""


@dataclass(frozen=True)
class ComparisonOptions:
    """What to compare and how long; `max_pairs` None means the policy's own number, `gpu_uuid` None the first GPU.

    `profile` says whether kernels are profiled once the pairs are measured.
    """

    repository: Path = field(default_factory=Path.cwd)
    device: str = "cpu"
    gpu_uuid: str | None = None
    cases: str = "*"
    max_pairs: int | None = None
    time_budget_s: float | None = None
    data_dir: Path | None = None
    sandbox: str = "auto"
    limits: Limits = field(default_factory=Limits)
    lock_dir: Path | None = None
    lock_timeout_s: float = 600.0
    rest_s: float = 1.0
    profile: bool = True


@dataclass(frozen=True)
class Comparison:
    """The outcome: one row per case, and everything needed to look behind it."""

    baseline_sha: str
    candidate_sha: str
    device: MeasuringDevice
    sandbox: str
    summaries: tuple[CaseSummary, ...]
    pairs: int
    fresh_pairs: int
    rejected_pairs: int
    environment: dict[str, Any]
    builds: dict[str, dict[str, Any]]
    documents: tuple[dict[str, Any], ...]
    profiles: dict[str, dict[str, Any]]
    policy: JudgingPolicy
    started_at: datetime
    wall_s: float

    @property
    def rows(self) -> list[VerdictRow]:
        """Return the verdict rows, by case."""
        return [summary.row for summary in self.summaries]

    @property
    def device_name(self) -> str:
        """Return the name of the CPU or GPU."""
        return self.device.name

    def to_dict(self) -> dict[str, Any]:
        """Return everything measured as plain JSON types."""
        return {
            "format": "s2bench comparison 1",
            "baseline": self.baseline_sha,
            "candidate": self.candidate_sha,
            "device_class": self.device.device_class,
            "device": self.device.name,
            "device_uuid": self.device.uuid,
            "sandbox": self.sandbox,
            "started_at": self.started_at.isoformat(),
            "wall_s": self.wall_s,
            "pairs": self.pairs,
            "fresh_pairs": self.fresh_pairs,
            "rejected_pairs": self.rejected_pairs,
            "policy": self.policy.to_dict(),
            "environment": self.environment,
            "builds": self.builds,
            "rows": [row.to_dict() for row in self.rows],
            "evidence": {summary.row.case: summary.evidence for summary in self.summaries},
            "documents": list(self.documents),
            "profiles": self.profiles,
        }

    def kernels(self) -> list[dict[str, Any]]:
        """Return the kernels of both commits side by side, see `service.kernels`."""
        cases = {letter: (one["document"] or {}).get("cases") for letter, one in self.profiles.items()}
        return pair_kernels(cases.get(BASELINE), cases.get(CANDIDATE))


def compare_commits(
    baseline: str, candidate: str, options: ComparisonOptions, progress: ProgressListener | None = None
) -> Comparison:
    """Build and measure two revisions of a local repository in pairs, and judge every case.

    A candidate that cannot be built or measured raises its JobError; a baseline that cannot makes every case
    `not_comparable`.
    """
    repository = options.repository.absolute()
    shas = {
        BASELINE: resolve_in(repository, baseline, "baseline"),
        CANDIDATE: resolve_in(repository, candidate, "candidate"),
    }
    with held_device(options, progress or Silence()) as (host, device):
        run = _Run(options, host, device, progress or Silence())
        return run.compare(Mirror(host.data_dir, str(repository)), shas)


def data_dir_of(options: ComparisonOptions) -> Path:
    """Return where mirrors, builds and outputs lie."""
    return (options.data_dir or DEFAULT_DATA_DIR).expanduser().absolute()


@contextmanager
def held_device(options: ComparisonOptions, progress: ProgressListener) -> Iterator[tuple[Host, MeasuringDevice]]:
    """Yield this machine as a host and the device that the options name, which no other s2bench process uses."""
    device = find_device(options.device, options.gpu_uuid)
    sandbox = choose_sandbox(options.sandbox, fall_back=True)
    host = Host(data_dir_of(options), sandbox, options.limits, share_compiler_cache=True)
    if sandbox.reason:
        progress.log(f"no sandbox: {sandbox.reason}")
    lock = DeviceLock(device, options.lock_dir)
    if not lock.try_acquire():
        progress.log(f"{device.name} is in use by another s2bench process of this machine: waiting")
        lock.acquire(options.lock_timeout_s)
    try:
        with host.off_measuring_cpus():
            yield host, device
    finally:
        lock.release()


class _Run:
    """One comparison on its way."""

    def __init__(
        self, options: ComparisonOptions, host: Host, device: MeasuringDevice, progress: ProgressListener
    ) -> None:
        self._options = options
        self.host = host
        self._device = device
        self.progress = progress
        self._started = time.monotonic()
        self._arms: dict[str, Arm] = {}
        self._documents: list[dict[str, Any]] = []
        self._rejected = 0
        self._rejected_in_a_row = 0

    def compare(self, mirror: Mirror, shas: dict[str, str]) -> Comparison:
        """Carry the comparison out."""
        started_at = datetime.now(UTC)
        policy = JudgingPolicy.for_device(self._device.device_class)
        policy = policy.with_budget(self._options.max_pairs or policy.looks[-1])
        evidence = Evidence(self._device, policy)
        self._prepare(mirror, shas, evidence)
        self._check_numerics(evidence)
        self._measure_pairs(evidence)
        profiles = self._profile(evidence)
        self.progress.stage("judge")
        return Comparison(
            baseline_sha=shas[BASELINE],
            candidate_sha=shas[CANDIDATE],
            device=self._device,
            sandbox=str(self.host.sandbox.mode),
            summaries=tuple(evidence.judge()),
            pairs=evidence.pairs_measured,
            fresh_pairs=evidence.fresh_measured,
            rejected_pairs=self._rejected,
            environment=self._documents[-1]["environment"],
            builds={letter: _describe(arm.build) for letter, arm in self._arms.items()},
            documents=tuple(self._documents),
            profiles=profiles,
            policy=policy,
            started_at=started_at,
            wall_s=time.monotonic() - self._started,
        )

    def _prepare(self, mirror: Mirror, shas: dict[str, str], evidence: Evidence) -> None:
        """Check out and build both arms, the candidate first: its failure ends the comparison."""
        self.progress.stage("checkout")
        mirror.fetch()
        for letter in (CANDIDATE, BASELINE):
            self._attempt(letter, evidence, partial(self._prepare_arm, mirror, letter, shas[letter]))

    def _prepare_arm(self, mirror: Mirror, letter: str, sha: str) -> None:
        checkout: Checkout = mirror.check_out(sha)
        self.progress.stage("build", sha[:10])
        result = build(checkout, self._device, self.host)
        verb = "was built before" if result.reused else f"built in {result.elapsed_s:.1f} s"
        self.progress.log(f"{sha[:10]} {verb}")
        self._arms[letter] = Arm(letter, checkout, result)

    def _check_numerics(self, evidence: Evidence) -> None:
        """Check the numbers of both arms; those of a commit that is compared with itself once."""
        self.progress.stage("numerics")
        same = BASELINE in self._arms and self._arms[BASELINE].checkout.sha == self._arms[CANDIDATE].checkout.sha
        checks = {CANDIDATE: (CANDIDATE, BASELINE)} if same else {CANDIDATE: (CANDIDATE,), BASELINE: (BASELINE,)}
        for letter, meant in checks.items():
            if letter in self._arms:
                self._attempt(letter, evidence, partial(self._check_arm, letter, meant, evidence))

    def _check_arm(self, letter: str, meant: tuple[str, ...], evidence: Evidence) -> None:
        document = self._process(letter, "numerics", 0)
        for one in meant:
            evidence.add_numerics(one, document)

    def _measure_pairs(self, evidence: Evidence) -> None:
        """Measure pairs until nothing is open, then fresh ones of the cases that changed, as long as there is time."""
        with Canary(self._device, self.host) as canary:
            self.progress.stage("pairs")
            while evidence.needs_pairs() and not self._out_of_time():
                self._measure_pair(evidence, canary, "pair", ())
                self.progress.pair(evidence.pairs_measured, evidence.budget, self._rejected)
            if evidence.to_confirm():
                self.progress.stage("confirm")
            while (names := evidence.to_confirm()) and not self._out_of_time():
                self._measure_pair(evidence, canary, "confirm", names)

    def _measure_pair(self, evidence: Evidence, canary: Canary, purpose: str, only: tuple[str, ...]) -> None:
        index, order = evidence.next_pair()
        documents: dict[str, Document] = {}
        canaries: dict[str, Document] = {}
        for letter in order:
            canaries[letter] = self._keep(canary.measure(letter), "canary", index)
            self._attempt(letter, evidence, partial(self._measure_arm, letter, (purpose, index, only), documents))
            if evidence.baseline_error is not None:
                return
        add = evidence.add_pair if purpose == "pair" else evidence.add_fresh
        add(index, order, documents[BASELINE], documents[CANDIDATE], canaries)
        admitted = evidence.last_admissions()
        rejected = sum(not value for value in admitted.values()) > len(admitted) / 2
        self._rejected_in_a_row = self._rejected_in_a_row + 1 if rejected else 0
        self._rejected += rejected
        if rejected:
            time.sleep(min(self._options.rest_s * self._rejected_in_a_row, 15.0))

    def _profile(self, evidence: Evidence) -> dict[str, dict[str, Any]]:
        """Profile both arms, if there is time left: the outcome by letter, whatever it is."""
        profiles: dict[str, dict[str, Any]] = {}
        if not self._options.profile or self._out_of_time():
            return profiles
        self.progress.stage("profile")
        for letter in (BASELINE, CANDIDATE):
            if letter in self._arms and not (letter == BASELINE and evidence.baseline_error is not None):
                spec = ProcessSpec(self._arms[letter], "profile", self._options.cases, self._device)
                result = profile_arm(spec, self.host)
                profiles[letter] = result.to_dict()
                if result.status == "failed":
                    sha = self._arms[letter].checkout.sha[:10]
                    self.progress.log(f"{sha} has no profile of its kernels: {result.reason}")
        return profiles

    def _measure_arm(self, letter: str, what: tuple[str, int, tuple[str, ...]], documents: dict[str, Document]) -> None:
        documents[letter] = self._process(letter, *what)

    def _out_of_time(self) -> bool:
        """Say whether another pair would overrun the time budget, judged by the last one and its canaries."""
        budget_s = self._options.time_budget_s
        if budget_s is None:
            return False
        pair_s = sum(float(document["wall_s"]) for document in self._documents[-4:])
        return time.monotonic() - self._started + pair_s > budget_s

    def _process(self, letter: str, purpose: str, index: int, only: tuple[str, ...] = ()) -> Document:
        spec = ProcessSpec(self._arms[letter], purpose, self._options.cases, self._device, only)
        return self._keep(run_process(spec, self.host), purpose, index)

    def _keep(self, result: ProcessResult, purpose: str, index: int) -> Document:
        document = result.document.model_dump(mode="json")
        self._documents.append({**document, "purpose": purpose, "pair": index, "wall_s": result.wall_s})
        return result.document

    def _attempt(self, letter: str, evidence: Evidence, work: Callable[[], object]) -> None:
        """Do something with an arm; a failure of the baseline is evidence, one of the candidate ends the comparison."""
        try:
            work()
        except JobError as error:
            if letter == CANDIDATE or error.kind is not Kind.PERMANENT:
                raise
            self.progress.log(f"the baseline cannot be used: {error.message}\n{error.log_tail}".strip())
            evidence.fail_baseline(error)


def _describe(result: BuildResult) -> dict[str, Any]:
    return {"key": result.key, "elapsed_s": result.elapsed_s, "reused": result.reused, "report": result.report}
