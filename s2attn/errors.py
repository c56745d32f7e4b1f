"""Errors of s2attn.

S2AttnError
├── InvalidProblem(ValueError)                 an argument is wrong, whatever the backend
├── UnsupportedProblem(NotImplementedError)    the problem is sound, but no backend that was asked for can run it
└── KernelsNotBuilt(ImportError)               the compiled kernels are missing or could not be built
"""

from __future__ import annotations

from collections.abc import Mapping


class S2AttnError(Exception):
    """Base of every error that s2attn raises on purpose."""


class InvalidProblem(S2AttnError, ValueError):  # noqa: N818 (says what is wrong; the tree above says it is an error)
    """An argument cannot describe an attention problem.

    Parameters
    ----------
    argument : str
        Name of the argument as the caller knows it.
    got : object
        What was given.
    expected : str
        What would have been accepted.
    """

    def __init__(self, argument: str, got: object, expected: str) -> None:
        super().__init__(f"{argument}: got {got!r}, expected {expected}")
        self.argument = argument
        self.got = got
        self.expected = expected

    def __reduce__(self) -> tuple[type[InvalidProblem], tuple[str, object, str]]:
        return type(self), (self.argument, self.got, self.expected)


class UnsupportedProblem(S2AttnError, NotImplementedError):  # noqa: N818
    """No backend that was asked for can run a sound problem.

    Parameters
    ----------
    problem : str
        The problem in words.
    reasons : Mapping[str, str]
        For every backend, why it cannot run (or that it could, had it been asked for).
    """

    def __init__(self, problem: str, reasons: Mapping[str, str]) -> None:
        lines = [f"{problem}:", *(f"  {backend}: {reason}" for backend, reason in reasons.items())]
        super().__init__("\n".join(lines))
        self.problem = problem
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type[UnsupportedProblem], tuple[str, dict[str, str]]]:
        return type(self), (self.problem, self.reasons)


class KernelsNotBuilt(S2AttnError, ImportError):  # noqa: N818
    """The compiled kernels are missing, or building them failed (the message names the log)."""
