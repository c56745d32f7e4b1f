import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from s2attn.benchmarks import ceilings, opponents, rounds
from s2attn.benchmarks.__main__ import main
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.opponents import OPPONENTS, OpponentUnavailableError, Rival, TorchHarmonics
from s2attn.benchmarks.suite import all_cases
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.versus import move_cases, run_comparison
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.ops.reference import reference_attention


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", 1 << 16)
    monkeypatch.setitem(ceilings.MATRIX_ROWS, "cpu", 16)


class StandIn:
    """Our own operator, called twice; ``factor`` makes its results wrong, ``fails`` makes it fail."""

    def __init__(self, factor: float = 1.0, fails: bool = False) -> None:
        self.factor, self.fails = factor, fails

    def load(self, device: str) -> str:
        return f"1.0 for {device}"

    def plays(self, case: Case) -> bool:
        return not case.is_module and not case.is_global

    def prepare(self, workload: Workload) -> Rival:
        def run(index: int) -> tuple[torch.Tensor, ...]:
            if self.fails:
                raise RuntimeError("out of memory")
            workload.call(index)
            return tuple(self.factor * x for x in workload.call(index))

        return Rival(workload.case, run, lambda found: dict(zip(workload.output_names, found, strict=True)))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    opponent = StandIn()
    monkeypatch.setitem(OPPONENTS, "stand_in", opponent)
    return opponent


def test_what_calls_twice_takes_about_twice_as_long(stand_in: StandIn, make_case, capsys) -> None:
    cases = [make_case(operation=operation, channels_out=16, channels_in=16) for operation in ("forward", "backward")]
    found = run_comparison(cases, "stand_in", "cpu", rounds=9, clock=Clock())
    assert not found.failed
    for row in found.rows:
        assert len(row.ours.record.samples) == len(row.theirs.record.samples) == 18
        assert 1.2 < row.ratio.median < 4.0
        assert row.ratio.low <= row.ratio.median <= row.ratio.high
        assert row.ours.errors == row.theirs.errors
        assert 0 < row.ours.worst_error < 1e-5
        assert row.floor_ms > 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ceilings of this cpu, 1 threads: copy ")
    assert [line.split()[:2] for line in lines[2:]] == [[case.name, "float32"] for case in cases]


def test_rounds_alternate_who_begins(stand_in: StandIn, make_case, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def sample(timed: object, record, clock: Clock, index: int) -> None:
        order.append("ours" if isinstance(timed, Workload) else "theirs")
        record.samples.append(1.0)

    monkeypatch.setattr(rounds, "sample_cpu", sample)
    (row,) = run_comparison([make_case()], "stand_in", "cpu", rounds=2, clock=Clock()).rows
    assert order == ["ours", "theirs", "theirs", "ours", "theirs", "ours", "ours", "theirs"]
    assert row.ratio.median == 1.0


def test_a_wrong_opponent_keeps_its_ratio_and_fails_the_comparison(stand_in: StandIn, make_case, capsys) -> None:
    stand_in.factor = 1.01
    found = run_comparison([make_case()], "stand_in", "cpu", rounds=1, clock=Clock())
    (row,) = found.rows
    assert found.failed
    assert row.ratio is not None
    assert row.theirs.worst_error == pytest.approx(0.01, rel=1e-2)
    assert "their y: relative error 0.01 exceeds 1e-05" in capsys.readouterr().err


def test_a_failed_case_does_not_keep_the_others(stand_in: StandIn, make_case, capsys) -> None:
    stand_in.fails = True
    found = run_comparison([make_case(), make_case(operation="backward")], "stand_in", "cpu", rounds=1, clock=Clock())
    assert found.failed
    assert [row.ratio for row in found.rows] == [None, None]
    assert capsys.readouterr().err.count("RuntimeError: out of memory") == 2
    json.dumps(found.to_json(), allow_nan=False)


def test_the_command_writes_a_document_beside_the_table(stand_in: StandIn, tmp_path: Path, capsys) -> None:
    target = tmp_path / "versus.json"
    arguments = ["versus", "stand_in", "--cases", "cpu/forward/down/*", "--rounds", "1", "--out", str(target)]
    assert main(arguments) == 0
    assert "cpu/forward/down/32x64-16x32/c16h1/fp32/tc0.6" in capsys.readouterr().out
    document = json.loads(target.read_text())
    assert (document["opponent"], document["opponent_version"]) == ("stand_in", "1.0 for cpu")
    assert set(document["ceilings"]) == {"copy_tb_per_s", "tflops"}
    (row,) = document["rows"]
    assert row["error"] is None
    assert len(row["ours"]["samples"]) == len(row["theirs"]["samples"]) == 2
    assert row["ours"]["share_of_floor"] > 0
    stand_in.factor = math.nan
    assert main(arguments) == 1


def test_requests_that_make_no_sense_are_exit_code_2(stand_in: StandIn, capsys) -> None:
    assert main(["versus", "stand_in", "--cases", "nothing/*"]) == 2
    assert main(["versus", "stand_in", "--cases", "full/cuda/module-*"]) == 2
    assert "stand_in plays none of the cases" in capsys.readouterr().err


def test_a_package_that_is_not_installed_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(opponents.importlib, "import_module", missing)
    assert main(["versus", "torch_harmonics"]) == 2
    captured = capsys.readouterr()
    assert "torch_harmonics cannot be imported: No module named 'torch_harmonics'" in captured.err
    assert captured.out == ""


def test_a_package_without_its_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opponents.importlib, "import_module", lambda name: SimpleNamespace(__version__="0.9.3"))
    with pytest.raises(OpponentUnavailableError, match=r"torch_harmonics 0\.9\.3 has no compiled .* kernels for cuda"):
        TorchHarmonics().load("cuda")


@pytest.mark.parametrize("threads", [None, 2])
def test_cases_move_between_devices(threads: int | None) -> None:
    there = [case for case in all_cases() if case.device == "cuda" and not case.is_module][:2]
    here = [replace(case, device="cpu", threads=threads or 1) for case in there]
    assert move_cases([*there, *there], "cpu", threads) == tuple(here)
    (back,) = move_cases(here[:1], "cuda", threads)
    assert back == there[0]


class PackageOperator:
    """Answers like the package's operators, from the column list alone: k, v, q, its order of gradients, its psi."""

    def __init__(self, workload: Workload) -> None:
        self.geometry = workload.operator.geometry
        self.forward = SimpleNamespace(default=self._forward)
        self.backward = SimpleNamespace(default=self._backward)

    def _check(self, tables: tuple[torch.Tensor, ...], extents: tuple[int, ...]) -> None:
        col_idx, row_off, arcs, arc_off = tables
        assert torch.equal(col_idx, torch.tensor(self.geometry.psi.col_idx))
        assert torch.equal(row_off, torch.tensor(self.geometry.psi.row_off))
        assert (arcs.dtype, arc_off.dtype) == (torch.int32, torch.int32)
        assert int(arcs[:, 2].sum()) == col_idx.numel()
        assert arc_off.shape == row_off.shape
        grids = self.geometry.grids
        assert extents[1:] == (grids.in_shape[1], *grids.out_shape)

    def _forward(self, k: torch.Tensor, v: torch.Tensor, q: torch.Tensor, weights: torch.Tensor, *rest) -> torch.Tensor:
        self._check(rest[:4], rest[4:])
        assert weights.dtype == torch.float32
        return reference_attention(q, k, v, self.geometry, heads=rest[4])[0]

    def _backward(self, k, v, q, dy, weights, *rest) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (k, v, q)]
        with torch.enable_grad():
            return torch.autograd.grad(self._forward(*leaves, weights, *rest), leaves, dy)


def test_the_package_gets_its_own_order_and_its_form_of_psi(workload: Workload, monkeypatch) -> None:
    monkeypatch.setattr(torch.ops, "attention_kernels", PackageOperator(workload), raising=False)
    rival = TorchHarmonics().prepare(workload)
    outputs, expected = rival.outputs(), workload.outputs()
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(outputs[name], value, rtol=1e-4, atol=1e-5)
    # the second set of inputs is another one
    assert not torch.equal(rival.call(1)[0], rival.call(0)[0])
    assert torch.equal(rival.call(2)[0], rival.call(0)[0])


GLOBAL = {"theta_cutoff": None, "psi_nnz": None, "channels_in": 8, "channels_out": 12, "heads": 2, "suite": "test"}


@pytest.mark.parametrize("operation", ["forward", "forward-backward"])
@pytest.mark.parametrize("shapes", [((8, 16), (8, 16)), ((6, 12), (4, 6))], ids=["self", "down"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_float_mask_gives_the_same_global_attention(operation: str, shapes, dtype: str) -> None:
    in_shape, out_shape = shapes
    fields = {"device": "cpu", "operation": operation, "in_shape": in_shape, "out_shape": out_shape, "threads": 1}
    case = Case(**GLOBAL, **fields, dtype=dtype, input_sets=2)
    assert OPPONENTS["sdpa_mask"].plays(case)
    assert not OPPONENTS["torch_harmonics"].plays(case)
    found = run_comparison([case], "sdpa_mask", "cpu", rounds=1, clock=Clock())
    (row,) = found.rows
    assert row.error is None, row.error
    assert set(row.theirs.errors) == ({"y"} if operation == "forward" else {"dq", "dk", "dv"})
    rival = OPPONENTS["sdpa_mask"].prepare(prepare(case))
    assert not torch.equal(rival.call(1)[0], rival.call(0)[0])
