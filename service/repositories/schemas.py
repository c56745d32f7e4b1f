"""Requests and answers about repositories."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.fields import GitHubPath, RefName, RepositoryName, SingleLine


class RepositoryRequest(BaseModel):
    """A repository to register; only an administrator may, because the service will run git on `url`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "s2bench", "url": "/srv/git/s2bench.git", "default_branch": "main"}],
        },
    )

    name: RepositoryName
    url: SingleLine = Field(min_length=1, max_length=2000, description="An absolute path, file://, https:// or ssh://")
    default_branch: RefName = "main"
    github: GitHubPath | None = Field(default=None, description="owner/name there, to answer its pull requests")


def _without_credentials(url: str) -> str:
    return re.sub(r"^([a-z+]+://)[^/@]*@", r"\1", url)


class RepositoryOut(BaseModel):
    """A registered repository. Its URL is shown without user name and password: anybody may read it."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    name: str
    url: Annotated[str, AfterValidator(_without_credentials)]
    default_branch: str
    github: str | None
    created_at: datetime


class RepositoryList(BaseModel):
    """Every registered repository, by name."""

    items: list[RepositoryOut]
