"""From a push to a check and a comment: a real bare repository, a real worker, a fake GitHub behind HTTP."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
from github_fixtures import HOSTILE, Loop, all_ended, registered
from worker_fixtures import BACKWARD_SELF, FORWARD_DOWN, FORWARD_SELF, RunningWorker, wait_until

from service.models import Alert, AlertEvent, Commit


def test_a_pull_request_from_its_push_to_its_comment(loop: Loop, tmp_path: Path) -> None:
    work = registered(loop, tmp_path)
    base = work.git("rev-parse", "HEAD")
    work.git("switch", "--quiet", "--create", "topic")
    slow = work.commit(
        "slow", speed={FORWARD_SELF: 1.1}, wrong_cases=[FORWARD_DOWN], profile={"gather<64>": 1.5, "fill": 0.25}
    )
    work.git("push", "--quiet", "origin", "topic")
    loop.fake.pull(7, slow, title=HOSTILE)
    opened = loop.fake.pull_event("opened", 7)
    assert loop.send("pull_request", opened, "first") == "accepted"
    assert loop.send("pull_request", opened, "first") == "duplicate"
    loop.work()
    assert loop.fake.check("s2bench", slow)["status"] == "queued"
    with RunningWorker(loop.context.database, tmp_path):
        wait_until(lambda: all_ended(loop), 120, "the end of the job")
    loop.work()

    (job,) = loop.jobs()
    assert (job.commit_sha, job.baseline_sha, job.pull_request, job.state) == (slow, base, 7, "done")
    check = loop.fake.check("s2bench", slow)
    assert (check["status"], check["conclusion"]) == ("completed", "failure")
    assert check["output"]["title"] == "1 failed, 1 regressed, 1 unchanged"
    assert check["details_url"] == f"https://bench.example/jobs/{job.id}"
    (comment,) = loop.fake.comments.values()
    body = comment["body"]
    assert body.splitlines()[1].startswith("### ❌ s2bench: 1 failed")
    assert body.index(FORWARD_DOWN) < body.index(FORWARD_SELF) < body.index(BACKWARD_SELF)
    assert re.search(r"cpu/forward/self</code> \| [\d.]+ ms \| [\d.]+ ms \| \+1?\d\.\d\d % \| .* \| regressed \|", body)
    assert "Numbers that changed" in body
    assert f"s2bench compare {base} {slow} --device cpu --cases '*'" in body
    assert "sandbox bubblewrap" in body
    assert f"{FORWARD_SELF}</code> | <code>gather&#60;64&#62;</code> | 1.000 ms | 1.500 ms | +50.00 % | 40 |" in body
    assert f"{BACKWARD_SELF}</code> | <code>gather" not in body  # nothing changed there
    assert HOSTILE[:20] not in body

    alerts = {alert.kind: alert for alert in loop.rows(Alert)}
    assert set(alerts) == {"speed", "numerics"}
    assert {alert.state for alert in alerts.values()} == {"open"}
    assert [event.kind for event in loop.rows(AlertEvent)] == ["opened", "opened"]
    # nothing is made twice by what comes late
    edited = loop.fake.pull_event("edited", 7)
    assert loop.send("pull_request", edited, "second") == "accepted"
    loop.work()
    assert len(loop.jobs()) == len(loop.fake.checks) == len(loop.fake.comments) == 1


def test_a_force_push_that_mends_it_closes_the_alert(loop: Loop, tmp_path: Path) -> None:
    work = registered(loop, tmp_path)
    work.git("switch", "--quiet", "--create", "topic")
    slow = work.commit("slow", speed={FORWARD_SELF: 1.1})
    work.git("push", "--quiet", "origin", "topic")
    loop.fake.pull(7, slow)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    with RunningWorker(loop.context.database, tmp_path):
        loop.work()
        wait_until(lambda: all_ended(loop), 120, "the end of the first job")
        work.git("reset", "--quiet", "--hard", "main")
        good = work.commit("good", speed={FORWARD_SELF: 0.9})
        work.git("push", "--quiet", "--force", "origin", "topic")
        loop.fake.pull(7, good)
        loop.send("pull_request", loop.fake.pull_event("synchronize", 7, before=slow))
        loop.work()
        wait_until(lambda: all_ended(loop), 120, "the end of the second job")
    loop.work()
    (alert,) = loop.rows(Alert)
    assert (alert.state, alert.head_sha) == ("fixed", slow)
    assert [event.kind for event in loop.rows(AlertEvent)] == ["opened", "recovered"]
    assert loop.fake.check("s2bench", slow)["conclusion"] == "failure"
    assert loop.fake.check("s2bench", good)["conclusion"] in {"success", "neutral"}
    assert len(loop.fake.comments) == 1
    (comment,) = loop.fake.comments.values()
    assert good[:10] in comment["body"]
    assert slow[:10] not in comment["body"]


def test_a_force_push_orphans_what_it_drops(loop: Loop, tmp_path: Path) -> None:
    """On the default branch: kept, marked, shown so, without a place, and no baseline any more."""
    work = registered(loop, tmp_path)
    root, base = work.git("rev-parse", "HEAD~1"), work.git("rev-parse", "HEAD")
    dropped = work.commit("dropped")
    work.git("push", "--quiet", "origin", "main")
    loop.send("push", loop.fake.push_event(dropped))

    def known(sha: str) -> Commit:
        (commit,) = loop.rows(Commit, Commit.sha == sha)
        return commit

    with RunningWorker(loop.context.database, tmp_path):
        loop.work()
        wait_until(lambda: all_ended(loop), 120, "the end of the first job")
        assert (known(dropped).orphaned, known(dropped).first_parent_position) == (False, 3)
        work.git("reset", "--quiet", "--hard", root)
        mended = work.commit("mended")
        work.git("push", "--quiet", "--force", "origin", "main")
        loop.send("push", loop.fake.push_event(mended, forced=True))
        loop.work()
        wait_until(lambda: all_ended(loop), 120, "the end of the second job")
        assert (known(dropped).orphaned, known(dropped).first_parent_position) == (True, None)
        assert (known(mended).orphaned, known(mended).first_parent_position) == (False, 2)

        body = {"repository": "kernels", "commit": mended, "baseline": dropped, "max_pairs": 2}
        answer = httpx2.post(f"{loop.server}/api/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        wait_until(lambda: all_ended(loop), 120, "the end of the third job")
    found = httpx2.get(f"{loop.server}/api/v1/jobs/{answer.json()['id']}/verdicts").json()["rows"]
    assert {(row["verdict"], row["reasons"][0]["code"]) for row in found} == {("not_comparable", "baseline_orphaned")}
    (first,) = [job for job in loop.jobs() if job.commit_sha == dropped]
    shown = httpx2.get(f"{loop.server}/api/v1/jobs/{first.id}").json()
    assert (shown["orphaned"], shown["state"]) == (True, "done")
    query = {"repository": "kernels", "base": mended, "head": dropped}
    compared = httpx2.get(f"{loop.server}/api/v1/compare", params=query).json()
    assert (compared["base"]["orphaned"], compared["head"]["orphaned"]) == (False, True)
    series = httpx2.get(f"{loop.server}/api/v1/series").json()["items"][0]
    points = httpx2.get(f"{loop.server}/api/v1/series/{series['id']}/points").json()["points"]
    assert {point["commit"] for point in points if point["orphaned"]} == {base, dropped}
