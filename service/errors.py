"""Errors of the service, each with the code and the HTTP status by which a client knows it.

ServiceError
├── InvalidInput      422  a value that cannot be accepted; names field, what was got and what was expected
├── Unauthenticated   401
├── Forbidden         403
├── NotFound          404
├── Conflict          409
├── BodyTooLarge      413
├── TooManyRequests   429
└── Unavailable       503  something this service depends on does not answer

`message` says what is wrong and what to do about it. `service.problems` turns these into answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class FieldError:
    """One field of a request: what was sent (shortened) and what would be accepted."""

    field: str
    got: str
    expected: str


def shown(value: object) -> str:
    """Return a short ASCII form of a value that somebody sent; never the whole of a long one."""
    if value is None:
        return "null"
    if isinstance(value, (bytes, str)):
        text = ascii(value[: SHOWN_CHARACTERS + 1])
    elif isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() < 200):
        text = ascii(value)
    else:
        return f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS + 2 else f"{text[:SHOWN_CHARACTERS]}..."


@dataclass(eq=False)
class ServiceError(Exception):
    """An error with a code for programs and a sentence for people."""

    http_status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    code: str
    message: str
    errors: Sequence[FieldError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class InvalidInput(ServiceError):  # noqa: N818 (these say what is wrong; the tree above says that they are errors)
    """A value that cannot be accepted."""

    http_status = 422
    title = "Invalid request"

    @classmethod
    def of(cls, code: str, name: str, got: object, expected: str) -> InvalidInput:
        """Return the error for one field."""
        error = FieldError(name, shown(got), expected)
        return cls(code, f"{name}: got {error.got}, expected {expected}", (error,))


class Unauthenticated(ServiceError):  # noqa: N818
    """The request carries no token that is known."""

    http_status = 401
    title = "A token is needed"


class Forbidden(ServiceError):  # noqa: N818
    """The token does not allow this."""

    http_status = 403
    title = "Not allowed"


class NotFound(ServiceError):  # noqa: N818
    """What the path names does not exist."""

    http_status = 404
    title = "Not found"


class Conflict(ServiceError):  # noqa: N818
    """The request contradicts what exists."""

    http_status = 409
    title = "Conflict"


class BodyTooLarge(ServiceError):  # noqa: N818
    """The body is over the limit."""

    http_status = 413
    title = "Body too large"


class TooManyRequests(ServiceError):  # noqa: N818
    """The client writes faster than it may."""

    http_status = 429
    title = "Too many requests"


class Unavailable(ServiceError):  # noqa: N818
    """Something this service depends on does not answer."""

    http_status = 503
    title = "Unavailable"
