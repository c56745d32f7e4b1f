"""What webhooks make of pull requests and pushes: which commits are compared, what supersedes what, who may ask."""

from __future__ import annotations

from typing import Any

import pytest
from github_fixtures import Loop

from service.models import Job, Measurement, PullRequest, Repository


@pytest.fixture
def shas(source: Any) -> dict[str, str]:
    names = {"one": "main~2", "two": "main~1", "three": "main", "topic": "topic", "orphan": "orphan"}
    return {name: source.git("rev-parse", ref) for name, ref in names.items()}


def opened(loop: Loop, head: str, number: int = 7, **changes: Any) -> None:
    loop.fake.pull(number, head, **changes)
    assert loop.send("pull_request", loop.fake.pull_event("opened", number)) == "accepted"
    loop.work()


def command(loop: Loop, body: str, sender: str = "mona", number: int = 7) -> str:
    assert loop.send("issue_comment", loop.fake.comment_event(number, body, sender)) == "accepted"
    loop.work()
    return loop.outcomes()[-1]


def test_the_head_is_pinned_and_compared_with_its_merge_base(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    (job,) = loop.jobs()
    assert (job.commit_sha, job.baseline_sha) == (shas["topic"], shas["two"])
    assert (job.requested_commit, job.pull_request, job.state) == (shas["topic"], 7, "queued")
    (check,) = loop.fake.checks.values()
    assert (check["name"], check["head_sha"], check["status"]) == ("s2bench", shas["topic"], "queued")
    assert loop.fake.comments == {}


def test_a_push_is_compared_with_its_first_parent(loop: Loop, shas: dict[str, str]) -> None:
    loop.send("push", loop.fake.push_event(shas["three"]))
    loop.send("push", loop.fake.push_event(shas["topic"], branch="topic"))
    loop.work()
    (job,) = loop.jobs()
    assert (job.commit_sha, job.baseline_sha, job.pull_request) == (shas["three"], shas["two"], None)
    assert sorted(loop.outcomes()) == ["measured", "not the branch main"]


def test_a_base_branch_that_is_not_the_default_one_counts(loop: Loop, shas: dict[str, str], source: Any) -> None:
    source.git("branch", "--force", "release", shas["one"])
    opened(loop, shas["two"], base="release")
    (job,) = loop.jobs()
    assert (job.commit_sha, job.baseline_sha) == (shas["two"], shas["one"])


def test_an_unregistered_repository_is_left_alone(loop: Loop, shas: dict[str, str]) -> None:
    event = loop.fake.push_event(shas["three"])
    event["repository"]["full_name"] = "octo/another"
    loop.send("push", event)
    loop.work()
    assert loop.outcomes() == ["the repository is not registered"]
    assert loop.jobs() == []


@pytest.mark.parametrize("head", ["orphan", "two"])
def test_what_cannot_be_compared_is_tried_again_and_then_left(loop: Loop, shas: dict[str, str], head: str) -> None:
    """No common history; a head that is part of the base already."""
    opened(loop, shas[head])
    for _ in range(10):
        loop.make_due()
        loop.work()
    assert loop.jobs() == []
    from service.models import Delivery

    (delivery,) = loop.rows(Delivery)
    assert (delivery.parked, delivery.attempts) == (True, 8)
    assert shas[head][:10] in delivery.last_error


def test_a_force_push_supersedes_and_cancels(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    before = loop.fake.pulls[7]["head"]["sha"]
    loop.fake.pull(7, shas["three"], base="topic")
    loop.send("pull_request", loop.fake.pull_event("synchronize", 7, before))
    loop.work()
    old, new = loop.jobs()
    assert (old.state, new.state) == ("canceled", "queued")
    assert new.commit_sha == shas["three"]
    stale, fresh = loop.fake.check("s2bench", shas["topic"]), loop.fake.check("s2bench", shas["three"])
    assert (stale["status"], stale["conclusion"]) == ("completed", "neutral")
    assert shas["three"][:10] in stale["output"]["summary"]
    assert fresh["status"] == "queued"


def test_events_out_of_order_leave_the_newest_head(loop: Loop, shas: dict[str, str]) -> None:
    """Opened, two pushes within one second, a third later; delivered backwards, and then all again."""
    at = "2026-11-30T10:00:00Z"
    loop.fake.pull(7, shas["one"], updated_at="2026-11-30T09:00:00Z")
    first = loop.fake.pull_event("opened", 7)
    loop.fake.pull(7, shas["two"], updated_at=at, base="topic")
    second = loop.fake.pull_event("synchronize", 7, shas["one"])
    loop.fake.pull(7, shas["three"], updated_at=at, base="topic")
    third = loop.fake.pull_event("synchronize", 7, shas["two"])
    for event in (third, second, first, third, second, first):
        loop.send("pull_request", event)
        loop.work()
    (job,) = loop.jobs()
    assert job.commit_sha == shas["three"]
    assert loop.pull().head_sha == shas["three"]
    assert loop.outcomes() == ["measured", "older than what is known", "older than what is known"]


def test_in_order_within_one_second_the_last_head_wins(loop: Loop, shas: dict[str, str]) -> None:
    at = "2026-11-30T10:00:00Z"
    opened(loop, shas["topic"], updated_at=at)
    loop.fake.pull(7, shas["three"], updated_at=at, base="topic")
    loop.send("pull_request", loop.fake.pull_event("synchronize", 7, shas["topic"]))
    loop.work()
    assert loop.pull().head_sha == shas["three"]


def test_closing_cancels_what_is_unfinished(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    loop.fake.pull(7, shas["topic"], state="closed")
    loop.send("pull_request", loop.fake.pull_event("closed", 7))
    loop.work()
    assert loop.jobs()[0].state == "canceled"
    assert loop.fake.check("s2bench", shas["topic"])["conclusion"] == "neutral"


def test_a_pull_request_that_is_opened_again_is_measured_again(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    for state, action in (("closed", "closed"), ("open", "reopened"), ("open", "edited")):
        loop.fake.pull(7, shas["topic"], state=state)
        loop.send("pull_request", loop.fake.pull_event(action, 7))
        loop.work()
    assert [job.state for job in loop.jobs()] == ["canceled", "queued"]
    assert loop.fake.check("s2bench", shas["topic"])["status"] == "queued"
    assert loop.outcomes()[-2:] == ["measured", "known"]


def test_a_head_that_comes_back_is_measured_again(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    for before, after in (("topic", "three"), ("three", "topic")):
        loop.fake.pull(7, shas[after], base="topic" if after == "three" else "main")
        loop.send("pull_request", loop.fake.pull_event("synchronize", 7, shas[before]))
        loop.work()
    assert [job.state for job in loop.jobs()] == ["canceled", "canceled", "queued"]
    assert loop.jobs()[-1].commit_sha == shas["topic"]


def test_another_base_branch_makes_another_baseline(loop: Loop, shas: dict[str, str], source: Any) -> None:
    source.git("branch", "--force", "release", shas["one"])
    opened(loop, shas["topic"])
    command(loop, "/s2bench run")
    loop.fake.pull(7, shas["topic"], base="release")
    for _ in range(2):
        loop.send("pull_request", loop.fake.pull_event("edited", 7))
        loop.fake.pulls[7]["title"] += "x"
        loop.work()
    assert [job.baseline_sha for job in loop.jobs()] == [shas["two"], shas["two"], shas["one"]]


# ---- forks ----


def test_code_of_a_fork_runs_only_after_approval_of_that_commit(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"], fork="mallory/kernels")
    assert loop.jobs() == []
    check = loop.fake.check("s2bench", shas["topic"])
    assert check["conclusion"] == "action_required"
    assert f"/s2bench run {shas['topic'][:10]}" in check["output"]["summary"]
    for body, sender in [
        ("/s2bench run", "mona"),  # names no commit
        (f"/s2bench run {shas['three'][:10]}", "mona"),  # another commit
        (f"/s2bench run {shas['topic'][:6]}", "mona"),  # too short
        (f"/s2bench run {shas['topic']}", "mallory"),  # not a maintainer
        (f"/s2bench run {shas['topic']}", "reader"),
        (f"/s2bench compare {shas['one']}", "mona"),
    ]:
        loop.fake.permissions["reader"] = "read"
        command(loop, body, sender)
        assert loop.jobs() == [], body
    assert command(loop, f"/s2bench run {shas['topic'][:10]}") == "measured"
    (job,) = loop.jobs()
    assert job.commit_sha == shas["topic"]
    assert loop.fake.check("s2bench", shas["topic"])["status"] == "queued"


def test_an_approval_does_not_cover_the_next_commit(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"], fork="mallory/kernels")
    command(loop, f"/s2bench run {shas['topic'][:10]}")
    loop.fake.pull(7, shas["three"], fork="mallory/kernels", base="topic")
    loop.send("pull_request", loop.fake.pull_event("synchronize", 7, shas["topic"]))
    loop.work()
    assert [job.commit_sha for job in loop.jobs()] == [shas["topic"]]
    assert loop.fake.check("s2bench", shas["three"])["conclusion"] == "action_required"


def test_a_head_that_moved_while_it_was_read_is_not_approved(loop: Loop, shas: dict[str, str]) -> None:
    """The comment names what the maintainer read; GitHub says by then that the head is another one."""
    opened(loop, shas["topic"], fork="mallory/kernels")
    loop.fake.pull(7, shas["three"], fork="mallory/kernels", base="topic")
    assert "runs after" in command(loop, f"/s2bench run {shas['topic']}")
    assert loop.jobs() == []


def test_a_deleted_fork_is_a_fork(loop: Loop, shas: dict[str, str]) -> None:
    pull = loop.fake.pull(7, shas["topic"])
    pull["head"]["repo"] = None
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    assert loop.jobs() == []


def test_a_maintainers_re_run_of_a_waiting_check_approves_its_commit(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"], fork="mallory/kernels")
    waiting = loop.fake.check("s2bench", shas["topic"])
    loop.send("check_run", loop.fake.rerun_event(waiting, sender="mallory"))
    loop.work()
    assert loop.jobs() == []
    loop.send("check_run", loop.fake.rerun_event(waiting))
    loop.work()
    (job,) = loop.jobs()
    assert (job.commit_sha, job.baseline_sha) == (shas["topic"], shas["two"])
    assert loop.pull().approved_sha == shas["topic"]


# ---- commands and re-runs ----


def test_a_re_run_makes_a_new_check_that_supersedes(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    first = loop.fake.check("s2bench", shas["topic"])
    event = loop.fake.rerun_event(first)
    assert loop.send("check_run", event, "click") == "accepted"
    assert loop.send("check_run", event, "click") == "duplicate"
    loop.work()
    old, new = loop.jobs()
    assert (old.state, new.state, new.baseline_sha) == ("canceled", "queued", shas["two"])
    assert loop.fake.checks[first["id"]]["conclusion"] == "neutral"
    assert loop.fake.check("s2bench", shas["topic"])["id"] != first["id"]


def test_a_re_run_of_a_head_that_is_gone_is_refused(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    stale = loop.fake.check("s2bench", shas["topic"])
    loop.fake.pull(7, shas["three"], base="topic")
    loop.send("pull_request", loop.fake.pull_event("synchronize", 7, shas["topic"]))
    loop.work()
    loop.send("check_run", loop.fake.rerun_event(stale))
    loop.work()
    assert loop.outcomes()[-1] == "no check of ours"
    assert len(loop.jobs()) == 2


def test_commands(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    assert command(loop, "/s2bench run", sender="mallory") == "mallory has no write access"
    assert command(loop, "/s2bench dance") == "unknown command 'dance'"
    assert command(loop, "/s2bench run\nand more text") == "measured"
    assert command(loop, f"/s2bench compare {shas['one'][:8]}") == "measured"
    assert command(loop, "/s2bench compare main").startswith("compare: expected")
    assert command(loop, f"/s2bench compare {shas['topic']}") == "compare: that is the head itself"
    first, second, third = loop.jobs()
    assert (first.state, second.state, third.state) == ("canceled", "queued", "queued")
    assert third.baseline_sha == shas["one"]
    names = {run["name"] for run in loop.fake.checks.values()}
    assert names == {"s2bench", f"s2bench against {shas['one'][:10]}"}


def test_a_command_on_a_pull_request_whose_webhook_was_lost(loop: Loop, shas: dict[str, str]) -> None:
    loop.fake.pull(7, shas["topic"])
    assert command(loop, "/s2bench run") == "measured"
    assert loop.jobs()[0].commit_sha == shas["topic"]


def test_without_credentials_no_command_is_obeyed(loop: Loop, shas: dict[str, str]) -> None:
    from service.github.intake import Intake
    from service.outbox.runner import Outbox

    intake = Intake(loop.context, None)
    loop.outbox = Outbox(loop.context.database, {"webhook": intake.handle})
    opened(loop, shas["topic"])
    loop.send("issue_comment", loop.fake.comment_event(7, "/s2bench run"))
    loop.work()
    assert len(loop.jobs()) == 1


# ---- lost webhooks ----


def test_the_poll_finds_commits_whose_webhook_was_lost(loop: Loop, shas: dict[str, str]) -> None:
    loop.fake.pull(7, shas["topic"])
    loop.fake.pull(8, shas["two"], updated_at="2020-01-01T00:00:00Z")  # older than the registration
    loop.fake.pull(9, shas["one"], fork="mallory/kernels")
    loop.fake.push_event(shas["three"])
    assert loop.poll() == 3
    assert loop.poll() == 3
    loop.work()
    assert {(job.commit_sha, job.baseline_sha) for job in loop.jobs()} == {
        (shas["topic"], shas["two"]),
        (shas["three"], shas["two"]),
    }
    assert len(loop.jobs()) == 2
    assert {pull.number for pull in loop.rows(PullRequest)} == {7, 9}
    # the webhook that comes after all makes nothing twice
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    assert len(loop.jobs()) == 2


def test_the_poll_survives_github(loop: Loop, shas: dict[str, str]) -> None:
    loop.fake.plant(500, times=3)
    assert loop.poll() == 0
    assert loop.poll() == 0  # paused
    loop.make_due()
    loop.fake.faults.clear()
    loop.fake.push_event(shas["three"])
    loop.fake.pull(7, shas["topic"])["head"] = None
    assert loop.poll() == 0  # an answer that GitHub does not give


def test_the_poll_after_a_fork_was_approved_makes_nothing(loop: Loop, shas: dict[str, str]) -> None:
    loop.fake.push_event(shas["three"])
    opened(loop, shas["topic"], fork="mallory/kernels")
    loop.poll()
    assert len([job for job in loop.jobs() if job.pull_request]) == 0
    assert len([check for check in loop.checks() if check.pull_request_id]) == 1
    command(loop, f"/s2bench run {shas['topic']}")
    loop.poll()
    loop.poll()
    assert len([job for job in loop.jobs() if job.pull_request]) == 1


def test_each_suite_has_its_check(loop: Loop, shas: dict[str, str]) -> None:
    settings = loop.context.settings.model_copy(update={"github_suites": {"cpu": "cpu/*", "gpu": "cuda/*"}})
    object.__setattr__(loop.context, "settings", settings)
    opened(loop, shas["topic"])
    assert sorted((job.cases, job.devices[0]) for job in loop.jobs()) == [("cpu/*", "cpu"), ("cuda/*", "cpu")]
    assert {run["name"] for run in loop.fake.checks.values()} == {"cpu", "gpu"}


def test_jobs_are_in_the_queue(loop: Loop, shas: dict[str, str]) -> None:
    opened(loop, shas["topic"])
    from service import engine

    (measurement,) = loop.rows(Measurement)
    found = engine._client(loop.context.database.engine).list_workflows(workflow_ids=[str(measurement.id)])
    assert [(one.status, one.queue_name) for one in found] == [("ENQUEUED", "cpu")]
    (job,) = loop.rows(Job)
    assert measurement.job_id == job.id
    (repository,) = loop.rows(Repository)
    assert repository.installation_id == 4242
