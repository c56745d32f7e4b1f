"""Notices of alerts: to each target once, whatever the others do; and no target's URL anywhere else."""

from __future__ import annotations

from typing import Any

import pytest
from github_fixtures import Loop

from service.models import Delivery
from service.notify import service as notify
from service.settings import Settings

SLOW = {f"cpu/forward/<!channel>{number}": ("regressed", 0.1) for number in range(12)}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    targets = {"chat": "slack://very/secret/url", "mail": "mailtos://user:password@example.org"}
    return Settings(**settings.model_dump() | {"notify_targets": targets})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What reached the sender, by target; the mail server takes nothing the first three times."""
    found: list[tuple[str, dict[str, Any]]] = []
    tries = {"mail": 0}

    def send(self: Any, name: str, notice: dict[str, Any]) -> None:
        if name == "mail" and tries["mail"] < 3:
            tries["mail"] += 1
            raise notify.TryLater("target mail: it did not take the notice")
        found.append((name, notice))

    monkeypatch.setattr(notify.Notices, "_send", send)
    return found


def open_alert(loop: Loop, source: Any) -> None:
    loop.fake.pull(7, source.git("rev-parse", "topic"))
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    loop.judge(loop.jobs()[0], SLOW)


def test_each_target_hears_once_and_none_waits_for_another(loop: Loop, source: Any, sent: Any) -> None:
    open_alert(loop, source)
    loop.work()
    assert [name for name, _ in sent] == ["chat"]
    for _ in range(4):
        loop.make_due()
        loop.work()
    assert [name for name, _ in sent] == ["chat", "mail"]
    (_, notice), _ = sent
    assert notice["title"] == "opened: cpu.forward slower in kernels, pull request 7".replace(
        "cpu.forward", "cpu.forward"
    )
    assert notice["body"].count("\n") == 11
    assert "and 2 more" in notice["body"]
    assert "<" not in notice["body"]
    assert "!" not in notice["body"]
    assert notice["payload"]["alert"]["state"] == "open"
    assert notice["url"].startswith("slack://")


def test_a_target_that_was_taken_away_hears_nothing(loop: Loop, source: Any, sent: Any) -> None:
    open_alert(loop, source)
    loop.outbox.work()
    settings = loop.context.settings.model_copy(update={"notify_targets": {}})
    object.__setattr__(loop.context, "settings", settings)
    for _ in range(4):
        loop.make_due()
        loop.work()
    assert [name for name, _ in sent] in ([], ["chat"])
    assert all(row.wanted == row.delivered for row in loop.rows(Delivery) if row.kind == "notice")


def test_a_target_that_comes_later_does_not_hear_old_news(loop: Loop, source: Any, sent: Any) -> None:
    from datetime import timedelta

    from sqlalchemy import update

    from service.models import AlertEvent, utc_now

    open_alert(loop, source)
    with loop.context.database.transaction() as session:
        session.execute(update(AlertEvent).values(created_at=utc_now() - timedelta(days=2)))
    loop.work()
    assert sent == []
    assert all(row.wanted == row.delivered for row in loop.rows(Delivery) if row.kind == "notice")


def test_urls_of_targets_are_in_no_log_and_no_row(
    loop: Loop, source: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify.sys, "executable", "/bin/false")
    open_alert(loop, source)
    loop.work()
    written = caplog.text + repr(loop.context.settings) + "".join(str(row.last_error) for row in loop.rows(Delivery))
    assert "target chat: it did not take the notice" in written
    assert "very/secret" not in written
    assert "password@" not in written
