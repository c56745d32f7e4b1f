"""Resolves refs to commits, fast enough to do it inside a request: one `git cat-file --batch-check` per repository.

Git is asked about names only after `service.fields.ref_problem` has passed them, and runs nothing of the repository:
no hooks, no configuration of the host, no fetching of missing objects, no replaced objects.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import select
import subprocess
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

ANSWER_TIMEOUT_S = 5.0
PAUSE_S = 30.0  # how long a repository whose git did not answer is not asked again: requests wait for it one by one
MAX_PROCESSES = 16
_OBJECT = re.compile(rb"([0-9a-f]{40}) (commit|tag|tree|blob) \d+")
_SHA = re.compile(r"[0-9a-f]{40}")


class RefStatus(Enum):
    """What a name turned out to be."""

    COMMIT = "commit"
    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    NOT_A_COMMIT = "not_a_commit"


@dataclass(frozen=True)
class Resolution:
    """The commit that a name stands for; `sha` is set exactly when `status` is COMMIT."""

    status: RefStatus
    sha: str | None = None


class GitUnusable(Exception):  # noqa: N818 (says what is wrong)
    """Git does not answer for a repository: it is gone, broken, or the disk hangs."""


class GitSilent(GitUnusable):
    """Git does not answer in time."""


@functools.cache
def git_environment() -> MappingProxyType[str, str]:
    """Return the whole environment of every git process of the API."""
    return MappingProxyType(
        {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",  # a partial clone would fetch what it lacks, inside a request
            "GIT_ALLOW_PROTOCOL": "none",  # where git is older than that (2.39.4); there its fetch fails instead
        }
    )


def git_command(repository: Path, *arguments: str) -> list[str]:
    """Return a git command line for a repository that an administrator registered, whoever owns its files."""
    return ["git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", "-C", str(repository), *arguments]


def run_git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a short git command; the caller looks at its exit status.

    Raises
    ------
    GitUnusable
        When git cannot be started or does not end in time.
    """
    # Without the ceiling a folder that is no repository would be answered for by one that holds it.
    environment = {**git_environment(), "GIT_CEILING_DIRECTORIES": str(repository.parent)}
    try:
        return subprocess.run(
            git_command(repository, *arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitUnusable(f"git {arguments[0]} in {repository}: {error}") from error


class _BatchCheck:
    """A running `git cat-file --batch-check`: a line in, a line out. Not for use by two threads at once."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._rest = b""
        environment = {**git_environment(), "GIT_CEILING_DIRECTORIES": str(repository.parent)}
        try:
            self._process = subprocess.Popen(
                git_command(repository, "cat-file", "--batch-check"),
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            raise GitUnusable(f"git in {repository}: {error}") from error

    def ask(self, name: str) -> bytes:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(name.encode() + b"\n")
            return self._read_line(time.monotonic() + ANSWER_TIMEOUT_S)
        except OSError as error:
            raise GitUnusable(f"git cat-file in {self._repository}: {error}") from error

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise GitSilent(f"git cat-file in {self._repository} does not answer")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                raise GitUnusable(f"git cat-file in {self._repository} ended")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class RepositoryReader:
    """Answers questions about the commits of one repository; safe to use from several threads."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._lock = threading.Lock()
        self._batch: _BatchCheck | None = None
        self._silent_since: float | None = None
        # An answer about two SHAs is for ever; 20 clients asking for one merge base would start 20 processes.
        self.merge_base = functools.lru_cache(maxsize=1024)(self._find_merge_base)

    def resolve(self, name: str) -> Resolution:
        """Return the commit that a branch, a tag or a full or abbreviated SHA stands for; tags are peeled."""
        answer = self._ask(f"{name}^{{commit}}")
        if found := _OBJECT.fullmatch(answer):
            return Resolution(RefStatus.COMMIT, found.group(1).decode())
        if answer.endswith(b" ambiguous"):
            return Resolution(RefStatus.AMBIGUOUS)
        plain = self._ask(name)
        if plain.endswith(b" ambiguous"):
            return Resolution(RefStatus.AMBIGUOUS)
        return Resolution(RefStatus.NOT_A_COMMIT if _OBJECT.fullmatch(plain) else RefStatus.UNKNOWN)

    def first_parent(self, sha: str) -> str | None:
        """Return the first parent of a commit; None for a root or where a shallow clone ends."""
        found = _OBJECT.fullmatch(self._ask(f"{sha}^1^{{commit}}"))
        return found.group(1).decode() if found else None

    def _find_merge_base(self, one: str, other: str) -> str | None:
        result = run_git(self._repository, "merge-base", one, other)
        if result.returncode not in (0, 1):
            raise GitUnusable(f"git merge-base in {self._repository}: {result.stderr.strip()}")
        found = result.stdout.strip()
        return found if _SHA.fullmatch(found) else None

    def _ask(self, expression: str) -> bytes:
        with self._lock:
            if self._silent_since is not None and time.monotonic() - self._silent_since < PAUSE_S:
                raise GitSilent(f"git cat-file in {self._repository} did not answer a moment ago")
            try:
                answer = self._ask_running(expression)
            except GitSilent:
                self._silent_since = time.monotonic()
                raise
            self._silent_since = None
            return answer

    def _ask_running(self, expression: str) -> bytes:
        is_new = self._batch is None
        self._batch = self._batch or _BatchCheck(self._repository)
        try:
            return self._batch.ask(expression)
        except GitUnusable as error:
            self._drop()
            if is_new or isinstance(error, GitSilent):
                raise
        return self._ask_running(expression)  # it had been killed since

    def _drop(self) -> None:
        if self._batch is not None:
            self._batch.close()
            self._batch = None

    def close(self) -> None:
        """End the git process; the reader may be used again."""
        with self._lock:
            self._drop()


class RefResolver:
    """Readers by path, the least recently used closed when there are too many."""

    def __init__(self, max_processes: int = MAX_PROCESSES) -> None:
        self._max_processes = max_processes
        self._lock = threading.Lock()
        self._readers: OrderedDict[Path, RepositoryReader] = OrderedDict()

    def reader(self, repository: Path) -> RepositoryReader:
        """Return the reader of the repository at a path."""
        surplus = None
        with self._lock:
            reader = self._readers.get(repository)
            if reader is None:
                reader = self._readers[repository] = RepositoryReader(repository)
            self._readers.move_to_end(repository)
            if len(self._readers) > self._max_processes:
                _, surplus = self._readers.popitem(last=False)
        if surplus is not None:
            surplus.close()
        return reader

    def close(self) -> None:
        """End every git process."""
        with self._lock:
            readers = list(self._readers.values())
            self._readers.clear()
        for reader in readers:
            reader.close()
