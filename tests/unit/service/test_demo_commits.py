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


def test_the_newest_change_of_a_cpu_kernel_is_compared_with_its_parent(repository):
    repository.commit("package")
    write(repository, "csrc/cpu/forward.cpp", "old")
    parent = write(repository, "README.md", "words")
    change = write(repository, "csrc/cpu/forward.cpp", "new")
    write(repository, "csrc/cuda/launch.cu", "not a CPU kernel")
    write(repository, "docs/later.md", "words")
    commits = choose_commits(repository.path)
    assert (commits.baseline, commits.candidate) == (parent, change)
    assert commits.subject == "change csrc/cpu/forward.cpp"


def test_without_an_earlier_kernel_head_is_compared_with_itself(repository):
    head = write(repository, "csrc/cpu/forward.cpp", "the first")
    commits = choose_commits(repository.path)
    assert (commits.baseline, commits.candidate) == (head, head)
    assert "itself" in commits.why


def test_a_folder_without_history_is_named(repository):
    with pytest.raises(DemoError, match="rev-parse"):
        choose_commits(repository.path)
