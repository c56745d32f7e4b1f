import dataclasses
import json

import pytest

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.numerics import _ALL_POINTS_PAIRS
from s2attn.benchmarks.suite import (
    CPU_FULL_SUITE,
    CPU_SUITE,
    FULL_SUITE,
    GPU_SUITE,
    NoSuchCaseError,
    all_cases,
    select,
)
from s2attn.geometry import build_psi

# Name and version of every case of the default selection: their series go on only while these stay as they are.
DEFAULT_VERSIONS = {
    "cpu/forward/self/24x48/c32h1/fp32/tc0.6": "5047e5c9b2835b50",
    "cpu/forward/down/32x64-16x32/c16h1/fp32/tc0.6": "fa97d46854f18b59",
    "cpu/forward/up/16x32-32x64/c16h1/fp32/tc0.6": "6ae8fb0a0a78e670",
    "cpu/backward/self/24x48/c16h1/fp32/tc0.5": "b211a899f9fd86e2",
    "cpu/backward/down/32x64-16x32/c16h1/fp32/tc0.6": "3055410710e7eaa2",
    "cpu/backward/up/16x32-32x64/c16h1/fp32/tc0.6": "fe36b7bb98b4d09f",
    "cuda/forward/self/180x360/c64h1/fp32/tc0.017": "dc5e26b764772080",
    "cuda/forward/self/180x360/c64h1/fp32/tc0.03": "667093dd3693d2fc",
    "cuda/forward/self/360x720/c64h1/fp32/tc0.03": "4ba1ef94390888e6",
    "cuda/forward/down/360x720-180x360/c64h1/fp32/tc0.03": "aa97c23a2c619643",
    "cuda/forward/up/180x360-360x720/c64h1/fp32/tc0.03": "af19dd3b5a6cb3bd",
    "cuda/backward/self/180x360/c64h1/fp32/tc0.017": "ab07f2b96317a17f",
    "cuda/backward/self/180x360/c64h1/fp32/tc0.03": "56abd88bb66c2b63",
    "cuda/backward/self/360x720/c64h1/fp32/tc0.03": "8dc50d4434443fc1",
    "cuda/backward/down/360x720-180x360/c64h1/fp32/tc0.03": "2a5ba2c6c8f09638",
    "cuda/backward/up/180x360-360x720/c64h1/fp32/tc0.03": "7ac868238f8039bd",
}
DTYPES = {"float32", "float16", "bfloat16"}

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


GEOMETRIES = sorted(
    {
        (case.in_shape, case.out_shape, case.grid_in, case.grid_out, case.theta_cutoff, case.psi_nnz)
        for case in all_cases()
        if not case.is_global
    }
)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_declared_entries_are_those_of_the_pattern(geometry: tuple) -> None:
    *definition, psi_nnz = geometry
    assert build_psi(*definition).col_idx.size == psi_nnz


def test_declared_entries_are_those_of_the_golden_patterns(golden_psi: list[dict]) -> None:
    golden = {
        (*map(tuple, (e["in_shape"], e["out_shape"])), e["grid_in"], e["grid_out"], e["theta_cutoff_given"]): e["nnz"]
        for e in golden_psi
    }
    declared = {geometry[:-1]: geometry[-1] for geometry in GEOMETRIES if geometry[:-1] in golden}
    assert len(declared) == 7
    assert declared == {key: golden[key] for key in declared}


def test_the_default_selection_keeps_its_names_versions_and_order() -> None:
    assert {case.name: case.version for case in select(["*"], None)} == DEFAULT_VERSIONS
    assert [case.name for case in select(["*"], None)] == list(DEFAULT_VERSIONS)


def test_the_full_suite_holds_every_configuration_forward_and_backward_in_three_types() -> None:
    full = select(["full/*"], "cuda")
    assert {case.suite for case in full} == {GPU_SUITE, FULL_SUITE}
    operator = [case for case in full if not case.is_module and not case.is_global]
    assert len(operator) == 13 * 3 * 2
    configurations = {
        (case.in_shape[0], case.out_shape[0], case.theta_cutoff, case.channels_in, case.heads) for case in operator
    }
    assert configurations == {
        (180, 180, 0.017, 64, 1),
        (180, 180, 0.03, 64, 1),
        (180, 180, 0.1, 64, 1),
        (360, 360, 0.017, 64, 1),
        (360, 360, 0.03, 64, 1),
        (360, 360, 0.03, 256, 4),
        (360, 360, 0.03, 128, 1),
        (360, 180, 0.03, 64, 1),
        (360, 180, 0.1, 64, 1),
        (180, 360, 0.03, 64, 1),
        (180, 360, 0.1, 64, 1),
        (721, 721, 0.017, 64, 1),
        (721, 721, 0.03, 64, 1),
    }
    for configuration in configurations:
        kinds = {
            (case.operation, case.dtype)
            for case in operator
            if (case.in_shape[0], case.out_shape[0], case.theta_cutoff, case.channels_in, case.heads) == configuration
        }
        assert kinds == {(operation, dtype) for operation in ("forward", "backward") for dtype in DTYPES}


def test_inputs_of_the_full_suite_do_not_stay_in_a_cache() -> None:
    for case in select(["full/*"], "cuda"):
        points = case.in_shape[0] * case.in_shape[1] + case.out_shape[0] * case.out_shape[1]
        size_bytes = 1.5 * points * case.channels_in * (4 if case.dtype == "float32" else 2)
        assert case.input_sets * size_bytes > 140e6, case.name
        assert case.input_sets * size_bytes < 1.5e9, case.name


def test_layers_are_small_enough_to_be_compared_at_every_point() -> None:
    layers = [case for case in all_cases() if case.is_module and not case.is_global]
    assert {case.operation for case in layers} == {"module-forward", "module-forward-backward"}
    assert {case.direction for case in layers} == {"self", "down", "up"}
    assert len(layers) == 24
    assert {(case.operation, case.dtype) for case in layers} == {
        (operation, dtype) for operation in ("module-forward", "module-forward-backward") for dtype in DTYPES
    }
    for case in layers:
        assert case.psi_nnz is not None
        assert case.psi_nnz * min(case.in_shape[1], case.out_shape[1]) <= _ALL_POINTS_PAIRS["cuda"], case.name
        assert case.definition["op"] == "NeighborhoodAttentionS2"
        assert case.group == f"cuda.{case.operation}"


def test_global_attention_is_measured_at_one_degree_and_once_small_on_the_cpu() -> None:
    found = [case for case in all_cases() if case.is_global]
    cuda = [case for case in found if case.device == "cuda"]
    operations = ("forward", "forward-backward", "module-forward", "module-forward-backward")
    assert {(case.operation, case.dtype) for case in cuda} == {(one, dtype) for one in operations for dtype in DTYPES}
    assert len(cuda) == 12
    for case in cuda:
        assert (case.in_shape, case.out_shape, case.channels_in, case.heads) == ((180, 360), (180, 360), 64, 1)
        assert case.suite == FULL_SUITE
    cpu = [case for case in found if case.device == "cpu"]
    assert {case.operation for case in cpu} == {"forward", "forward-backward", "module-forward-backward"}
    assert {case.suite for case in cpu} == {CPU_FULL_SUITE}
    assert select(["full/*global"], "cpu") == tuple(cpu)
    groups = {case.group for case in all_cases() if not case.is_global}
    assert not groups & {case.group for case in found}


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


def test_only_a_glob_that_names_a_suite_reaches_beyond_the_default_selection() -> None:
    whole = "cuda/forward/self/721x1440/c64h1/bf16/tc0.03"
    assert {case.suite for case in select(["*", "cuda/*"], None)} == {CPU_SUITE, GPU_SUITE}
    with pytest.raises(NoSuchCaseError, match="the full suite has some: full/cuda/"):
        select(["cuda/forward/self/721x1440/*"], "cuda")
    assert len(select(["full/cuda/forward/self/721x1440/*"], "cuda")) == 6
    assert [case.name for case in select([whole], "cuda")] == [whole]
    assert {case.suite for case in select(["gpu/*"], None)} == {GPU_SUITE}
    assert {case.suite for case in select(["quick/*"], None)} == {CPU_SUITE}
    assert select(["full/*", "*"], None) == all_cases()
    with pytest.raises(NoSuchCaseError, match="no case for device cpu matches 'gpu/"):
        select(["gpu/*"], "cpu")


def test_a_suite_is_where_plain_globs_look() -> None:
    assert select(["*"], None, suite="full") == all_cases()
    assert select(["*/bf16/*"], "cuda", suite="full") == select(["full/*/bf16/*"], "cuda")
    assert select(["*"], None, suite="quick") == select(["*"], "cpu")
    assert select(["*"], None, suite="gpu") == select(["*"], "cuda")
    with pytest.raises(NoSuchCaseError, match="other devices have"):
        select(["*"], "cuda", suite="quick")


def test_other_threads_are_another_version() -> None:
    one, two = select(["cpu/*"], "cpu"), select(["cpu/*"], "cpu", threads=2)
    assert [case.name for case in one] == [case.name for case in two]
    assert all(a.version != b.version for a, b in zip(one, two, strict=True))
    assert select(["cuda/*"], "cuda", threads=2) == select(["cuda/*"], "cuda")
