"""Types of request fields and of parts that several answers share.

Every text that reaches the database passes through one of these: PostgreSQL refuses U+0000, lone surrogates (which JSON
can spell) have no UTF-8 form, and a line break in a name would split a line of a log or of git's input.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

DEVICE_CLASS = re.compile(r"cpu|(cpu|gpu):[A-Za-z0-9][A-Za-z0-9 ._+()@/-]*")
_FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f ~^:?*\[\]\\]|\.\.|@\{|//")


def _single_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("one line of printable characters")
    return value


def _storable(value: str) -> str:
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("a text without U+0000 and without surrogates")
    return value


def ref_problem(name: str) -> str | None:
    """Say what keeps `name` from being a branch, a tag or a SHA (the rules of git-check-ref-format), or None."""
    if not name:
        return "it is empty"
    if len(name) > 250:
        return "it is longer than 250 characters"
    if name.startswith("-"):
        return "it begins with '-'"
    if found := _FORBIDDEN_IN_REF.search(name):
        return f"it contains {found.group()!a}"
    if not name.isprintable():
        return "it contains a character that cannot be printed"
    if name == "@" or name.startswith("/") or name.endswith(("/", ".")):
        return "it is '@', begins with '/', or ends with '/' or '.'"
    if any(part.startswith(".") or part.endswith(".lock") for part in name.split("/")):
        return "a part of it begins with '.' or ends with '.lock'"
    return None


def _ref_name(value: str) -> str:
    if problem := ref_problem(value):
        raise ValueError(f"a branch, a tag or a SHA, but {problem}")
    return value


def _device_class(value: str) -> str:
    if not DEVICE_CLASS.fullmatch(value):
        raise ValueError("'cpu' or 'gpu:<model>', as in 'gpu:NVIDIA H200'")
    return value


def _case_glob(value: str) -> str:
    if not value.isascii() or not value.isprintable() or " " in value or value.startswith("-"):
        raise ValueError("a glob of printable ASCII without spaces that does not begin with '-'")
    return value


def is_case_name(value: str) -> bool:
    """Say whether a text is the name of a case: a glob that can match no other one."""
    try:
        return 0 < len(value) <= 250 and not set(_case_glob(value)) & set("*?[")
    except ValueError:
        return False


Text = Annotated[str, AfterValidator(_storable)]
SingleLine = Annotated[str, AfterValidator(_single_line)]
RefName = Annotated[str, Field(max_length=250), AfterValidator(_ref_name)]
RepositoryName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")
]
GitHubPath = Annotated[  # "owner/name"; a name of dots alone would climb in a URL
    str,
    StringConstraints(
        max_length=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9_.-]*[A-Za-z0-9_-][A-Za-z0-9_.-]*$",
        to_lower=True,
    ),
]
DeviceClass = Annotated[str, Field(max_length=120), AfterValidator(_device_class)]
CaseGlob = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_case_glob)]
VerdictName = Annotated[str, StringConstraints(max_length=20, pattern=r"^[a-z_]+$")]
CommitPrefix = Annotated[str, StringConstraints(min_length=4, max_length=40, pattern=r"^[0-9a-fA-F]+$", to_lower=True)]
CaseName = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_single_line)]


class CommitBrief(BaseModel):
    """What a page shows of a commit; all but the SHA is unknown until a worker has checked it out."""

    model_config = ConfigDict(from_attributes=True)

    sha: str
    subject: str | None = None
    author: str | None = None
    committed_at: datetime | None = None
    orphaned: bool = Field(default=False, description="Whether a force push or a deleted branch has dropped it")


class FailureOut(BaseModel):
    """Why a job or a measurement failed."""

    code: str
    stage: str | None = None
    message: str
    log_tail: str | None = None
