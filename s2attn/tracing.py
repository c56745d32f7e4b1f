"""What torch.compile is told about functions of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant_result(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose result torch.compile takes as a constant, running it while it traces.

    The mark of ``torch.compiler.assume_constant_result`` without that decorator: calling it imports the compiler, which
    more than doubles the time to import this package (1.3 s to 3.0 s, 2 vCPU EPYC, torch 2.13, 2026-11).
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
