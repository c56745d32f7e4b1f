"""One worker and many planted commits, on SQLite and on PostgreSQL: each measurement ends as its commit deserves.

All measurements of a database are run once, by one supervisor; the tests look at what is left.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import func, select
from worker_fixtures import (
    BACKWARD_SELF,
    FORWARD_DOWN,
    FORWARD_SELF,
    FakeRepository,
    Jobs,
    RunningWorker,
    created_postgres_database,
    postgres_url,
    prepared,
    wait_until,
)

from service import engine
from service.db import Database
from service.models import (
    TERMINAL,
    ArmRun,
    Build,
    Case,
    Commit,
    Device,
    JobEvent,
    KernelProfile,
    Point,
    SampleBlock,
    Series,
    TelemetryBlock,
    Verdict,
    Worker,
)
from service.worker.devices import cpu

FAILING: dict[str, tuple[dict[str, Any], str, str]] = {
    "does not compile": ({"build": "fail"}, "build_failed", "build"),
    "build hangs": ({"build": "hang"}, "build_timeout", "build"),
    "crashes": ({"run": "crash"}, "benchmark_crashed", "numerics"),
    "crashes in pairs": ({"run": "crash", "only_pairs": True}, "benchmark_crashed", "pairs"),
    "hangs": ({"run": "hang"}, "benchmark_timeout", "numerics"),
    "garbage": ({"run": "garbage"}, "bad_document", "numerics"),
    "no document": ({"run": "no_document"}, "bad_document", "numerics"),
    "NaN": ({"run": "nan", "only_pairs": True}, "bad_samples", "pairs"),
    "inf": ({"run": "inf", "only_pairs": True}, "bad_samples", "pairs"),
    "zero": ({"run": "zero", "only_pairs": True}, "bad_samples", "pairs"),
    "negative": ({"run": "negative", "only_pairs": True}, "bad_samples", "pairs"),
}


@dataclass
class World:
    """A database in which everything has happened, and the names of the measurements in it."""

    database: Database
    jobs: Jobs
    repository: FakeRepository
    names: dict[str, UUID]

    def verdicts(self, name: str) -> dict[str, Verdict]:
        """Return a measurement's verdicts by case name."""
        query = select(Case.name, Verdict).join(Case, Case.id == Verdict.case_id)
        with self.database.reading() as session:
            rows = session.execute(query.where(Verdict.measurement_id == self.names[name])).all()
            return dict(rows)

    def count(self, model: Any, *conditions: Any) -> int:
        """Return the number of rows."""
        with self.database.reading() as session:
            return session.execute(select(func.count()).select_from(model).where(*conditions)).scalar_one()


def submit_all(jobs: Jobs, repository: FakeRepository) -> dict[str, UUID]:
    """Commit every behavior on a branch of its own, next to the same baseline, and queue it."""
    repository.commit("root")
    base = repository.commit("base")
    names: dict[str, UUID] = {}

    def branch(name: str, **behavior: Any) -> str:
        repository.git("switch", "--quiet", "--create", name.replace(" ", "-"), base)
        return repository.commit(name, **behavior)

    slow = branch("slow", speed={FORWARD_SELF: 1.1}, wrong_cases=[FORWARD_DOWN])
    names["slow"] = jobs.submit(slow)
    names["same"] = jobs.submit(branch("same"), max_pairs=8)
    names["selected"] = jobs.submit(slow, cases="cpu/forward/*", max_pairs=2)
    names["no such case"] = jobs.submit(slow, cases="gpu/*")
    names["branch name"] = jobs.submit("slow", base[:8], cases=BACKWARD_SELF, max_pairs=2)
    for name, (behavior, _, _) in FAILING.items():
        names[name] = jobs.submit(branch(name, **behavior))
    names["on a broken baseline"] = jobs.submit(branch("fine"), "does-not-compile")
    names["on a crashing baseline"] = jobs.submit("fine", "crashes-in-pairs")
    names["root"] = jobs.submit("main~1")
    names["unknown"] = jobs.submit("no-such-branch")
    names["unknown baseline"] = jobs.submit("fine", "no-such-branch")
    others = branch("other cases", cases=[FORWARD_SELF, "cpu/new"], broken_cases=["cpu/new"])
    names["other cases"] = jobs.submit(others, max_pairs=2)
    once = {"cases": FORWARD_SELF, "max_pairs": 2}
    profiled = branch("profiled", profile={"gather": 1.5, "fill": 0.25})
    names["profiled"] = jobs.submit(branch("profiled again", profile={"gather": 1.2}), profiled, **once)
    for what in ("crash", "hang", "garbage"):
        names[f"profile: {what}"] = jobs.submit(branch(f"profile {what}", profile=what), base, **once)
    names["busy"] = jobs.submit(branch("busy", steal=0.4), max_pairs=4)
    repository.git("switch", "--quiet", "--orphan", "empty")
    (repository.path / "README").write_text("no benchmarks here")
    names["no s2attn"] = jobs.submit(repository.commit_files("empty"), base)
    return names


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    remove = None
    if request.param == "sqlite":
        url = f"sqlite:///{folder / 's2bench.db'}"
    else:
        url, remove = created_postgres_database(postgres_url())
    database = Database(prepared(url))
    repository = FakeRepository(folder / "repository")
    jobs = Jobs(database, str(repository.path))
    names = submit_all(jobs, repository)
    with RunningWorker(database, folder, build_timeout_s=6.0, process_timeout_s=6.0, profile_timeout_s=6.0):
        wait_until(
            lambda: all(jobs.measurement(one).state in TERMINAL for one in names.values()), 280, "the end of all"
        )
    yield World(database, jobs, repository, names)
    database.dispose()
    if remove is not None:
        remove()


def test_a_slower_case_is_regressed_a_wrong_one_failed_an_equal_one_unchanged(world: World) -> None:
    verdicts = world.verdicts("slow")
    assert {case: verdict.verdict for case, verdict in verdicts.items()} == {
        FORWARD_SELF: "regressed",
        FORWARD_DOWN: "failed",
        BACKWARD_SELF: "unchanged",
    }
    slower = verdicts[FORWARD_SELF]
    assert slower.effect == pytest.approx(0.1, abs=0.01)
    assert slower.interval_low is not None
    assert slower.interval_low > 0.05
    assert slower.pairs_used >= 8
    assert len(slower.evidence["pairs"]) == slower.pairs_used + slower.pairs_rejected
    assert verdicts[FORWARD_DOWN].numerics is not None
    assert verdicts[FORWARD_DOWN].numerics["status"] == "failed"


def test_the_states_of_a_measurement_that_worked(world: World) -> None:
    measurement = world.jobs.measurement(world.names["slow"])
    job = world.jobs.job(world.names["slow"])
    assert (measurement.state, measurement.stage, measurement.error) == ("done", None, None)
    assert (job.state, job.error) == ("done", None)
    assert measurement.sandbox == "bubblewrap"
    assert measurement.started_at is not None
    assert measurement.finished_at is not None
    assert measurement.started_at < measurement.finished_at


def test_an_equal_commit_is_neither_better_nor_worse(world: World) -> None:
    assert {verdict.verdict for verdict in world.verdicts("same").values()} <= {"unchanged", "inconclusive"}


def test_commits_are_pinned_and_described(world: World) -> None:
    job = world.jobs.job(world.names["branch name"])
    repository = world.repository
    assert job.commit_sha == repository.git("rev-parse", "slow")
    assert job.baseline_sha == repository.git("rev-parse", "main")
    with world.database.reading() as session:
        commits = {row.sha: row for row in session.execute(select(Commit)).scalars()}
    base = commits[job.baseline_sha]
    assert (base.subject, base.author, base.first_parent_position) == ("base", "Ada", 2)
    assert base.tree_hash == repository.git("rev-parse", "main^{tree}")
    assert base.parents == [repository.git("rev-parse", "main~1")]
    assert commits[job.commit_sha].first_parent_position is None


@pytest.mark.parametrize("name", FAILING)
def test_a_bad_commit_fails_with_its_code_and_log(world: World, name: str) -> None:
    measurement = world.jobs.measurement(world.names[name])
    _, code, stage = FAILING[name]
    assert measurement.state == "failed"
    assert measurement.error is not None
    assert (measurement.error["code"], measurement.error["stage"]) == (code, stage)
    assert measurement.error["log_tail"]
    assert world.jobs.job(world.names[name]).state == "failed"
    assert world.jobs.job(world.names[name]).error == measurement.error
    assert world.verdicts(name) == {}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("unknown", "unknown_ref"),
        ("unknown baseline", "unknown_ref"),
        ("no s2attn", "no_s2attn"),
        ("no such case", "no_cases"),
    ],
)
def test_a_job_that_cannot_be_measured_says_why(world: World, name: str, code: str) -> None:
    measurement = world.jobs.measurement(world.names[name])
    assert measurement.state == "failed"
    assert measurement.error is not None
    assert measurement.error["code"] == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("on a broken baseline", "baseline_build_failed"),
        ("on a crashing baseline", "baseline_benchmark_crashed"),
        ("root", "baseline_no_parent"),
    ],
)
def test_without_a_baseline_cases_are_not_comparable(world: World, name: str, code: str) -> None:
    assert world.jobs.measurement(world.names[name]).state == "done"
    verdicts = world.verdicts(name)
    assert set(verdicts) == {FORWARD_SELF, FORWARD_DOWN, BACKWARD_SELF}
    for verdict in verdicts.values():
        assert verdict.verdict == "not_comparable"
        assert [reason["code"] for reason in verdict.reasons] == [code]


def test_cases_that_only_one_side_has(world: World) -> None:
    verdicts = world.verdicts("other cases")
    assert {case: verdict.verdict for case, verdict in verdicts.items()} == {
        FORWARD_SELF: "inconclusive",
        FORWARD_DOWN: "not_comparable",
        BACKWARD_SELF: "not_comparable",
        "cpu/new": "failed",
    }


def test_a_selection_measures_what_it_names(world: World) -> None:
    assert set(world.verdicts("selected")) == {FORWARD_SELF, FORWARD_DOWN}


def test_pairs_beside_foreign_load_are_not_believed(world: World) -> None:
    assert {verdict.verdict for verdict in world.verdicts("busy").values()} == {"throttled"}
    assert world.count(ArmRun, ArmRun.measurement_id == world.names["busy"], ArmRun.purpose == "pair") == 8


def test_pairs_alternate_and_are_complete(world: World) -> None:
    query = select(ArmRun).where(ArmRun.measurement_id == world.names["slow"], ArmRun.purpose == "pair")
    with world.database.reading() as session:
        runs = list(session.execute(query.order_by(ArmRun.pair_index, ArmRun.arm)).scalars())
    assert [(run.pair_index, run.arm) for run in runs] == [
        (index, arm) for index in range(len(runs) // 2) for arm in "AB"
    ]
    assert {run.order for run in runs[0::4]} == {"AB"}
    assert {run.order for run in runs[2::4]} == {"BA"}


def test_raw_samples_telemetry_and_documents_are_kept(world: World) -> None:
    query = select(ArmRun).where(ArmRun.measurement_id == world.names["slow"], ArmRun.purpose == "pair")
    with world.database.reading() as session:
        run = session.execute(query.limit(1)).scalar_one()
        blocks = session.execute(select(SampleBlock).where(SampleBlock.arm_run_id == run.id)).scalars().all()
        telemetry = session.execute(select(TelemetryBlock).where(TelemetryBlock.arm_run_id == run.id)).scalar_one()
    assert b'"protocol": 1' in zlib.decompress(run.document)
    assert run.environment["device"] == "cpu"
    assert Counter(block.metric for block in blocks) == {"time": 3, "host_enqueue": 3}
    times = [np.frombuffer(block.samples, "<f8") for block in blocks if block.metric == "time"]
    assert all(len(values) == 15 and 4.0 < values.min() <= values.max() < 7.0 for values in times)
    assert telemetry.columns[0] == "t_s"
    assert len(zlib.decompress(telemetry.rows)) > 10


def stored_runs(world: World, name: str, purpose: str) -> list[ArmRun]:
    query = select(ArmRun).where(ArmRun.measurement_id == world.names[name], ArmRun.purpose == purpose)
    with world.database.reading() as session:
        return list(session.execute(query.order_by(ArmRun.pair_index, ArmRun.arm)).scalars())


def test_a_change_is_measured_again_by_itself_and_in_the_other_order(world: World) -> None:
    first, fresh = (stored_runs(world, "slow", purpose) for purpose in ("pair", "confirm"))
    assert len(fresh) >= 2 * 5
    assert fresh[0].pair_index == first[-1].pair_index + 1
    assert [run.order for run in fresh[:4]] == ["BA", "BA", "AB", "AB"]
    cases = [case["name"] for run in fresh for case in json.loads(zlib.decompress(run.document))["cases"]]
    assert set(cases) == {FORWARD_SELF}
    verdict = world.verdicts("slow")[FORWARD_SELF]
    assert verdict.evidence["confirmation"]["verdict"] == "regressed"
    assert [one["index"] for one in verdict.evidence["confirmation"]["pairs"]] == [run.pair_index for run in fresh[::2]]
    assert "confirmed" in [reason["code"] for reason in verdict.reasons]
    assert stored_runs(world, "same", "confirm") == []


def test_canaries_are_measured_before_each_process_and_kept_whole(world: World) -> None:
    arms = stored_runs(world, "slow", "pair") + stored_runs(world, "slow", "confirm")
    canaries = stored_runs(world, "slow", "canary")
    assert [(run.pair_index, run.arm, run.order) for run in canaries] == [
        (run.pair_index, run.arm, run.order) for run in arms
    ]
    with world.database.reading() as session:
        query = select(SampleBlock, Case.name).join(Case, Case.id == SampleBlock.case_id)
        blocks = session.execute(query.where(SampleBlock.arm_run_id == canaries[0].id)).all()
    times = {name: np.frombuffer(block.samples, "<f8") for block, name in blocks if block.metric == "time"}
    assert set(times) == {"canary/cpu/gemm", "canary/cpu/copy"}
    assert all(len(values) == 15 and values.min() > 0.0 for values in times.values())
    written = json.loads(zlib.decompress(canaries[0].document))
    assert written["environment"]["numpy"]
    shown = world.verdicts("slow")[FORWARD_SELF].evidence["canaries"]
    assert set(shown) == set(times)
    assert {len(one["log_ratios"]) for one in shown.values()} == {len(canaries) // 2}
    assert world.count(Series) == 3  # canaries have none


def test_points_join_series_of_the_case_and_device(world: World) -> None:
    with world.database.reading() as session:
        query = select(Series, Point, Case.name).join(Point, Point.series_id == Series.id).join(Case)
        rows = session.execute(query.where(Point.measurement_id == world.names["slow"])).all()
    found = {(case, point.arm): point for _, point, case in rows}
    assert set(found) == {(case, arm) for case in (FORWARD_SELF, BACKWARD_SELF) for arm in "AB"}
    assert found[FORWARD_SELF, "B"].value == pytest.approx(5.5, rel=0.02)
    assert found[FORWARD_SELF, "A"].status == "ok"
    assert all(point.low <= point.value <= point.high for point in found.values())
    assert {(series.device_class, series.metric, series.unit, series.backend) for series, _, _ in rows} == {
        ("cpu", "time", "ms", "cpu")
    }
    assert world.count(Series) == 3


def test_each_source_tree_was_built_once(world: World) -> None:
    with world.database.reading() as session:
        builds = list(session.execute(select(Build)).scalars())
    by_status = Counter(build.status for build in builds)
    assert by_status["failed"] == 2
    assert len({build.key for build in builds}) == len(builds)
    counted = Counter((world.repository.path.parent / "data" / "ccache" / "fake_builds").read_text().split("\n"))
    assert counted["base"] == 1
    assert counted["slow"] == 1


def test_events_tell_the_story_in_order(world: World) -> None:
    job_id = world.jobs.job(world.names["slow"]).id
    with world.database.reading() as session:
        events = list(
            session.execute(select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.id)).scalars()
        )
    stages = [event.payload["stage"] for event in events if event.kind == "stage"]
    assert stages == ["prepare", "checkout", "build", "numerics", "pairs", "confirm", "profile", "judge"]
    pairs = [event.payload for event in events if event.kind == "pair"]
    assert [pair["pair"] for pair in pairs] == list(range(len(pairs)))
    assert set(pairs[0]["admitted"]) == {FORWARD_SELF, BACKWARD_SELF}
    assert set(pairs[-1]["admitted"]) == {FORWARD_SELF}
    assert [event.kind for event in events[-3:]] == ["verdict", "end", "end"]
    assert events[-1].measurement_id is None
    assert any("compiling slow" in event.payload["text"] for event in events if event.kind == "log")


def profiles(world: World, name: str) -> dict[str, KernelProfile]:
    query = select(KernelProfile).where(KernelProfile.measurement_id == world.names[name])
    with world.database.reading() as session:
        return {profile.arm: profile for profile in session.execute(query).scalars()}


def test_both_arms_are_profiled_once(world: World) -> None:
    found = profiles(world, "profiled")
    assert set(found) == {"A", "B"}
    assert {profile.status for profile in found.values()} == {"done"}
    for letter, expected in (("A", {"gather": 1.5, "fill": 0.25}), ("B", {"gather": 1.2})):
        document = found[letter].document
        assert document is not None
        (case,) = document["cases"]
        assert case["name"] == FORWARD_SELF
        assert {kernel["name"]: kernel["time_ms"] for kernel in case["kernels"]} == expected
        assert case["kernels"][0]["block"] == [128, 1, 1]
    assert world.jobs.measurement(world.names["profiled"]).baseline_id == found["A"].commit_id


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("crash", "ended with status 1: the profiler gave up"),
        ("hang", "no end within 6 s"),
        ("garbage", "cases.0.kernels.0"),
    ],
)
def test_a_profile_that_fails_fails_nothing_else(world: World, what: str, reason: str) -> None:
    name = f"profile: {what}"
    assert world.jobs.measurement(world.names[name]).state == "done"
    assert set(world.verdicts(name)) == {FORWARD_SELF}
    found = profiles(world, name)
    assert (found["B"].status, found["B"].document) == ("failed", None)
    assert reason in (found["B"].reason or "")
    assert found["A"].status == "unsupported"


def test_commits_without_the_command_work_as_before(world: World) -> None:
    found = profiles(world, "slow")
    assert {profile.status for profile in found.values()} == {"unsupported"}
    assert found["A"].reason == "the commit has no profile command"


def test_a_baseline_that_was_given_up_is_not_profiled(world: World) -> None:
    assert set(profiles(world, "on a crashing baseline")) == {"B"}


def test_the_worker_and_its_device_are_on_record(world: World) -> None:
    with world.database.reading() as session:
        worker = session.execute(select(Worker)).scalar_one()
        device = session.execute(select(Device)).scalar_one()
    assert worker.sandbox == "bubblewrap"
    assert (device.uuid, device.device_class, device.status) == (cpu().uuid, "cpu", "gone")
    assert world.jobs.measurement(world.names["slow"]).worker_id == worker.id


def test_the_engine_has_nothing_left_to_do(world: World) -> None:
    left = engine._client(world.database.engine).list_workflows(status=["PENDING", "ENQUEUED", "ERROR"])
    assert left == []


def test_no_output_folder_is_left(world: World) -> None:
    assert list((world.repository.path.parent / "data" / "runs").iterdir()) == []
