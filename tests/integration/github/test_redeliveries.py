"""Every webhook three times and in any order: the same pull request, the same checks, one comment."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from github_fixtures import Loop

from service.models import Delivery

FOUND = {"cpu/forward/self": ("regressed", 0.1)}


def recorded_day(loop: Loop, source: Any) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, str]]:
    """Let a day of a pull request happen at the fake; return its webhooks in order, and the commits by name."""
    shas = {name: source.git("rev-parse", ref) for name, ref in {"a": "topic", "b": "main", "c": "main~1"}.items()}
    clock = (f"2026-11-30T1{hour}:00:00Z" for hour in range(9))
    events: list[tuple[str, dict[str, Any]]] = []

    def pull(action: str, head: str, before: str | None = None, **changes: Any) -> None:
        loop.fake.pull(7, shas[head], base="main" if head == "a" else "topic", updated_at=next(clock), **changes)
        events.append(("pull_request", loop.fake.pull_event(action, 7, shas[before] if before else None)))

    pull("opened", "a", title="<b>one</b>")
    events.append(("push", loop.fake.push_event(shas["b"])))
    events.append(("push", loop.fake.push_event("0" * 40, "topic", deleted=True)))
    pull("synchronize", "b", before="a")
    pull("edited", "b", title="two | @everyone")
    events.append(("issue_comment", loop.fake.comment_event(7, "/s2bench run", "mallory")))
    pull("closed", "b", state="closed")
    pull("reopened", "b")
    pull("synchronize", "a", before="b", title="the last")
    events.append(("issue_comment", loop.fake.comment_event(7, "/s2bench run")))
    events.append(("issue_comment", loop.fake.comment_event(7, f"/s2bench compare {shas['c'][:12]}")))
    return events, shas


@pytest.mark.parametrize("seed", range(6))
def test_a_day_in_any_order(loop: Loop, source: Any, seed: int) -> None:
    events, shas = recorded_day(loop, source)
    deliveries = [(name, payload, f"delivery-{number}") for number, (name, payload) in enumerate(events)] * 3
    if seed:
        random.Random(seed).shuffle(deliveries)
    answers = Counter()
    for name, payload, delivery_id in deliveries:
        answers[loop.send(name, payload, delivery_id)] += 1
        loop.work()
    loop.make_due()
    loop.work()
    assert answers == {"accepted": 10, "duplicate": 20, "ignored": 3}

    pull = loop.pull()
    assert (pull.title, pull.head_sha, pull.is_open) == ("the last", shas["a"], True)
    current = [check for check in loop.checks() if check.superseded_by is None and check.pull_request_id]
    assert {check.head_sha for check in current} == {shas["a"]}
    names = Counter(check.name for check in current)
    assert names == {"s2bench": 1, f"s2bench against {shas['c'][:10]}": 1}
    jobs = {job.id: job for job in loop.jobs()}
    open_jobs = [job for job in jobs.values() if job.state == "queued"]
    assert len(open_jobs) == 3  # the two checks and the push; whatever was superseded is canceled
    assert [job.baseline_sha for job in open_jobs if job.pull_request is None] == [source.git("rev-parse", "main~1")]
    for job in open_jobs:
        loop.judge(job, FOUND)
    loop.work()
    assert len(loop.fake.comments) == 1
    for check in current:
        assert loop.fake.check(check.name, shas["a"])["conclusion"] == "failure"
    shown = Counter((run["name"], run["head_sha"], run["external_id"]) for run in loop.fake.checks.values())
    assert set(shown.values()) == {1}
    assert len(shown) == len(loop.checks())
    assert not [row for row in loop.rows(Delivery) if row.wanted > row.delivered]
    assert {run["status"] for run in loop.fake.checks.values()} == {"completed"}
