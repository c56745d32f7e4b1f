"""Golden values and golden inputs."""

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


def formed(shape: tuple[int, ...], a: float, b: float) -> torch.Tensor:
    """Golden input: a fixed formula of the flat index, so that inputs need not be stored."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return torch.tensor(np.sin(a * i + np.mod(b * i * i, 7.0))).reshape(shape)
