"""What is recorded as having run."""

import pytest
import torch

from s2attn.benchmarks.operators import name_variant
from s2attn.benchmarks.workload import prepare
from s2attn.geometry import neighborhood
from s2attn.problem import AttentionProblem

PROBLEM = AttentionProblem((8, 16), (8, 16), dtype=torch.float16)


def test_a_variant_names_formulation_dtype_and_target(make_case) -> None:
    workload = prepare(make_case())
    formulation, dtype, target = workload.variant.split("/")
    assert (formulation, dtype) == ("downsample_gather", "float32")
    assert target.count("-") == 1
    assert name_variant(PROBLEM, "reference", backward=False) == "downsample_gather/float16/torch"


def test_the_kernels_that_the_cuda_library_names_are_part_of_the_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.s2attn, "cuda_policy", lambda *asked: repr(asked), raising=False)
    geometry = neighborhood(PROBLEM)
    arcs = [len(geometry.query_table.arcs), len(geometry.key_table.arcs)]
    asked = ((8, 16), (8, 16), arcs, 1, [1, 1], torch.float16, True)
    assert name_variant(PROBLEM, "cuda", backward=True) == f"downsample_gather/float16/torch/{asked!r}"
    assert name_variant(PROBLEM, "cpu", backward=True).count("/") == 2
