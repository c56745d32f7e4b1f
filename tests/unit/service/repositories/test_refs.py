"""The resolver of refs against real git repositories."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.repositories import refs
from service.repositories.refs import GitUnusable, RefResolver, RefStatus

Git = Callable[..., str]
IDENTITY = {
    "GIT_AUTHOR_NAME": "Grace",
    "GIT_AUTHOR_EMAIL": "grace@example.org",
    "GIT_COMMITTER_NAME": "Grace",
    "GIT_COMMITTER_EMAIL": "grace@example.org",
}


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git in a new repository at tmp_path/repository."""
    path = tmp_path / "repository"
    path.mkdir()

    def run(*arguments: str) -> str:
        environment = {**os.environ, **IDENTITY}
        command = ["git", "-C", str(path), *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    run("commit", "--quiet", "--allow-empty", "-m", "one")
    run("commit", "--quiet", "--allow-empty", "-m", "two")
    return run


@pytest.fixture
def resolver() -> Iterator[RefResolver]:
    opened = RefResolver(max_processes=2)
    yield opened
    opened.close()


def test_names_become_shas(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    git("tag", "-a", "v1", "-m", "one", "HEAD~1")
    reader = resolver.reader(tmp_path / "repository")
    assert reader.resolve("main").sha == git("rev-parse", "HEAD")
    assert reader.resolve("v1").sha == git("rev-parse", "HEAD~1")
    assert reader.resolve("nothing").status is RefStatus.UNKNOWN
    assert reader.resolve(git("rev-parse", "HEAD^{tree}")).status is RefStatus.NOT_A_COMMIT
    sha = git("rev-parse", "HEAD")
    assert reader.first_parent(sha) == git("rev-parse", "HEAD~1")
    assert reader.first_parent(git("rev-parse", "HEAD~1")) is None
    assert reader.merge_base(sha, git("rev-parse", "HEAD~1")) == git("rev-parse", "HEAD~1")


def test_changes_are_seen_by_a_running_process(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    reader = resolver.reader(tmp_path / "repository")
    before = reader.resolve("main").sha
    git("commit", "--quiet", "--allow-empty", "-m", "three")
    assert reader.resolve("main").sha == git("rev-parse", "HEAD") != before
    git("pack-refs", "--all")
    git("gc", "--quiet", "--prune=now")
    assert reader.resolve("main").sha == git("rev-parse", "HEAD")
    git("branch", "-m", "main", "other")
    assert reader.resolve("main").status is RefStatus.UNKNOWN


def test_a_killed_process_is_replaced(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    reader = resolver.reader(tmp_path / "repository")
    sha = reader.resolve("main").sha
    assert reader._batch is not None
    reader._batch._process.kill()
    reader._batch._process.wait()
    assert reader.resolve("main").sha == sha


@pytest.mark.parametrize("name", ["nowhere", "plain", "repository/inside", "file"])
def test_what_is_no_repository(git: Git, resolver: RefResolver, tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "repository" / "inside").mkdir()  # not answered for by the repository around it
    (tmp_path / "file").write_text("")
    with pytest.raises(GitUnusable):
        resolver.reader(tmp_path / name).resolve("main")


def test_git_that_does_not_answer_is_given_up(
    git: Git, resolver: RefResolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refs, "git_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(refs, "ANSWER_TIMEOUT_S", 0.05)
    reader = resolver.reader(tmp_path / "repository")
    with pytest.raises(GitUnusable, match="does not answer"):
        reader.resolve("main")
    monkeypatch.undo()
    with pytest.raises(GitUnusable, match="did not answer"):  # at once: nobody waits for it again so soon
        reader.resolve("main")
    monkeypatch.setattr(refs, "PAUSE_S", 0.0)
    assert reader.resolve("main").sha == git("rev-parse", "HEAD")


def test_nothing_of_the_repository_runs(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    """Neither hooks, nor aliases, nor a command that would fetch what a partial clone lacks."""
    marker = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    git("config", "core.fsmonitor", str(script))
    git("config", "core.sshCommand", str(script))
    git("config", "alias.cat-file", f"!{script}")
    git("config", "remote.origin.url", f"ext::{script}")
    git("config", "remote.origin.promisor", "true")
    git("config", "extensions.partialClone", "origin")
    git("config", "core.repositoryFormatVersion", "1")
    reader = resolver.reader(tmp_path / "repository")
    assert reader.resolve("main").sha == git("rev-parse", "HEAD")
    assert reader.resolve("4" * 40).status is RefStatus.UNKNOWN
    assert reader.merge_base(git("rev-parse", "HEAD"), git("rev-parse", "HEAD~1"))
    assert not marker.exists()


def test_replaced_objects_are_not_believed(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    parent, head = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    git("replace", "--graft", head)
    assert resolver.reader(tmp_path / "repository").first_parent(head) == parent


def test_only_so_many_processes_run(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    for number in range(3):
        git("clone", "--quiet", "--bare", ".", str(tmp_path / f"{number}.git"))
    readers = [resolver.reader(tmp_path / f"{number}.git") for number in range(3)]
    for number, reader in enumerate(readers):
        assert resolver.reader(tmp_path / f"{number}.git").resolve("main").sha, reader
    running = [reader for reader in resolver._readers.values() if reader._batch is not None]
    assert len(running) == 2
    assert readers[0].resolve("main").sha  # one that was closed meanwhile may still be used
    readers[0].close()


def test_threads_get_their_own_answers(git: Git, resolver: RefResolver, tmp_path: Path) -> None:
    names = [f"branch-{number}" for number in range(8)]
    expected = {}
    for name in names:
        git("commit", "--quiet", "--allow-empty", "-m", name)
        git("branch", name)
        expected[name] = git("rev-parse", name)
    reader = resolver.reader(tmp_path / "repository")
    wrong: list[str] = []

    def ask(name: str) -> None:
        wrong.extend(name for _ in range(50) if reader.resolve(name).sha != expected[name])

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
