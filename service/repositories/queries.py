"""Reads of repositories and commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.models import Commit, Repository

# Made once, because making a statement costs more than running it, and this one runs for every new job.
_BY_NAMES = select(Repository).where(Repository.name.in_(bindparam("names", expanding=True)))


def by_name(session: Session, name: str) -> Repository | None:
    """Return a repository by its name."""
    return session.execute(select(Repository).where(Repository.name == name)).scalar_one_or_none()


def by_github(session: Session, path: str) -> Repository | None:
    """Return the repository that is "owner/name" on GitHub."""
    return session.execute(select(Repository).where(Repository.github == path.lower())).scalar_one_or_none()


def by_names(session: Session, names: Collection[str]) -> dict[str, Repository]:
    """Return those of some repositories that exist, by name."""
    return {found.name: found for found in session.execute(_BY_NAMES, {"names": list(names)}).scalars()}


def on_github(session: Session) -> Sequence[Repository]:
    """Return every repository that has a name on GitHub."""
    return session.execute(select(Repository).where(Repository.github.is_not(None))).scalars().all()


def all_by_name(session: Session) -> Sequence[Repository]:
    """Return every repository in the order of names."""
    return session.execute(select(Repository).order_by(Repository.name)).scalars().all()


def commits(session: Session, repository_id: UUID, shas: Iterable[str]) -> dict[str, Commit]:
    """Return those of some commits that a worker has seen, by SHA."""
    query = select(Commit).where(Commit.repository_id == repository_id, Commit.sha.in_(set(shas)))
    return {commit.sha: commit for commit in session.execute(query).scalars()}


def commits_with_prefix(session: Session, repository_id: UUID, prefix: str) -> list[str]:
    """Return the SHAs that begin with some hexadecimal digits, at most two: enough to see an ambiguity."""
    query = select(Commit.sha).where(Commit.repository_id == repository_id, Commit.sha.startswith(prefix)).limit(2)
    return list(session.execute(query).scalars())
