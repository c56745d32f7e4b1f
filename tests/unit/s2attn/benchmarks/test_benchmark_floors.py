from dataclasses import replace

import pytest

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.ceilings import Ceilings
from s2attn.benchmarks.floors import Work, count_pairs, count_work, floor_ms
from s2attn.benchmarks.suite import all_cases

# One NVIDIA H200, 2026-11-29: measured ceilings, and what was counted from psi with them.
H200 = Ceilings(4.244, {"fp32": 50.8, "tf32": 400.3, "bf16": 750.9})
DEGREE, HALF, QUARTER = (180, 360), (360, 720), (721, 1440)
# grids, cutoff, channels, heads, dtype -> pairs, GFLOP forward and backward, floors in ms forward and backward
COUNTED = [
    ((DEGREE, DEGREE, 0.017, 64, 1, "float32"), (696240, 0.178, 0.446, 0.0156, 0.0274)),
    ((DEGREE, DEGREE, 0.017, 64, 1, "float16"), (696240, 0.178, 0.446, 0.0078, 0.0137)),
    ((DEGREE, DEGREE, 0.03, 64, 1, "float32"), (2642400, 0.676, 1.691, 0.0156, 0.0333)),
    ((DEGREE, DEGREE, 0.1, 64, 1, "bfloat16"), (21890880, 5.604, 14.01, 0.0078, 0.0187)),
    ((HALF, HALF, 0.03, 64, 1, "float32"), (41575680, 10.643, 26.608, 0.2093, 0.5233)),
    ((HALF, HALF, 0.03, 256, 4, "bfloat16"), (41575680, 42.573, 106.434, 0.1251, 0.2189)),
    ((HALF, DEGREE, 0.03, 64, 1, "float32"), (10782720, 2.76, 6.901, 0.0543, 0.1357)),
    ((HALF, DEGREE, 0.03, 64, 1, "float16"), (10782720, 2.76, 6.901, 0.0195, 0.0342)),
    ((DEGREE, HALF, 0.03, 64, 1, "float16"), (10782720, 2.76, 6.901, 0.0195, 0.0342)),
    ((QUARTER, QUARTER, 0.03, 64, 1, "float32"), (616883040, 157.922, 394.805, 3.106, 7.765)),
    ((QUARTER, QUARTER, 0.03, 64, 1, "bfloat16"), (616883040, 157.922, 394.805, 0.2103, 0.5258)),
]


def suite_case(operation: str, facts: tuple) -> Case:
    """The suite's own case of these facts, so that its declared psi is what is counted."""
    in_shape, out_shape, theta_cutoff, channels, heads, dtype = facts
    (case,) = (
        case
        for case in all_cases()
        if (case.device, case.operation, case.in_shape, case.out_shape) == ("cuda", operation, in_shape, out_shape)
        and (case.theta_cutoff, case.channels_in, case.heads, case.dtype) == (theta_cutoff, channels, heads, dtype)
    )
    return case


@pytest.mark.parametrize(("facts", "counted"), COUNTED)
def test_work_and_floors_are_those_counted_for_an_h200(facts: tuple, counted: tuple) -> None:
    pairs, *expected = counted
    gflop, floors = expected[:2], expected[2:]
    for operation, expected_gflop, expected_floor_ms in zip(("forward", "backward"), gflop, floors, strict=True):
        case = suite_case(operation, facts)
        assert count_pairs(case) == pairs
        work = count_work(case, pairs)
        assert work.flop * 1e-9 == pytest.approx(expected_gflop, abs=6e-4)
        # the rates were rounded to three or four digits before they were written down
        assert floor_ms(work, case.dtype, H200) == pytest.approx(expected_floor_ms, rel=2e-3, abs=6e-5)


def test_channels_of_values_and_batches_are_counted_as_they_are(make_case) -> None:
    case = make_case(channels_in=4, channels_out=6, batch=3)
    points = 2 * 8 * 16
    assert count_work(case, 100) == Work(3 * points * (4 + 6) * 4, 2 * 100 * (4 + 6))
    backward = make_case(operation="backward", channels_in=4, channels_out=6, batch=3)
    assert count_work(backward, 100) == Work(1.75 * 3 * points * (4 + 6) * 4, 2 * 100 * (3 * 4 + 2 * 6))
    assert count_pairs(case) == 3 * 16 * case.psi_nnz


def test_global_attention_pairs_everything_and_its_backward_comes_with_the_forward(make_case) -> None:
    fields = {"theta_cutoff": None, "psi_nnz": None, "channels_in": 4, "channels_out": 6, "batch": 3}
    forward, both = (replace(make_case(operation=name), **fields) for name in ("forward", "forward-backward"))
    assert count_pairs(forward) == 3 * 128 * 128
    size_bytes, flop = 3 * 256 * 10 * 4, 2 * 100 * 10
    assert count_work(forward, 100) == Work(size_bytes, flop)
    assert count_work(both, 100) == Work(2.75 * size_bytes, flop + 2 * 100 * 24)


def test_the_longer_of_bytes_and_products_is_the_floor() -> None:
    ceilings = Ceilings(2.0, {"fp32": 4.0})
    assert floor_ms(Work(2e9, 1e9), "float32", ceilings) == pytest.approx(1.0)
    assert floor_ms(Work(2e9, 8e9), "float32", ceilings) == pytest.approx(2.0)


def test_half_types_use_matrix_units_where_there_are_any() -> None:
    assert H200.rate("float32") == 50.8
    assert H200.rate("float16") == H200.rate("bfloat16") == 750.9
    assert Ceilings(1.0, {"fp32": 0.1}).rate("bfloat16") == 0.1


def test_the_layer_has_no_floor(make_case) -> None:
    with pytest.raises(ValueError, match="got module-forward, expected an operation of the operator"):
        count_work(make_case(operation="module-forward", channels_out=4), 1)
