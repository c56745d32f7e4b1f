"""Global attention as a benchmark case: its float64 values, what ran, and that wrong numbers are found."""

import dataclasses
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from s2attn.benchmarks import exact_global, numerics
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.exact import ExactAttention
from s2attn.benchmarks.exact_global import ExactGlobalAttention
from s2attn.benchmarks.numerics import check_workload
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.geometry import latitude_weights, neighborhood
from s2attn.problem import AttentionProblem

OPERATIONS = ("forward", "forward-backward", "module-forward", "module-forward-backward")
SHAPES = {"self": ((8, 16), (8, 16)), "down": ((12, 24), (6, 8)), "up": ((6, 8), (12, 24))}


def global_case(**changes: object) -> Case:
    fields: dict = {
        "device": "cpu",
        "operation": "forward",
        "suite": "test",
        "in_shape": (8, 16),
        "out_shape": (8, 16),
        "theta_cutoff": None,
        "psi_nnz": None,
        "heads": 2,
        "channels_in": 4,
        "channels_out": 6,
        "threads": 1,
        **changes,
    }
    return Case(**fields)


@pytest.fixture(params=OPERATIONS)
def workload(request: pytest.FixtureRequest) -> Workload:
    return prepare(global_case(operation=request.param, input_sets=2))


def drawn(batch: int = 2) -> tuple[AttentionProblem, list[torch.Tensor]]:
    problem = AttentionProblem((6, 8), (12, 24), theta_cutoff=math.pi, heads=2, channels_in=6, channels_out=4)
    shapes = (problem.query_tensor_shape, problem.key_tensor_shape, problem.value_tensor_shape)
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape(batch), generator=generator, dtype=torch.float64) for shape in shapes]
    dy = torch.randn(problem.output_tensor_shape(batch), generator=generator, dtype=torch.float64)
    return problem, [*tensors, dy]


@pytest.mark.parametrize("block", [1, 1000, 1 << 22])
def test_exact_values_are_those_of_a_neighborhood_that_holds_everything(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(exact_global._BLOCK_SCORES, "cpu", block)
    problem, (q, k, v, dy) = drawn()
    queries, keys = torch.tensor([0, 5, 100, 287]), torch.tensor([0, 1, 30, 47])
    everything = ExactAttention(q, k, v, neighborhood(problem), heads=2)
    weights = torch.tensor(latitude_weights(6, "equiangular"))
    found = ExactGlobalAttention(q, k, v, weights, heads=2)
    torch.testing.assert_close(found.forward(queries)[0], everything.forward(queries)[0], rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(found.backward(dy, queries, keys), everything.backward(dy, queries, keys), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any operator returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_the_scores_of_all_pairs_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(exact_global._BLOCK_SCORES, "cpu", 4096)
    _, (q, k, v, dy) = drawn()
    exact = ExactGlobalAttention(q, k, v, torch.tensor(latitude_weights(6, "equiangular")), heads=2)
    with LargestTensor() as seen:
        exact.backward(dy, torch.arange(288), torch.arange(48))
    assert 4096 // 2 < seen.elements <= 4096 < 2 * 2 * 288 * 48


def test_every_operation_agrees_with_float64(workload: Workload) -> None:
    result = check_workload(workload)
    assert result["status"] == "ok", result
    assert result["points"] == "all"
    assert set(result["errors"]) == set(workload.output_names)
    assert all(0 < entry["relative"] < 2e-6 for entry in result["errors"].values())


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_direction_agrees_in_half_types(shapes: tuple, dtype: str) -> None:
    # channels as in the suite: with two per head gradients are small differences of rounded terms
    fields = {"in_shape": shapes[0], "out_shape": shapes[1], "dtype": dtype, "channels_in": 32, "channels_out": 32}
    for operation in OPERATIONS:
        case = global_case(operation=operation, **fields)
        result = check_workload(prepare(case))
        assert result["status"] == "ok", result


def test_a_sample_of_points_finds_the_same(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numerics._ALL_POINTS_PAIRS, "cpu", 1)
    monkeypatch.setattr(numerics, "SAMPLE_QUERIES", 20)
    monkeypatch.setattr(numerics, "SAMPLE_KEYS", 20)
    result = check_workload(workload)
    assert result["status"] == "ok", result
    assert result["points"] == "all" if workload.case.is_module else 20 <= result["points"] < 128


@pytest.mark.parametrize("operation", OPERATIONS)
def test_forgotten_weights_fail(operation: str) -> None:
    workload = prepare(global_case(operation=operation))
    layer, operator = workload.layer, workload.operator
    forgotten = (
        (operator.channels, operator.mask) if layer is None else (layer._log_weight_channels, layer._log_weight_mask)
    )
    for weights in forgotten:
        weights.zero_()
    result = check_workload(workload)
    assert result["status"] == "failed"
    assert "relative error" in result["reason"]


def test_what_ran_is_torchs_fused_kernel_by_name(workload: Workload) -> None:
    assert workload.backend == "torch"
    assert workload.variant == "flash_attention_for_cpu/float32/torch"


def test_gradients_are_not_accumulated(workload: Workload) -> None:
    first, second = workload.call(0), workload.call(0)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(x.grad is None for x in workload.inputs[0] if x is not None)


def test_names_and_definitions_know_no_cutoff() -> None:
    case = global_case(operation="module-forward", dtype="bfloat16")
    assert case.name == "cpu/module-forward/self/8x16/c4-6h2/bf16/global"
    assert case.group == "cpu.global.module-forward"
    assert case.definition["op"] == "AttentionS2"
    assert dataclasses.replace(case, operation="forward").definition["op"] == "weighted_attention"
    assert not {"theta_cutoff", "psi_nnz"} & set(case.definition)
