"""Golden values, golden inputs and the shared list of degenerate problems."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from s2attn import AttentionProblem

# no deadline: a loaded machine is slow, not wrong; derandomized: a commit's tests pass or fail, they do not gamble
settings.register_profile("s2attn", deadline=None, derandomize=True, database=None)
settings.load_profile("s2attn")

GOLDEN = Path(__file__).parents[2] / "data" / "golden"

# shapes that have broken attention kernels before; every operator and backend is tried on each of them
DEGENERATE = {
    "one_channel": AttentionProblem((6, 12), (6, 12), channels_in=1, channels_out=1),
    "one_latitude": AttentionProblem((1, 8), (1, 8), "legendre-gauss", "legendre-gauss", 0.9),
    "one_longitude": AttentionProblem((4, 1), (4, 1), theta_cutoff=1.2, channels_in=3, channels_out=2),
    "two_poles": AttentionProblem((2, 4), (2, 4), theta_cutoff=0.5, heads=2, channels_in=2, channels_out=4),
    "wrapping_arc": AttentionProblem((8, 16), (8, 16), theta_cutoff=1.4, channels_in=5, channels_out=3),
    "odd_extents": AttentionProblem((7, 9), (5, 3), heads=3, channels_in=33, channels_out=6),
    "odd_upsample": AttentionProblem((5, 3), (7, 9), heads=3, channels_in=6, channels_out=33),
    "nearly_full_circle": AttentionProblem((5, 8), (5, 8), theta_cutoff=2.2, channels_in=4, channels_out=4),
    "whole_sphere": AttentionProblem((5, 4), (9, 12), theta_cutoff=3.141592653589793, channels_in=4, channels_out=4),
    "some_empty": AttentionProblem(
        (6, 16), (13, 16), "legendre-gauss", "legendre-gauss", channels_in=4, channels_out=4
    ),
    "upsample_mostly_empty": AttentionProblem((6, 4), (12, 16), theta_cutoff=0.1, channels_in=4, channels_out=4),
    "all_empty": AttentionProblem((6, 4), (5, 16), "legendre-gauss", "legendre-gauss", 1e-4),
    "mixed_grids": AttentionProblem((12, 24), (6, 12), "legendre-gauss", "lobatto", 0.5, channels_in=4, channels_out=4),
}


@dataclass(frozen=True)
class GoldenAttention:
    """One golden case: the problem, its inputs [NHWC, float64] and the values expected."""

    problem: AttentionProblem
    inputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def golden_nodes() -> list[dict]:
    return json.loads((GOLDEN / "nodes.json").read_text())


@pytest.fixture(scope="session")
def golden_psi() -> list[dict]:
    return json.loads((GOLDEN / "psi.json").read_text())


@pytest.fixture(params=[entry["name"] for entry in json.loads((GOLDEN / "attention_fp64.json").read_text())])
def golden_attention(request: pytest.FixtureRequest) -> GoldenAttention:
    entry = next(e for e in json.loads((GOLDEN / "attention_fp64.json").read_text()) if e["name"] == request.param)
    problem = AttentionProblem(
        tuple(entry["in_shape"]),
        tuple(entry["out_shape"]),
        entry["grid"],
        entry["grid"],
        entry["theta_cutoff"],
        heads=entry["heads"],
        channels_in=entry["channels"],
        channels_out=entry["channels_out"],
        dtype=torch.float64,
    )
    batch = entry["batch"]
    inputs = {
        "q": formed(problem.query_tensor_shape(batch), 1.3, 0.011),
        "k": formed(problem.key_tensor_shape(batch), 0.7, 0.013),
        "v": formed(problem.value_tensor_shape(batch), 1.1, 0.017),
        "dy": formed(problem.output_tensor_shape(batch), 0.9, 0.019),
    }
    shapes = {"y": "dy", "dq": "q", "dk": "k", "dv": "v"}
    with np.load(GOLDEN / "attention_fp64.npz") as arrays:
        expected = {
            name: torch.tensor(arrays[f"{request.param}/{name}"]).reshape(inputs[like].shape)
            for name, like in shapes.items()
        }
    return GoldenAttention(problem, inputs, expected)


@pytest.fixture(params=DEGENERATE.values(), ids=DEGENERATE.keys())
def degenerate_problem(request: pytest.FixtureRequest) -> AttentionProblem:
    return request.param


def formed(shape: tuple[int, ...], a: float, b: float) -> torch.Tensor:
    """Golden input: a fixed formula of the flat index, so that inputs need not be stored."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return torch.tensor(np.sin(a * i + np.mod(b * i * i, 7.0))).reshape(shape)
