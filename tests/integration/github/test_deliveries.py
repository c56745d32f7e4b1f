"""Checks and comments through every trouble that GitHub has: nothing is lost, made twice, or in the way of others."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from github_fake import INSTALLATION, FakeGitHub, app_settings, fake_github
from github_fixtures import Loop

from service.delivery import opened_outbox
from service.github import client
from service.models import Delivery, Job, Repository, utc_now
from service.settings import Settings

GOOD = {"cpu/forward/self": ("unchanged", 0.001), "cpu/backward/self": ("improved", -0.1)}
BAD = {"cpu/forward/self": ("regressed", 0.1), "cpu/backward/self": ("unchanged", 0.0)}


@pytest.fixture
def head(source: Any) -> str:
    sha: str = source.git("rev-parse", "topic")
    return sha


@pytest.fixture
def job(loop: Loop, head: str) -> Job:
    """A job of pull request 7, queued, of which GitHub does not know yet."""
    loop.fake.pull(7, head)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    (webhook,) = loop.rows(Delivery)
    loop.outbox.work()
    assert webhook.kind == "webhook"
    (found,) = loop.jobs()
    return found


def due_in_s(loop: Loop) -> float:
    waiting = [row for row in loop.rows(Delivery) if row.wanted > row.delivered]
    return min((row.due_at - utc_now()).total_seconds() for row in waiting)


def result(loop: Loop, head: str) -> tuple[str | None, int, int]:
    """The conclusion, and how many checks and comments there are."""
    return loop.fake.check("s2bench", head)["conclusion"], len(loop.fake.checks), len(loop.fake.comments)


@pytest.mark.parametrize(
    ("found", "conclusion", "title"),
    [
        (GOOD, "success", "1 improved, 1 unchanged"),
        (BAD, "failure", "1 regressed, 1 unchanged"),
        ({"c/x": ("failed", None)}, "failure", "1 failed"),
        ({"c/x": ("throttled", None), "c/y": ("unchanged", 0.0)}, "neutral", "Not known: 1 throttled, 1 unchanged"),
        ({"c/x": ("inconclusive", 0.1)}, "neutral", "Not known: 1 inconclusive"),
        ({"c/x": ("not_comparable", None)}, "neutral", "Not known: 1 not comparable"),
        ({"c/x": ("environment", 0.1)}, "neutral", "Not known: 1 environment"),
        ({}, "neutral", "No case was measured"),
    ],
)
def test_the_conclusion(loop: Loop, job: Job, head: str, found: Any, conclusion: str, title: str) -> None:
    loop.judge(job, found)
    loop.work()
    assert result(loop, head) == (conclusion, 1, 1)
    assert loop.fake.check("s2bench", head)["output"]["title"] == title


def test_a_job_that_fails_is_neutral_and_says_why(loop: Loop, job: Job, head: str) -> None:
    from service.models import Measurement, State
    from service.worker.errors import JobError
    from service.worker.records import _end, lock

    (measurement,) = loop.rows(Measurement)
    with loop.context.database.transaction() as session:
        locked, row = lock(session, measurement.id)
        _end(session, locked, row, State.FAILED, JobError("build_failed", "<b>it</b> does not build", stage="build"))
    loop.work()
    check = loop.fake.check("s2bench", head)
    assert (check["conclusion"], check["output"]["title"]) == ("neutral", "Could not be measured: build_failed")
    assert "&#60;b&#62;it" in check["output"]["summary"]
    assert len(loop.fake.comments) == 1


def test_queued_in_progress_completed(loop: Loop, job: Job, head: str) -> None:
    from service.models import Measurement, State
    from service.worker.records import _enter, lock

    loop.work()
    assert loop.fake.check("s2bench", head)["status"] == "queued"
    (measurement,) = loop.rows(Measurement)
    with loop.context.database.transaction() as session:
        _enter(session, *lock(session, measurement.id), State.MEASURING, "pairs")
    loop.work()
    check = loop.fake.check("s2bench", head)
    assert (check["status"], check["conclusion"]) == ("in_progress", None)
    assert check["details_url"].endswith(f"/jobs/{job.id}")
    loop.judge(job, GOOD)
    loop.work()
    assert result(loop, head) == ("success", 1, 1)
    assert loop.fake.count("POST", "/check-runs") == 1


@pytest.mark.parametrize("kind", [500, 502, 503, 401, 408, "garbage"])
def test_an_error_is_tried_again_later(loop: Loop, job: Job, head: str, kind: Any) -> None:
    loop.fake.plant(kind, times=3)
    loop.judge(job, GOOD)
    for _ in range(3):
        loop.work()
        assert 0 < due_in_s(loop) <= 300
        loop.make_due()
    loop.work()
    assert result(loop, head) == ("success", 1, 1)


def test_a_limit_is_waited_for_and_counts_for_no_try(loop: Loop, job: Job, head: str) -> None:
    loop.fake.plant("limit", times=1, wait_s=120)
    loop.judge(job, GOOD)
    before = len(loop.fake.requests)
    loop.work()
    assert len(loop.fake.requests) == before + 1  # the comment was not even tried
    waiting = [row for row in loop.rows(Delivery) if row.wanted > row.delivered]
    assert {row.kind for row in waiting} == {"check", "comment"}
    for row in waiting:
        assert 100 < (row.due_at - utc_now()).total_seconds() <= 122
        assert (row.attempts, row.parked) == (0, False)
        assert "rate limit" in row.last_error
    loop.make_due()
    loop.work()
    assert result(loop, head) == ("success", 1, 1)


def test_a_secondary_limit_says_itself_how_long(loop: Loop, job: Job, head: str) -> None:
    loop.fake.plant("secondary", wait_s=33)
    loop.work()
    assert 25 < due_in_s(loop) <= 33


def test_github_down_for_an_hour_loses_nothing_and_blocks_nothing(loop: Loop, job: Job, head: str, source: Any) -> None:
    loop.fake.plant(503, times=10_000)
    loop.judge(job, BAD)
    for _ in range(40):
        loop.work()
        loop.make_due()
    assert loop.fake.checks == {}
    assert not any(row.parked for row in loop.rows(Delivery))
    three = source.git("rev-parse", "main")
    loop.send("push", loop.fake.push_event(three))  # needs nobody outside
    loop.work()
    assert [one.commit_sha for one in loop.jobs()] == [head, three]
    loop.fake.faults.clear()
    loop.make_due()
    loop.work()
    assert result(loop, head) == ("failure", 2, 1)


def test_a_timeout_is_tried_again(loop: Loop, job: Job, head: str) -> None:
    loop.github._http.timeout = 0.3
    loop.fake.plant("timeout", wait_s=1.0)
    loop.work()
    loop.make_due()
    loop.judge(job, GOOD)
    loop.work()
    assert result(loop, head) == ("success", 1, 1)


@pytest.mark.parametrize("path", ["/check-runs", "/comments"])
def test_what_was_made_by_a_try_whose_answer_was_lost_is_found_again(
    loop: Loop, job: Job, head: str, path: str
) -> None:
    """The work is done, the answer is not: neither a second check nor a second comment may come of it."""
    loop.github._http.timeout = 0.3
    loop.judge(job, GOOD)
    loop.fake.plant("lost", "POST", path, wait_s=1.0)
    for _ in range(4):
        loop.work()
        loop.make_due()
    assert result(loop, head) == ("success", 1, 1)
    assert not [row for row in loop.rows(Delivery) if row.wanted > row.delivered]


def test_a_comment_that_somebody_deleted_is_made_anew(loop: Loop, job: Job, head: str) -> None:
    loop.judge(job, GOOD)
    loop.work()
    loop.fake.comments.clear()
    loop.fake.pull(7, head, title="another title")
    loop.send("pull_request", loop.fake.pull_event("edited", 7))
    with loop.context.database.transaction() as session:
        from service.outbox.service import job_changed

        job_changed(session, job.id, judged=True)
    loop.work()
    assert len(loop.fake.comments) == 1


def test_a_comment_of_somebody_else_with_the_marker_is_left_alone(loop: Loop, job: Job, head: str) -> None:
    from service.github.report import MARKER

    forged = {"id": 999_999, "number": 7, "body": f"{MARKER} mine", "user": {"login": "mallory"}}
    loop.fake.comments[999_999] = forged
    for number in range(150):  # more than a page
        loop.fake.comments[1_000_000 + number] = {"id": 1_000_000 + number, "number": 7, "body": "hi", "user": None}
    loop.judge(job, GOOD)
    loop.work()
    assert loop.fake.comments[999_999]["body"] == f"{MARKER} mine"
    assert len(loop.fake.comments) == 152


def test_what_is_refused_is_parked_and_stands_in_nobodys_way(loop: Loop, job: Job, head: str, source: Any) -> None:
    """The commit is not on GitHub any more: 422 for its check, while its comment and other checks go out."""
    loop.fake.commits.clear()
    loop.judge(job, GOOD)
    for _ in range(10):
        loop.work()
        loop.make_due()
    (parked,) = [row for row in loop.rows(Delivery) if row.parked]
    assert (parked.kind, parked.attempts) == ("check", 8)
    assert "422" in parked.last_error
    assert "No commit found" in parked.last_error
    assert len(loop.fake.comments) == 1
    loop.fake.commits.add(head)
    with loop.context.database.transaction() as session:
        from service.outbox.service import job_changed

        job_changed(session, job.id, judged=True)
    loop.work()
    assert result(loop, head) == ("success", 1, 1)


def test_a_repository_that_hides_from_us_is_a_404(loop: Loop, job: Job, head: str) -> None:
    loop.fake.plant(404, times=8)
    loop.work()
    (waiting,) = [row for row in loop.rows(Delivery) if row.wanted > row.delivered]
    assert "404" in waiting.last_error


def test_two_outboxes_at_once_make_one_of_each(loop: Loop, job: Job, head: str) -> None:
    loop.judge(job, BAD)
    start = threading.Barrier(3)

    def work() -> None:
        with opened_outbox(loop.context) as (outbox, _):
            start.wait()
            for _ in range(5):
                outbox.work()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result(loop, head) == ("failure", 1, 1)


def test_an_outbox_that_dies_leaves_a_lease_that_ends(loop: Loop, job: Job, head: str) -> None:
    from service.outbox import queries

    with loop.context.database.transaction() as session:
        (check,) = queries.due(session, ["check"], utc_now(), 10)
        assert queries.claim(session, check, utc_now()) is not None
        assert queries.claim(session, check, utc_now()) is None
    loop.work()
    assert loop.fake.checks == {}
    with loop.context.database.transaction() as session:
        assert queries.claim(session, check, utc_now() + queries.LEASE + timedelta(seconds=1)) is not None


def test_a_change_while_it_is_delivered_is_delivered_too(loop: Loop, job: Job, head: str) -> None:
    loop.work()
    inner = loop.outbox.handlers["check"]

    def slow(claimed: Any) -> None:
        inner(claimed)
        if loop.jobs()[0].state == "queued":
            loop.judge(job, GOOD)

    from service.outbox.service import job_changed

    loop.outbox.handlers = dict(loop.outbox.handlers) | {"check": slow}
    with loop.context.database.transaction() as session:
        job_changed(session, job.id, judged=False)
    loop.work()
    assert result(loop, head) == ("success", 1, 1)


def test_two_thousand_regressed_cases_fit(loop: Loop, job: Job, head: str) -> None:
    cases = {
        f"cpu/forward/{'long_name_' * 10}{number:04d}": ("regressed", 0.01 + number / 1e5) for number in range(2000)
    }
    loop.judge(job, cases)
    started = time.perf_counter()
    loop.work()
    assert time.perf_counter() - started < 20
    assert result(loop, head) == ("failure", 1, 1)
    (comment,) = loop.fake.comments.values()
    for text in (comment["body"], loop.fake.check("s2bench", head)["output"]["summary"]):
        assert 60_000 < len(text) <= 65_535
        assert "1999<" in text  # the worst of all is there
        assert "0000<" not in text
        assert f"more rows: [all of them](https://bench.example/jobs/{job.id})" in text
        assert "s2bench compare" in text
    from service.models import Alert

    assert len(loop.rows(Alert)) == 1


@pytest.mark.parametrize("fake", ["/api/v3"], indirect=True)
def test_an_enterprise_server_works_the_same(loop: Loop, job: Job, head: str) -> None:
    loop.judge(job, BAD)
    loop.work()
    assert result(loop, head) == ("failure", 1, 1)
    (comment,) = loop.fake.comments.values()
    server = loop.fake.url.removesuffix("/api/v3")
    assert f"({server}/octo/kernels/commit/{head})" in comment["body"]
    loop.send("issue_comment", loop.fake.comment_event(7, "/s2bench ack known"))
    loop.work()
    assert loop.fake.check("s2bench", head)["conclusion"] == "neutral"
    loop.fake.push_event(head)
    assert loop.poll() == 2
    assert all(path.startswith("/api/v3/") for _, path, _ in loop.fake.requests)


# ---- credentials ----


@pytest.mark.parametrize("prefix", ["", "/api/v3"])
def test_a_token_instead_of_an_app_and_enterprise(prefix: str, tmp_path: Any) -> None:
    with fake_github(prefix) as fake:
        fake.commits.add("1" * 40)
        settings = Settings(data_dir=tmp_path, github_api_url=fake.url, github_token=fake.personal_token())
        place = client.Place("octo/kernels")
        opened = client.GitHubClient(settings)
        opened.post(place, "/statuses/{sha}", {"state": "pending", "context": "x", "description": ""}, sha="1" * 40)
        assert fake.status("x", "1" * 40)["state"] == "pending"
        with pytest.raises(client.GitHubError, match="via a GitHub App") as refused:
            opened.post(place, "/check-runs", {"name": "x", "head_sha": "1" * 40})
        assert refused.value.failure is client.Failure.NEEDS_APP
        assert opened.is_mine(place, {"user": {"login": "s2bench-bot"}})
        assert not opened.is_mine(place, {"user": {"login": "mona"}})
        assert not opened.is_mine(place, {"user": None})
        assert settings.github_url == fake.url.removesuffix("/api/v3")
        opened.close()


def test_an_installation_token_is_bought_once_and_again_when_refused(fake: FakeGitHub, tmp_path: Any) -> None:
    settings = Settings(data_dir=tmp_path, **app_settings(fake, tmp_path))
    opened = client.GitHubClient(settings)
    place = client.Place("octo/kernels")  # the installation is looked up
    for _ in range(3):
        opened.items(place, "/pulls{?state,per_page}", state="open", per_page=100)
    assert fake.count("GET", "/installation") == 1
    assert fake.count("POST", "/access_tokens") == 1
    fake._token = "ghs_another"
    with pytest.raises(client.GitHubError, match="401"):
        opened.get(place, "/pulls/{number}", number=1)
    opened._pause = client._Pause()
    with pytest.raises(client.GitHubError, match="404"):
        opened.get(place, "/pulls/{number}", number=1)
    assert fake.count("POST", f"/installations/{INSTALLATION}/access_tokens") == 2
    opened.close()


def test_no_secret_is_in_an_error_or_a_log(
    loop: Loop, job: Job, head: str, caplog: pytest.LogCaptureFixture, repository: Repository
) -> None:
    from github_fake import PRIVATE_KEY, SECRET

    for kind in (401, 403, 422, 500, "garbage", "limit"):
        loop.fake.plant(kind, wait_s=1)
        loop.work()
        loop.make_due()
    written = caplog.text + repr(loop.context.settings) + "".join(str(row.last_error) for row in loop.rows(Delivery))
    assert "delivery_" in written
    for secret in (SECRET, loop.fake.installation_token(), PRIVATE_KEY.splitlines()[1], "Bearer", "bearer "):
        assert secret not in written
