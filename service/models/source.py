"""Repositories and their commits."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class Repository(Identified, Base):
    """A git repository whose commits may be measured; `url` is set by an administrator only.

    `github` is its "owner/name" there, when its pull requests are to be answered; `installation_id` that of the GitHub
    App, as the last webhook told.
    """

    __tablename__ = "repository"

    name: Mapped[str] = mapped_column(String(200), unique=True)
    url: Mapped[str] = mapped_column(Text)
    default_branch: Mapped[str] = mapped_column(String(250), default="main")
    github: Mapped[str | None] = mapped_column(String(200), index=True, unique=True)
    installation_id: Mapped[int | None] = mapped_column(BigInteger)


class Commit(Identified, Base):
    """A commit by its full SHA. `parents` holds SHAs; times are UTC; an orphaned one is kept and never a baseline."""

    __tablename__ = "commit"
    __table_args__ = (UniqueConstraint("repository_id", "sha"),)

    repository_id: Mapped[UUID] = mapped_column(ForeignKey("repository.id"), index=True)
    sha: Mapped[str] = mapped_column(String(40))
    tree_hash: Mapped[str | None] = mapped_column(String(40))
    parents: Mapped[list[str] | None]
    first_parent_position: Mapped[int | None]
    author: Mapped[str | None] = mapped_column(String(250))
    subject: Mapped[str | None] = mapped_column(Text)
    committed_at: Mapped[datetime | None]
    orphaned: Mapped[bool] = mapped_column(default=False)
