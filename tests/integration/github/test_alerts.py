"""Alerts: one per cause however many workers see it, opened again only by what is new, closed by a recovery."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from github_fixtures import Loop, judge

from service import auth
from service.history.rebuilding import follow_refs
from service.models import Alert, AlertCase, AlertEvent, Commit, Delivery, Job, Measurement, Repository, State, utc_now
from service.worker.checkout import Standing

SLOW = {"cpu/forward/self": ("regressed", 0.10), "cpu/forward/down": ("regressed", 0.20)}
SAME = {"cpu/forward/self": ("unchanged", 0.0), "cpu/forward/down": ("improved", -0.1)}


def add_job(loop: Loop, head: str, base: str, pull_request: int | None = 7, classes: Any = ("cpu",)) -> Job:
    """Store a job with a measurement per device class, as if taken."""
    (repository,) = loop.rows(Repository)
    with loop.context.database.transaction() as session:
        job = Job(
            repository_id=repository.id,
            requested_commit=head,
            requested_baseline=base,
            commit_sha=head,
            baseline_sha=base,
            devices=list(classes),
            cases="*",
            pull_request=pull_request,
            policy={"max_pairs": 8},
            body_sha256="0" * 64,
            state=State.MEASURING,
        )
        session.add(job)
        session.flush()
        for name in classes:
            session.add(Measurement(job_id=job.id, device_class=name, state=State.MEASURING))
        return job


def sha(number: int) -> str:
    return f"{number:040x}"


@pytest.fixture
def pull_job(loop: Loop) -> Any:
    """Makes jobs of a pull request, head after head."""

    def make(number: int = 1, classes: Any = ("cpu",), pull_request: int | None = 7) -> Job:
        return add_job(loop, sha(number), sha(0), pull_request, classes)

    return make


def events(loop: Loop) -> list[str]:
    return [event.kind for event in loop.rows(AlertEvent)]


def states(loop: Loop) -> list[str]:
    return [alert.state for alert in loop.rows(Alert)]


def test_cases_of_one_group_are_one_alert_and_groups_are_apart(loop: Loop, pull_job: Any) -> None:
    wrong = {"cpu/backward/self": ("failed", None), "cpu/backward/up": ("regressed", 0.3)}
    loop.judge(pull_job(), SLOW | wrong | {"cpu/forward/up": ("unchanged", 0.0)})
    alerts = loop.rows(Alert)
    assert {(alert.kind, alert.group) for alert in alerts} == {
        ("speed", "cpu.forward"),
        ("speed", "cpu.backward"),
        ("numerics", "cpu.backward"),
    }
    assert len(loop.rows(AlertCase)) == 4


def test_two_workers_at_once_make_one_alert(loop: Loop, pull_job: Any) -> None:
    """Two device classes of one job, and four jobs of one pull request, all in the same moment."""
    jobs = [pull_job(number, ("cpu", "gpu:A", "gpu:B")) for number in range(1, 5)]
    ids = [row.id for job in jobs for row in loop.rows(Measurement, Measurement.job_id == job.id)]
    start = threading.Barrier(len(ids))
    failures: list[Exception] = []

    def work(measurement_id: Any) -> None:
        start.wait()
        for _ in range(20):  # as service.worker.records does: a deadlock or a busy database is tried again
            try:
                judge(loop.context.database, measurement_id, SLOW)
                return
            except Exception as error:
                if "deadlock" not in str(error):
                    failures.append(error)
                    return

    threads = [threading.Thread(target=work, args=(one,)) for one in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    (alert,) = loop.rows(Alert)
    assert sorted(events(loop)) == ["evidence"] * (len(ids) - 1) + ["opened"]
    assert len(loop.rows(AlertCase)) == 6
    assert len([row for row in loop.rows(Delivery) if row.kind == "notice"]) == 1
    assert alert.state == "open"


def test_a_pull_request_recovers_when_every_case_is_good_again(loop: Loop, pull_job: Any) -> None:
    loop.judge(pull_job(1), SLOW)
    loop.judge(pull_job(2), {"cpu/forward/self": ("unchanged", 0.0)})
    assert states(loop) == ["open"]
    loop.judge(pull_job(3), {"cpu/forward/down": ("throttled", None)})
    assert states(loop) == ["open"]
    loop.judge(pull_job(4), {"cpu/forward/down": ("improved", -0.1)})
    assert states(loop) == ["fixed"]
    loop.judge(pull_job(5), SAME)
    assert events(loop) == ["opened", "recovered"]
    loop.judge(pull_job(6), SLOW)
    assert (states(loop), events(loop)[-1]) == (["open"], "reopened")


def test_another_pull_request_is_another_cause(loop: Loop, pull_job: Any) -> None:
    loop.judge(pull_job(1), SLOW)
    loop.judge(pull_job(1, pull_request=8), SLOW)
    loop.judge(pull_job(2, pull_request=8), SAME)
    assert states(loop) == ["open", "fixed"]


@pytest.mark.parametrize("state", ["acknowledged", "expected"])
def test_what_was_accepted_opens_again_only_when_it_gets_worse(loop: Loop, pull_job: Any, state: str) -> None:
    loop.judge(pull_job(1), SLOW)
    (alert,) = loop.rows(Alert)
    change(loop, alert.id, state=state, reason="known")
    loop.judge(pull_job(1), SLOW)
    loop.judge(pull_job(2), {"cpu/forward/self": ("regressed", 0.11)})
    assert states(loop) == [state]
    assert events(loop)[-2:] == ["evidence", "evidence"]
    loop.judge(pull_job(3), {"cpu/forward/self": ("regressed", 0.30)})
    assert states(loop) == ["open"]
    change(loop, alert.id, state=state, reason="that too")
    loop.judge(pull_job(4), {"cpu/forward/new": ("regressed", 0.01)})
    assert (states(loop), loop.rows(Alert)[0].reason) == (["open"], None)


def test_invalid_opens_again_by_another_measurement(loop: Loop, pull_job: Any) -> None:
    loop.judge(pull_job(1), SLOW)
    (alert,) = loop.rows(Alert)
    change(loop, alert.id, state="invalid", reason="the machine was rebooting")
    loop.judge(pull_job(2), SAME)
    assert states(loop) == ["invalid"]
    loop.judge(pull_job(3), SLOW)
    assert states(loop) == ["open"]


def test_on_the_default_branch_a_later_commit_has_to_make_up_for_it(loop: Loop, repository: Any, pull_job: Any) -> None:
    def on_main(number: int, found: Any) -> None:
        with loop.context.database.transaction() as session:
            commit = Commit(repository_id=repository.id, sha=sha(number), first_parent_position=number, orphaned=False)
            session.add(commit)
        loop.judge(add_job(loop, sha(number), sha(number - 1), None), found)

    on_main(10, {"cpu/forward/self": ("regressed", 0.10)})
    on_main(11, {"cpu/forward/self": ("unchanged", 0.0)})  # as slow as before
    on_main(12, {"cpu/forward/self": ("improved", -0.04)})  # makes up for a part
    on_main(9, {"cpu/forward/self": ("improved", -0.50)})  # came before
    loop.judge(pull_job(20), {"cpu/forward/self": ("improved", -0.5)})  # is not on the branch
    assert states(loop) == ["open"]
    on_main(13, {"cpu/forward/self": ("improved", -0.092)})
    assert states(loop) == ["fixed"]
    on_main(14, {"cpu/forward/self": ("regressed", 0.10)})
    assert states(loop) == ["fixed", "open"]  # another range is another cause


def test_a_force_push_that_drops_the_commit_closes_its_alert(loop: Loop, repository: Any, pull_job: Any) -> None:
    for number in (10, 20):
        with loop.context.database.transaction() as session:
            place = number if number == 10 else None
            commit = Commit(repository_id=repository.id, sha=sha(number), first_parent_position=place, orphaned=False)
            session.add(commit)
    loop.judge(add_job(loop, sha(10), sha(9), None), {"cpu/forward/self": ("regressed", 0.10)})
    loop.judge(pull_job(20), SLOW)
    standing = Standing((sha(9),), frozenset({sha(9)}), frozenset({sha(10), sha(20)}), utc_now())
    for _ in range(2):
        with loop.context.database.transaction() as session:
            follow_refs(session, lambda *_: None, repository.id, standing)
        by_pull = {alert.pull_request: alert.state for alert in loop.rows(Alert)}
        assert by_pull == {None: "fixed", 7: "open"}  # a pull request's alert goes on with its head
        assert events(loop).count("dropped") == 1
    (told,) = [event for event in loop.rows(AlertEvent) if event.kind == "dropped"]
    assert told.payload == {"was": "open", "head": sha(10)}
    assert told.id in {delivery.subject_id for delivery in loop.rows(Delivery)}


def test_a_job_of_somebody_trying_something_alerts_nobody(loop: Loop, repository: Any) -> None:
    with loop.context.database.transaction() as session:
        session.add(Commit(repository_id=repository.id, sha=sha(5), first_parent_position=None, orphaned=False))
    loop.judge(add_job(loop, sha(5), sha(4), None), SLOW)
    assert loop.rows(Alert) == []


# ---- API ----


def change(loop: Loop, alert_id: Any, **values: Any) -> httpx2.Response:
    return httpx2.patch(f"{loop.server}/api/v1/alerts/{alert_id}", json=values)


def test_the_api(loop: Loop, pull_job: Any) -> None:
    loop.judge(pull_job(1), SLOW | {"cpu/backward/x": ("regressed", 0.5)})
    found = httpx2.get(
        f"{loop.server}/api/v1/alerts", params={"state": "open", "repository": "kernels", "limit": 1}
    ).json()
    (newest,) = found["items"]
    assert found["next_cursor"]
    older = httpx2.get(f"{loop.server}/api/v1/alerts", params={"cursor": found["next_cursor"]}).json()
    assert len(older["items"]) == 1
    assert older["next_cursor"] is None
    where = loop.context.settings.github_url
    assert newest["base_url"] == f"{where}/octo/kernels/commit/{sha(0)}"
    assert newest["head_url"] == f"{where}/octo/kernels/commit/{sha(1)}"
    answer = change(loop, newest["id"], state="acknowledged", reason="known <b>", assignee="ada")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["state"], body["reason"], body["assignee"]) == ("acknowledged", "known <b>", "ada")
    assert [event["kind"] for event in body["events"]] == ["opened", "acknowledged", "assigned"]
    assert body["events"][1]["actor"] == "loopback"
    again = change(loop, newest["id"], state="acknowledged", reason="known <b>", assignee="ada").json()
    assert len(again["events"]) == 3
    for wrong in ({"state": "expected"}, {"state": "invalid", "reason": " "}, {"state": "closed"}, {"mood": "bad"}):
        assert change(loop, newest["id"], **wrong).status_code == 422, wrong
    assert change(loop, uuid4(), state="open").status_code == 404
    assert httpx2.get(f"{loop.server}/api/v1/alerts/{uuid4()}").status_code == 404


def test_changing_one_needs_its_scope(loop: Loop, pull_job: Any) -> None:
    loop.judge(pull_job(1), SLOW)
    (alert,) = loop.rows(Alert)
    with loop.context.database.transaction() as session:
        tokens = {scope: auth.create_token(session, scope, [scope]) for scope in ("submit", "triage", "admin")}
    for scope, status in {"submit": 403, "triage": 200, "admin": 200}.items():
        headers = {"Authorization": f"Bearer {tokens[scope]}"}
        url = f"{loop.server}/api/v1/alerts/{alert.id}"
        assert httpx2.patch(url, json={"assignee": scope}, headers=headers).status_code == status
    assert httpx2.patch(url, json={"assignee": "nobody"}).status_code == 401


def test_acknowledging_by_a_comment_makes_the_check_neutral(loop: Loop, source: Any) -> None:
    head = source.git("rev-parse", "topic")
    loop.fake.pull(7, head)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    (job,) = loop.jobs()
    loop.judge(job, SLOW)
    loop.work()
    assert loop.fake.check("s2bench", head)["conclusion"] == "failure"
    for body in ("/s2bench ack", "/s2bench ack it is *worth* it <b>"):
        loop.send("issue_comment", loop.fake.comment_event(7, body))
        loop.work()
    assert loop.outcomes()[-2:] == ["ack: expected a reason", "1 acknowledged"]
    check = loop.fake.check("s2bench", head)
    assert (check["conclusion"], check["output"]["title"]) == ("neutral", "Accepted: 2 regressed")
    (comment,) = loop.fake.comments.values()
    assert "it is &#42;worth&#42; it &#60;b&#62; &#40;mona&#41;</code>" in comment["body"]
    (alert,) = loop.rows(Alert)
    change(loop, alert.id, state="open")
    loop.work()
    assert loop.fake.check("s2bench", head)["conclusion"] == "failure"
