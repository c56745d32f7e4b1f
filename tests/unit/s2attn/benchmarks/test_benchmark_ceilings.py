from types import SimpleNamespace

import pytest
import torch

from s2attn.benchmarks import ceilings
from s2attn.benchmarks.ceilings import measure_ceilings


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ceilings.COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings.MATRIX_ROWS, "cpu", 64)


def test_a_cpu_has_a_rate_of_copies_and_one_of_products() -> None:
    measured = measure_ceilings("cpu")
    assert set(measured.tflops) == {"fp32"}
    assert 0 < measured.copy_tb_per_s < 100
    assert 0 < measured.tflops["fp32"] < 1000


def test_rates_are_work_over_the_fastest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([5e-3, *[2e-3] * 9, 4e-3, *[8e-3] * 9])
    monkeypatch.setattr(ceilings, "_seconds_cpu", lambda call: next(times_s))
    measured = measure_ceilings("cpu")
    assert measured.copy_tb_per_s == pytest.approx(2 * (1 << 20) / 2e-3 * 1e-12)
    assert measured.tflops["fp32"] == pytest.approx(2 * 64**3 / 4e-3 * 1e-12)


def test_the_precision_of_products_is_as_before_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(fp32_precision="tf32")
    monkeypatch.setattr(torch.backends.cuda, "matmul", backend)
    seen = []

    def product(*arguments: object, **options: object) -> None:
        seen.append(backend.fp32_precision)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "mm", product)
    with pytest.raises(RuntimeError, match="out of memory"):
        measure_ceilings("cpu")
    assert seen == ["ieee"]
    assert backend.fp32_precision == "tf32"
