"""Finds the commits of a pull request or a push in git: never inside a request, because it may fetch."""

from __future__ import annotations

from pathlib import Path

from service.context import AppContext
from service.github.access import fetch_access
from service.history.rebuilding import follow_refs
from service.models import Repository
from service.outbox.runner import Refused, TryLater
from service.repositories.refs import GitUnusable, RefStatus, RepositoryReader
from service.repositories.service import local_path
from service.worker.checkout import Mirror
from service.worker.errors import JobError, Kind


def merge_base(context: AppContext, repository: Repository, head: str, base_ref: str) -> str:
    """Return what a pull request's head is compared with: its merge base with the base branch as it is now.

    Raises
    ------
    Refused
        When git does not have the commits, or they share no history, or the head is in the base branch already.
    TryLater
        When the repository cannot be reached.
    """
    reader = _reader(context, repository, head)
    try:
        base = _commit(reader, f"refs/heads/{base_ref}", repository)
        found = reader.merge_base(_commit(reader, head, repository), base)
    except GitUnusable as error:
        raise TryLater(str(error)) from error
    if found is None:
        raise Refused(f"{head[:10]} shares no history with {base_ref}")
    if found == head:
        raise Refused(f"{head[:10]} is part of {base_ref} already: there is nothing to compare")
    return found


def first_parent(context: AppContext, repository: Repository, head: str) -> str:
    """Return what a pushed commit is compared with.

    Raises
    ------
    Refused
        When git does not have the commit, or it has no parent.
    TryLater
        When the repository cannot be reached.
    """
    reader = _reader(context, repository, head)
    try:
        parent = reader.first_parent(_commit(reader, head, repository))
    except GitUnusable as error:
        raise TryLater(str(error)) from error
    if parent is None:
        raise Refused(f"{head[:10]} has no parent to compare with")
    return parent


def full_sha(context: AppContext, repository: Repository, name: str, head: str) -> str:
    """Return the SHA of a commit that a person named; raises as `first_parent` does."""
    reader = _reader(context, repository, head)
    try:
        return _commit(reader, name, repository)
    except GitUnusable as error:
        raise TryLater(str(error)) from error


def _reader(context: AppContext, repository: Repository, head: str) -> RepositoryReader:
    path = local_path(repository.url)
    if path is None:
        path = _fetched(context, repository, head)
    return context.refs.reader(path)


def _fetched(context: AppContext, repository: Repository, head: str) -> Path:
    try:
        mirror = Mirror(context.settings.data_dir, repository.url, fetch_access(context.settings))
        mirror.fetch()
        mirror.resolve(head, "head")
        standing = mirror.standing(repository.default_branch)
    except JobError as error:
        kind = TryLater if error.kind is Kind.TRANSIENT else Refused
        raise kind(f"{repository.name}: {error.message}") from error
    if standing is not None:
        with context.database.transaction() as session:
            follow_refs(session, context.queue.enqueue_measurements, repository.id, standing)
    return mirror.path


def _commit(reader: RepositoryReader, name: str, repository: Repository) -> str:
    found = reader.resolve(name)
    if found.status is not RefStatus.COMMIT or found.sha is None:
        raise Refused(f"{name}: {found.status.value} in {repository.name}")
    return found.sha
