"""Cursors: opaque texts that name the last row of a page, so that rows inserted meanwhile shift nothing."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated
from uuid import UUID

from pydantic import Field

from service.errors import InvalidInput

MAX_LIMIT = 200

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Rows per page")]
Cursor = Annotated[
    str, Field(max_length=1000, pattern=r"^[A-Za-z0-9_-]+$", description="`next_cursor` of the page before")
]


def encode_cursor(*parts: str) -> str:
    """Return the cursor of a row by the texts that order it."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, parts: int) -> list[str]:
    """Return the texts of a cursor that `encode_cursor` made of as many."""
    try:
        decoded = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, list) or len(decoded) != parts:
        raise _invalid(cursor)
    if not all(isinstance(part, str) and part.isprintable() for part in decoded):
        raise _invalid(cursor)
    return decoded


def decode_id_cursor(cursor: str | None) -> UUID | None:
    """Return the id in a cursor of one part."""
    return None if cursor is None else cursor_id(decode_cursor(cursor, 1)[0], cursor)


def cursor_id(text: str, cursor: str) -> UUID:
    """Return an id that came out of a cursor."""
    try:
        return UUID(text)
    except ValueError:
        raise _invalid(cursor) from None


def _invalid(cursor: str) -> InvalidInput:
    return InvalidInput.of("invalid_cursor", "cursor", cursor, "the next_cursor of the page before")
