"""Which two commits the demo compares."""

import pytest
from worker_fixtures import FakeRepository

from service.demo import DemoError, choose_commits


@pytest.fixture
def repository(tmp_path):
    return FakeRepository(tmp_path / "clone")


def write(repository, path, text):
    file = repository.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return repository.commit_files(f"change {path}")


@pytest.mark.parametrize(("changes", "why"), [(1, "the newest change"), (3, "the last 3"), (7, "the last 5")])
def test_the_last_changes_of_cpu_kernels_are_compared_with_what_was_before(repository, changes, why):
    write(repository, "csrc/cpu/forward.cpp", "before there were benchmarks")
    parent = repository.commit("package")
    for number in range(changes):
        if changes - number == 5:
            parent = repository.git("rev-parse", "HEAD")
        change = write(repository, "csrc/cpu/forward.cpp", f"version {number}")
    write(repository, "csrc/cuda/launch.cu", "not a CPU kernel")
    write(repository, "docs/later.md", "words")
    commits = choose_commits(repository.path)
    assert (commits.baseline, commits.candidate) == (parent, change)
    assert commits.subject == "change csrc/cpu/forward.cpp"
    assert commits.why.startswith(why)


def test_without_an_earlier_kernel_head_is_compared_with_itself(repository):
    head = write(repository, "csrc/cpu/forward.cpp", "the first")
    commits = choose_commits(repository.path)
    assert (commits.baseline, commits.candidate) == (head, head)
    assert "itself" in commits.why


def test_a_folder_without_history_is_named(repository):
    with pytest.raises(DemoError, match="rev-parse"):
        choose_commits(repository.path)
