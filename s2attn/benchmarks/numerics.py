"""Is what was measured still right: the outputs of a case against the same operation in float64.

Where all pairs of a case fit into a few seconds, every point is compared; otherwise a seeded sample that holds the
poles and the seam.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from s2attn.benchmarks.exact import by_point
from s2attn.benchmarks.layer import exact_layer, join_parameters
from s2attn.benchmarks.workload import Workload, layer_inputs

# Largest accepted relative L2 error by storage dtype, for the operator and for the layer: the benchmarks' one table.
# float32: sums of up to some thousand terms under a softmax stay under 2e-6; a factor of 5 leaves room for reordering
# and fast exponentials, not for a missing neighbor. Half types: a few roundings of the storage (half a unit is 4.9e-4
# and 3.9e-3), as inputs are given in them and sums are float32. The layer rounds q, k, v, y and their gradients once
# more; with float32 sums between that came to 6e-4 and 4.6e-3 at most (60x120, 64 channels, the three directions).
TOLERANCES = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}

# Pairs of a case (times batch) up to which every point is compared: under a second on one CPU thread; on a GPU half a
# degree with a cutoff of 0.03 (4.2e7 pairs) is within.
_ALL_POINTS_PAIRS = {"cpu": 1 << 21, "cuda": 1 << 26}

# Least numbers of sampled points. A sampled query (y, dq) needs its own keys only. A sampled key (dk, dv) needs every
# query that sees it, near a pole ten thousand (a quarter degree, cutoff 0.03), and all keys of each of these: 2.4e8
# pairs for 116 keys, 20 s and 0.5 GB on one CPU thread (2 vCPU EPYC, 64 channels, 2026-11-30).
SAMPLE_QUERIES = 1024
SAMPLE_KEYS = 96


def check_workload(workload: Workload) -> dict[str, Any]:
    """Run a case once and compare its outputs with float64.

    Returns
    -------
    dict
        The ``numerics`` entry of the document. ``errors`` holds per output the largest absolute and the relative L2
        error over the compared points, None where an output is misshapen or not finite; ``reason`` says what failed.
    """
    poison_allocator(workload)
    compared, sampled = _compare_layer(workload) if workload.layer is not None else _compare_operator(workload)
    reasons = [entry.reason for entry in compared.values() if entry.reason]
    return {
        "status": "failed" if reasons else "ok",
        "reason": "; ".join(reasons) or None,
        "reference": "float64",
        "points": "all" if sampled is None else sampled,
        "errors": {name: entry.errors for name, entry in compared.items()},
        "tolerance": {"relative": TOLERANCES[workload.case.dtype]},
        "finite": all(entry.finite for entry in compared.values()),
    }


class Comparison(NamedTuple):
    """One output against float64: its errors, why they fail it (if they do), and whether it is finite throughout."""

    errors: dict[str, float | None]
    reason: str | None
    finite: bool


class ExactOutputs(NamedTuple):
    """float64 values of the operator's outputs at the compared points, both by name of the output.

    ``sampled`` is the number of sampled queries, None where every point is compared.
    """

    values: dict[str, torch.Tensor]
    points: dict[str, torch.Tensor]
    sampled: int | None


def exact_outputs(workload: Workload) -> ExactOutputs:
    """Compute the outputs of an operator's case on its first input set, at all points or at sampled ones."""
    case, inputs = workload.case, workload.inputs[0]
    device = inputs.q.device
    sampled = workload.pairs > _ALL_POINTS_PAIRS[device.type]
    if sampled:
        queries = sample_points(case.out_shape, case.seed, SAMPLE_QUERIES).to(device)
        keys = sample_points(case.in_shape, case.seed + 1, SAMPLE_KEYS).to(device)
    else:
        queries, keys = (torch.arange(math.prod(shape), device=device) for shape in (case.out_shape, case.in_shape))
    exact = workload.exact(inputs.q, inputs.k, inputs.v)
    values = (exact.forward(queries)[0],) if inputs.dy is None else exact.backward(inputs.dy, queries, keys)
    names = workload.output_names
    points = {name: keys if name in ("dk", "dv") else queries for name in names}
    return ExactOutputs(dict(zip(names, values, strict=True)), points, int(queries.numel()) if sampled else None)


def compare_outputs(outputs: dict[str, torch.Tensor], exact: ExactOutputs, workload: Workload) -> dict[str, Comparison]:
    """Compare outputs of the operator, whoever computed them, with float64."""
    shapes, heads = expected_shapes(workload), workload.case.heads

    def at_points(points: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda output: by_point(output, heads)[points]

    return {
        name: _compare(name, outputs[name], value, workload, shape=shapes[name], chosen=at_points(exact.points[name]))
        for name, value in exact.values.items()
    }


def _compare_operator(workload: Workload) -> tuple[dict[str, Comparison], int | None]:
    """Compare every output of the operator, at all points or at as many sampled queries as are returned."""
    outputs = workload.outputs()
    exact = exact_outputs(workload)
    return compare_outputs(outputs, exact, workload), exact.sampled


def _compare_layer(workload: Workload) -> tuple[dict[str, Comparison], None]:
    """Compare every output of the layer, at all points: gradients of its weights are sums over all of them."""
    case, inputs = workload.case, workload.inputs[0]
    assert workload.layer is not None
    outputs = workload.outputs()
    arguments = layer_inputs(case, inputs)
    truths = exact_layer(case, workload.layer, arguments, inputs.dy, workload.exact)
    if inputs.dy is not None:
        truths = join_parameters(workload.layer, truths)
    compared = {
        name: _compare(name, outputs[name], truth, workload, shape=tuple(truth.shape))
        for name, truth in zip(outputs, truths, strict=True)
    }
    return compared, None


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


def sample_points(shape: tuple[int, int], seed: int, count: int) -> torch.Tensor:
    """Return at least ``count`` flat points (all, if fewer): poles, both sides of the seam, and seeded ones."""
    nlat, nlon = shape
    longitudes = sorted({0, nlon // 3, nlon - 1})
    fixed = [lat * nlon + lon for lat in (0, nlat - 1) for lon in longitudes]
    fixed += [lat * nlon + lon for lat in range(0, nlat, max(1, nlat // 8)) for lon in (0, nlon - 1)]
    order = torch.randperm(nlat * nlon, generator=torch.Generator().manual_seed(seed))
    chosen = set(fixed) | set(order[:count].tolist())
    return torch.tensor(sorted(chosen))


def _compare(
    name: str,
    output: torch.Tensor,
    exact: torch.Tensor,
    workload: Workload,
    *,
    shape: tuple[int, ...],
    chosen: Callable[[torch.Tensor], torch.Tensor] = lambda output: output,
) -> Comparison:
    """Compare ``chosen(output)`` with ``exact``; shape, dtype and finiteness are those of the whole output."""
    unknown: dict[str, float | None] = {"max_abs": None, "relative": None}
    dtype, finite = workload.problem.dtype, bool(torch.isfinite(output).all())
    if tuple(output.shape) != shape or output.dtype != dtype:
        reason = f"{name}: got {output.dtype} {tuple(output.shape)}, expected {dtype} {shape}"
        return Comparison(unknown, reason, finite)
    if not finite:
        return Comparison(unknown, f"{name}: holds values that are not finite", finite)
    difference = chosen(output).double() - exact
    norm = float(torch.linalg.vector_norm(exact))
    relative = float(torch.linalg.vector_norm(difference)) / norm if norm > 0 else math.inf
    errors: dict[str, float | None] = {"max_abs": float(difference.abs().max()), "relative": relative}
    if not math.isfinite(relative):
        reason = f"{name}: the float64 values have norm {norm}, which no error can be related to"
        return Comparison(unknown, reason, finite)
    accepted = TOLERANCES[workload.case.dtype]
    exceeded = f"{name}: relative error {relative:.3g} exceeds {accepted:g}" if relative > accepted else None
    return Comparison(errors, exceeded, finite)
