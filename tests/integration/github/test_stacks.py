"""`/s2bench stack`: who may ask, what is made of it, and the comment that says which commit did what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from github_fixtures import HOSTILE, Loop, all_ended, registered
from worker_fixtures import BACKWARD_SELF, FORWARD_SELF, RunningWorker, wait_until

from service.models import Alert, Attribution


@pytest.fixture
def topic(source: Any) -> str:
    sha: str = source.git("rev-parse", "topic")
    return sha


def opened(loop: Loop, head: str, **changes: Any) -> None:
    loop.fake.pull(7, head, **changes)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()


def command(loop: Loop, body: str, sender: str = "mona") -> str:
    loop.send("issue_comment", loop.fake.comment_event(7, body, sender))
    loop.work()
    return loop.outcomes()[-1]


def test_a_stack_is_a_job_with_a_check_of_its_own(loop: Loop, topic: str, source: Any) -> None:
    opened(loop, topic)
    assert command(loop, "/s2bench stack", sender="mallory") == "mallory has no write access"
    assert command(loop, "/s2bench stack") == "measured"
    compared, stack = loop.jobs()
    assert (compared.kind, stack.kind) == ("compare", "stack")
    assert (stack.commit_sha, stack.baseline_sha) == (topic, source.git("rev-parse", "main~1"))
    assert (compared.state, stack.state) == ("queued", "queued")
    assert loop.fake.check("s2bench per commit", topic)["status"] == "queued"


def test_a_stack_of_a_fork_waits_for_its_approval(loop: Loop, topic: str) -> None:
    opened(loop, topic, fork="mallory/kernels")
    assert command(loop, "/s2bench stack") == f"a fork's code runs after `/s2bench run {topic[:10]}`"
    assert loop.jobs() == []
    command(loop, f"/s2bench run {topic[:10]}")
    assert command(loop, "/s2bench stack") == "measured"
    assert [job.kind for job in loop.jobs()] == ["compare", "stack"]


def test_a_bisection_is_asked_for_by_the_name_of_a_case(loop: Loop, topic: str) -> None:
    opened(loop, topic, fork="mallory/kernels")
    assert command(loop, f"/s2bench bisect {FORWARD_SELF}").startswith("a fork's code runs after")
    command(loop, f"/s2bench run {topic[:10]}")
    for name in ("", "cpu/*", "two words", "x" * 251, "\u202e"):
        assert command(loop, f"/s2bench bisect {name}") == "bisect: expected the name of one case"
    assert command(loop, f"/s2bench bisect {FORWARD_SELF}", sender="mallory") == "mallory has no write access"
    assert command(loop, f"/s2bench bisect {FORWARD_SELF}") == "measured"
    job = loop.jobs()[-1]
    assert (len(loop.jobs()), job.kind, job.cases) == (2, "bisect", FORWARD_SELF)
    assert loop.fake.check(f"bisect {FORWARD_SELF}", topic)["status"] == "queued"


def test_a_re_run_of_a_stack_is_a_stack(loop: Loop, topic: str) -> None:
    opened(loop, topic)
    command(loop, "/s2bench stack")
    loop.send("check_run", loop.fake.rerun_event(loop.fake.check("s2bench per commit", topic)))
    loop.work()
    assert [job.kind for job in loop.jobs()] == ["compare", "stack", "stack"]
    assert loop.jobs()[1].state == "canceled"


def test_the_comment_says_which_commit_did_what(loop: Loop, tmp_path: Path) -> None:
    work = registered(loop, tmp_path)
    base = work.git("rev-parse", "HEAD")
    work.git("switch", "--quiet", "--create", "topic")
    slow = work.commit(HOSTILE[:150], speed={FORWARD_SELF: 1.1})
    broken = work.commit("broken", build="fail")
    head = work.commit("fast", speed={FORWARD_SELF: 1.1, BACKWARD_SELF: 0.9})
    work.git("push", "--quiet", "origin", "topic")
    loop.fake.pull(7, head)
    assert command(loop, "/s2bench stack") == "measured"
    with RunningWorker(loop.context.database, tmp_path):
        wait_until(lambda: all_ended(loop), 180, "the end of the job")
    loop.work()
    (job,) = loop.jobs()
    assert (job.kind, job.state, job.baseline_sha) == ("stack", "done", base)
    assert len(loop.rows(Attribution)) == 9
    assert loop.rows(Alert) == []
    check = loop.fake.check("s2bench per commit", head)
    assert (check["conclusion"], check["output"]["title"]) == ("failure", "1 regressed, 1 improved, 1 unchanged")
    (comment,) = loop.fake.comments.values()
    body = comment["body"]
    assert "| commit | subject | before | after | delta | interval | verdict |" in body
    lines = body[body.index(f"<code>{FORWARD_SELF}</code> on cpu") :].splitlines()[4:8]
    assert re.match(rf"\| {slow[:10]} \| <code>.*</code> \| [\d.]+ ms \| [\d.]+ ms \| \+1?\d\.\d\d % \|", lines[0])
    assert lines[0].endswith("| regressed |")
    assert lines[1] == f"| {broken[:10]} | <code>broken</code> | – | – | – | – | failed (build_failed) |"
    assert f"together with {broken[:10]}, which could not be measured by themselves |" in lines[2]
    assert re.match(r"\| all \|  \| .* \| regressed \|", lines[3])
    assert HOSTILE[:20] not in body
    assert f"s2bench attribute {base}..{head} --device cpu --cases '*'" in body
