import dataclasses
import math

import pytest
import torch

from s2attn.benchmarks import numerics
from s2attn.benchmarks.numerics import check_workload, sample_points
from s2attn.benchmarks.workload import Workload, WorkloadMismatchError, prepare

DIRECTIONS = {"self": ((8, 16), (8, 16)), "down": ((12, 24), (6, 8)), "up": ((6, 8), (12, 24))}


class Tampered(Workload):
    """A workload whose kernel does something wrong to its first output."""

    def call(self, index: int) -> tuple[torch.Tensor, ...]:
        first, *others = super().call(index)
        return (self.tamper(first), *others)

    def tamper(self, output: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def tampered(workload: Workload, tamper: object) -> Workload:
    fields = {field.name: getattr(workload, field.name) for field in dataclasses.fields(workload)}
    changed = Tampered(**fields)
    object.__setattr__(changed, "tamper", tamper)
    return changed


def with_value(value: float) -> object:
    def change(output: torch.Tensor) -> torch.Tensor:
        output.view(-1)[-1] = value
        return output

    return change


def test_kernels_agree_with_float64(workload: Workload) -> None:
    result = check_workload(workload)
    assert result["status"] == "ok", result
    assert result["points"] == "all"
    assert result["finite"]
    assert set(result["errors"]) == ({"y"} if workload.case.operation == "forward" else {"dq", "dk", "dv"})
    assert all(0 < entry["relative"] < 2e-6 for entry in result["errors"].values())


def test_a_sample_of_points_finds_the_same(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numerics._ALL_POINTS_PAIRS, "cpu", 1)
    monkeypatch.setattr(numerics, "SAMPLE_QUERIES", 20)
    monkeypatch.setattr(numerics, "SAMPLE_KEYS", 20)
    result = check_workload(workload)
    assert result["status"] == "ok", result
    assert 20 <= result["points"] < workload.case.out_shape[0] * workload.case.out_shape[1]
    assert all(0 < entry["relative"] < 2e-6 for entry in result["errors"].values())


LAYERS = pytest.mark.parametrize(
    ("operation", "direction"),
    [(operation, way) for operation in ("module-forward", "module-forward-backward") for way in DIRECTIONS],
)


@LAYERS
def test_layers_agree_with_float64(make_case, operation: str, direction: str) -> None:
    in_shape, out_shape = DIRECTIONS[direction]
    workload = prepare(make_case(operation=operation, in_shape=in_shape, out_shape=out_shape, input_sets=2))
    result = check_workload(workload)
    inputs = {"dx"} if direction == "self" else {"dquery", "dkey", "dvalue"}
    gradients = inputs | {"dq_projection", "dk_projection", "dv_projection", "dproj_projection"}
    assert result["status"] == "ok", result
    assert result["points"] == "all"
    assert set(result["errors"]) == ({"y"} if operation == "module-forward" else gradients)
    assert all(0 < entry["relative"] < 2e-6 for entry in result["errors"].values())


@LAYERS
def test_a_layer_with_a_wrong_output_fails(make_case, operation: str, direction: str) -> None:
    in_shape, out_shape = DIRECTIONS[direction]
    workload = prepare(make_case(operation=operation, in_shape=in_shape, out_shape=out_shape))
    result = check_workload(tampered(workload, lambda output: output * 1.0001))
    first = workload.output_names[0]
    assert result["status"] == "failed"
    assert result["reason"].startswith(f"{first}: relative error 0.0001")


def test_layers_are_seeded_by_the_case_and_leave_the_global_generator_alone(make_case) -> None:
    case = make_case(operation="module-forward")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again = prepare(case).layer, prepare(case).layer
    assert torch.equal(torch.rand(3), expected)
    assert one is not None
    assert again is not None
    for a, b in zip(one.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.abs().min() > 0


def test_a_layer_accumulates_no_gradients(make_case) -> None:
    workload = prepare(make_case(operation="module-forward-backward"))
    with torch.no_grad():
        first, second = workload.call(0), workload.call(0)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert workload.layer is not None
    assert all(parameter.grad is None for parameter in workload.layer.parameters())
    assert workload.inputs[0].q.grad is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_fails(workload: Workload, value: float) -> None:
    result = check_workload(tampered(workload, with_value(value)))
    first = next(iter(result["errors"]))
    assert result["status"] == "failed"
    assert not result["finite"]
    assert result["reason"] == f"{first}: holds values that are not finite"
    assert result["errors"][first] == {"max_abs": None, "relative": None}


def test_a_small_error_fails_with_its_size(workload: Workload) -> None:
    result = check_workload(tampered(workload, lambda output: output * 1.0001))
    first = next(iter(result["errors"]))
    assert result["status"] == "failed"
    assert result["finite"]
    assert result["errors"][first]["relative"] == pytest.approx(1e-4, rel=0.01)
    assert "exceeds 1e-05" in result["reason"]


def test_a_wrong_shape_fails(workload: Workload) -> None:
    result = check_workload(tampered(workload, lambda output: output[:, :-1]))
    assert result["status"] == "failed"
    assert "expected torch.float32 (1, " in result["reason"]


def test_sampled_points_hold_poles_and_seam() -> None:
    points = sample_points((360, 720), 1, 96)
    assert 96 <= points.numel() <= 130
    latitudes, longitudes = points // 720, points % 720
    assert {0, 359} <= set(latitudes.tolist())
    assert {0, 719} <= set(longitudes[(latitudes > 100) & (latitudes < 260)].tolist())
    assert torch.equal(points, sample_points((360, 720), 1, 96))
    assert not torch.equal(points, sample_points((360, 720), 2, 96))
    assert torch.equal(sample_points((3, 4), 1, 96), torch.arange(12))


MIDDLE = {"self": ((61, 120), (61, 120)), "down": ((61, 120), (30, 60)), "up": ((30, 60), (61, 120))}


@pytest.fixture(params=[(operation, way) for operation in ("forward", "backward") for way in MIDDLE], ids="-".join)
def middle(request: pytest.FixtureRequest, make_case) -> Workload:
    operation, direction = request.param
    in_shape, out_shape = MIDDLE[direction]
    fields = {"theta_cutoff": 0.12, "channels_in": 16, "channels_out": 16}
    return prepare(make_case(operation=operation, in_shape=in_shape, out_shape=out_shape, **fields))


def test_sampled_errors_of_a_larger_grid_are_those_of_all_points(
    middle: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = check_workload(middle)
    monkeypatch.setitem(numerics._ALL_POINTS_PAIRS, "cpu", 1)
    sampled = check_workload(middle)
    assert whole["points"] == "all"
    assert sampled["points"] >= min(numerics.SAMPLE_QUERIES, middle.problem.nlat_out * middle.problem.nlon_out)
    assert whole["status"] == sampled["status"] == "ok"
    for name, errors in whole["errors"].items():
        assert sampled["errors"][name]["relative"] == pytest.approx(errors["relative"], rel=0.5), name
        assert sampled["errors"][name]["max_abs"] <= errors["max_abs"]


PLACES = {
    "north pole": (slice(None), slice(0, 1)),
    "south pole": (slice(None), slice(-1, None)),
    "west of the seam": (slice(None), slice(None), slice(-1, None)),
    "east of the seam": (slice(None), slice(None), slice(0, 1)),
    "a third of the latitudes": (slice(None), slice(None, None, 3)),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_sample_finds_a_wrong_place(middle: Workload, place: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(output: torch.Tensor) -> torch.Tensor:
        output[place] *= 1.01
        return output

    monkeypatch.setitem(numerics._ALL_POINTS_PAIRS, "cpu", 1)
    result = check_workload(tampered(middle, change))
    assert result["status"] == "failed"
    assert "relative error" in result["reason"]


def test_inputs_are_seeded_by_the_case(make_case) -> None:
    one, again, other = (prepare(make_case(theta_cutoff=cutoff, input_sets=2)) for cutoff in (0.6, 0.6, 0.7))
    for a, b in zip(one.inputs, again.inputs, strict=True):
        assert torch.equal(a.q, b.q)
        assert torch.equal(a.v, b.v)
    assert not torch.equal(one.inputs[0].q, one.inputs[1].q)
    assert not torch.equal(one.inputs[0].q, other.inputs[0].q)


def test_a_definition_that_does_not_fit_its_pattern_is_refused(make_case) -> None:
    case = make_case()
    with pytest.raises(WorkloadMismatchError, match=f"psi has {case.psi_nnz} entries"):
        prepare(dataclasses.replace(case, psi_nnz=case.psi_nnz + 1))
