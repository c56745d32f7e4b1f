"""The benchmark process on a real GPU: spin, clocks, telemetry and numerics."""

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch


def run(directory: Path, *arguments: str, command: tuple[str, ...] = ("run", "--arm", "A")) -> dict:
    target = directory / "document.json"
    command = (sys.executable, "-m", "s2attn.benchmarks", *command, "--protocol", "1", "--device", "cuda")
    finished = subprocess.run(
        [*command, "--out", str(target), *arguments], cwd=directory, capture_output=True, text=True, timeout=280
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(target.read_text())


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return run(tmp_path_factory.mktemp("gpu"), "--cases", "*", "--numerics", "with")


def test_every_case_runs_and_is_right(document: dict) -> None:
    assert len(document["cases"]) == 10
    for case in document["cases"]:
        assert case["status"] == "ok", case["error"]
        assert case["backend"] == "cuda"
        assert case["numerics"]["status"] == "ok", case["numerics"]
        assert case["numerics"]["points"] == "all"


def test_the_host_is_ahead_of_every_sample(document: dict) -> None:
    for case in document["cases"]:
        assert all(case["queued"]), case["name"]
        assert len(case["samples"]) == 15


def test_the_device_reads_the_clock_that_nvml_shows(document: dict) -> None:
    telemetry = document["telemetry"]
    column = telemetry["columns"].index("sm_clock_mhz")
    # NVML's readings come up to 0.2 s late: the first may still be those of an idle GPU
    awake = [row for row in telemetry["rows"] if row[column] >= 0.5 * max(row[column] for row in telemetry["rows"])]
    for case in document["cases"]:
        first_s, last_s = case["sample_start_s"][0], case["sample_end_s"][-1] + 0.2
        seen_mhz = statistics.median(row[column] for row in awake if first_s <= row[0] <= last_s)
        for side in ("before", "after"):
            readings = case[f"device_clock_{side}_mhz"]
            assert len(readings) == 15
            assert statistics.median(readings) == pytest.approx(seen_mhz, rel=0.02), (case["name"], side)


def test_telemetry_covers_the_samples(document: dict) -> None:
    telemetry = document["telemetry"]
    assert telemetry["source"] == "nvml", telemetry["note"]
    times = [row[0] for row in telemetry["rows"]]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.median(gaps) <= 0.05
    for case in document["cases"]:
        assert times[0] <= case["sample_start_s"][0]
        assert case["sample_end_s"][-1] <= times[-1]
    foreign = telemetry["columns"].index("foreign_processes")
    # this process is foreign to the measured one, once a test before has made it use the GPU
    assert {row[foreign] for row in telemetry["rows"]} <= {0, int(torch.cuda.is_initialized()), None}
    assert document["environment"]["gpu_uuid"].startswith("GPU-")


def test_every_case_of_the_full_suite_is_right(tmp_path: Path) -> None:
    document = run(tmp_path, "--cases", "full/*", "--numerics", "only")
    assert len(document["cases"]) == 114
    wrong = {case["name"]: case["error"] or case["numerics"] for case in document["cases"] if not _right(case)}
    assert wrong == {}


def _right(case: dict) -> bool:
    backend = "torch" if case["name"].endswith("/global") else "cuda"
    return case["status"] == "ok" and case["backend"] == backend and case["numerics"]["status"] == "ok"


def test_global_attention_runs_in_fused_kernels(tmp_path: Path) -> None:
    document = run(tmp_path, "--cases", "full/*/global", "--numerics", "skip", "--samples", "3")
    assert len(document["cases"]) == 12
    for case in document["cases"]:
        assert case["status"] == "ok", case["error"]
        # which of its fused kernels torch prefers depends on its version
        fused = ("efficient", "cudnn") if case["definition"]["dtype"] == "float32" else ("flash", "cudnn")
        assert case["variant"].startswith(tuple(f"{name}_attention/" for name in fused)), case["variant"]


def test_the_profile_knows_the_kernels_of_every_case(tmp_path: Path) -> None:
    document = run(tmp_path, "--cases", "*", "--cases", "full/*/global", command=("profile",))
    assert len(document["cases"]) == 22
    for case in document["cases"]:
        assert case["status"] == "ok", case["error"]
        assert sum(kernel["share"] for kernel in case["kernels"]) == pytest.approx(1.0)
        launched = [kernel for kernel in case["kernels"] if kernel["kind"] == "kernel"]
        assert launched, case["name"]
        for kernel in launched:
            assert kernel["registers"] > 0
            assert 0 < kernel["occupancy"] <= 1, kernel
            assert len(kernel["grid"]) == len(kernel["block"]) == 3
        if case["backend"] == "cuda":
            # of the neighborhood operators at least the longest kernel is this package's, known to its compiler
            assert launched[0]["sass_bytes"] > 0, launched[0]["name"]
            assert launched[0]["dynamic_shared_bytes"] >= 0
            assert launched[0]["spill_load_bytes"] >= 0


def test_counters_are_read_or_the_reason_is_told(tmp_path: Path) -> None:
    document = run(tmp_path, "--cases", "cuda/forward/self/180x360/*", command=("profile", "--counters"))
    assert document["counters"]["cases"] == 2 or document["counters"]["reason"]


def test_profiled_times_are_those_of_the_samples(document: dict, tmp_path: Path) -> None:
    profile = run(tmp_path, "--cases", "*", command=("profile",))
    medians = {case["name"]: statistics.median(case["samples"]) for case in document["cases"]}
    for case in profile["cases"]:
        assert case["time_ms"] == pytest.approx(medians[case["name"]], rel=0.25, abs=0.01), case["name"]
