"""Is what was measured still right: the outputs of a case against the same operation in float64.

Where all pairs of a case fit into a few seconds, every point is compared; otherwise a seeded sample that holds the
poles and the seam.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from s2attn.benchmarks.exact import ExactAttention, by_point, count_pairs
from s2attn.benchmarks.workload import OUTPUT_NAMES, Workload

# Largest accepted relative L2 error by storage dtype. float32: sums of up to some thousand terms under a softmax stay
# under 2e-6; a factor of 5 leaves room for reordering and fast exponentials, not for a missing neighbor. Half types: a
# few roundings of the storage (half a unit is 4.9e-4 and 3.9e-3).
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}

# Pairs of a case (times batch) up to which every point is compared: under a second on one CPU thread; on a GPU half a
# degree with a cutoff of 0.03 (4.2e7 pairs) is within.
_ALL_POINTS_PAIRS = {"cpu": 1 << 21, "cuda": 1 << 26}
SAMPLE_POINTS = 96


def check_workload(workload: Workload) -> dict[str, Any]:
    """Run a case once and compare its outputs with float64.

    Returns
    -------
    dict
        The ``numerics`` entry of the document. ``errors`` holds per output the largest absolute and the relative L2
        error over the compared points, None where an output is misshapen or not finite; ``reason`` says what failed.
    """
    case, inputs = workload.case, workload.inputs[0]
    device = inputs.q.device
    pairs = count_pairs(workload.neighborhood.psi, workload.neighborhood.grids) * case.batch
    sampled = pairs > _ALL_POINTS_PAIRS[device.type]
    queries, keys = (
        (sample_points if sampled else every_point)(shape, seed).to(device)
        for shape, seed in ((case.out_shape, case.seed), (case.in_shape, case.seed + 1))
    )
    poison_allocator(workload)
    outputs = dict(zip(OUTPUT_NAMES[case.operation], workload.call(0), strict=True))
    exact = ExactAttention(inputs.q, inputs.k, inputs.v, workload.neighborhood, heads=case.heads)
    truth: dict[str, torch.Tensor]
    if inputs.dy is None:
        truth = {"y": exact.forward(queries)[0]}
    else:
        truth = dict(zip(OUTPUT_NAMES["backward"], exact.backward(inputs.dy, queries, keys), strict=True))
    compared = {name: _compare(workload, name, outputs[name], (truth[name], queries, keys)) for name in outputs}
    reasons = [reason for _, reason in compared.values() if reason]
    return {
        "status": "failed" if reasons else "ok",
        "reason": "; ".join(reasons) or None,
        "reference": "float64",
        "points": int(queries.numel()) if sampled else "all",
        "errors": {name: errors for name, (errors, _) in compared.items()},
        "tolerance": {"relative": TOLERANCES[case.dtype]},
        "finite": all(bool(torch.isfinite(output).all()) for output in outputs.values()),
    }


def expected_shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return the shape that each output must have."""
    problem, batch = workload.problem, workload.case.batch
    return {
        "y": problem.output_tensor_shape(batch),
        "dq": problem.query_tensor_shape(batch),
        "dk": problem.key_tensor_shape(batch),
        "dv": problem.value_tensor_shape(batch),
    }


def poison_allocator(workload: Workload) -> None:
    """Leave NaN where the allocator is likely to place the outputs of the next call.

    An element that the kernel does not write then shows as NaN instead of as a right value of an earlier call. The
    caching allocator of a GPU does give the same blocks again; on a CPU it is likely, not sure.
    """
    shapes = expected_shapes(workload)
    dtype, device = workload.problem.dtype, workload.inputs[0].q.device
    blocks = [torch.full(shapes[name], math.nan, dtype=dtype, device=device) for name in shapes]
    del blocks


def every_point(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Return all flat points of a grid; the seed is not needed."""
    del seed
    return torch.arange(shape[0] * shape[1])


def sample_points(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Return at least `SAMPLE_POINTS` flat points (all, if fewer): poles, both sides of the seam, and seeded ones."""
    nlat, nlon = shape
    longitudes = sorted({0, nlon // 3, nlon - 1})
    fixed = [lat * nlon + lon for lat in (0, nlat - 1) for lon in longitudes]
    fixed += [lat * nlon + lon for lat in range(0, nlat, max(1, nlat // 8)) for lon in (0, nlon - 1)]
    order = torch.randperm(nlat * nlon, generator=torch.Generator().manual_seed(seed))
    chosen = set(fixed) | set(order[:SAMPLE_POINTS].tolist())
    return torch.tensor(sorted(chosen))


def _compare(
    workload: Workload, name: str, output: torch.Tensor, truth: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[dict[str, float | None], str | None]:
    """Return the errors of one output, and why they fail it, if they do."""
    exact, queries, keys = truth
    unknown: dict[str, float | None] = {"max_abs": None, "relative": None}
    dtype, shape = workload.problem.dtype, expected_shapes(workload)[name]
    if tuple(output.shape) != shape or output.dtype != dtype:
        return unknown, f"{name}: got {output.dtype} {tuple(output.shape)}, expected {dtype} {shape}"
    if not bool(torch.isfinite(output).all()):
        return unknown, f"{name}: holds values that are not finite"
    points = keys if name in ("dk", "dv") else queries
    difference = by_point(output, workload.case.heads)[points].double() - exact
    norm = float(torch.linalg.vector_norm(exact))
    relative = float(torch.linalg.vector_norm(difference)) / norm if norm > 0 else math.inf
    errors: dict[str, float | None] = {"max_abs": float(difference.abs().max()), "relative": relative}
    if not math.isfinite(relative):
        return unknown, f"{name}: the float64 values have norm {norm}, which no error can be related to"
    tolerance = TOLERANCES[workload.case.dtype]
    if relative > tolerance:
        return errors, f"{name}: relative error {relative:.3g} exceeds {tolerance:g}"
    return errors, None
