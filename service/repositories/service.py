"""Registers repositories, and turns refs into commits against what lies on this machine's disk."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy.orm import Session

from service.context import AppContext
from service.errors import InvalidInput, NotFound, Unavailable
from service.fields import ref_problem
from service.models import Repository
from service.repositories import queries
from service.repositories.refs import GitUnusable, RefResolver, RefStatus, run_git
from service.repositories.schemas import RepositoryList, RepositoryOut, RepositoryRequest
from service.worker.checkout import mirror_path

AUTO = "auto"
_FULL_SHA = re.compile(r"[0-9a-fA-F]{40}")
_ABBREVIATED_SHA = re.compile(r"[0-9a-fA-F]{4,40}")
_REMOTE_SCHEMES = frozenset({"https", "http", "ssh", "git"})
_SCP_LIKE = re.compile(r"[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^-].*")


@dataclass(frozen=True)
class Pinned:
    """The SHAs of a job as far as they are known at intake; what is None is resolved by the worker."""

    commit: str | None
    baseline: str | None


def list_repositories(session: Session) -> RepositoryList:
    """Return every repository."""
    return RepositoryList(items=[RepositoryOut.model_validate(item) for item in queries.all_by_name(session)])


def get(session: Session, name: str) -> Repository:
    """Return a repository by name."""
    repository = queries.by_name(session, name)
    if repository is None:
        raise unknown_repository("repository", name)
    return repository


def unknown_repository(field: str, name: str) -> InvalidInput:
    """Return the error for a repository that is not registered."""
    expected = "the name of a registered repository (GET /api/v1/repositories lists them)"
    return InvalidInput.of("unknown_repository", field, name, expected)


def register(
    session: Session, name: str, url: str, default_branch: str = "main", github: str | None = None
) -> Repository:
    """Register a repository, or change the URL and default branch of the one with this name.

    `github` is its "owner/name" there; None leaves what is known.
    """
    request = RepositoryRequest(name=name, url=url, default_branch=default_branch, github=github)
    _check_url(request.url)
    repository = queries.by_name(session, name)
    if repository is None:
        repository = Repository(name=name, url=url, default_branch=default_branch)
        session.add(repository)
    repository.url = url
    repository.default_branch = default_branch
    if request.github is not None:
        taken = queries.by_github(session, request.github)
        if taken is not None and taken.name != name:
            expected = f"a repository that is not registered yet; {taken.name!r} is this one"
            raise InvalidInput.of("github_taken", "github", github, expected)
        repository.github = request.github
    session.flush()
    return repository


def local_path(url: str) -> Path | None:
    """Return the folder that a URL names on this machine, or None for a remote repository."""
    if url.startswith("/"):
        return Path(url)
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path))
    return None


def _check_url(url: str) -> None:
    path = local_path(url)
    if path is None:
        if urlsplit(url).scheme not in _REMOTE_SCHEMES and not _SCP_LIKE.fullmatch(url):
            expected = "an absolute path, or a file://, https:// or ssh:// URL"
            raise InvalidInput.of("invalid_url", "url", url, expected)
        return
    try:
        usable = path.is_dir() and run_git(path, "rev-parse", "--git-dir").returncode == 0
    except GitUnusable as error:
        raise Unavailable("git_unusable", f"{error}: is git installed on the server?") from error
    if not usable:
        expected = "the top folder of a git repository on the server that the service can read"
        raise InvalidInput.of("not_a_repository", "url", url, expected)


class CommitFinder:
    """Resolves refs of one repository against its local folder, or against the worker's mirror of a remote one.

    For short use: it looks for the folder and the default branch once.
    """

    def __init__(self, refs: RefResolver, data_dir: Path, repository: Repository) -> None:
        self._repository = repository
        local = local_path(repository.url)
        self._is_local = local is not None
        path = local or mirror_path(data_dir, repository.url)
        self._reader = refs.reader(path) if path.is_dir() else None
        if self._is_local and self._reader is None:
            raise self._unusable(f"its folder {path} is not there")

    def find(self, name: str, field: str) -> str | None:
        """Return a commit's SHA, or None when only a fetch can tell; raises InvalidInput that names the field."""
        if problem := ref_problem(name):
            raise InvalidInput.of("invalid_ref", field, name, f"a branch, a tag or a SHA, but {problem}")
        if self._reader is None:
            return self._unfetched(name)
        try:
            found = self._reader.resolve(name)
        except GitUnusable as error:
            raise self._unusable(str(error)) from error
        if found.status is RefStatus.COMMIT:
            return found.sha
        if found.status is RefStatus.AMBIGUOUS:
            raise InvalidInput.of("ambiguous_ref", field, name, "more digits: several objects begin with these")
        if found.status is RefStatus.NOT_A_COMMIT:
            raise InvalidInput.of("not_a_commit", field, name, "a commit, but this is another kind of object")
        if self._is_local:
            expected = f"a branch, a tag or a SHA of {self._repository.name}: push it there first"
            raise InvalidInput.of("unknown_ref", field, name, expected)
        return self._unfetched(name)

    def baseline_of(self, commit: str) -> str | None:
        """Return the merge base with the default branch, or the first parent when the commit is on that branch.

        None when only a fetch can tell; raises InvalidInput when there is nothing to compare with.
        """
        if self._reader is None:
            return None
        try:
            head = self._default_head
            base = self._reader.merge_base(commit, head) if head else None
            if base == commit:
                base = self._reader.first_parent(commit)
        except GitUnusable as error:
            raise self._unusable(str(error)) from error
        if base is None and self._is_local:
            branch = self._repository.default_branch
            expected = f"a ref: {commit[:12]} has no parent here, or no common history with a branch {branch!r}"
            raise InvalidInput.of("no_baseline", "baseline", AUTO, expected)
        return base

    @functools.cached_property
    def _default_head(self) -> str | None:
        assert self._reader is not None
        branch = self._repository.default_branch
        for name in (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}"):
            if (sha := self._reader.resolve(name).sha) is not None:
                return sha
        return None

    @staticmethod
    def _unfetched(name: str) -> str | None:
        return name.lower() if _FULL_SHA.fullmatch(name) else None

    def _unusable(self, why: str) -> InvalidInput:
        expected = f"a repository that the server can read, but {why}: an administrator must mend it"
        return InvalidInput.of("repository_unusable", "repository", self._repository.name, expected)


def pin(finder: CommitFinder, commit: str, baseline: str) -> Pinned:
    """Resolve the two refs of a job as far as this machine can without fetching."""
    commit_sha = finder.find(commit, "commit")
    if baseline != AUTO:
        return Pinned(commit_sha, finder.find(baseline, "baseline"))
    return Pinned(commit_sha, finder.baseline_of(commit_sha) if commit_sha else None)


def find_commit(context: AppContext, session: Session, repository: Repository, name: str, field: str) -> str:
    """Return a commit's SHA for reading what was measured; raises NotFound or InvalidInput naming the field.

    Commits that were measured are found even when their repository has dropped them, or cannot be read.
    """
    try:
        sha = CommitFinder(context.refs, context.settings.data_dir, repository).find(name, field)
    except InvalidInput as error:
        if error.code not in {"unknown_ref", "repository_unusable"}:
            raise
        sha = None
    if sha is not None:
        return sha
    measured = []
    if _ABBREVIATED_SHA.fullmatch(name):
        measured = queries.commits_with_prefix(session, repository.id, name.lower())
    if len(measured) > 1:
        raise InvalidInput.of("ambiguous_ref", field, name, "more digits: several measured commits begin with these")
    if not measured:
        raise NotFound(
            "unknown_ref", f"{field}: got {name!a}, expected a commit of {repository.name} that was measured"
        )
    return measured[0]
