"""What is used of GitHub's webhooks and of its answers about pull requests; everything else in them is left aside."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from service.fields import GitHubPath, RefName

COMMAND_PREFIX = "/s2bench"
ZERO_SHA = "0" * 40
TITLE_CHARACTERS = 300
_UNSTORABLE = re.compile(r"[\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]")


def storable(text: object, characters: int = TITLE_CHARACTERS) -> str:
    """Return a text from outside as one line that any database takes, cut to a number of characters."""
    return _UNSTORABLE.sub(" ", str(text or ""))[:characters]


Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Line = Annotated[str, BeforeValidator(storable)]
Id = Annotated[int, Field(ge=1, lt=2**63)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True)

    repository: GitHubPath
    installation_id: Id | None = None


class Push(_Event):
    """A branch that moved to a commit."""

    kind: Literal["push"] = "push"
    branch: RefName
    after: Sha


class Pull(_Event):
    """A pull request as it is at `changed_at`; `before` is the head that this event replaced."""

    kind: Literal["pull"] = "pull"
    number: Annotated[int, Field(ge=1, lt=2**31)]
    title: Line
    author: Annotated[str, BeforeValidator(lambda value: storable(value, 250))]
    head_sha: Sha
    before: Sha | None = None
    base_ref: RefName
    is_fork: bool
    is_open: bool
    changed_at: datetime


class Rerun(_Event):
    """Somebody wants a check again; without `name` every check of the commit."""

    kind: Literal["rerun"] = "rerun"
    head_sha: Sha
    name: str | None = None
    check_id: UUID | None = None
    sender: str


class Command(_Event):
    """A comment on a pull request that begins with /s2bench."""

    kind: Literal["command"] = "command"
    number: Annotated[int, Field(ge=1, lt=2**31)]
    verb: Line
    argument: Line
    sender: str


Event = Push | Pull | Rerun | Command
STORED: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])
PULL_ACTIONS = frozenset({"opened", "reopened", "synchronize", "edited", "closed", "ready_for_review"})


def read_event(name: str, payload: dict[str, Any]) -> Event | str:
    """Return what a webhook tells, or in words why it is none of ours.

    Raises
    ------
    KeyError, TypeError, ValueError
        When the payload is not what GitHub sends under this name.
    """
    readers = {
        "push": _read_push,
        "pull_request": _read_pull_event,
        "check_run": _read_rerun,
        "check_suite": _read_rerun,
        "issue_comment": _read_comment,
    }
    if name not in readers:
        return f"event {storable(name, 60)}"
    common = {
        "repository": payload["repository"]["full_name"],
        "installation_id": (payload.get("installation") or {}).get("id"),
    }
    return readers[name](payload, common)


def read_pull(pull: dict[str, Any], common: dict[str, Any], before: str | None = None) -> Pull:
    """Return a pull request as webhooks and answers of the API describe it."""
    head_repository = pull["head"].get("repo")  # null when the fork was deleted
    base_name = pull["base"]["repo"]["full_name"]
    return Pull(
        **common,
        number=pull["number"],
        title=pull.get("title") or "",
        author=(pull.get("user") or {}).get("login") or "",
        head_sha=pull["head"]["sha"],
        before=before,
        base_ref=pull["base"]["ref"],
        is_fork=head_repository is None or head_repository["full_name"] != base_name,
        is_open=pull["state"] == "open",
        changed_at=pull["updated_at"],
    )


def _read_push(payload: dict[str, Any], common: dict[str, Any]) -> Event | str:
    kind, _, branch = str(payload["ref"]).removeprefix("refs/").partition("/")
    if kind != "heads":
        return "no branch"
    if payload.get("deleted") or payload["after"] == ZERO_SHA:
        return "a deleted branch"
    return Push(**common, branch=branch, after=payload["after"])


def _read_pull_event(payload: dict[str, Any], common: dict[str, Any]) -> Event | str:
    if payload["action"] not in PULL_ACTIONS:
        return f"action {storable(payload['action'], 60)}"
    before = payload.get("before") if payload["action"] == "synchronize" else None
    return read_pull(payload["pull_request"], common, None if before == ZERO_SHA else before)


def _read_rerun(payload: dict[str, Any], common: dict[str, Any]) -> Event | str:
    if payload["action"] != "rerequested":
        return f"action {storable(payload['action'], 60)}"
    sender = payload["sender"]["login"]
    run = payload.get("check_run")
    if run is None:
        return Rerun(**common, head_sha=payload["check_suite"]["head_sha"], sender=sender)
    return Rerun(
        **common, head_sha=run["head_sha"], name=run["name"], check_id=_uuid(run.get("external_id")), sender=sender
    )


def _read_comment(payload: dict[str, Any], common: dict[str, Any]) -> Event | str:
    comment = payload["comment"]
    if payload["action"] != "created" or "pull_request" not in payload["issue"]:
        return "no new comment on a pull request"
    if (comment.get("user") or {}).get("type") == "Bot":
        return "a comment of a program"
    first_line = next(iter(str(comment.get("body") or "").strip().splitlines()), "")
    prefix, _, rest = first_line.partition(" ")
    if prefix != COMMAND_PREFIX:
        return "no command"
    verb, _, argument = rest.strip().partition(" ")
    number = payload["issue"]["number"]
    return Command(**common, number=number, verb=verb, argument=argument.strip(), sender=payload["sender"]["login"])


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(str(text))
    except ValueError:
        return None


class WebhookAnswer(BaseModel):
    """What became of a webhook: accepted (worked on soon), ignored (none of ours), or duplicate (known already)."""

    outcome: Literal["accepted", "ignored", "duplicate"]
    detail: str = ""
