import dataclasses
import json

import pytest

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.suite import CPU_SUITE, GPU_SUITE, NoSuchCaseError, all_cases, select
from s2attn.geometry import build_psi

EXAMPLE = Case(
    device="cpu",
    operation="forward",
    suite="any",
    in_shape=(24, 48),
    out_shape=(24, 48),
    theta_cutoff=0.2,
    psi_nnz=616,
    threads=1,
)


def test_names_follow_the_scheme() -> None:
    assert EXAMPLE.name == "cpu/forward/self/24x48/c16h1/fp32/tc0.2"
    changed = dataclasses.replace(
        EXAMPLE, out_shape=(12, 24), grid_out="lobatto", heads=4, channels_out=8, dtype="bfloat16", batch=2
    )
    assert changed.name == "cpu/forward/down/24x48-12x24lobatto/c16-8h4/bf16/tc0.2/b2"


def test_names_are_unique_and_short_enough_to_store() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 250


def test_the_version_is_pinned() -> None:
    # a change here starts new series for every case: raise TIMING_CONTRACT or change a definition on purpose only
    assert EXAMPLE.version == "0e37b347ae1d3d44"
    half_degree = next(case for case in all_cases() if case.device == "cuda" and case.psi_nnz == 57744)
    assert half_degree.version == "4ba1ef94390888e6"


def test_a_changed_workload_is_another_version_and_the_suite_is_not_part_of_it() -> None:
    assert dataclasses.replace(EXAMPLE, suite="other").version == EXAMPLE.version
    for change in ({"theta_cutoff": 0.21}, {"heads": 2}, {"psi_nnz": 617}, {"threads": 2}, {"input_sets": 2}):
        assert dataclasses.replace(EXAMPLE, **change).version != EXAMPLE.version


def test_definitions_are_json_and_survive_it() -> None:
    for case in all_cases():
        assert json.loads(json.dumps(case.definition, allow_nan=False)) == case.definition


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_declared_entries_are_those_of_the_pattern(case: Case) -> None:
    psi = build_psi(case.in_shape, case.out_shape, case.grid_in, case.grid_out, case.theta_cutoff)
    assert psi.col_idx.size == case.psi_nnz


def test_the_quick_suite_has_every_direction_forward_and_backward() -> None:
    quick = [case for case in all_cases() if case.suite == CPU_SUITE]
    expected = {(operation, way) for operation in ("forward", "backward") for way in ("self", "down", "up")}
    assert {(case.operation, case.direction) for case in quick} == expected
    assert {case.threads for case in quick} == {1}
    assert {case.group for case in quick} == {"cpu.forward", "cpu.backward"}


def test_the_gpu_suite_rotates_inputs() -> None:
    gpu = [case for case in all_cases() if case.suite == GPU_SUITE]
    assert len(gpu) == 10
    assert all(case.device == "cuda" and case.input_sets >= 3 and case.threads is None for case in gpu)


def test_select_by_pattern_and_device() -> None:
    assert {case.device for case in select(["*"], "cuda")} == {"cuda"}
    forward = select(["*/forward/*"], None)
    assert {case.operation for case in forward} == {"forward"}
    assert {case.device for case in forward} == {"cpu", "cuda"}
    assert len(select(["cpu/forward/self/*", "cpu/backward/up/*"], "cpu")) == 2


def test_a_pattern_without_a_case_is_refused_and_says_where_it_would_match() -> None:
    with pytest.raises(NoSuchCaseError, match="no case for device cpu matches 'cpu/sideways/"):
        select(["cpu/*", "cpu/sideways/*"], "cpu")
    with pytest.raises(NoSuchCaseError, match="other devices have"):
        select(["cuda/*"], "cpu")


def test_other_threads_are_another_version() -> None:
    one, two = select(["cpu/*"], "cpu"), select(["cpu/*"], "cpu", threads=2)
    assert [case.name for case in one] == [case.name for case in two]
    assert all(a.version != b.version for a, b in zip(one, two, strict=True))
    assert select(["cuda/*"], "cuda", threads=2) == select(["cuda/*"], "cuda")
