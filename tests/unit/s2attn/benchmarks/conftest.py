"""Small cases that run in well under a millisecond, so that whole processes can be tried."""

import pytest

from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.workload import Workload, prepare
from s2attn.geometry import build_psi


def small_case(**changes: object) -> Case:
    """A case on a tiny grid, with the number of entries that its pattern has."""
    fields: dict = {
        "device": "cpu",
        "operation": "forward",
        "suite": "test",
        "in_shape": (8, 16),
        "out_shape": (8, 16),
        "theta_cutoff": 0.6,
        "heads": 2,
        "channels_in": 4,
        "channels_out": 6,
        "threads": 1,
        **changes,
    }
    psi = build_psi(fields["in_shape"], fields["out_shape"], theta_cutoff=fields["theta_cutoff"])
    return Case(**{"psi_nnz": int(psi.col_idx.size), **fields})


DIRECTIONS = {"self": ((8, 16), (8, 16)), "down": ((12, 24), (6, 8)), "up": ((6, 8), (12, 24))}


@pytest.fixture(
    params=[(operation, direction) for operation in ("forward", "backward") for direction in DIRECTIONS],
    ids=lambda pair: "-".join(pair),
)
def workload(request: pytest.FixtureRequest) -> Workload:
    operation, direction = request.param
    in_shape, out_shape = DIRECTIONS[direction]
    return prepare(small_case(operation=operation, in_shape=in_shape, out_shape=out_shape, input_sets=2))


@pytest.fixture
def make_case():
    return small_case
