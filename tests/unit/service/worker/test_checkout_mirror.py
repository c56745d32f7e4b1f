"""Mirrors and worktrees of real repositories: refs, baselines, and that nothing of a repository is run or trusted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from worker_fixtures import FakeRepository

from service.worker.checkout import Mirror, mirror_path, resolve_in, validate_ref
from service.worker.errors import JobError, Kind


@pytest.fixture
def mirror(tmp_path: Path, repository: FakeRepository) -> Mirror:
    return Mirror(tmp_path / "data", str(repository.path))


def test_refs_of_every_kind_are_resolved(mirror: Mirror, repository: FakeRepository) -> None:
    first = repository.commit("first")
    repository.git("tag", "-a", "v1", "-m", "version 1")
    second = repository.commit("second")
    assert mirror.resolve("main") == second
    assert mirror.resolve("v1") == first
    assert mirror.resolve(second) == second
    assert mirror.resolve(second[:9]) == second
    assert mirror.resolve("main~1") == first
    third = repository.commit("third")
    assert mirror.resolve("main") == third, "a branch is looked up anew"


@pytest.mark.parametrize(
    "ref", ["", "--upload-pack=touch x", "-x", "a b", "main;id", "a:b", "x" * 251, "nothing", "a\nb"]
)
def test_what_is_no_ref_is_refused(mirror: Mirror, repository: FakeRepository, ref: str) -> None:
    repository.commit()
    with pytest.raises(JobError) as caught:
        mirror.resolve(ref, "commit")
    assert caught.value.code == "unknown_ref"
    assert caught.value.message.startswith("commit: ")


def test_a_sha_that_does_not_exist_is_unknown(mirror: Mirror, repository: FakeRepository) -> None:
    repository.commit()
    with pytest.raises(JobError) as caught:
        mirror.resolve("0123456789" * 4)
    assert caught.value.code == "unknown_ref"


def test_refs_with_plain_revision_syntax_are_let_through() -> None:
    for ref in ("HEAD~2", "v1.0^{commit}", "feature/x+y", "origin/main@{1}", "a" * 40):
        assert validate_ref(ref) == ref


def test_a_worktree_is_the_commit_and_says_what_kernels_are_built_from(
    mirror: Mirror, repository: FakeRepository
) -> None:
    sha = repository.commit("one", speed={})
    checkout = mirror.check_out(mirror.resolve(sha))
    assert (checkout.path / "s2attn" / "behavior.json").read_text() == '{"name": "one", "speed": {}}'
    assert checkout.tree_hash == repository.git("rev-parse", "HEAD^{tree}")
    trees = [repository.git("rev-parse", f"HEAD:{folder}") for folder in ("s2attn", "csrc")]
    assert checkout.source_hashes == (f"s2attn:{trees[0]}", f"csrc:{trees[1]}")
    assert mirror.check_out(sha) == checkout


def test_a_changed_worktree_is_made_anew(mirror: Mirror, repository: FakeRepository) -> None:
    sha = repository.commit()
    (repository.path / ".gitignore").write_text("*.pyc\n")
    sha = repository.commit_files("ignore")
    path = mirror.check_out(mirror.resolve(sha)).path
    for damage in (
        lambda: (path / "s2attn" / "__init__.py").write_text("evil = 1"),
        lambda: (path / "s2attn" / "extra.py").write_text("evil = 1"),
        lambda: (path / "s2attn" / "ignored.pyc").write_text("evil = 1"),
        lambda: (path / "csrc" / "kernel.cpp").unlink(),
        lambda: (path / ".git").unlink(),
    ):
        damage()
        mirror.check_out(sha)
        files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        assert files == sorted([".git", *repository.git("ls-files").splitlines()])
        assert "evil" not in (path / "s2attn" / "__init__.py").read_text()


def test_a_commit_without_benchmarks_is_named(mirror: Mirror, repository: FakeRepository) -> None:
    (repository.path / "README").write_text("nothing here")
    sha = repository.commit_files("empty")
    with pytest.raises(JobError) as caught:
        mirror.check_out(mirror.resolve(sha))
    assert caught.value.code == "no_s2attn"
    assert caught.value.kind is Kind.PERMANENT


def test_hooks_filters_and_configuration_of_anyone_do_not_run(
    mirror: Mirror, repository: FakeRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.path / ".gitattributes").write_text("* filter=trap\n")
    sha = repository.commit("trapped")
    trap, home = tmp_path / "sprung", tmp_path / "home"
    command = f"touch {trap}; cat"
    for hooks in (repository.path / ".git" / "hooks", home / "hooks"):
        hooks.mkdir(parents=True, exist_ok=True)
        for name in ("post-checkout", "post-merge", "reference-transaction", "pre-auto-gc"):
            (hooks / name).write_text(f"#!/bin/sh\ntouch {trap}\n")
            (hooks / name).chmod(0o755)
    config = f'[filter "trap"]\n\tsmudge = {command}\n[core]\n\tfsmonitor = {command}\n\thooksPath = {home}/hooks\n'
    (home / ".gitconfig").write_text(config)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    mirror.check_out(mirror.resolve(sha))
    assert not trap.exists()


def test_submodules_are_not_fetched(mirror: Mirror, repository: FakeRepository, tmp_path: Path) -> None:
    other = FakeRepository(tmp_path / "other")
    other.commit("other")
    repository.commit("with a submodule")
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other.path), "third_party")
    sha = repository.commit_files("submodule")
    path = mirror.check_out(mirror.resolve(sha)).path
    assert list((path / "third_party").iterdir()) == []


def test_a_link_out_of_the_tree_stays_a_link(mirror: Mirror, repository: FakeRepository) -> None:
    repository.commit()
    (repository.path / "secret").symlink_to("/etc/passwd")
    sha = repository.commit_files("link")
    assert (mirror.check_out(mirror.resolve(sha)).path / "secret").is_symlink()


def test_a_commit_that_was_measured_survives_a_force_push(mirror: Mirror, repository: FakeRepository) -> None:
    repository.commit("base")
    lost = repository.commit("lost")
    mirror.check_out(mirror.resolve(lost))
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.commit("instead")
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    mirror.fetch()
    subprocess.run(["git", "-C", str(mirror.path), "gc", "--quiet", "--prune=now"], check=True)
    assert mirror.check_out(lost).sha == lost


def test_a_commit_that_no_ref_holds_can_be_asked_for(mirror: Mirror, repository: FakeRepository) -> None:
    repository.commit("base")
    mirror.fetch()
    loose = repository.commit("loose")
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    assert mirror.resolve(loose) == loose


def test_the_baseline_is_the_merge_base_or_the_first_parent(mirror: Mirror, repository: FakeRepository) -> None:
    root = repository.commit("root")
    fork = repository.commit("fork")
    repository.git("switch", "--quiet", "--create", "feature")
    repository.commit("feature 1")
    feature = repository.commit("feature 2")
    repository.git("switch", "--quiet", "main")
    main = repository.commit("main")
    repository.git("merge", "--quiet", "--no-ff", "-X", "ours", "feature", "--message", "merge")
    merge = repository.git("rev-parse", "HEAD")
    repository.git("switch", "--quiet", "feature")
    later = repository.commit("feature 3")
    mirror.fetch()
    assert mirror.baseline_of(main, "main") == fork
    assert mirror.baseline_of(merge, "main") == main
    assert mirror.baseline_of(later, "main") == feature
    assert mirror.baseline_of(fork, "main") == root
    assert mirror.baseline_of(root, "main") is None
    assert mirror.baseline_of(main, "no-such-branch") == fork


def test_a_commits_place_on_the_default_branch(mirror: Mirror, repository: FakeRepository) -> None:
    root = repository.commit("root")
    second = repository.commit("second")
    repository.git("switch", "--quiet", "--create", "feature")
    feature = repository.commit("feature")
    mirror.fetch()
    assert [mirror.position_of(sha, "main") for sha in (root, second, feature)] == [1, 2, None]


def test_a_commit_is_described(mirror: Mirror, repository: FakeRepository) -> None:
    first = repository.commit("first")
    second = repository.commit_files("Subject über alles\n\nbody")
    mirror.fetch()
    info = mirror.describe(second)
    assert (info.parents, info.author, info.subject) == ((first,), "Ada", "Subject über alles")
    assert info.committed_at.tzinfo is not None


def test_the_branch_of_an_origin_serves_as_default_branch(tmp_path: Path, repository: FakeRepository) -> None:
    root = repository.commit("root")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(repository.path), str(clone)], check=True)
    subprocess.run(["git", "-C", str(clone), "switch", "--quiet", "--create", "work"], check=True)
    subprocess.run(["git", "-C", str(clone), "branch", "--quiet", "--delete", "main"], check=True)
    mirror = Mirror(tmp_path / "data", str(clone))
    mirror.fetch()
    assert mirror.position_of(root, "main") == 1


def test_a_shallow_clone_serves_as_a_repository(tmp_path: Path, repository: FakeRepository) -> None:
    repository.commit("one")
    repository.commit("two")
    sha = repository.commit("three")
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth=2", f"file://{repository.path}", str(shallow)], check=True)
    mirror = Mirror(tmp_path / "data", str(shallow))
    assert mirror.check_out(mirror.resolve("main")).sha == sha


def test_an_unreachable_repository_is_a_passing_trouble(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        Mirror(tmp_path / "data", str(tmp_path / "nowhere")).fetch()
    assert caught.value.code == "checkout_failed"
    assert caught.value.kind is Kind.TRANSIENT
    assert "nowhere" in caught.value.log_tail


@pytest.mark.parametrize("url", ["", "--upload-pack=x", "a\nb"])
def test_what_is_no_url_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(JobError, match="url: "):
        Mirror(tmp_path, url)


def test_a_url_cannot_speak_through_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / 'odd "name" \\ # ; [core]'
    repository = FakeRepository(folder)
    sha = repository.commit()
    mirror = Mirror(tmp_path / "data", str(folder))
    assert mirror.check_out(mirror.resolve("main")).sha == sha


def test_mirrors_lie_at_a_place_that_follows_from_the_url(tmp_path: Path) -> None:
    assert mirror_path(tmp_path, "a") != mirror_path(tmp_path, "b")
    assert mirror_path(tmp_path, "a") == mirror_path(tmp_path, "a")


def test_revisions_of_a_local_repository(repository: FakeRepository) -> None:
    first = repository.commit("first")
    second = repository.commit("second")
    assert resolve_in(repository.path, "HEAD~1", "baseline") == first
    assert resolve_in(repository.path, "main", "candidate") == second
    for rev in ("HEAD~9", "--help", "nothing"):
        with pytest.raises(JobError, match="baseline: "):
            resolve_in(repository.path, rev, "baseline")


# ---- what a force push drops ----


def test_what_a_force_push_drops_is_told_apart_from_what_moved_on(mirror: Mirror, repository: FakeRepository) -> None:
    first = repository.commit("first")
    repository.git("switch", "--quiet", "--create", "topic")
    kept = repository.commit("on a topic that is merged later")
    repository.git("switch", "--quiet", "main")
    dropped = [repository.commit("one"), repository.commit("two")]
    assert mirror.standing("main") is None
    mirror.fetch()
    repository.git("reset", "--quiet", "--hard", first)
    mended = repository.commit("mended")
    repository.git("branch", "--delete", "--force", "topic")
    repository.git("tag", "--annotate", "--message", "kept", "v1", kept)
    mirror.fetch()
    found = mirror.standing("main")
    assert found is not None
    assert found.line == (first, mended)
    assert found.dropped == set(dropped)
    assert found.reachable == {first, mended, kept}
    again = Mirror(mirror.path.parents[1], mirror.url)
    assert again.resolve(dropped[1]) == dropped[1], "what was dropped is kept"
    again.fetch()
    later = again.standing("main")
    assert later is not None
    assert later.dropped == set(dropped), "and still known as dropped by whoever fetches next"


def test_what_comes_back_is_not_dropped(mirror: Mirror, repository: FakeRepository) -> None:
    first = repository.commit("first")
    second = repository.commit("second")
    mirror.fetch()
    repository.git("reset", "--quiet", "--hard", first)
    mirror.fetch()
    repository.git("reset", "--quiet", "--hard", second)
    mirror.fetch()
    found = mirror.standing("main")
    assert found is not None
    assert (found.dropped, found.line) == (set(), (first, second))


def test_many_pushes_leave_nothing_behind(mirror: Mirror, repository: FakeRepository) -> None:
    for number in range(4):
        repository.commit(str(number))
        mirror.fetch()
    assert not (mirror.path / "refs" / "dropped").exists()
