"""``python -m s2attn.benchmarks.one_call CASE``: one call of a CUDA case between the marks that profilers listen to."""

from __future__ import annotations

import sys

import torch

from s2attn.benchmarks.suite import select
from s2attn.benchmarks.workload import prepare


def main(name: str) -> int:
    """Warm the case up and mark its next call."""
    (case,) = select([name], "cuda", suite="full")
    with torch.no_grad():
        workload = prepare(case)
        workload.call(0)
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            workload.call(0)
            torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
