"""Reading ncu's tables, and its refusals, by an ncu that is a script. Nothing here was recorded on a GPU."""

import sys
from pathlib import Path

import pytest

from s2attn.benchmarks import counters
from s2attn.benchmarks.counters import Counters, ncu_command, parse_ncu, why_unreadable

# Written by hand after the documentation of Nsight Compute CLI (--csv --page raw --print-units base).
CSV = """==PROF== Connected to process 4321 (/usr/bin/python3.12)
"a line of the program"
==PROF== Profiling "gather" - 0: 0%....50%....100% - 4 passes
==PROF== Disconnected from process 4321
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes.sum","gpu__time_duration.sum","lts__t_bytes.sum",\
"sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active","sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","byte","ns","byte","%","%","%"
"0","4321","python3.12","127.0.0.1","void gather<__half, (int)64>(Problem)","1","7","(128, 1, 1)","(180, 45, 1)","0",\
"9.0","1,000,000","30,000","4,000,000","n/a","40.0","50.5"
"1","4321","python3.12","127.0.0.1","void gather<__half, (int)64>(Problem)","1","7","(128, 1, 1)","(180, 45, 1)","0",\
"9.0","500,000","10,000","2,000,000","n/a","80.0","50.5"
"2","4321","python3.12","127.0.0.1","fill(int)","1","7","(64, 1, 1)","(1, 1, 1)","0",\
"9.0","64","1,000","128","0","1.5","3"
"""
REFUSAL = """==PROF== Connected to process 4321 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on device 0.
==PROF== Disconnected from process 4321
"""


def test_a_table_is_read_per_kernel() -> None:
    assert parse_ncu(CSV.splitlines()) == {
        "gather<__half,64>(Problem)": {
            "dram_bytes": 1_500_000.0,
            "l2_bytes": 6_000_000.0,
            "sm_throughput_percent": 50.0,
            "achieved_occupancy_percent": 50.5,
        },
        "fill(int)": {
            "dram_bytes": 64.0,
            "l2_bytes": 128.0,
            "sm_throughput_percent": 1.5,
            "tensor_pipe_percent": 0.0,
            "achieved_occupancy_percent": 3.0,
        },
    }


@pytest.mark.parametrize("text", ["", REFUSAL, '"a line of the program"\n'])
def test_output_without_a_table_has_no_counters(text: str) -> None:
    assert parse_ncu(text.splitlines()) == {}


def test_a_refusal_is_told_in_its_own_words() -> None:
    assert why_unreadable(REFUSAL, 1).startswith("ERR_NVGPUCTRPERM - The user does not have permission")
    assert why_unreadable("==WARNING== No kernels were profiled.\n", 0) == "No kernels were profiled."
    assert why_unreadable("", 9) == "ncu ended with status 9 and read no kernel"


def entry(name: str = "cuda/forward/x", status: str = "ok") -> dict:
    return {"name": name, "status": status, "kernels": [{"name": "void gather<__half, 64>(Problem)"}]}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = folder / "ncu"
    script.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_counters_are_added_to_the_kernels_they_belong_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, f"print({CSV!r})")
    reader, case = Counters(30), entry()
    reader.read_into(case)
    assert case["kernels"][0]["counters"]["dram_bytes"] == 1_500_000.0
    assert reader.to_json() == {"cases": 1, "reason": None}


def test_counters_of_no_kernel_of_the_case_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, f"print({CSV!r})")
    reader, case = Counters(30), entry()
    case["kernels"][0]["name"] = "void another(int)"
    reader.read_into(case)
    assert reader.to_json()["cases"] == 0
    assert "by other names: gather<__half,64>(Problem), fill(int)" in reader.to_json()["reason"]


def test_after_a_refusal_nothing_more_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"open({str(tmp_path / 'calls')!r}, 'a').write('x'); print({REFUSAL!r}); sys.exit(1)"
    install(tmp_path, monkeypatch, body)
    reader = Counters(30)
    for case in (entry(status="failed"), entry(), entry()):
        reader.read_into(case)
        assert "counters" not in case["kernels"][0]
    assert (tmp_path / "calls").read_text() == "x"
    assert reader.to_json()["reason"].startswith("ERR_NVGPUCTRPERM")


def test_the_time_for_all_cases_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "time.sleep(60)")
    reader = Counters(0.3)
    reader.read_into(entry())
    assert reader.to_json() == {"cases": 0, "reason": "the time for counters was used up at cuda/forward/x"}


def test_without_ncu_the_document_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    reader, case = Counters(30), entry()
    reader.read_into(case)
    assert reader.to_json()["reason"] == "ncu is neither on PATH nor in the CUDA toolkit"


def test_the_command_leaves_the_clocks_alone_and_counts_one_call() -> None:
    command = ncu_command("/opt/ncu", "cuda/forward/x")
    assert command[0] == "/opt/ncu"
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--profile-from-start") + 1] == "off"
    assert command[-3:] == ["-m", "s2attn.benchmarks.one_call", "cuda/forward/x"]
