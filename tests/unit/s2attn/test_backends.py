"""The choice of a backend: open, and never a fall-back."""

import pytest
import torch

from s2attn.backends import choose
from s2attn.errors import InvalidProblem, KernelsNotBuilt, UnsupportedProblem
from s2attn.ops import registration


def query(dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(1, 2, 4, 1, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_tensors_on_the_cpu_run_the_cpu_kernels(dtype: torch.dtype, backend: str) -> None:
    assert choose(query(dtype), backend) == "cpu"
    assert registration.loaded()["cpu"].devices == ("cpu",)


def test_the_reference_runs_when_asked_for_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "load", lambda device: pytest.fail("kernels were loaded"))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert choose(query(dtype), "reference") == "reference"


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(InvalidProblem, match="backend: got 'gpu', expected auto or one of cpu, cuda, reference"):
        choose(query(), "gpu")


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_a_dtype_without_kernels_is_refused_with_every_reason(backend: str) -> None:
    with pytest.raises(UnsupportedProblem) as refused:
        choose(query(torch.float64), backend)
    assert refused.value.reasons == {
        "cpu": "runs torch.float32, torch.float16, torch.bfloat16, q is torch.float64",
        "cuda": "runs tensors on cuda, q is on cpu",
        "reference": 'would run it, slowly: ask for backend="reference"',
    }


def test_kernels_of_another_device_are_refused() -> None:
    with pytest.raises(UnsupportedProblem, match="cuda: runs tensors on cuda, q is on cpu") as refused:
        choose(query(), "cuda")
    assert refused.value.reasons["cpu"] == "would run it"


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(UnsupportedProblem, match=r"backend='auto' for torch.float32 on meta"):
        choose(query(device="meta"))


def test_kernels_that_cannot_be_built_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise KernelsNotBuilt(f"no {device} kernels here")

    monkeypatch.setattr(registration, "load", refuse)
    with pytest.raises(KernelsNotBuilt, match="no cpu kernels here"):
        choose(query())
