"""Gets commits onto this machine: one bare mirror per repository, one detached worktree per commit.

Nothing of a repository is trusted: its hooks, filters, attributes and configuration are never used, submodules and
large-file storage are not fetched, and a worktree is handed out only when it equals its commit. A mirror never
forgets a commit that was measured, even when a force push dropped it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from service.worker.access import Access, anonymous, fetch_environment, without_credentials
from service.worker.errors import JobError, Kind

STAGE = "checkout"
SHA = re.compile(r"[0-9a-f]{40}")
BENCHMARKS = "s2attn/benchmarks"
FETCH_TIMEOUT_S = 600.0
KEPT_WORKTREES = 16
_FETCH = ("fetch", "--quiet", "--no-recurse-submodules", "--update-shallow", "--no-write-fetch-head")
# A work tree registered as a repository may know its default branch only as that of its origin.
_REFSPECS = tuple(f"+refs/{kind}/*:refs/{kind}/*" for kind in ("heads", "tags", "pull", "remotes/origin"))
# Everything that a fetch brings up to date; what this service adds lies in refs/s2bench and refs/dropped.
_LIVE = ("--branches", "--tags", "--glob=refs/pull/*", "--remotes=origin")
# How this machine reaches remote repositories is the administrator's business, not the repository's.
_PASSED_ON = ("PATH", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
_CONFIGURATION = """\
[core]
	hooksPath = /dev/null
	fsmonitor = false
	attributesFile = /dev/null
	excludesFile = /dev/null
[gc]
	auto = 0
[maintenance]
	auto = false
[submodule]
	recurse = false
[protocol "ext"]
	allow = never
[advice]
	detachedHead = false
[safe]
	directory = "{source}"
	directory = "{source}/.git"
"""


@dataclass(frozen=True)
class CommitInfo:
    """What git says of a commit."""

    sha: str
    tree_hash: str
    parents: tuple[str, ...]
    author: str
    subject: str
    committed_at: datetime
    first_parent_position: int | None = None


@dataclass(frozen=True)
class Standing:
    """What refs held right after a fetch: `line` is the first-parent line of the default branch, its root first.

    `dropped` were held by a ref at an earlier fetch, and are by none now.
    """

    line: tuple[str, ...]
    reachable: frozenset[str]
    dropped: frozenset[str]
    fetched_at: datetime


@dataclass(frozen=True)
class Checkout:
    """A verified worktree: `source_hashes` are the git tree hashes of the folders that kernels are built from."""

    path: Path
    sha: str
    tree_hash: str
    source_hashes: tuple[str, ...]


def mirror_path(data_dir: Path, url: str) -> Path:
    """Return where the bare mirror of a repository lies below the data directory."""
    return data_dir / "mirrors" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"


def validate_ref(ref: str, argument: str = "ref") -> str:
    """Return `ref` when it is safe to hand to git as a revision, else raise `unknown_ref`."""
    if not ref or len(ref) > 250 or ref.startswith("-") or not re.fullmatch(r"[\w./@{}^~+#=%-]+", ref):
        raise JobError(
            "unknown_ref",
            f"{argument}: expected a branch, tag or commit that does not begin with '-', got {ref!r}",
            stage=STAGE,
        )
    return ref


class Mirror:
    """A bare mirror of one repository (a URL or a local folder), with the worktrees made from it."""

    def __init__(self, data_dir: Path, url: str, access: Access = anonymous) -> None:
        if not url or url.startswith("-") or not url.isprintable():
            raise JobError("checkout_failed", f"url: expected a repository, got {url!r}", stage=STAGE)
        self.url = without_credentials(url)
        self._credentials = functools.partial(fetch_environment, url, access)
        self.path = mirror_path(data_dir, url)
        self.worktrees = data_dir / "checkouts" / self.path.stem
        self._configuration = self.path.with_suffix(".gitconfig")
        self._fetched_at: datetime | None = None

    def fetch(self) -> None:
        """Bring branches, tags and pull requests up to date; commits that lost their ref stay."""
        with self._locked():
            self._prepare()
            before = self._tips()
            self._fetch("--prune", "--", self.url, *_REFSPECS)
            self._keep_dropped(before - self._tips())
        self._fetched_at = datetime.now(UTC)

    def resolve(self, ref: str, argument: str = "ref") -> str:
        """Return the full SHA of a ref, fetching when the mirror does not know it."""
        validate_ref(ref, argument)
        sha = self._find(ref)
        if sha is None or not SHA.fullmatch(ref):
            self.fetch()
            sha = self._find(ref)
        if sha is None and SHA.fullmatch(ref):
            sha = self._fetch_commit(ref)
        if sha is None:
            raise JobError("unknown_ref", f"{argument}: no commit {ref!r} in {self.url}", stage=STAGE)
        return sha

    def baseline_of(self, sha: str, default_branch: str) -> str | None:
        """Return what a commit is compared with: its merge base with the default branch, or its first parent.

        A commit that is on the default branch already has itself as merge base; then the parent is meant. None when
        there is no parent.
        """
        branch = self._head_of(default_branch)
        parents = self.describe(sha).parents
        if branch is not None:
            base = self._git("merge-base", branch, sha, check=False).strip()
            if base and base != sha:
                return base
        return parents[0] if parents else None

    def describe(self, sha: str) -> CommitInfo:
        """Return a commit's tree, parents, author, subject and time."""
        output = self._git("show", "--no-patch", "--no-show-signature", "--format=%T%x00%P%x00%an%x00%s%x00%ct", sha)
        tree, parents, author, subject, seconds = output.rstrip("\n").split("\0")
        committed_at = datetime.fromtimestamp(int(seconds), UTC)
        return CommitInfo(sha, tree, tuple(parents.split()), author[:250], subject, committed_at)

    def position_of(self, sha: str, default_branch: str) -> int | None:
        """Return a commit's place on the first-parent line of the default branch, counted from its root at 1."""
        branch = self._head_of(default_branch)
        if branch is None:
            return None
        line = self._git("rev-list", "--first-parent", branch).split()
        return len(line) - line.index(sha) if sha in line else None

    def standing(self, default_branch: str) -> Standing | None:
        """Return which commits refs hold and held; None unless this object has fetched: it would be old news."""
        if self._fetched_at is None:
            return None
        branch = self._head_of(default_branch)
        line = self._git("rev-list", "--first-parent", "--reverse", branch).split() if branch is not None else []
        reachable = self._git("rev-list", *_LIVE).split()
        dropped = self._git("rev-list", "--glob=refs/dropped/*", "--not", *_LIVE).split()
        return Standing(tuple(line), frozenset(reachable), frozenset(dropped), self._fetched_at)

    def line(self, base: str, head: str, most: int) -> tuple[str, ...]:
        """Return the commits after `base` up to `head` along first parents, oldest first; both are SHAs known here.

        Raises `bad_range` when there is none, `base` is not on that line, or they are more than `most`.
        """
        between = ("--first-parent", head, f"^{base}")
        count = int(self._git("rev-list", "--count", *between))
        names = f"range: {base[:10]}..{head[:10]}"
        if count == 0:
            empty = "the same commit twice" if base == head else f"{head[:10]} is part of {base[:10]} (reversed?)"
            raise JobError("bad_range", f"{names}: expected the older commit first, got {empty}", stage=STAGE)
        if count > most:
            raise JobError("bad_range", f"{names}: expected at most {most} commits, got {count}", stage=STAGE)
        found = tuple(self._git("rev-list", "--reverse", *between).split())
        if self.describe(found[0]).parents[:1] != (base,):
            message = f"expected {base[:10]} on the first-parent line of {head[:10]}, got a commit beside it"
            raise JobError("bad_range", f"{names}: {message}", stage=STAGE)
        return found

    def check_out(self, sha: str) -> Checkout:
        """Return a worktree of the commit that equals its tree, made anew if the one on disk does not."""
        if not SHA.fullmatch(sha):
            raise JobError("unknown_ref", f"commit: expected 40 hex digits, got {sha!r}", stage=STAGE)
        if self._find(sha) is None:
            self.resolve(sha, "commit")
        tree = self._git("rev-parse", "--verify", f"{sha}^{{tree}}").strip()
        if self._tree_hash(sha, BENCHMARKS) is None:
            raise JobError("no_s2attn", f"commit {sha[:10]} has no {BENCHMARKS}", stage=STAGE)
        sources = tuple(f"{folder}:{self._tree_hash(sha, folder)}" for folder in ("s2attn", "csrc"))
        path = self.worktrees / sha
        with self._locked():
            self._git("update-ref", f"refs/s2bench/{sha}", sha)
            if not self._equals_commit(path, sha):
                self._remove_worktree(path)
                self.worktrees.mkdir(parents=True, exist_ok=True)
                self._git("worktree", "add", "--force", "--detach", str(path), sha, transient=True)
                if not self._equals_commit(path, sha):
                    raise JobError("checkout_failed", f"the files of {sha[:10]} differ from its tree", stage=STAGE)
            os.utime(path)
            self._prune(keep=path)
        return Checkout(path, sha, tree, sources)

    def _equals_commit(self, path: Path, sha: str) -> bool:
        if not (path / ".git").exists():
            return False
        try:
            head = self._git("rev-parse", "HEAD", folder=path).strip()
            changes = self._git("status", "--porcelain", "--untracked-files=all", "--ignored", folder=path)
        except JobError:
            return False  # a damaged worktree is made anew; if git itself is at fault, that fails with its message
        return head == sha and changes == ""

    def _tree_hash(self, sha: str, folder: str) -> str | None:
        output = self._git("ls-tree", "-d", sha, "--", folder)
        return output.split()[2] if output else None

    def _head_of(self, branch: str) -> str | None:
        validate_ref(branch, "default_branch")
        return self._find(f"refs/heads/{branch}") or self._find(f"refs/remotes/origin/{branch}")

    def _find(self, ref: str) -> str | None:
        if not self.path.exists():
            return None
        sha = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", check=False)
        return sha.strip() or None

    def _fetch_commit(self, sha: str) -> str | None:
        """Ask for a commit that no branch, tag or pull request holds; servers may refuse."""
        with self._locked():
            self._fetch("--", self.url, f"+{sha}:refs/s2bench/{sha}", check=False)
        return self._find(sha)

    def _fetch(self, *arguments: str, check: bool = True) -> None:
        """Fetch, with credentials that this one process sees."""
        run_git(
            self.path,
            *(*_FETCH, *arguments),
            configuration=self._configuration,
            credentials=self._credentials(),
            check=check,
            transient=True,
        )

    def _tips(self) -> set[str]:
        """Return the commits that branches, tags and pull requests name."""
        kinds = ("refs/heads", "refs/tags", "refs/pull", "refs/remotes/origin")
        lines = self._git("for-each-ref", "--format=%(objectname) %(*objectname)", *kinds).splitlines()
        return {line.split()[-1] for line in lines}

    def _keep_dropped(self, moved: set[str]) -> None:
        """Keep what refs were moved away from and do not hold any more: a ref of ours names it from now on."""
        if not moved:
            return
        for sha in moved.intersection(self._git("rev-list", *sorted(moved), "--not", *_LIVE).split()):
            self._git("update-ref", f"refs/dropped/{sha}", sha)

    def _prepare(self) -> None:
        local = self.url.removeprefix("file://")
        source = (local if "://" in local else os.path.realpath(local)).replace("\\", "\\\\").replace('"', '\\"')
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(_CONFIGURATION.format(source=source))
        if not (self.path / "HEAD").exists():
            self._git("init", "--quiet", "--bare", "--template=", str(self.path), folder=self.path.parent)

    def _remove_worktree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)
        self._git("worktree", "prune")

    def _prune(self, keep: Path) -> None:
        """Remove worktrees beyond the newest, sparing everything used within the last day."""
        found = sorted(self.worktrees.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[KEPT_WORKTREES:]:
            if path != keep and path.stat().st_mtime < time.time() - 86400:
                self._remove_worktree(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the mirror or its worktrees."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".lock"), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _git(self, *arguments: str, folder: Path | None = None, check: bool = True, transient: bool = False) -> str:
        return run_git(
            folder or self.path, *arguments, configuration=self._configuration, check=check, transient=transient
        )


def resolve_in(repository: Path, rev: str, argument: str) -> str:
    """Return the full SHA of any revision of a local repository, such as HEAD~1."""
    validate_ref(rev, argument)
    output = run_git(
        repository,
        *("-c", f"safe.directory={repository}", "rev-parse", "--verify", "--quiet"),
        *("--end-of-options", f"{rev}^{{commit}}"),
        check=False,
    )
    if not output.strip():
        raise JobError("unknown_ref", f"{argument}: no commit {rev!r} in {repository}", stage=STAGE)
    return output.strip()


def run_git(
    folder: Path,
    *arguments: str,
    configuration: Path | None = None,
    credentials: Mapping[str, str] = MappingProxyType({}),
    check: bool = True,
    transient: bool = False,
) -> str:
    """Run git without anyone's configuration but `configuration`, and return its output.

    `credentials` are variables of its environment (`service.worker.access`).
    """
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(configuration or "/dev/null"),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        **credentials,
    }
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FETCH_TIMEOUT_S,
            umask=0o022,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JobError("checkout_failed", f"git {arguments[0]}: {error}", stage=STAGE, kind=Kind.TRANSIENT) from error
    if check and result.returncode != 0:
        tail = result.stderr.decode("utf-8", "replace")
        raise JobError(
            "checkout_failed",
            f"git {arguments[0]} failed with status {result.returncode}",
            stage=STAGE,
            log_tail=tail,
            kind=Kind.TRANSIENT if transient else Kind.PERMANENT,
        )
    return result.stdout.decode("utf-8", "replace")
