"""Takes one measurement from its checkout to its verdicts, in steps that may be repeated.

    checkout -> build -> numerics -> pairs (judged after each, until every case is decided)
             -> confirm (fresh pairs of the cases that changed) -> profile -> verdicts

What the next step is follows from what is stored, never from memory alone: a worker that died is followed by one that
finds finished builds on disk and finished processes in the database, and goes on at the next pair. The engine sees
every step under one name, so that a step it has on record is skipped whatever this code looks like by then.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.alerts.raising import update_alerts
from service.engine import StepRunner, WorkerStopping, enqueue_measurements
from service.history.feeding import feed
from service.logs import logger
from service.models import Job, Measurement, State
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES
from service.worker.access import Access, anonymous
from service.worker.build import BuildResult, build, build_key
from service.worker.canary import Canaries
from service.worker.checkout import Checkout, CommitInfo, Mirror
from service.worker.devicepool import DevicePool
from service.worker.devices import MeasuringDevice, gpus
from service.worker.document import Document, Expected, read_document
from service.worker.errors import Canceled, JobError, Kind
from service.worker.evidence import CaseSummary, Evidence
from service.worker.host import Host
from service.worker.measure import Arm, ProcessResult, ProcessSpec, run_process
from service.worker.profile import ProfileResult, profile_arm
from service.worker.records import Assignment, Claimant, Records, add_event, end_in_transaction
from service.worker.storing import (
    ArmKey,
    Judged,
    RunKey,
    StoredRun,
    failed_build,
    load_runs,
    profiled_arms,
    save_build,
    save_profile,
    save_run,
    save_verdicts,
    usual_cases,
)

MAX_TRIES = 3
BASELINE, CANDIDATE = "A", "B"


@dataclass(frozen=True)
class Pace:
    """How often a worker looks for a cancel request, and how long it waits before trying again or after rejections."""

    cancel_poll_s: float = 1.0
    retry_s: float = 2.0
    rest_s: float = 1.0
    longest_rest_s: float = 15.0


@dataclass(frozen=True)
class Pipeline:
    """What every measurement of a worker shares; `runs` makes the work on a measurement, by the kind of its job."""

    records: Records
    host: Host
    devices: DevicePool
    device_ids: dict[str, UUID]
    stopping: threading.Event
    runs: Mapping[str, RunFactory]
    pace: Pace = field(default_factory=Pace)
    canaries: Canaries = field(default_factory=Canaries)
    access: Access = anonymous

    def run_measurement(self, measurement_id: UUID, step: StepRunner) -> None:
        """Carry a measurement to its end, or as far as this worker gets."""
        device_class = self.records.device_class(measurement_id)
        if device_class is None:
            return
        with self.devices.borrow(device_class) as device:
            claimant = Claimant(self.records.worker_id, self.device_ids[device.uuid], str(self.host.sandbox.mode))
            assignment = self.records.claim(measurement_id, claimant)
            if assignment is None:
                return
            log = logger.bind(measurement=str(measurement_id), commit=assignment.commit[:10], device=device.name)
            log.info("measurement_started", attempt=assignment.attempt)
            run = self.runs[assignment.kind](self, assignment, device)
            while not step("advance", run.advance)["done"]:
                pass
            log.info("measurement_ended")


RunFactory = Callable[[Pipeline, Assignment, MeasuringDevice], "MeasurementRun"]


class MeasurementRun:
    """One worker's work on one measurement."""

    def __init__(self, pipeline: Pipeline, assignment: Assignment, device: MeasuringDevice) -> None:
        self._records = pipeline.records
        self._host = pipeline.host
        self._devices = pipeline.devices
        self._pace = pipeline.pace
        self._stopping = pipeline.stopping
        self._assignment = assignment
        self._id = assignment.measurement_id
        self._device = device
        self._canary = pipeline.canaries.of(device, pipeline.host)
        self._mirror = Mirror(pipeline.host.data_dir, assignment.repository_url, pipeline.access)
        self._checkouts: dict[str, Checkout] = {}
        self._builds: dict[str, BuildResult] = {}
        self._commits: dict[str, UUID] = {}
        self._evidence: Evidence | None = None
        self._profiled = False
        self._cancel = CancelCheck(pipeline, assignment.job_id, self._gives_up)
        self._tries: dict[str, int] = {}
        self._rejected_in_a_row = 0

    def advance(self) -> dict[str, Any]:
        """Do the next step and say whether the measurement has ended."""
        name, work = self._next()
        try:
            self._cancel.raise_if_asked()
            return {"step": name, "done": work()}
        except Canceled:
            self._records.finish(self._id, State.CANCELED)
        except JobError as error:
            if self._try_again(name, error):
                return {"step": name, "done": False, "error": error.code}
            self._fail(error)
        except Exception as error:
            logger.exception("measurement_broke", measurement=str(self._id), step=name)
            message = f"{type(error).__name__}: {error}"
            self._fail(JobError("internal_error", message, stage=name, log_tail=traceback.format_exc()))
        return {"step": name, "done": True}

    def _next(self) -> tuple[str, Callable[[], bool]]:
        if self._gives_way():
            measured = self._evidence is not None and self._evidence.pairs_measured > 0
            return ("judge", self._judge) if measured else ("give way", self._withdraw)
        if not self._checkouts:
            return "checkout", self._check_out
        if not self._builds:
            return "build", self._build
        if self._evidence is None:
            return "numerics", self._check_numerics
        if self._evidence.needs_pairs():
            return "pairs", self._measure_pair
        if self._evidence.to_confirm():
            return "confirm", self._measure_fresh_pair
        if not self._profiled and not self._is_calibration:
            return "profile", self._profile
        return "judge", self._judge

    # ---- a calibration is in nobody's way ----

    @property
    def _is_calibration(self) -> bool:
        """Whether a commit is measured against itself: what is found is the device's noise, and no change."""
        if self._commits:
            return self._commits[CANDIDATE] == self._commits.get(BASELINE)
        return self._assignment.commit == self._assignment.baseline

    def _gives_way(self) -> bool:
        """Say whether something more urgent waits: a calibration then ends with the pairs that it has.

        When that is has nothing to do with what the pairs say, so judging them early is no way to a false alarm.
        """
        if not self._is_calibration:
            return False
        classes = self._devices.held_up_by(self._device.device_class)
        return bool(self._records.is_in_the_way(self._assignment.job_id, classes))

    def _gives_up(self) -> bool:
        """Say whether to break off what is running: before the first pair there is nothing to keep."""
        return self._evidence is None and self._gives_way()

    def _withdraw(self) -> bool:
        self._records.log(self._id, "gave way to a more urgent job before the first pair")
        self._records.finish(self._id, State.CANCELED)
        return True

    # ---- steps: each returns whether the measurement has ended ----

    def _check_out(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "checkout")
        asked = self._assignment
        candidate = self._mirror.resolve(asked.commit, "commit")
        if asked.baseline == "auto":
            baseline = self._mirror.baseline_of(candidate, asked.default_branch)
        else:
            baseline = self._mirror.resolve(asked.baseline, "baseline")
        infos = [self._describe(sha) for sha in (candidate, baseline) if sha is not None]
        ids = self._records.save_commits(self._id, asked.repository_id, infos[0], infos[1] if len(infos) > 1 else None)
        standing = self._mirror.standing(asked.default_branch)
        if standing is not None:
            self._records.follow_refs(self._id, asked.repository_id, standing)
        checkouts = {CANDIDATE: self._mirror.check_out(candidate)}
        self._commits = {CANDIDATE: ids[0]}
        if baseline is None:
            error = JobError("no_parent", f"{candidate[:10]} has no parent to compare with", stage="checkout")
            self._give_up_baseline(error)
        elif self._records.is_orphaned(asked.repository_id, baseline):
            message = f"no branch, tag or pull request holds {baseline[:10]} any more"
            self._give_up_baseline(JobError("orphaned", message, stage="checkout"))
        elif ids[1] is not None:
            self._commits[BASELINE] = ids[1]
            self._try_baseline(lambda: self._check_out_into(checkouts, BASELINE, baseline))
        self._checkouts = checkouts
        return False

    def _describe(self, sha: str) -> CommitInfo:
        position = self._mirror.position_of(sha, self._assignment.default_branch)
        return replace(self._mirror.describe(sha), first_parent_position=position)

    def _check_out_into(self, checkouts: dict[str, Checkout], letter: str, sha: str) -> None:
        checkouts[letter] = self._mirror.check_out(sha)

    def _build(self) -> bool:
        self._records.enter(self._id, State.PREPARING, "build")
        builds = {CANDIDATE: self._build_arm(CANDIDATE)}
        if BASELINE in self._checkouts and not self._baseline_failure():
            self._try_baseline(lambda: builds.update({BASELINE: self._build_arm(BASELINE)}))
        self._builds = builds
        return False

    def _build_arm(self, letter: str) -> BuildResult:
        checkout = self._checkouts[letter]
        key = build_key(checkout, self._device)
        started = time.monotonic()
        try:
            result = build(checkout, self._device, self._host, self._cancel.stop)
        except JobError as error:
            if error.kind is Kind.PERMANENT:
                self._save_build(letter, failed_build(key, error, time.monotonic() - started))
            raise
        values = {"key": key, "status": "done", "elapsed_s": result.elapsed_s, "log": result.log}
        self._save_build(letter, values | {"resources": result.report.get("resources")})
        verb = "was built before" if result.reused else f"built in {result.elapsed_s:.1f} s"
        self._records.log(self._id, f"{checkout.sha[:10]} {verb}\n{result.log[-2000:]}".strip())
        return result

    def _save_build(self, letter: str, values: dict[str, Any]) -> None:
        commit_id = self._commits[letter]

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            save_build(session, commit_id, measurement.device_class, values)

        self._records.write(self._id, work)

    def _check_numerics(self) -> bool:
        self._records.enter(self._id, State.MEASURING, "numerics")
        evidence = self._stored_evidence()
        if not evidence.has_numerics(CANDIDATE):
            self._check_arm(CANDIDATE, evidence)
        if BASELINE in self._builds and not evidence.has_numerics(BASELINE) and self._baseline_failure() is None:
            self._try_baseline(lambda: self._check_arm(BASELINE, evidence))
        failure = self._baseline_failure()
        if failure is not None:
            evidence.fail_baseline(failure)
        self._evidence = evidence
        return False

    def _check_arm(self, letter: str, evidence: Evidence) -> None:
        result = run_process(self._spec(letter, "numerics"), self._host, self._cancel.stop)
        key = self._key("numerics", 0, "AB")
        self._records.write(self._id, lambda session, *_: self._save_runs(session, key, {letter: result}))
        evidence.add_numerics(letter, result.document)

    def _measure_pair(self) -> bool:
        self._records.enter(self._id, State.MEASURING, "pairs")
        self._measure("pair", ())
        return False

    def _measure_fresh_pair(self) -> bool:
        assert self._evidence is not None
        self._records.enter(self._id, State.MEASURING, "confirm")
        self._measure("confirm", self._evidence.to_confirm())
        return False

    def _measure(self, purpose: str, only: tuple[str, ...]) -> None:
        """Measure the next pair and store it; `only` names the cases of a pair that confirms changes."""
        evidence = self._evidence
        assert evidence is not None
        index, order = evidence.next_pair()
        results: dict[str, ProcessResult] = {}
        canaries: dict[str, ProcessResult] = {}
        for letter in order:
            canaries[letter] = self._canary.measure(letter)
            if letter == CANDIDATE:
                self._time_arm(letter, purpose, only, results)
            elif not self._try_baseline(partial(self._time_arm, BASELINE, purpose, only, results)):
                failure = self._baseline_failure()
                assert failure is not None
                evidence.fail_baseline(failure)
                return
        add = evidence.add_pair if purpose == "pair" else evidence.add_fresh
        watched = {letter: canary.document for letter, canary in canaries.items()}
        add(index, order, results[BASELINE].document, results[CANDIDATE].document, watched)
        admitted = evidence.last_admissions()
        self._save_pair(self._key(purpose, index, order), results, canaries, admitted)
        self._rest(admitted)

    def _time_arm(self, letter: str, purpose: str, only: tuple[str, ...], results: dict[str, ProcessResult]) -> None:
        spec = replace(self._spec(letter, purpose), only=only)
        results[letter] = run_process(spec, self._host, self._cancel.stop)

    def _profile(self) -> bool:
        """Profile each arm that was measured, once; what goes wrong is noted and stops nothing."""
        self._records.enter(self._id, State.MEASURING, "profile")
        attempt = self._assignment.attempt
        tried = self._records.run(lambda session: profiled_arms(session, self._id, attempt))
        usable = set(self._builds) - ({BASELINE} if self._baseline_failure() else set())
        for letter in sorted(usable - tried):
            result = profile_arm(self._spec(letter, "profile"), self._host, self._cancel.stop)
            self._save_profile(ArmKey(self._id, attempt, letter), result)
        self._profiled = True
        return False

    def _save_profile(self, key: ArmKey, result: ProfileResult) -> None:
        commit_id = self._commits[key.arm]
        self._records.write(self._id, lambda session, *_: save_profile(session, key, commit_id, result))
        if result.status != "done":
            sha = self._checkouts[key.arm].sha[:10]
            self._records.log(self._id, f"{sha} has no profile of its kernels: {result.reason}")

    def _judge(self) -> bool:
        evidence = self._evidence
        assert evidence is not None
        self._records.enter(self._id, State.JUDGING, "judge")
        summaries = evidence.judge()
        judged = Judged(
            self._id,
            self._assignment.repository_id,
            self._assignment.device_class,
            self._commits,
            self._device.gpu_uuid,
        )
        counts = dict(Counter(summary.row.verdict for summary in summaries))

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            save_verdicts(session, judged, summaries)
            if judged.is_calibration:
                tell_false_alarms(session, job, measurement, summaries)
            else:
                feed(session, enqueue_measurements, job, measurement)
                update_alerts(session, job, measurement)
            add_event(session, job, "verdict", {"verdicts": counts}, measurement)
            end_in_transaction(session, job, measurement)

        self._records.write(self._id, work)
        return True

    # ---- what the steps share ----

    def _spec(self, letter: str, purpose: str) -> ProcessSpec:
        arm = Arm(letter, self._checkouts[letter], self._builds[letter])
        return ProcessSpec(arm, purpose, self._assignment.cases, self._device)

    def _stored_evidence(self) -> Evidence:
        """Return the evidence that earlier owners of this attempt have stored."""
        policy = JudgingPolicy.for_device(self._assignment.device_class)
        policy = policy.at_level(float(self._assignment.policy.get("level", policy.told_alpha)))
        budget = int(self._assignment.policy.get("max_pairs", policy.looks[-1]))
        usual = self._records.run(lambda session: usual_cases(session, self._id, self._device.uuid))
        evidence = Evidence(self._device, policy.with_budget(max(2, budget)), usual)
        runs = self._stored_runs()
        stored: dict[tuple[str, int], dict[str, Document]] = {}
        for run in runs:
            mode = "only" if run.purpose == "numerics" else "skip"
            stage = {"pair": "pairs"}.get(run.purpose, run.purpose)
            document = read_document(run.raw, Expected(run.arm, None, self._device.kind, mode, stage))
            stored.setdefault((run.purpose, run.pair_index), {})[run.arm] = document
        for letter, document in stored.get(("numerics", 0), {}).items():
            evidence.add_numerics(letter, document)
        orders = {run.pair_index: run.order for run in runs}
        for purpose, add in (("pair", evidence.add_pair), ("confirm", evidence.add_fresh)):
            for index in sorted(index for kind, index in stored if kind == purpose):
                arms = stored[purpose, index]
                add(index, orders[index], arms[BASELINE], arms[CANDIDATE], stored.get(("canary", index)))
        return evidence

    def _stored_runs(self) -> list[StoredRun]:
        """Return the processes that earlier owners of this attempt have stored."""
        attempt = self._assignment.attempt
        return self._records.run(lambda session: load_runs(session, self._id, attempt))

    def _key(self, purpose: str, index: int, order: str) -> RunKey:
        return RunKey(self._id, self._assignment.attempt, purpose, index, order)

    def _save_pair(
        self,
        key: RunKey,
        results: dict[str, ProcessResult],
        canaries: dict[str, ProcessResult],
        admitted: dict[str, bool],
    ) -> None:
        """Store the processes of a pair and its canaries together, so that there are never parts of one."""
        told = {"pair": key.pair_index, "order": key.order, "admitted": admitted}

        def work(session: Session, job: Job, measurement: Measurement) -> None:
            self._save_runs(session, key, results)
            self._save_runs(session, replace(key, purpose="canary"), canaries)
            add_event(session, job, "pair", told, measurement)

        self._records.write(self._id, work)

    def _save_runs(self, session: Session, key: RunKey, results: dict[str, ProcessResult]) -> None:
        for letter, result in results.items():
            save_run(session, key, letter, self._commits[letter], result)

    def _baseline_failure(self) -> JobError | None:
        found = self._records.events(self._id, "baseline_failed")
        if not found:
            return None
        return JobError(found[0]["code"], found[0]["message"], stage=found[0]["stage"], log_tail=found[0]["log_tail"])

    def _try_baseline(self, work: Callable[[], object]) -> bool:
        """Do something with the baseline; its permanent failure makes cases incomparable, not the measurement fail."""
        try:
            work()
        except JobError as error:
            if error.kind is not Kind.PERMANENT:
                raise
            self._give_up_baseline(error)
            return False
        return True

    def _give_up_baseline(self, error: JobError) -> None:
        if self._baseline_failure() is None:
            self._records.event(self._id, "baseline_failed", error.to_dict())
            self._records.log(self._id, f"the baseline cannot be used: {error.message}\n{error.log_tail}".strip())

    def _rest(self, admitted: dict[str, bool]) -> None:
        """Leave the device alone for a while after a pair that most cases rejected."""
        rejected = sum(not value for value in admitted.values()) > len(admitted) / 2
        self._rejected_in_a_row = self._rejected_in_a_row + 1 if rejected else 0
        if rejected:
            self._sleep(min(self._pace.rest_s * self._rejected_in_a_row, self._pace.longest_rest_s))

    def _try_again(self, name: str, error: JobError) -> bool:
        if error.kind is not Kind.TRANSIENT:
            return False
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] > MAX_TRIES:
            return False
        self._records.log(self._id, f"{name}: {error.message}; trying again\n{error.log_tail}".strip())
        self._sleep(self._pace.retry_s * self._tries[name] ** 2)
        return True

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._stopping.wait(min(self._pace.cancel_poll_s, max(0.0, deadline - time.monotonic()))):
                raise WorkerStopping
            self._cancel.raise_if_asked()

    def _fail(self, error: JobError) -> None:
        if self._device.kind == "cuda" and self._device.uuid not in {gpu.uuid for gpu in gpus()}:
            reason = f"{self._device.name} is gone: {error.message}"
            self._devices.take_out(self._device, reason)
            error = JobError("device_unfit", reason, stage=error.stage, log_tail=error.log_tail, kind=Kind.DEVICE_UNFIT)
        self._records.finish(self._id, State.FAILED, error)


def tell_false_alarms(session: Session, job: Job, measurement: Measurement, found: Sequence[CaseSummary]) -> None:
    """Say aloud where identical code was called a change. It is counted with the calibrations and alerts nobody."""
    for row in (one.row for one in found if one.row.verdict in CHANGES):
        effect = "no effect" if row.effect is None else f"{row.effect:+.2%}"
        logger.warning("false_alarm", case=row.case, verdict=row.verdict, effect=effect, job=str(job.id))
        add_event(session, job, "log", {"text": f"FALSE ALARM: {row.case} {row.verdict}, {effect}"}, measurement)


class CancelCheck:
    """Answers, often and cheaply, whether a running child has to be ended; `gives_up` is a reason besides a cancel."""

    def __init__(self, pipeline: Pipeline, job_id: UUID, gives_up: Callable[[], bool]) -> None:
        self._pipeline = pipeline
        self._job_id = job_id
        self._gives_up = gives_up
        self._asked = False
        self._next_look = 0.0

    def stop(self) -> bool:
        """Return whether the job was canceled; raise WorkerStopping when the worker itself has to end."""
        if self._pipeline.stopping.is_set():
            raise WorkerStopping
        now = time.monotonic()
        if not self._asked and now >= self._next_look:
            self._next_look = now + self._pipeline.pace.cancel_poll_s
            self._asked = bool(self._pipeline.records.cancel_requested(self._job_id)) or self._gives_up()
        return self._asked

    def raise_if_asked(self) -> None:
        """Raise Canceled when the job was canceled."""
        if self.stop():
            raise Canceled("the job was canceled, or gave way")
