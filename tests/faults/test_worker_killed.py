"""Workers that are killed, paused or stopped at any point: everything ends, nothing is lost or done twice."""

from __future__ import annotations

import signal
from pathlib import Path
from uuid import UUID

import pytest
from fault_fixtures import PAIRS, Scene, WorkerProcesses
from worker_fixtures import FORWARD_SELF, wait_until


def test_a_worker_killed_while_building_does_not_build_again_what_was_finished(
    scene: Scene, workers: WorkerProcesses
) -> None:
    scene.repository.commit("base", build_s=1.0)
    measurement_id = scene.jobs.submit(scene.repository.commit("candidate"), max_pairs=PAIRS)
    worker = workers.start()
    wait_until(lambda: scene.builds()["base"] == 1, 30, "the baseline's build")
    workers.kill(worker)
    workers.start()
    wait_until(lambda: scene.ended(measurement_id), 60, "the end")
    scene.check_complete(measurement_id)
    assert scene.builds() == {"candidate": 1, "base": 2}


def test_a_worker_killed_again_and_again_while_measuring_loses_no_pair(scene: Scene, workers: WorkerProcesses) -> None:
    scene.repository.commit("base")
    measurement_id = scene.jobs.submit(scene.repository.commit("candidate", run_s=0.05), max_pairs=PAIRS)
    before: dict[tuple[int, str], UUID] = {}
    for wanted in (2, 6, 10):
        worker = workers.start()
        wait_until(lambda wanted=wanted: len(scene.runs(measurement_id)) >= wanted, 60, f"process {wanted}")
        workers.kill(worker)
        now = scene.runs(measurement_id)
        assert before.items() <= now.items(), "what was stored stays as it was"
        before = now
    workers.start()
    wait_until(lambda: scene.ended(measurement_id), 60, "the end")
    scene.check_complete(measurement_id)
    assert before.items() <= scene.runs(measurement_id).items()
    assert scene.builds() == {"candidate": 1, "base": 1}
    assert scene.jobs.measurement(measurement_id).attempt == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_killed_while_confirming_goes_on_with_the_next_fresh_pair(
    scene: Scene, workers: WorkerProcesses
) -> None:
    scene.repository.commit("base")
    slower = scene.repository.commit("slower", run_s=0.05, speed={FORWARD_SELF: 1.1})
    measurement_id = scene.jobs.submit(slower, max_pairs=PAIRS)
    worker = workers.start()
    wait_until(lambda: len(scene.runs(measurement_id, "confirm")) >= 4, 150, "two fresh pairs")
    workers.kill(worker)
    first, fresh = scene.runs(measurement_id), scene.runs(measurement_id, "confirm")
    workers.start()
    wait_until(lambda: scene.ended(measurement_id), 60, "the end")
    assert scene.jobs.measurement(measurement_id).state == "done"
    assert scene.runs(measurement_id) == first, "no first pair is taken again"
    again = scene.runs(measurement_id, "confirm")
    assert fresh.items() <= again.items()
    indices = sorted({index for index, _ in again})
    assert indices == list(range(len(first) // 2, len(first) // 2 + len(indices)))
    assert scene.runs(measurement_id, "canary").keys() == first.keys() | again.keys()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_measurement_that_kills_its_workers_is_given_up(scene: Scene, workers: WorkerProcesses) -> None:
    scene.repository.commit("base")
    poison = scene.jobs.submit(scene.repository.commit("poison", build="hang"))
    harmless = scene.jobs.submit("main~1", "main~1", max_pairs=2)
    for start in range(1, 4):
        worker = workers.start()
        wait_until(lambda start=start: scene.builds()["poison"] == start, 30, f"start {start}")
        workers.kill(worker)
    workers.start()
    wait_until(lambda: scene.ended(poison) and scene.ended(harmless), 60, "the end of both")
    error = scene.jobs.measurement(poison).error
    assert error is not None
    assert (error["code"], error["stage"]) == ("worker_lost", "build")
    assert scene.jobs.measurement(harmless).state == "done"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_another_worker_takes_over_from_one_that_is_gone(scene: Scene, workers: WorkerProcesses) -> None:
    scene.repository.commit("base")
    measurement_id = scene.jobs.submit(scene.repository.commit("candidate", run_s=0.05), max_pairs=PAIRS)
    worker = workers.start(name="gone")
    wait_until(lambda: len(scene.runs(measurement_id)) >= 4, 60, "two pairs")
    workers.kill(worker)
    before = scene.runs(measurement_id)
    workers.start(name="successor", dead_after_s=1.0)
    wait_until(lambda: scene.ended(measurement_id), 60, "the end")
    scene.check_complete(measurement_id)
    assert before.items() <= scene.runs(measurement_id).items()
    assert scene.jobs.measurement(measurement_id).attempt == 1, "the same CPU goes on"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_paused_worker_that_comes_back_changes_nothing(
    scene: Scene, workers: WorkerProcesses, tmp_path: Path
) -> None:
    scene.repository.commit("base")
    measurement_id = scene.jobs.submit(scene.repository.commit("candidate", run_s=0.05), max_pairs=PAIRS)
    paused = workers.start(name="paused")
    wait_until(lambda: len(scene.runs(measurement_id)) >= 4, 60, "two pairs")
    paused.send_signal(signal.SIGSTOP)
    # A paused worker still holds its device, so the other one has to be let in by locks of its own.
    workers.start(name="successor", dead_after_s=1.0, lock_dir=str(tmp_path / "other locks"))
    wait_until(lambda: scene.owner(measurement_id) == "successor", 30, "the hand-over")
    paused.send_signal(signal.SIGCONT)
    wait_until(lambda: scene.ended(measurement_id), 60, "the end")
    scene.check_complete(measurement_id)
    following = scene.jobs.submit("main", "main", max_pairs=2)
    wait_until(lambda: scene.ended(following), 30, "the next job")
    assert paused.poll() is None, "the worker that came back goes on working"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_asked_to_stop_stops_at_once_and_cleanly(
    scene: Scene, workers: WorkerProcesses, number: signal.Signals
) -> None:
    scene.repository.commit("base")
    measurement_id = scene.jobs.submit(scene.repository.commit("candidate", run="hang"))
    worker = workers.start()
    wait_until(lambda: scene.jobs.measurement(measurement_id).stage == "numerics", 30, "numerics")
    worker.send_signal(number)
    assert worker.wait(20) == 0
    assert workers.children() == []
    measurement = scene.jobs.measurement(measurement_id)
    assert (measurement.state, measurement.worker_id) == ("queued", None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_two_workers_never_share_a_device(scene: Scene, workers: WorkerProcesses) -> None:
    scene.repository.commit("base")
    first = workers.start(name="first")
    measurement_id = scene.jobs.submit("main", "main", max_pairs=2)
    wait_until(lambda: scene.ended(measurement_id), 30, "the first job")
    second = workers.start(name="second")
    wait_until(lambda: "devices_in_use" in workers.log(), 30, "the second worker's word")
    assert second.poll() is None
    workers.kill(first)
    following = scene.jobs.submit("main", "main", max_pairs=2)
    wait_until(lambda: scene.ended(following), 30, "the job after the first worker's end")
    assert scene.owner(following) == "second"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_device_class_that_is_not_here_is_an_error(workers: WorkerProcesses) -> None:
    assert workers.start(classes=["gpu:NVIDIA Nothing"]).wait(30) == 3
    assert "device_unfit" in workers.log()
