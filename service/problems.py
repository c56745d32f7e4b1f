"""Turns errors into RFC 9457 answers (application/problem+json): the one place where they become HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from service.db import DATABASE_AWAY
from service.errors import FieldError, InvalidInput, ServiceError, Unavailable, shown
from service.logs import logger

MEDIA_TYPE = "application/problem+json"
MAX_FIELD_ERRORS = 20
_CODES = {413: "body_too_large"}  # others: the phrase of the status
_DETAILS = {
    400: "the body could not be read: send a JSON object in UTF-8",
    404: "nothing is at this path: /api/v1/openapi.json lists what there is",
    405: "this path does not take that method: /api/v1/openapi.json lists what there is",
}
_JSON_OBJECT = "a JSON object (Content-Type: application/json)"
_PHRASE = re.compile(r"^(Value error, |Input should be )")


class FieldErrorOut(BaseModel):
    """One field of the request that cannot be accepted."""

    field: str
    got: str
    expected: str


class Problem(BaseModel):
    """An error: `code` is for programs, `detail` says what is wrong and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldErrorOut] = []


def problem(
    status: int,
    title: str,
    code: str,
    detail: str,
    *,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return a problem+json answer."""
    content = {
        "type": f"urn:s2bench:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "errors": [{"field": error.field, "got": error.got, "expected": error.expected} for error in errors],
    }
    return JSONResponse(content, status, dict(headers or {}), MEDIA_TYPE)


def answer_of(error: ServiceError) -> JSONResponse:
    """Return the answer to an error of the service."""
    return problem(
        error.http_status, error.title, error.code, error.message, errors=error.errors, headers=error.headers
    )


def invalid_request(found: Sequence[Mapping[str, Any]]) -> InvalidInput:
    """Return the error for what pydantic found in a request, without echoing what was sent in full."""
    errors = [_field_error(item) for item in found[:MAX_FIELD_ERRORS]]
    first = errors[0]
    more = f" (and {len(errors) - 1} more, see errors)" if len(errors) > 1 else ""
    detail = f"{first.field}: got {first.got}, expected {first.expected}{more}"
    return InvalidInput("invalid_request", detail, errors)


def _field_error(item: Mapping[str, Any]) -> FieldError:
    place, *path = item["loc"]
    kind = item["type"]
    if kind == "json_invalid":
        return FieldError("body", "something that is no JSON", f"a JSON object ({shown(item['msg'])[1:-1]})")
    name = ".".join(shown(part).strip("'") if isinstance(part, str) else str(part) for part in path) or str(place)
    if kind == "missing":
        return FieldError(name, "nothing", "a value" if path else _JSON_OBJECT)
    got = shown(item.get("input"))
    if kind == "extra_forbidden":
        return FieldError(name, got, "no such field")
    if kind in {"model_type", "model_attributes_type"}:
        return FieldError(name, got, _JSON_OBJECT)
    return FieldError(name, got, _PHRASE.sub("", item["msg"]))


def _handle(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ServiceError):
        return answer_of(error)
    if isinstance(error, RequestValidationError):
        return answer_of(invalid_request(error.errors()))
    if isinstance(error, HTTPException):
        return _answer_of_status(error)
    logger.error("database_unavailable", error=str(error).splitlines()[0])
    message = "the database does not answer: try again in some seconds"
    return answer_of(Unavailable("database_unavailable", message, headers={"Retry-After": "5"}))


def _answer_of_status(error: HTTPException) -> JSONResponse:
    status = HTTPStatus(error.status_code)
    detail = _DETAILS.get(status.value, str(error.detail))
    code = _CODES.get(status.value, status.phrase.lower().replace(" ", "_").replace("-", "_"))
    return problem(status.value, status.phrase, code, detail, headers=error.headers)


def install(app: FastAPI) -> None:
    """Make an application answer every error as a problem."""
    for kind in (ServiceError, RequestValidationError, HTTPException, *DATABASE_AWAY):
        app.add_exception_handler(kind, _handle)
