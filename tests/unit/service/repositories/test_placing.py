"""Marks commits by where refs hold them: who is an orphan, who comes back, who is left alone."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from service.db import Database
from service.models import Commit, Repository, utc_now
from service.repositories.placing import is_orphaned, place_commits
from service.worker.checkout import Standing

A, B, C, D = (letter * 40 for letter in "abcd")


@pytest.fixture
def repository_id(database: Database) -> UUID:
    with database.transaction() as session:
        row = Repository(name="kernels", url="/srv/kernels", default_branch="main")
        session.add(row)
        session.flush()
        return row.id


def store(database: Database, repository_id: UUID, sha: str, position: int | None, age_s: float = 3600) -> None:
    with database.transaction() as session:
        at = utc_now() - timedelta(seconds=age_s)
        session.add(Commit(repository_id=repository_id, sha=sha, first_parent_position=position, created_at=at))


def standing(line: str = "", others: str = "", dropped: str = "") -> Standing:
    names = {letter: letter * 40 for letter in "abcd"}
    on_line = tuple(names[one] for one in line)
    reachable = frozenset(on_line) | {names[one] for one in others}
    return Standing(on_line, reachable, frozenset(names[one] for one in dropped), utc_now())


def place(database: Database, repository_id: UUID, found: Standing) -> tuple[list[str], int | None]:
    with database.transaction() as session:
        placed = place_commits(session, repository_id, found)
        return sorted(commit.sha for commit in placed.orphans), placed.moved_from


def places(database: Database) -> dict[str, tuple[bool, int | None]]:
    with database.reading() as session:
        return {row.sha: (row.orphaned, row.first_parent_position) for row in session.query(Commit)}


def test_each_goes_where_refs_hold_it(database: Database, repository_id: UUID) -> None:
    for sha, position in ((A, 1), (B, 2), (C, None), (D, None)):
        store(database, repository_id, sha, position)
    assert place(database, repository_id, standing("ac", "d", dropped="b")) == ([B], 2)
    assert places(database) == {A: (False, 1), B: (True, None), C: (False, 2), D: (False, None)}
    assert place(database, repository_id, standing("ac", "d", dropped="b")) == ([], None), "told once"
    with database.reading() as session:
        assert [is_orphaned(session, repository_id, sha) for sha in (A, B, "e" * 40)] == [False, True, False]
    assert place(database, repository_id, standing("abc")) == ([], 2)
    assert places(database) == {A: (False, 1), B: (False, 2), C: (False, 3), D: (False, None)}


def test_what_a_host_cannot_know_is_left_alone(database: Database, repository_id: UUID) -> None:
    """One that no ref ever held here, and one that another host has stored after this host's fetch."""
    store(database, repository_id, A, None)
    store(database, repository_id, B, 2, age_s=5)
    store(database, repository_id, C, 3)
    assert place(database, repository_id, standing("d")) == ([C], 3)
    assert places(database) == {A: (False, None), B: (False, 2), C: (True, None)}


def test_other_repositories_are_not_touched(database: Database, repository_id: UUID) -> None:
    store(database, repository_id, A, 1)
    with database.transaction() as session:
        other = Repository(name="other", url="/srv/other", default_branch="main")
        session.add(other)
        session.flush()
        place_commits(session, other.id, standing(dropped="a"))
    assert places(database) == {A: (False, 1)}
