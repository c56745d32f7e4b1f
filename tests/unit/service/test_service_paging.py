"""Cursors."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidInput
from service.paging import decode_cursor, decode_id_cursor, encode_cursor

printable = st.text(max_size=30).filter(str.isprintable)


@given(st.lists(printable, min_size=1, max_size=3))
def test_cursors_come_back(parts: list[str]) -> None:
    assert decode_cursor(encode_cursor(*parts), len(parts)) == parts


def test_id_cursors() -> None:
    identity = uuid4()
    assert decode_id_cursor(encode_cursor(str(identity))) == identity
    assert decode_id_cursor(None) is None


@given(st.text(alphabet="ABCabc019_-", max_size=40))
def test_any_other_text_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput):
        decode_id_cursor(cursor)


def test_cursors_of_another_list_are_refused() -> None:
    for cursor in (encode_cursor("a", "b"), encode_cursor("not an id"), encode_cursor("a\x00")):
        with pytest.raises(InvalidInput):
            decode_id_cursor(cursor)
