"""Says which commit of a range did what, on this machine, with nothing but git, the interpreter and the libraries that
benchmarks need: the rounds of a worker's job without queue and database.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from service.stats.policy import JudgingPolicy
from service.worker.build import BuildResult, build, build_key
from service.worker.canary import Canary
from service.worker.checkout import Checkout, Mirror, resolve_in, validate_ref
from service.worker.comparison import ComparisonOptions, ProgressListener, Silence, held_device
from service.worker.devices import MeasuringDevice
from service.worker.document import Document
from service.worker.errors import JobError, Kind
from service.worker.host import Host
from service.worker.measure import Arm, ProcessSpec, run_process
from service.worker.stack_evidence import MAX_COMMITS, PROCESS_ARM, CaseStack, StackCommit, StackEvidence


@dataclass(frozen=True)
class StackResult:
    """The outcome: for every case the whole and each commit's part. `commits` begins with the baseline."""

    commits: tuple[StackCommit, ...]
    device: MeasuringDevice
    sandbox: str
    cases: tuple[CaseStack, ...]
    rounds: int
    rejected_rounds: int
    policy: JudgingPolicy
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        return {
            "format": "s2bench attribution 1",
            "commits": [{"sha": one.sha, "subject": one.subject} for one in self.commits],
            "device_class": self.device.device_class,
            "device": self.device.name,
            "device_uuid": self.device.uuid,
            "sandbox": self.sandbox,
            "rounds": self.rounds,
            "rejected_rounds": self.rejected_rounds,
            "policy": self.policy.to_dict(),
            "wall_s": self.wall_s,
            "rows": [one.summary.row.to_dict() for one in self.cases],
            "commit_rows": [row.to_dict() for one in self.cases for row in one.commits],
            "evidence": {one.summary.row.case: one.summary.evidence for one in self.cases},
        }


def parse_range(text: str) -> tuple[str, str]:
    """Return both ends of BASE..HEAD; HEAD may be left out."""
    base, dots, head = text.partition("..")
    if not dots or not base or ".." in head or head.startswith("."):
        message = f"range: expected BASE..HEAD, two revisions with two dots between them, got {text!r}"
        raise JobError("bad_range", message, stage="checkout")
    return validate_ref(base, "range"), validate_ref(head or "HEAD", "range")


def commits_of(mirror: Mirror, options: ComparisonOptions, text: str, most: int) -> tuple[str, ...]:
    """Return the SHAs of a range of the options' repository, the baseline first, brought into the mirror."""
    base, head = (resolve_in(options.repository.absolute(), end, "range") for end in parse_range(text))
    mirror.fetch()
    for sha in (base, head):
        mirror.resolve(sha, "range")
    return (base, *mirror.line(base, head, most))


def attribute_commits(text: str, options: ComparisonOptions, progress: ProgressListener | None = None) -> StackResult:
    """Build every commit of a range BASE..HEAD of first parents, measure them in rounds, and judge each of them.

    A commit that cannot be built or measured is reported and left out; its neighbors are compared across it. When
    nothing is left to measure, the failure of the newest commit is raised.
    """
    parse_range(text)
    listener = progress or Silence()
    with held_device(options, listener) as (host, device):
        mirror = Mirror(host.data_dir, str(options.repository.absolute()))
        shas = commits_of(mirror, options, text, MAX_COMMITS)
        return _StackRun(options, host, device, listener).attribute(mirror, shas)


class _StackRun:
    """One stack on its way."""

    def __init__(
        self, options: ComparisonOptions, host: Host, device: MeasuringDevice, progress: ProgressListener
    ) -> None:
        self._options = options
        self._host = host
        self._device = device
        self._progress = progress
        self._started = time.monotonic()
        self._checkouts: dict[int, Checkout] = {}
        self._builds: dict[int, BuildResult] = {}
        self._rejected = 0
        self._round_s = 0.0

    def attribute(self, mirror: Mirror, shas: tuple[str, ...]) -> StackResult:
        """Carry it out."""
        commits = tuple(StackCommit(sha, mirror.describe(sha).subject) for sha in shas)
        policy = JudgingPolicy.for_device(self._device.device_class).unconfirmed()
        policy = policy.with_budget(self._options.max_pairs or policy.looks[-1])
        evidence = StackEvidence(self._device, policy, commits)
        self._prepare(mirror, commits, evidence)
        self._progress.stage("numerics")
        for position in evidence.arms:
            self._attempt(position, evidence, partial(self._check, position, evidence))
        if not evidence.arms and evidence.last_error is not None:
            raise evidence.last_error
        self._measure_rounds(evidence)
        self._progress.stage("judge")
        return StackResult(
            commits=commits,
            device=self._device,
            sandbox=str(self._host.sandbox.mode),
            cases=tuple(evidence.judge()),
            rounds=evidence.rounds_measured,
            rejected_rounds=self._rejected,
            policy=policy,
            wall_s=time.monotonic() - self._started,
        )

    def _prepare(self, mirror: Mirror, commits: tuple[StackCommit, ...], evidence: StackEvidence) -> None:
        """Check out every commit and build those that are measured."""
        self._progress.stage("checkout")
        for position, commit in enumerate(commits):
            self._attempt(position, evidence, partial(self._check_out, mirror, position, commit.sha))
        evidence.share_builds({at: build_key(one, self._device) for at, one in self._checkouts.items()})
        for position in evidence.arms:
            self._attempt(position, evidence, partial(self._build, position))

    def _check_out(self, mirror: Mirror, position: int, sha: str) -> None:
        self._checkouts[position] = mirror.check_out(sha)

    def _build(self, position: int) -> None:
        checkout = self._checkouts[position]
        self._progress.stage("build", checkout.sha[:10])
        self._builds[position] = result = build(checkout, self._device, self._host)
        verb = "was built before" if result.reused else f"built in {result.elapsed_s:.1f} s"
        self._progress.log(f"{checkout.sha[:10]} {verb}")

    def _check(self, position: int, evidence: StackEvidence) -> None:
        evidence.add_numerics(position, self._process(position, "numerics"))

    def _measure_rounds(self, evidence: StackEvidence) -> None:
        self._progress.stage("rounds")
        rejected_in_a_row = 0
        with Canary(self._device, self._host) as canary:
            while evidence.needs_rounds() and not self._out_of_time():
                started = time.monotonic()
                if self._measure_round(evidence, canary):
                    self._round_s = time.monotonic() - started
                    rejected_in_a_row = self._after_round(evidence, rejected_in_a_row)

    def _measure_round(self, evidence: StackEvidence, canary: Canary) -> bool:
        """Measure every commit once, canaries before each; False where one failed: the next round goes without it."""
        order = evidence.next_order()
        documents: dict[int, Document] = {}
        canaries: dict[int, Document] = {}
        for position in order:
            canaries[position] = canary.measure(PROCESS_ARM).document
            if not self._attempt(position, evidence, partial(self._measure, position, documents)):
                return False
        evidence.add_round(evidence.rounds_measured, order, documents, canaries)
        return True

    def _after_round(self, evidence: StackEvidence, rejected_in_a_row: int) -> int:
        """Show progress, and leave the device alone for a while after a round that most cases rejected."""
        admitted = evidence.last_admissions()
        rejected = sum(not value for value in admitted.values()) > len(admitted) / 2
        self._rejected += rejected
        self._progress.pair(evidence.rounds_measured, evidence.budget, self._rejected)
        if not rejected:
            return 0
        time.sleep(min(self._options.rest_s * (rejected_in_a_row + 1), 15.0))
        return rejected_in_a_row + 1

    def _measure(self, position: int, documents: dict[int, Document]) -> None:
        documents[position] = self._process(position, "round")

    def _out_of_time(self) -> bool:
        """Say whether another round would overrun the time budget; the first one is always taken."""
        budget_s = self._options.time_budget_s
        if budget_s is None or not self._round_s:
            return False
        return time.monotonic() - self._started + self._round_s > budget_s

    def _process(self, position: int, purpose: str) -> Document:
        arm = Arm(PROCESS_ARM, self._checkouts[position], self._builds[position])
        spec = ProcessSpec(arm, purpose, self._options.cases, self._device)
        return run_process(spec, self._host).document

    def _attempt(self, position: int, evidence: StackEvidence, work: Callable[[], object]) -> bool:
        """Do something with a commit; a failure that is its own doing is noted, and False returned."""
        try:
            work()
        except JobError as error:
            if error.kind is not Kind.PERMANENT:
                raise
            self._progress.log(f"{error.message}: it is left out\n{error.log_tail}".strip())
            evidence.fail(position, error)
            return False
        return True
