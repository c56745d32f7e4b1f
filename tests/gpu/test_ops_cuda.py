"""The compiled operators on CUDA beyond what tests/gpu/test_shared_cuda.py tries: golden values, streams, graphs."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_cases import TOLERANCES, Call, Expected, draw, errors, expected_of

from s2attn import AttentionProblem, neighborhood, neighborhood_attention
from s2attn.backends import choose
from s2attn.ops import registration

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
GOLDEN_CASES = json.loads((GOLDEN / "attention_fp64.json").read_text())
DIRECTIONS = pytest.mark.parametrize("name", ["self_32_channels", "down_32_channels", "up_32_channels"])
FLOAT32 = TOLERANCES[torch.float32].relative


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    registration.load("cuda")


def formed(shape: tuple[int, ...], a: float, b: float) -> torch.Tensor:
    """Golden input: a fixed formula of the flat index."""
    i = np.arange(np.prod(shape), dtype=np.float64)
    return torch.tensor(np.sin(a * i + np.mod(b * i * i, 7.0)), dtype=torch.float32, device="cuda").reshape(shape)


@pytest.mark.parametrize("entry", GOLDEN_CASES, ids=[entry["name"] for entry in GOLDEN_CASES])
def test_equals_golden_values_and_gradients(entry: dict) -> None:
    problem = AttentionProblem(
        tuple(entry["in_shape"]),
        tuple(entry["out_shape"]),
        entry["grid"],
        entry["grid"],
        entry["theta_cutoff"],
        heads=entry["heads"],
        channels_in=entry["channels"],
        channels_out=entry["channels_out"],
    )
    batch = entry["batch"]
    call = Call(
        problem,
        formed(problem.query_tensor_shape(batch), 1.3, 0.011),
        formed(problem.key_tensor_shape(batch), 0.7, 0.013),
        formed(problem.value_tensor_shape(batch), 1.1, 0.017),
        formed(problem.output_tensor_shape(batch), 0.9, 0.019),
    )
    got = call.got()
    with np.load(GOLDEN / "attention_fp64.npz") as arrays:
        expected = {name: torch.tensor(arrays[f"{entry['name']}/{name}"]).reshape(got[name].shape) for name in got}
    found = errors(got, Expected.of(expected))
    assert max(found.values()) < FLOAT32, found


def test_more_channels_than_the_default_shared_memory_holds() -> None:
    problem = AttentionProblem((3, 4), (3, 4), channels_in=4000, channels_out=4000)
    call = draw(problem, device="cuda", batch=1)
    found = errors(call.got(), call.expected())
    assert max(found.values()) < FLOAT32, found


def test_more_channels_than_any_shared_memory_holds_is_an_error() -> None:
    call = draw(AttentionProblem((3, 4), (3, 4), channels_in=40000, channels_out=40000), device="cuda", batch=1)
    with pytest.raises(ValueError, match="channels per head: got 320000 bytes of sums per point, expected at most"):
        call.forward()


def test_tensors_that_begin_anywhere_are_read_right() -> None:
    call = draw("self_16_channels", device="cuda")
    shifted = call._replace(
        **{
            name: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
            for name, x in (("q", call.q), ("k", call.k), ("v", call.v), ("dy", call.dy))
        }
    )
    assert shifted.q.data_ptr() % 16
    found = errors(shifted.got(), call.expected())
    assert max(found.values()) < FLOAT32, found


@pytest.mark.parametrize("name", ["self_32_channels", "down_64_channels"])
def test_an_output_that_begins_anywhere_is_read_right(name: str) -> None:
    call = draw(name, device="cuda")
    dy, q, k, v, y, *rest = call.backward_arguments()
    shifted = torch.cat([y.new_zeros(1), y.flatten()])[1:].view(y.shape)
    assert shifted.data_ptr() % 16
    gradients = torch.ops.s2attn.neighborhood_attention_backward(dy, q, k, v, shifted, *rest)
    found = errors(dict(zip(("dq", "dk", "dv"), gradients, strict=True)), call.expected())
    assert max(found.values()) < FLOAT32, found


def row_errors(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """L2 errors of rows, relative to each of them; of rows that are 0, absolute."""
    error = (got.cpu().double() - expected).norm(dim=-1)
    norm = expected.norm(dim=-1)
    return error / torch.where(norm > 0, norm, 1.0)


@pytest.mark.parametrize("name", ["self_32_channels", "down_64_channels", "up_96_channels", "self_128_channels"])
def test_rows_of_any_magnitude_are_as_exact_as_others(name: str) -> None:
    """Numbers far outside of float16, which float32 is split into, and rows beside each other that differ."""
    call = draw(name, device="cuda")
    generator = torch.Generator().manual_seed(5)

    def powers(x: torch.Tensor, low: int, high: int) -> torch.Tensor:
        return 2.0 ** torch.randint(low, high + 1, (*x.shape[:-1], 1), generator=generator).to(x.device).float()

    # scores remain of the size of 1: what one of their factors gains the other may lose
    wide = call._replace(
        q=call.q * 2.0**40 * powers(call.q, -12, 0),
        k=call.k * 2.0**-40 * powers(call.k, -12, 0),
        v=call.v * 2.0**-50 * powers(call.v, -12, 12),
        dy=call.dy * 2.0**60 * powers(call.dy, -12, 12),
    )
    expected, usual = wide.expected(), call.expected()
    found, found_usual = wide.got(), call.got()
    for tensor, exact in expected.values.items():
        here = row_errors(found[tensor], exact)
        there = row_errors(found_usual[tensor], usual.values[tensor])
        assert here.isfinite().all()
        # rows whose terms cancel differ from run to run; the typical one does not
        assert here.median() < 4 * there.median() + 1e-7, tensor


@pytest.mark.parametrize("name", ["self_32_channels", "down_64_channels", "self_128_channels"])
@pytest.mark.parametrize("power", [-70, 30, 60])
def test_gradients_scale_with_the_gradient_to_the_bit(name: str, power: int) -> None:
    call = draw(name, device="cuda")
    scaled = call._replace(dy=call.dy * 2.0**power)
    for one, other in zip(call.backward(), scaled.backward(), strict=True):
        assert torch.equal(one * 2.0**power, other)


def test_a_huge_value_changes_nothing_for_queries_that_do_not_see_it() -> None:
    """Its column lies in the windows of their warps, where it is masked."""
    call = draw("down_64_channels", device="cuda")
    outlier = call._replace(k=call.k.clone(), v=call.v.clone())
    lat, lon = call.k.shape[1] // 2, call.k.shape[2] // 3
    outlier.v[:, lat, lon] *= 2.0**40
    outlier.k[:, lat, lon] = 0.0
    changed = call._replace(k=outlier.k)
    exact, with_outlier = changed.expected(), outlier.expected()
    unseen = (exact.values["y"] == with_outlier.values["y"]).all(-1)
    assert 0 < unseen.sum() < unseen.numel()
    for tensor in ("y", "dq"):
        here = row_errors(outlier.got()[tensor], with_outlier.values[tensor])[unseen]
        there = row_errors(changed.got()[tensor], exact.values[tensor])[unseen]
        assert here.isfinite().all()
        assert here.max() < 4 * there.max() + 1e-7, tensor


@pytest.mark.parametrize("name", ["self_32_channels", "down_64_channels", "self_128_channels"])
def test_zeros_and_numbers_that_are_not_finite(name: str) -> None:
    call = draw(name, device="cuda")
    nothing = call._replace(dy=torch.zeros_like(call.dy))
    assert all(not x.any() for x in nothing.backward())
    for number in (math.nan, math.inf):
        bad = call._replace(v=call.v.clone())
        bad.v[0, 0, 0, 0] = number
        other = call._replace(v=bad.v.nan_to_num(7.0, 7.0))
        seen = (call.expected().values["y"] != other.expected().values["y"]).any(-1)
        assert seen.any()
        channels = call.q.shape[-1] // call.problem.heads
        for got, affected in ((bad.got()["y"], 1), (bad.got()["dq"], channels)):
            assert not got.cpu()[seen][:, :affected].isfinite().any()


@pytest.mark.parametrize("name", ["self_32_channels", "down_64_channels", "up_96_channels", "self_128_channels"])
@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_asked_for_are_computed(name: str, wanted: int) -> None:
    call = draw(name, device="cuda")
    everything = call.backward()
    only = call.backward(tuple(i == wanted for i in range(3)))
    for i in range(3):
        assert torch.equal(only[i], everything[i]) if i == wanted else only[i].shape == (0,)


@DIRECTIONS
def test_the_public_function_runs_the_cuda_kernels(name: str) -> None:
    call = draw(name, device="cuda")
    assert choose(call.q) == "cuda"
    q, k, v = (x.requires_grad_() for x in (call.q, call.k, call.v))
    y = neighborhood_attention(q, k, v, neighborhood(call.problem), heads=call.problem.heads)
    y.backward(call.dy)
    got = {"y": y.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}
    assert max(errors(got, expected_of(name, torch.float32)).values()) < FLOAT32


def test_the_build_is_recorded_and_is_for_this_gpu() -> None:
    record = registration.loaded()["cuda"]
    major, minor = torch.cuda.get_device_capability()
    assert record.devices == ("cuda",)
    assert f"sm_{major}{minor}" in record.arch
    # The CUDA runtime that is linked in brings code of its own for older architectures.
    assert set(record.arch) <= set(record.resources["machine_code"])
    kernels = record.resources["kernels"]
    assert {kernel["arch"] for kernel in kernels} == set(record.arch)
    tiles = [kernel for kernel in kernels if re.search("_(tile|pair)<", kernel["name"])]
    portable = [kernel for kernel in kernels if kernel not in tiles]
    # 3 dtypes: 2 forward variants (3 kernels), statistics of one, 2 gradients for each of 7 rows; backward_statistics
    # for packets and for elements. The spin
    assert len(portable) == 3 * (7 * 6 + 2) + 1
    # rooms for 32, 64 and 128 channels in each pass; of 16 bits two for 64 by query, by the width of the neighborhood,
    # and in each pass of a backward one more, for few octets
    assert len(tiles) == 2 * (4 + 5 + 4) + 3 * 3
    assert not any(kernel["spill_store_bytes"] or kernel["spill_load_bytes"] for kernel in portable)
    # ptxas keeps its promise of blocks per multiprocessor by a few spills; more of them would be a mistake
    assert max(kernel["spill_load_bytes"] for kernel in tiles) < 512


@pytest.mark.parametrize(
    ("dtype", "channels", "starts"),
    [
        (torch.float32, 64, "tile{channels 64"),
        (torch.bfloat16, 24, "tile{channels 32"),
        (torch.float16, 96, "tile{channels 128"),
        (torch.float16, 65, "gather{"),
    ],
)
def test_the_policy_that_serves_a_problem_has_a_name(dtype: torch.dtype, channels: int, starts: str) -> None:
    asked = ((8, 16), (8, 16), (22, 22), 2, (channels, channels), dtype)
    assert torch.ops.s2attn.cuda_policy(*asked, False).startswith(starts)
    of_query, of_key = torch.ops.s2attn.cuda_policy(*asked, True).split(" + ")
    assert of_query.startswith(starts)
    assert of_key.startswith(starts)


@pytest.mark.parametrize("variant", ["gather", "two_pass", "tile"])
def test_a_variant_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setenv("S2ATTN_CUDA_VARIANT", variant)
    asked = ((8, 16), (8, 16), (22, 22), 2, (32, 32), torch.float32, False)
    assert torch.ops.s2attn.cuda_policy(*asked).startswith(f"{variant}{{")


def test_a_policy_is_tuned_where_it_was_measured() -> None:
    asked = ((180, 360), (180, 360), (538, 538), 1, (64, 64), torch.bfloat16, False)
    measured_here = torch.cuda.get_device_capability() == (9, 0)
    assert torch.ops.s2attn.cuda_policy(*asked).endswith("}" if measured_here else "} untuned")


@pytest.mark.parametrize(("number", "pass_name"), list(enumerate(("backward_query", "backward_key"))))
def test_the_passes_of_a_backward_may_be_of_two_variants(
    monkeypatch: pytest.MonkeyPatch, number: int, pass_name: str
) -> None:
    call = draw("self_64_channels", device="cuda")
    expected = call.backward()
    asked = ((8, 16), (8, 16), (22, 22), 2, (64, 64), torch.float32)
    assert torch.ops.s2attn.cuda_candidates(*asked, pass_name)[-1] == "gather"
    monkeypatch.setenv("S2ATTN_CUDA_TILE", f"{pass_name} gather")
    variants = [name.split("{")[0] for name in torch.ops.s2attn.cuda_policy(*asked, True).split(" + ")]
    assert variants[number] == "gather"
    assert variants[1 - number] == "tile"
    for got, right in zip(call.backward(), expected, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_a_variant_that_does_not_exist_or_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2ATTN_CUDA_VARIANT", "fastest")
    with pytest.raises(ValueError, match="S2ATTN_CUDA_VARIANT: got fastest, expected one of gather, two_pass, tile"):
        draw("self_32_channels", device="cuda").forward()
    monkeypatch.setenv("S2ATTN_CUDA_VARIANT", "tile")
    with pytest.raises(ValueError, match="S2ATTN_CUDA_VARIANT: got tile for 33 and 33 channels per head"):
        draw("self_33_channels", device="cuda").backward()


def test_kernels_run_on_the_current_stream() -> None:
    call = draw("self_64_channels", device="cuda")
    expected = call.forward()[0]
    stream = torch.cuda.Stream()
    late = torch.zeros_like(call.q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(call.q)  # on another stream, the kernel would read zeros
        y, _ = call._replace(q=late).forward()
    stream.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["self_64_channels", "up_64_channels", "self_128_channels"])
def test_key_owners_that_start_early_wait_for_the_statistics(name: str, dtype: torch.dtype) -> None:
    call = draw(name, dtype, "cuda")
    # the workspace of a call is that of the call before: what it finds there too early is another call's
    calls = [call._replace(q=call.q * scale, dy=call.dy * scale) for scale in (1.0, -0.5, 2.0, 0.25)]
    arguments = [one.backward_arguments() for one in calls]
    expected = []
    for given in arguments:
        torch.cuda.synchronize()
        expected.append(torch.ops.s2attn.neighborhood_attention_backward(*given))
    torch.cuda.synchronize()
    for _ in range(50):
        found = [torch.ops.s2attn.neighborhood_attention_backward(*given) for given in arguments]
        for gradients, right in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(gradients, right, strict=True))


def test_a_graph_captures_forward_and_backward() -> None:
    call = draw("up_32_channels", device="cuda")
    expected = call.got()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call.got()
    for tensor in captured.values():
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(captured[name], expected[name]) for name in expected)
