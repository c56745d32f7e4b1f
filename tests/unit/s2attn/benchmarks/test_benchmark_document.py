import json
import math
from pathlib import Path

import pytest

from s2attn.benchmarks.document import PROTOCOL, write_document
from s2attn.benchmarks.runner import RunOptions, run_cases
from s2attn.benchmarks.telemetry import Clock
from s2attn.errors import KernelsNotBuilt

GOLDEN = Path(__file__).parents[3] / "data" / "documents" / "protocol1_cpu.json"
# Since the golden document was written; a reader of protocol 1 needs none of them.
ADDED = {".cases[].device_clock_before_mhz", ".cases[].device_clock_after_mhz"}
REMOVED = {".cases[].cycles"}


def fields(value: object, path: str = "") -> set[str]:
    """Paths of all fields; the entries of a list count as one."""
    if isinstance(value, dict):
        return {f"{path}.{key}" for key in value} | {p for key in value for p in fields(value[key], f"{path}.{key}")}
    if isinstance(value, list):
        return {p for entry in value for p in fields(entry, f"{path}[]")}
    return set()


def options(**changes: object) -> RunOptions:
    return RunOptions(**{"arm": "A", "device": "cpu", "numerics": "with", "samples": 2, **changes})


def test_a_document_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("an older one")
    write_document({"a": 1.5, "b": "ü"}, target)
    assert json.loads(target.read_text(encoding="utf-8")) == {"a": 1.5, "b": "ü"}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_cannot_carry_leaves_no_file(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document({"samples": [number]}, tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_document_and_no_scraps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "out.json"
    target.write_text("an older one")
    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        write_document({}, target)
    assert target.read_text() == "an older one"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_the_writer_has_the_fields_of_the_golden_document(make_case) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    cases = (make_case(), make_case(operation="backward"))
    written = run_cases(cases, options(), Clock())
    assert written["protocol"] == golden["protocol"] == PROTOCOL
    assert fields(written) == fields(golden) - REMOVED | ADDED
    assert written["telemetry"]["columns"] == golden["telemetry"]["columns"]


def test_the_golden_document_names_nothing_of_a_machine() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert golden["package_path"] == "/checkout/s2attn"
    assert all(case["status"] == "ok" and case["numerics"]["status"] == "ok" for case in golden["cases"])


def test_samples_lie_within_the_telemetry(make_case) -> None:
    clock = Clock()
    document = run_cases((make_case(), make_case(operation="backward")), options(numerics="skip", samples=4), clock)
    rows = document["telemetry"]["rows"]
    for case in document["cases"]:
        assert case["status"] == "ok", case["error"]
        assert case["numerics"] is None
        assert case["sample_end_s"][-1] <= rows[-1][0] <= document["wall_s"] + 1e-3
    assert document["environment"]["threads"] == 1
    assert document["environment"]["build_key"]
    assert document["cases"][0]["backend"] == "cpu"


def test_numerics_only_takes_no_samples(make_case) -> None:
    document = run_cases((make_case(),), options(numerics="only"), Clock())
    (case,) = document["cases"]
    assert case["samples"] == []
    assert case["numerics"]["status"] == "ok"


def test_a_case_that_cannot_run_is_a_failed_case_in_a_whole_document(make_case, capsys) -> None:
    broken = make_case(psi_nnz=1)
    document = run_cases((broken, make_case(operation="backward")), options(), Clock())
    failed, sound = document["cases"]
    assert failed["status"] == "failed"
    assert failed["error"].startswith("WorkloadMismatchError: psi has ")
    assert failed["samples"] == []
    assert failed["backend"] is None
    assert sound["status"] == "ok"
    assert broken.name in capsys.readouterr().err
    json.dumps(document, allow_nan=False)


def test_kernels_that_cannot_be_loaded_fail_every_case_and_are_tried_once(make_case, monkeypatch) -> None:
    tried = []

    def refuse(device: str) -> None:
        tried.append(device)
        raise KernelsNotBuilt("no compiler")

    monkeypatch.setattr("s2attn.ops.registration.load", refuse)
    document = run_cases((make_case(), make_case(operation="backward")), options(), Clock())
    assert tried == ["cpu"]
    for case in document["cases"]:
        assert case["status"] == "failed"
        assert case["error"].startswith("KernelsNotBuilt: no compiler")
        assert case["samples"] == []


def test_a_gpu_that_is_not_there_fails_its_cases_and_says_so(make_case, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> dict:
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr("s2attn.benchmarks.runner.describe_gpu", no_gpu)
    monkeypatch.setattr("s2attn.ops.registration.load", lambda device: no_gpu())
    document = run_cases((make_case(device="cuda", threads=None),), options(device="cuda"), Clock())
    assert document["telemetry"]["source"] == "none"
    assert document["telemetry"]["note"] == "no CUDA device: no NVIDIA driver"
    assert document["cases"][0]["status"] == "failed"
    assert document["environment"]["gpu_uuid"] is None
