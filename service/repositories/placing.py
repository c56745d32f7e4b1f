"""Where the commits that are known lie now: on the default branch, on another ref, or on none any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.models import Commit

if TYPE_CHECKING:
    from service.worker.checkout import Standing

# A commit that another host has stored since may be one that this host's fetch came too early for.
_SETTLED = timedelta(minutes=10)


@dataclass(frozen=True)
class Placed:
    """The commits that became orphans, and the first place of the default branch that a commit left or came to."""

    orphans: Sequence[Commit]
    moved_from: int | None


def place_commits(session: Session, repository_id: UUID, standing: Standing) -> Placed:
    """Bring places and `orphaned` of every known commit in line with the refs.

    This is the only place where commits are marked. An orphan is one that a ref held before and that none holds now: a
    force push or a deleted branch has dropped it. It is kept with all that was measured, is no baseline, and has no
    place on the default branch; it is none any more when a ref holds it again. Commits that no ref ever held stay as
    they are. Histories follow: `service.history.rebuilding.follow_refs`.
    """
    positions = {sha: number for number, sha in enumerate(standing.line, 1)}
    fresh: list[Commit] = []
    moved: set[int | None] = set()
    for commit in session.execute(select(Commit).where(Commit.repository_id == repository_id)).scalars():
        before = commit.first_parent_position
        if commit.sha in standing.reachable:
            commit.orphaned, commit.first_parent_position = False, positions.get(commit.sha)
        elif commit.sha in standing.dropped or _has_left_the_branch(commit, standing):
            if not commit.orphaned:
                fresh.append(commit)
            commit.orphaned, commit.first_parent_position = True, None
        if commit.first_parent_position != before:
            moved |= {before, commit.first_parent_position}
    session.flush()
    return Placed(fresh, min((place for place in moved if place is not None), default=None))


def is_orphaned(session: Session, repository_id: UUID, sha: str) -> bool:
    """Say whether a commit is known as one that no ref holds any more."""
    query = select(Commit.orphaned).where(Commit.repository_id == repository_id, Commit.sha == sha)
    return bool(session.execute(query).scalar_one_or_none())


def _has_left_the_branch(commit: Commit, standing: Standing) -> bool:
    return commit.first_parent_position is not None and commit.created_at < standing.fetched_at - _SETTLED
