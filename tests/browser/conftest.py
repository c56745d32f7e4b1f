"""The real application on a seeded SQLite database, and one headless Chromium to look at it with."""

from __future__ import annotations

import math
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, sync_playwright
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.db import Database
from service.embedded import command, die_with_parent, end, free_port, prepare_database, wait_until_healthy
from service.models import (
    Alert,
    AlertCase,
    AlertEvent,
    ArmRun,
    Case,
    ChangePoint,
    Commit,
    Device,
    DriftNotice,
    HistoryRequest,
    Job,
    JobEvent,
    KernelProfile,
    Measurement,
    Point,
    Repository,
    SampleBlock,
    Series,
    State,
    Verdict,
    Worker,
    utc_now,
)
from service.settings import Settings

CASES = (
    "cpu/forward/self/24x48/c16h1",
    "cpu/backward/self/<b>24x48</b>&amp;/c16h1",
    "cpu/forward/up/12x24-24x48/c16h1",
)
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>not bold</b> & </script> '\"`"
COMMITS, PAIRS, SAMPLES = 20, 12, 15
STEP, THROTTLED, SPARSE = 15, 9, 5  # positions in the history of what the first case shows there
ENVIRONMENT = {"python": "3.11.2", "torch": "2.13.0", "cpu_model": "AMD EPYC 9654", "gpu_name": None}
CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Site:
    """Where the application listens, its database, what was put there, and ways to add to it as a worker would."""

    url: str
    database: Database
    folder: Path
    server: subprocess.Popen[bytes] | None = None
    hostile = HOSTILE
    case_names = CASES
    pairs, samples = PAIRS, SAMPLES
    commits: list[Commit] = field(default_factory=list)
    series: dict[str, UUID] = field(default_factory=dict)
    cases: dict[str, UUID] = field(default_factory=dict)
    jobs: dict[str, UUID] = field(default_factory=dict)
    alert_id: UUID | None = None
    measurements: dict[str, UUID] = field(default_factory=dict)

    @property
    def throttled(self) -> str:
        """The commit where the first case was throttled."""
        return self.commits[THROTTLED].sha

    @property
    def sparse(self) -> str:
        """The commit where the first case had too few processes."""
        return self.commits[SPARSE].sha

    def start_server(self) -> None:
        """Start the application and wait until it answers."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("S2BENCH_")}
        port, log_path = self.url.rsplit(":", 1)[1], self.folder / "api.log"
        with log_path.open("ab") as log:
            arguments = command("api", "--port", port, "--data-dir", str(self.folder))
            self.server = subprocess.Popen(
                arguments, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent
            )
        wait_until_healthy(self.url, self.server, log_path)

    def stop_server(self) -> None:
        """End the application."""
        if self.server is not None:
            end(self.server)

    def write(self, work: Callable[[Session], object]) -> None:
        """Do `work` in a transaction."""
        with self.database.transaction() as session:
            work(session)

    def tell(self, name: str, kind: str, payload: dict[str, Any], **changes: Any) -> None:
        """Add an event to a measurement (and the processes of the pair it tells of), and change its row."""

        def work(session: Session) -> None:
            measurement = session.get_one(Measurement, self.measurements[name])
            for column, value in changes.items():
                setattr(measurement, column, value)
            if "state" in changes:
                session.get_one(Job, measurement.job_id).state = changes["state"]
            if kind == "pair":
                add_pair(session, self, measurement.id, payload["pair"], measurement.stage)
            add_event(session, measurement, kind, payload)

        self.write(work)

    def finish(self, name: str) -> None:
        """End a measurement and its job with one verdict: the first case regressed."""

        def work(session: Session) -> None:
            measurement = session.get_one(Measurement, self.measurements[name])
            job = session.get_one(Job, measurement.job_id)
            numbers = {"before": 2.0, "after": 2.2, "effect": 0.1, "interval_low": 0.09, "interval_high": 0.11}
            evidence = {"unit": "ms", "reasons": [], "evidence": {}, "pairs_used": 8, "pairs_rejected": 1}
            keys = {"measurement_id": measurement.id, "case_id": self.cases[CASES[0]]}
            session.add(Verdict(**keys, **numbers, **evidence, verdict="regressed", judged_at=utc_now()))
            measurement.state = job.state = State.DONE
            measurement.stage, measurement.finished_at, job.finished_at = None, utc_now(), utc_now()
            session.add(JobEvent(job_id=job.id, measurement_id=None, kind="end", payload={"state": "done"}))

        self.write(work)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    settings = Settings(data_dir=folder, database_url=f"sqlite:///{folder}/s2bench.db")
    prepare_database(settings)
    found = Site(f"http://127.0.0.1:{free_port()}", Database(settings.database_url), folder)
    found.write(lambda session: Seed(session, found).everything())
    try:
        found.start_server()
        yield found
    finally:
        found.stop_server()
        found.database.dispose()


# not for the session: while it is open, Playwright's event loop runs in this thread, and other tests could start none
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    executable = os.environ.get("S2BENCH_CHROMIUM") or shutil.which("chromium")
    assert executable, "Chromium is needed: apt-get install chromium, or name a binary in S2BENCH_CHROMIUM"
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=executable,
            args=CHROMIUM_ARGUMENTS,
            viewport={"width": 1280, "height": 860},
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(15_000)
        yield context
        context.close()


@pytest.fixture
def complaints() -> list[str]:
    """What a page may not have: errors and warnings on the console, exceptions, failed requests. Empty at the end."""
    return []


@pytest.fixture
def page(browser: BrowserContext, complaints: list[str]) -> Iterator[Page]:
    page = browser.new_page()
    page.set_viewport_size({"width": 1280, "height": 860})

    def listen(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            complaints.append(f"console: {message.text}")

    page.on("console", listen)
    page.on("pageerror", lambda error: complaints.append(f"exception: {error}"))
    page.on("response", lambda answer: answer.status < 400 or complaints.append(f"{answer.status}: {answer.url}"))
    yield page
    page.close()
    assert complaints == []


@pytest.fixture
def answer(site: Site) -> Callable[[str], Any]:
    """Ask the API what a page should show."""
    return lambda path: httpx2.get(f"{site.url}/api/v1{path}").raise_for_status().json()


class Seed:
    """Writes a history: a step at one commit, throttled and sparse ones, a failed job, a queued one, one at work."""

    def __init__(self, session: Session, site: Site) -> None:
        self.session = session
        self.site = site
        self.random = random.Random(20)
        self.start = utc_now() - timedelta(days=COMMITS)

    def add(self, row: Any) -> Any:
        self.session.add(row)
        self.session.flush()
        return row

    def everything(self) -> None:
        url = "https://git.invalid/s2bench.git"  # remote and never fetched: SHAs are taken as they are
        self.repository = self.add(Repository(name="s2bench", url=url, default_branch="main"))
        info: dict[str, Any] = {"device_class": "cpu", "name": "AMD EPYC 9654", "status": "busy", "info": {}}
        worker = Worker(executor_id="laptop-cpu", host="laptop", pid=1, version="0.1.0", sandbox="bubblewrap")
        worker.heartbeat_at = utc_now() - timedelta(hours=1)  # so that nothing serves the queued job
        self.device = self.add(Device(worker_id=self.add(worker).id, uuid="cpu-0", **info))
        for position in range(COMMITS):
            self.site.commits.append(self.add(self.commit(position)))
        for number, name in enumerate(CASES):
            case = self.add(Case(name=name, version=f"{number + 1:016x}", group="cpu", definition={}))
            keys = {"repository_id": self.repository.id, "case_id": case.id, "device_class": "cpu"}
            self.site.cases[name] = case.id
            self.site.series[name] = self.add(Series(**keys, metric="time", unit="ms", backend="cpu")).id
        for position in range(1, COMMITS):
            self.measured(position)
        self.failed_job()
        self.site.jobs["queued"] = self.job(COMMITS - 1, State.QUEUED, minutes_ago=2)[0].id
        self.live_job()
        self.alert(CASES[1])
        self.said()

    def commit(self, position: int) -> Commit:
        subjects = ("csrc: gather dk and dv by key owner", "geometry: build arcs once", "tests: wrap arcs at the pole")
        return Commit(
            repository_id=self.repository.id,
            sha=f"{self.random.getrandbits(160):040x}",
            author="Ada <b>Lovelace</b>",
            subject=HOSTILE if position == COMMITS - 1 else subjects[position % 3],
            committed_at=self.start + timedelta(days=position),
        )

    def job(self, position: int, state: State, *, minutes_ago: float) -> tuple[Job, Measurement]:
        commits, created = self.site.commits, utc_now() - timedelta(minutes=minutes_ago)
        ended = created + timedelta(seconds=95) if state in {State.DONE, State.FAILED} else None
        job = Job(
            repository_id=self.repository.id,
            requested_commit="main",
            requested_baseline="auto",
            commit_sha=commits[position].sha,
            baseline_sha=commits[position - 1].sha,
            devices=["cpu"],
            cases="cpu/*",
            policy={"max_pairs": PAIRS},
            state=state,
            body_sha256="0" * 64,
            created_at=created,
            finished_at=ended,
        )
        self.add(job)
        taken = state is not State.QUEUED
        measurement = Measurement(
            job_id=job.id,
            device_class="cpu",
            state=state,
            candidate_id=commits[position].id if taken else None,
            baseline_id=commits[position - 1].id if taken else None,
            worker_id=self.device.worker_id if taken else None,
            device_id=self.device.id if taken else None,
            sandbox="bubblewrap" if taken else None,
            started_at=created if taken else None,
            finished_at=ended,
        )
        return job, self.add(measurement)

    def measured(self, position: int) -> None:
        job, measurement = self.job(position, State.DONE, minutes_ago=1440 * (COMMITS - position))
        self.stages(measurement, "checkout", "build", "numerics", "pairs", "judge")
        is_last = position == COMMITS - 1
        if is_last:
            self.site.jobs["done"], self.site.measurements["done"] = job.id, measurement.id
            for index in range(PAIRS):
                add_pair(self.session, self.site, measurement.id, index)
            self.profiled(measurement)
        for number, name in enumerate(CASES):
            self.judged(measurement, name, 2.0 + number, position)
        self.session.add(JobEvent(job_id=job.id, measurement_id=None, kind="end", payload={"state": "done"}))

    def profiled(self, measurement: Measurement) -> None:
        """Add the kernels of both commits: one slower, one new, one gone, one with markup in its name."""
        keys = {"measurement_id": measurement.id, "attempt": 1, "status": "done", "wall_s": 2.0}
        for arm, commit_id in (("A", measurement.baseline_id), ("B", measurement.candidate_id)):
            after = arm == "B"
            gather = kernel("void s2attn::gather<float, 64>(Problem)", 2.2 if after else 2.0, 0.8)
            gather |= {"registers": 96 if after else 72, "spill_load_bytes": 48 if after else 0, "sass_bytes": 18432}
            gather |= {"spill_store_bytes": 32 if after else 0, "counters": {"dram_bytes": 123456789.0}}
            gather |= {"occupancy": 0.3125 if after else 0.4375, "occupancy_limit": "registers"}
            other = kernel("void s2attn::combine(float*)" if after else "void s2attn::fill(float*)", 0.1, 0.04)
            cases = [
                {"name": CASES[0], "kernels": [gather, other, kernel("Memset (Device)", 0.01, 0.004, kind="memset")]},
                {"name": CASES[1], "kernels": [kernel("void scatter<b>(float const*)", 3.0, 1.0, calls=2.0)]},
            ]
            counters = {"cases": 1, "reason": "the time for counters was used up after 1 cases"}
            document = {"source": "kernel records of the profiler", "calls": 10, "counters": counters, "cases": cases}
            self.add(KernelProfile(**keys, arm=arm, commit_id=commit_id, document=document))

    def judged(self, measurement: Measurement, name: str, level: float, position: int) -> None:
        first = name == CASES[0]
        status = {THROTTLED: "throttled", SPARSE: "sparse"}.get(position, "ok") if first else "ok"
        effect = 0.1 if first and position in {STEP, COMMITS - 1} else self.random.gauss(0, 0.001)
        verdict = "regressed" if effect > 0.05 else "throttled" if status == "throttled" else "unchanged"
        value = level * (1.1 if first and position >= STEP else 1) * (1 + self.random.gauss(0, 0.003))
        value *= 1.2 if status == "throttled" else 1
        unknown = verdict == "throttled"
        pairs = [admission(index) for index in range(PAIRS)]
        self.session.add(
            Verdict(
                measurement_id=measurement.id,
                case_id=self.site.cases[name],
                verdict=verdict,
                reasons=[{"code": "too_few_admitted", "detail": "5 of 12 pairs could be admitted"}] if unknown else [],
                unit="ms",
                before=value / (1 + effect),
                after=value,
                effect=None if unknown else effect,
                interval_low=None if unknown else effect - 0.003,
                interval_high=None if unknown else effect + 0.003,
                minimum_detectable_effect=0.004,
                pairs_used=PAIRS - 1,
                pairs_rejected=1,
                numerics={"candidate_error": 2e-7, "baseline_error": 2e-7, "tolerance": 1e-5, "status": "ok"},
                evidence={"pairs": pairs},
                judged_at=utc_now(),
            )
        )
        keys = {"series_id": self.site.series[name], "measurement_id": measurement.id}
        numbers = {"value": value, "low": value * 0.995, "high": value * 1.005, "processes": PAIRS - 1}
        self.session.add(Point(**keys, **numbers, commit_id=measurement.candidate_id, arm="B", status=status))

    def alert(self, name: str) -> None:
        """An open alert about the last commit's step, with the hostile text wherever a person may write."""
        job = self.session.get_one(Job, self.site.jobs["done"])
        verdict = self.session.query(Verdict).filter(Verdict.case_id == self.site.cases[name]).first()
        assert verdict is not None
        assert job.baseline_sha is not None
        assert job.commit_sha is not None
        alert = self.add(
            Alert(
                repository_id=job.repository_id,
                cause="speed cpu.forward a..b",
                kind="speed",
                group="cpu.forward",
                base_sha=job.baseline_sha,
                head_sha=job.commit_sha,
                reason=HOSTILE,
                assignee=HOSTILE,
            )
        )
        self.add(
            AlertCase(
                alert_id=alert.id,
                case_id=verdict.case_id,
                device_class="cpu",
                verdict_id=verdict.id,
                effect=0.1,
                interval_low=0.097,
                interval_high=0.103,
            )
        )
        self.add(AlertEvent(alert_id=alert.id, kind="opened", actor=HOSTILE, job_id=job.id, payload={}))
        self.site.alert_id = alert.id

    def said(self) -> None:
        """What the history of the first case says: one change of each kind, one taken back, drift; and a job is out."""
        keys = {"series_id": self.site.series[CASES[0]], "device": "cpu-0"}
        commits, done = self.site.commits, self.site.jobs["done"]
        shown = {"interval_low": 0.097, "interval_high": 0.103, "job_id": done}
        for position, low, status, effect, more in (
            (STEP, STEP - 1, "confirmed", 0.1, shown),
            (11, 7, "unconfirmed", -0.03, {}),
            (4, 3, "surroundings", 0.02, {}),
            (13, 12, "confirmed", 0.5, {"withdrawn_at": utc_now()}),
        ):
            ends = {"commit_id": commits[position].id, "low_commit_id": commits[low].id}
            what = {"status": status, "effect": effect, "named": status == "confirmed", "raised_at": position + 1}
            self.add(ChangePoint(**keys, **ends, **what, position=position, low=low, **more))
        ends = {"since_commit_id": commits[6].id, "commit_id": commits[18].id}
        self.add(DriftNotice(**keys, **ends, since=6, position=18, effect=0.023))
        asked = {"candidate": 17, "baseline": 16, "cause_id": commits[17].id, "wave": 0, "level": 0.001, "left": 0.005}
        measurement_id = self.site.measurements["done"]
        job_id = self.site.jobs["queued"]
        self.add(HistoryRequest(series_id=keys["series_id"], job_id=job_id, raised_by=measurement_id, **asked))

    def stages(self, measurement: Measurement, *names: str) -> None:
        for number, name in enumerate(names):
            at = (measurement.started_at or utc_now()) + timedelta(seconds=3 + 17 * number)
            add_event(self.session, measurement, "stage", {"state": "measuring", "stage": name, "detail": ""}, at)

    def failed_job(self) -> None:
        error = {
            "code": "build_failed",
            "stage": "build",
            "message": "the kernels of 1f0c2a9 do not compile",
            "log_tail": "csrc/cpu/backward.cpp:88:14: error: expected ';' before '}' token\n<b>1 error</b>",
        }
        job, measurement = self.job(COMMITS - 2, State.FAILED, minutes_ago=30)
        self.stages(measurement, "checkout", "build")
        job.error = measurement.error = error
        measurement.stage = "build"
        self.site.jobs["failed"] = job.id

    def live_job(self) -> None:
        job, measurement = self.job(COMMITS - 1, State.PREPARING, minutes_ago=0.3)
        measurement.stage = "build"
        self.stages(measurement, "checkout", "build")
        self.site.jobs["live"], self.site.measurements["live"] = job.id, measurement.id


def kernel(name: str, time_ms: float, share: float, *, kind: str = "kernel", calls: float = 1.0) -> dict[str, Any]:
    """Return an entry of a profile."""
    return {"name": name, "kind": kind, "calls": calls, "time_ms": time_ms, "share": share}


def admission(index: int) -> dict[str, Any]:
    """Return what the evidence of a verdict says of a pair: the fourth was rejected."""
    return {"index": index, "admitted": index != 3, "reasons": ["steal_time"] if index == 3 else []}


def add_event(
    session: Session, measurement: Measurement, kind: str, payload: dict[str, Any], at: datetime | None = None
) -> None:
    """Add an event of a measurement's job."""
    ids = {"id": uuid7(), "job_id": measurement.job_id, "measurement_id": measurement.id}
    session.add(JobEvent(**ids, kind=kind, payload=payload, created_at=at or utc_now()))


def add_pair(session: Session, site: Site, measurement_id: UUID, index: int, stage: str | None = None) -> None:
    """Add the two processes of a pair with their samples; the candidate is 10 % slower on the first case.

    In the stage `confirm` a pair is a fresh one of the first case, with a canary before each process.
    """
    order = "BA" if index % 2 else "AB"
    cases = dict([next(iter(site.cases.items()))]) if stage == "confirm" else site.cases
    runs = [("confirm", cases), ("canary", {"canary/cpu/gemm": canary_id(session)})] if stage == "confirm" else []
    for purpose, measured in runs or [("pair", cases)]:
        add_processes(session, site, measurement_id, (purpose, index, order), measured)


def canary_id(session: Session) -> UUID:
    """Add the case of a canary."""
    case = Case(name="canary/cpu/gemm", version="c1", group="canary", definition={})
    session.add(case)
    session.flush()
    return case.id


def add_processes(
    session: Session, site: Site, measurement_id: UUID, what: tuple[str, int, str], cases: dict[str, UUID]
) -> None:
    """Add one process per arm with its samples."""
    purpose, index, order = what
    generator = random.Random(index)
    for arm in order:
        run = ArmRun(
            measurement_id=measurement_id,
            attempt=1,
            purpose=purpose,
            pair_index=index,
            arm=arm,
            order=order,
            commit_id=site.commits[-1 if arm == "B" else -2].id,
            protocol=1,
            document_sha256="0" * 64,
            document=b"",
            environment=ENVIRONMENT,
            wall_s=1.0,
            log="",
        )
        session.add(run)
        session.flush()
        for name, case_id in cases.items():
            level = 2.2 if arm == "B" and name == CASES[0] else 2.0
            samples = [level * math.exp(abs(generator.gauss(0, 0.01))) for _ in range(SAMPLES)]
            packed = struct.pack(f"<{SAMPLES}d", *samples)
            keys = {"arm_run_id": run.id, "case_id": case_id, "metric": "time", "unit": "ms"}
            session.add(SampleBlock(**keys, count=SAMPLES, samples=packed))
