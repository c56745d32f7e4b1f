"""Tells the administrator's targets (chat, mail, webhooks) of alerts that open, open again, recover or are dropped."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.alerts.service import get_alert
from service.context import AppContext
from service.models import AlertEvent, Delivery, DeliveryKind, utc_now
from service.models.upsert import insert_missing
from service.notify.sender import NO_TARGET, PRIVATE, SENT
from service.outbox.queries import Claimed
from service.outbox.runner import Refused, TryLater
from service.settings import Settings

SEND_TIMEOUT_S = 60.0
SHOWN_CASES = 10
STALE = timedelta(days=1)
_PASSED_ON = ("PATH", "PYTHONPATH", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
_OTHER = re.compile(r"[^\w ./,=+-]")


@dataclass
class Notices:
    """The handler of notices: one without a target becomes one for each target, so that none waits for another."""

    context: AppContext

    def handle(self, claimed: Claimed) -> None:
        """Send a notice to its target."""
        targets = self.context.settings.notify_targets
        if not claimed.target:
            with self.context.database.transaction() as session:
                event = session.get(AlertEvent, claimed.subject_id)
                if event is None or utc_now() - event.created_at > STALE:
                    return  # nobody was there to hear it; old news would come all at once
                for name in sorted(targets):
                    key = {"kind": DeliveryKind.NOTICE, "subject_id": claimed.subject_id, "target": name}
                    insert_missing(session, Delivery, key, {})
            return
        if claimed.target not in targets:
            return  # the administrator has taken it away
        with self.context.database.reading() as session:
            notice = notice_of(session, claimed.subject_id, self.context.settings)
        if notice is not None:
            self._send(claimed.target, notice | {"url": targets[claimed.target].get_secret_value()})

    def _send(self, name: str, notice: dict[str, Any]) -> None:
        notice["allow_private"] = self.context.settings.notify_private_addresses
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        try:
            code = subprocess.run(
                [sys.executable, "-m", "service.notify.sender"],
                input=json.dumps(notice),
                text=True,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what libraries say may hold the URL
                timeout=SEND_TIMEOUT_S,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TryLater(f"target {name}: {type(error).__name__}") from None
        if code == PRIVATE:
            raise Refused(f"target {name}: it is in a private network (S2BENCH_NOTIFY_PRIVATE_ADDRESSES allows that)")
        if code == NO_TARGET:
            raise Refused(f"target {name}: expected a URL of apprise, or signed+https://SECRET@host/path")
        if code != SENT:
            raise TryLater(f"target {name}: it did not take the notice")


def notice_of(session: Session, event_id: UUID, settings: Settings) -> dict[str, Any] | None:
    """Return title, body and JSON payload of what happened to an alert; None when it is gone."""
    event = session.get(AlertEvent, event_id)
    if event is None:
        return None
    alert = get_alert(session, event.alert_id, github_url=settings.github_url)
    change = f"pull request {alert.pull_request}" if alert.pull_request else alert.head[:10]
    what = "slower" if alert.kind == "speed" else "wrong numbers"
    lines = [
        f"{_plain(case.case)} on {_plain(case.device_class)}: "
        + (f"{100 * case.effect:+.2f} %" if case.effect is not None else what)
        for case in alert.cases[:SHOWN_CASES]
    ]
    if len(alert.cases) > SHOWN_CASES:
        lines.append(f"and {len(alert.cases) - SHOWN_CASES} more")
    url = f"{settings.public_url}/alerts/{alert.id}"
    title = f"{event.kind}: {_plain(alert.group)} {what} in {_plain(alert.repository)}, {change}"
    payload = {"event": event.kind, "url": url, "alert": alert.model_dump(mode="json", exclude={"events"})}
    return {"title": title, "body": "\n".join([*lines, url]), "payload": payload}


def _plain(text: str) -> str:
    """Return a text from outside without what chat programs read as mentions or links."""
    return _OTHER.sub("?", text)[:120]
