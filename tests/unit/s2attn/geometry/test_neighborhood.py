import copy
import pickle

import numpy as np
import torch

from s2attn import AttentionProblem, neighborhood
from s2attn.geometry import build_psi, quadrature_weights


def test_is_built_once_per_geometry() -> None:
    wide = neighborhood(AttentionProblem((6, 12), (6, 12), theta_cutoff=0.7, heads=2, channels_in=8, channels_out=8))
    narrow = neighborhood(AttentionProblem([6, 12], (6, 12), theta_cutoff=0.7, dtype=torch.float64))  # type: ignore[arg-type]
    assert wide is narrow
    assert neighborhood(AttentionProblem((6, 12), (6, 12), theta_cutoff=0.8)) is not wide


def test_the_default_cutoff_is_filled_in() -> None:
    problem = AttentionProblem((12, 24), (6, 12))
    built = neighborhood(problem)
    assert built.theta_cutoff == problem.cutoff == np.pi / 5
    np.testing.assert_array_equal(built.psi.col_idx, build_psi((12, 24), (6, 12)).col_idx)
    np.testing.assert_array_equal(built.quad_weights, quadrature_weights(12, 24, "equiangular"))


def test_tensors_follow_the_order_of_the_operator() -> None:
    built = neighborhood(AttentionProblem((5, 4), (9, 12)))
    tensors = built.tensors("cpu")
    assert tensors._fields == ("quad_weights", "query_arcs", "query_arc_off", "key_arcs", "key_arc_off")
    assert [x.dtype for x in tensors] == [torch.float32] + 4 * [torch.int32]
    assert [tuple(x.shape) for x in tensors] == [
        (5,),
        built.query_table.arcs.shape,
        (9 * 3 + 1,),
        built.key_table.arcs.shape,
        (5 + 1,),
    ]
    assert all(x.is_contiguous() for x in tensors)
    assert built.tensors(torch.device("cpu")) is tensors


def test_empty_queries_are_counted() -> None:
    on_gauss = AttentionProblem((6, 16), (13, 16), "legendre-gauss", "legendre-gauss")
    assert neighborhood(on_gauss).empty_queries == 16
    assert neighborhood(AttentionProblem((6, 12), (12, 24))).empty_queries == 0
    sparse = AttentionProblem((6, 4), (12, 16), theta_cutoff=0.1)
    reached = {
        (c // 16, (c % 16 + 4 * shift) % 16) for c in neighborhood(sparse).psi.col_idx.tolist() for shift in range(4)
    }
    assert neighborhood(sparse).empty_queries == 12 * 16 - len(reached)


def test_arrays_are_read_only() -> None:
    built = neighborhood(AttentionProblem((6, 12), (12, 24)))
    arrays = (
        *built.psi,
        built.query_table.arcs,
        built.query_table.arc_off,
        built.key_table.arcs,
        built.key_table.arc_off,
        built.quad_weights,
    )
    assert not any(array.flags.writeable for array in arrays)


def test_copies_share_the_tables() -> None:
    built = neighborhood(AttentionProblem((6, 12), (6, 12)))
    assert copy.deepcopy(built) is built
    data = pickle.dumps(built)
    assert len(data) < 1000
    assert pickle.loads(data) is built
