"""Errors, how they show what was sent, and the answers that they become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import errors
from service.errors import FieldError, InvalidInput, ServiceError, shown
from service.problems import answer_of, invalid_request


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_what_is_shown_is_short_ascii(value: object) -> None:
    text = shown(value)
    assert text
    assert text.isascii()
    assert len(text) <= errors.SHOWN_CHARACTERS + 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("main", "'main'"),
        ("a\x00b", "'a\\x00b'"),
        ("\ud800", "'\\ud800'"),
        (None, "null"),
        (7, "7"),
        (10**1000, "a int"),
        (float("nan"), "nan"),
        ({"a": 1}, "a dict"),
        ("x" * 1000, "'" + "x" * 79 + "..."),
    ],
)
def test_how_values_are_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_every_error_has_a_status_a_title_and_a_place_in_the_tree() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ServiceError)]
    assert len({kind.http_status for kind in kinds}) == len(kinds)
    for kind in kinds:
        error = kind("a_code", "what and what to do")
        assert str(error) == "what and what to do"
        assert kind.__name__ in (errors.__doc__ or "")
        body = json.loads(bytes(answer_of(error).body))
        assert body["status"] == kind.http_status
        assert (body["code"], body["detail"], body["errors"]) == ("a_code", "what and what to do", [])
        assert body["type"] == "urn:s2bench:problem:a_code"
        assert body["title"]


def test_an_invalid_field_names_field_got_and_expected() -> None:
    error = InvalidInput.of("unknown_ref", "commit", "x" * 500, "a branch")
    assert error.errors == (FieldError("commit", "'" + "x" * 79 + "...", "a branch"),)
    assert error.message.startswith("commit: got 'xxx")
    assert error.message.endswith("expected a branch")


@pytest.mark.parametrize(
    ("item", "field", "got", "expected"),
    [
        ({"type": "missing", "loc": ("body",)}, "body", "nothing", "a JSON object (Content-Type: application/json)"),
        ({"type": "missing", "loc": ("body", "commit")}, "commit", "nothing", "a value"),
        (
            {"type": "json_invalid", "loc": ("body",), "msg": "EOF"},
            "body",
            "something that is no JSON",
            "a JSON object (EOF)",
        ),
        ({"type": "extra_forbidden", "loc": ("body", "a" * 200)}, "a" * 79 + "...", "1", "no such field"),
        ({"type": "value_error", "loc": ("query", "x", 0), "msg": "Value error, a thing"}, "x.0", "1", "a thing"),
        (
            {"type": "int_type", "loc": ("body", "x"), "msg": "Input should be a valid integer"},
            "x",
            "1",
            "a valid integer",
        ),
    ],
)
def test_pydantic_errors_become_field_errors(item: dict[str, Any], field: str, got: str, expected: str) -> None:
    (found,) = invalid_request([item | {"input": 1, "msg": item.get("msg", "")}]).errors
    assert (found.field, found.got, found.expected) == (field, got, expected)


def test_no_more_errors_are_told_than_anybody_reads() -> None:
    error = invalid_request([{"type": "missing", "loc": ("body", str(number))} for number in range(1000)])
    assert len(error.errors) == 20
