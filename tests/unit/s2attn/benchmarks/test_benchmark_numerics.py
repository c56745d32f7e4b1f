import dataclasses
import math

import pytest
import torch

from s2attn.benchmarks import numerics
from s2attn.benchmarks.numerics import check_workload, every_point, sample_points
from s2attn.benchmarks.workload import Workload, WorkloadMismatchError, prepare


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
    monkeypatch.setattr(numerics, "SAMPLE_POINTS", 20)
    result = check_workload(workload)
    assert result["status"] == "ok", result
    assert 20 <= result["points"] < workload.case.out_shape[0] * workload.case.out_shape[1]
    assert all(0 < entry["relative"] < 2e-6 for entry in result["errors"].values())


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
    points = sample_points((360, 720), seed=1)
    assert 96 <= points.numel() <= 130
    latitudes, longitudes = points // 720, points % 720
    assert {0, 359} <= set(latitudes.tolist())
    assert {0, 719} <= set(longitudes[(latitudes > 100) & (latitudes < 260)].tolist())
    assert torch.equal(points, sample_points((360, 720), seed=1))
    assert not torch.equal(points, sample_points((360, 720), seed=2))
    assert torch.equal(sample_points((3, 4), seed=1), every_point((3, 4), seed=1))


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
