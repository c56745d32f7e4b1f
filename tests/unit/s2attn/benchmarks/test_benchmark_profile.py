"""The profile command: real operators on the CPU, and traces as torch's profiler writes them on a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from s2attn.benchmarks.__main__ import main
from s2attn.benchmarks.profile import Launch, launches_of_trace, merge

PROFILE = ["profile", "--protocol", "1"]

# Written by hand after the fields that libkineto's JSON output documents; not recorded on a GPU.
LAUNCH = {"registers per thread": 40, "shared memory": 3072, "grid": [180, 45, 1], "block": [128, 1, 1]}
TRACE = {
    "traceEvents": [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 4.0, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "void gather<__half>(Problem)", "ts": 9, "dur": 30.0, "args": LAUNCH},
        {"ph": "X", "cat": "kernel", "name": "void gather<__half>(Problem)", "ts": 50, "dur": 50.0, "args": LAUNCH},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "void at::native::fill(int)",
            "ts": 110,
            "dur": 16.0,
            "args": LAUNCH | {"grid": [1, 1, 1], "shared memory": 0},
        },
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 130, "dur": 4.0, "args": {"bytes": 4096}},
        {"ph": "i", "cat": "kernel", "name": "a mark", "ts": 140},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]
}
RESOURCES = {
    "gather<__half>(Problem)": {
        "shared_bytes": 1024,
        "registers": 40,
        "spill_store_bytes": 8,
        "spill_load_bytes": 16,
        "stack_bytes": 32,
        "sass_bytes": 8192,
    }
}


def test_a_trace_becomes_entries_with_launch_compiler_and_occupancy() -> None:
    gather, fill, memset = merge(launches_of_trace(TRACE), 2, RESOURCES, "9.0")
    assert gather["name"] == "void gather<__half>(Problem)"
    assert (gather["kind"], gather["calls"]) == ("kernel", 1.0)
    assert gather["time_ms"] == pytest.approx(0.040)
    assert gather["share"] == pytest.approx(0.8)
    assert (gather["grid"], gather["block"]) == ([180, 45, 1], [128, 1, 1])
    assert (gather["registers"], gather["shared_bytes"], gather["dynamic_shared_bytes"]) == (40, 3072, 2048)
    assert (gather["spill_store_bytes"], gather["spill_load_bytes"], gather["sass_bytes"]) == (8, 16, 8192)
    assert (gather["occupancy"], gather["occupancy_limit"]) == (0.75, "registers")
    assert fill["calls"] == 0.5
    assert not {"sass_bytes", "spill_load_bytes", "dynamic_shared_bytes"} & set(fill)
    assert fill["occupancy"] == 0.75
    assert (memset["kind"], memset["grid"], memset["registers"]) == ("memset", None, None)
    assert "occupancy" not in memset


def test_no_time_counts_twice_where_kernels_overlap() -> None:
    def kernel(name: str, ts: float, dur: float) -> dict:
        return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": LAUNCH}

    events = [kernel("second", 15.0, 25.0), kernel("first", 10.0, 20.0), kernel("within", 20.0, 5.0)]
    found = {launch.name: launch.time_ms for launch in launches_of_trace({"traceEvents": events})}
    assert found == pytest.approx({"first": 0.020, "second": 0.010, "within": 0.0})


def test_small_parts_are_one_entry_at_the_end_and_nothing_is_lost() -> None:
    launches = [Launch("large", "operator", 10.0, 2), *(Launch(f"tiny {n}", "operator", 0.005, 3) for n in range(4))]
    large, rest = merge(launches, 2, {}, "")
    assert (large["name"], large["calls"], large["time_ms"]) == ("large", 1.0, 5.0)
    assert (rest["name"], rest["kind"], rest["calls"]) == ("others", "rest", 6.0)
    assert large["share"] + rest["share"] == pytest.approx(1.0)
    assert merge([], 2, {}, "9.0") == []


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    target = tmp_path_factory.mktemp("profile") / "profile.json"
    command = [sys.executable, "-m", "s2attn.benchmarks", *PROFILE, "--out", str(target), "--calls", "3"]
    command += ["--cases", "cpu/backward/up/*", "--cases", "full/cpu/module*/global"]
    finished = subprocess.run(command, cwd=target.parent, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return json.loads(target.read_text())


def test_operators_of_the_cpu_are_told_apart(document: dict) -> None:
    assert (document["protocol"], document["kind"], document["device"]) == (1, "profile", "cpu")
    assert document["source"] == "operators of torch by their own time"
    assert document["counters"] is None
    operator, layer = document["cases"]
    assert operator["status"] == layer["status"] == "ok"
    (kernel,) = [one for one in operator["kernels"] if one["name"] == "s2attn::neighborhood_attention_backward"]
    assert kernel["calls"] == 1.0
    assert kernel["share"] > 0.9
    names = {one["name"]: one for one in layer["kernels"]}
    assert names["aten::_scaled_dot_product_flash_attention_for_cpu"]["calls"] == 1.0
    assert names["aten::_scaled_dot_product_flash_attention_for_cpu_backward"]["calls"] == 1.0
    for case in document["cases"]:
        assert sum(one["share"] for one in case["kernels"]) == pytest.approx(1.0)
        assert sum(one["time_ms"] for one in case["kernels"]) == pytest.approx(case["time_ms"])
        assert all(one["time_ms"] > 0 and one["kind"] in ("operator", "rest") for one in case["kernels"])


def test_a_case_that_fails_says_why_and_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from s2attn.benchmarks import profile

    real = profile.prepare

    def planted(case):
        if "/down/" in case.name:
            raise RuntimeError("no such kernel")
        return real(case)

    monkeypatch.setattr(profile, "prepare", planted)
    target = tmp_path / "profile.json"
    assert main([*PROFILE, "--cases", "cpu/forward/*", "--calls", "1", "--out", str(target)]) == 0
    cases = json.loads(target.read_text())["cases"]
    assert [case["status"] for case in cases] == ["ok", "failed", "ok"]
    assert cases[1]["error"].startswith("RuntimeError: no such kernel")
    assert cases[1]["kernels"] == []


def test_requests_that_make_no_sense_are_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "a.json")]
    assert main([*PROFILE, "--cases", "cpu/forward/self/*", "--counters", *out]) == 2
    assert "counters: got --device cpu, expected cuda" in capsys.readouterr().err
    assert main(["profile", "--protocol", "2", "--cases", "*", *out]) == 2
    assert main([*PROFILE, "--cases", "nothing", *out]) == 2
    with pytest.raises(SystemExit) as exit_info:
        main([*PROFILE, "--cases", "*", "--calls", "0", *out])
    assert exit_info.value.code == 2
    assert list(tmp_path.iterdir()) == []
