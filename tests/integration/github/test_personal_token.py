"""With a person's token, which may not make check runs: the check is a commit status, the comment is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from github_fake import SECRET, FakeGitHub
from github_fixtures import Loop

from service.models import Delivery
from service.settings import Settings

FOUND = {
    "success": ({"cpu/x": ("unchanged", 0.0)}, "success", "1 unchanged"),
    "failure": ({"cpu/x": ("regressed", 0.1)}, "failure", "1 regressed"),
    "neutral": ({"cpu/x": ("throttled", None)}, "success", "neutral: Not known: 1 throttled"),
}


@pytest.fixture
def settings(database_url: str, tmp_path: Path, fake: FakeGitHub) -> Settings:
    return Settings(
        database_url=database_url,
        data_dir=tmp_path / "data",
        github_api_url=fake.url,
        github_token=fake.personal_token(),
        github_webhook_secret=SECRET,
        public_url="https://bench.example",
    )


@pytest.fixture
def head(loop: Loop, source: Any) -> str:
    sha: str = source.git("rev-parse", "topic")
    loop.fake.pull(7, sha)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    return sha


@pytest.mark.parametrize("name", FOUND)
def test_a_status_and_a_comment(loop: Loop, head: str, name: str) -> None:
    (job,) = loop.jobs()
    assert loop.fake.status("s2bench", head) | {"id": 0} == {
        "id": 0,
        "sha": head,
        "context": "s2bench",
        "state": "pending",
        "description": "Waiting for a device",
        "target_url": f"https://bench.example/jobs/{job.id}",
    }
    found, state, description = FOUND[name]
    loop.judge(job, found)
    loop.work()
    status = loop.fake.status("s2bench", head)
    assert (status["state"], status["description"]) == (state, description)
    assert loop.fake.checks == {}
    assert len(loop.fake.comments) == 1
    assert not [row for row in loop.rows(Delivery) if row.wanted > row.delivered]


def test_a_superseded_check_does_not_take_the_place_of_its_successor(loop: Loop, head: str) -> None:
    for number in range(2):
        loop.send("issue_comment", loop.fake.comment_event(7, f"/s2bench run\n{number}"))
    loop.work()
    first, second, third = loop.jobs()
    assert [first.state, second.state, third.state] == ["canceled", "canceled", "queued"]
    assert loop.fake.status("s2bench", head)["description"] == "Waiting for a device"
    assert loop.fake.status("s2bench", head)["target_url"].endswith(str(third.id))


def test_the_old_head_of_a_force_push_is_told_so(loop: Loop, head: str, source: Any) -> None:
    other = source.git("rev-parse", "main")
    loop.fake.pull(7, other, base="topic")
    loop.send("pull_request", loop.fake.pull_event("synchronize", 7, head))
    loop.work()
    assert loop.fake.status("s2bench", head)["description"] == "neutral: Superseded"
    assert loop.fake.status("s2bench", other)["state"] == "pending"
