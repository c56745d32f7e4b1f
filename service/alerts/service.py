"""Shows alerts and changes what people say of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.alerts import queries
from service.alerts.raising import add_event
from service.alerts.schemas import AlertBrief, AlertCaseOut, AlertChange, AlertEventOut, AlertList, AlertOut
from service.errors import InvalidInput, NotFound
from service.models import Alert, AlertState, DeliveryKind
from service.outbox.queries import want
from service.paging import encode_cursor

NEED_REASON = frozenset({AlertState.ACKNOWLEDGED, AlertState.EXPECTED, AlertState.INVALID})


def list_alerts(
    session: Session, wanted: queries.AlertFilter, before: UUID | None, limit: int, *, github_url: str
) -> AlertList:
    """Return a page of alerts, newest first; commits are linked to where people read them."""
    found = queries.page(session, wanted, before, limit + 1)
    rows = found[:limit]
    cases = _cases(session, [alert.id for alert, *_ in rows])
    items = [AlertBrief(**_fields(row, cases, github_url)) for row in rows]
    return AlertList(items=items, next_cursor=encode_cursor(str(items[-1].id)) if len(found) > limit else None)


def get_alert(session: Session, alert_id: UUID, *, github_url: str) -> AlertOut:
    """Return an alert with its history; commits are linked to where people read them."""
    row = queries.alert(session, alert_id)
    if row is None:
        raise unknown_alert(alert_id)
    events = [
        AlertEventOut(
            kind=event.kind, actor=event.actor, at=event.created_at, job_id=event.job_id, payload=event.payload
        )
        for event in queries.events(session, alert_id)
    ]
    return AlertOut(**_fields(row, _cases(session, [alert_id]), github_url), events=events)


def change(session: Session, alert_id: UUID, wanted: AlertChange, actor: str) -> None:
    """Set state, reason and assignee of an alert; checks and comments that show it follow."""
    alert = queries.lock(session, alert_id)
    if alert is None:
        raise unknown_alert(alert_id)
    if wanted.state in NEED_REASON and not (wanted.reason or "").strip():
        raise InvalidInput.of("reason_needed", "reason", wanted.reason, f"why it is {wanted.state}")
    if wanted.state is not None and (wanted.state, wanted.reason) != (alert.state, alert.reason):
        payload = {"was": alert.state, "reason": wanted.reason}
        alert.state, alert.reason = wanted.state, wanted.reason
        add_event(session, alert, str(wanted.state), actor, payload)
        _tell(session, alert)
    if wanted.assignee is not None and wanted.assignee != (alert.assignee or ""):
        alert.assignee = wanted.assignee or None
        add_event(session, alert, "assigned", actor, {"assignee": alert.assignee})


def acknowledge_pull(session: Session, repository_id: UUID, number: int, reason: str, actor: str) -> int:
    """Acknowledge the open alerts of a pull request and return how many there were."""
    found = queries.open_of_pull(session, repository_id, number)
    for alert_id in found:
        change(session, alert_id, AlertChange(state=AlertState.ACKNOWLEDGED, reason=f"{reason} ({actor})"), actor)
    return len(found)


def unknown_alert(alert_id: UUID) -> NotFound:
    """Return the error for an alert that does not exist."""
    return NotFound("unknown_alert", f"alert_id: got {alert_id}, expected the id of an alert (GET /api/v1/alerts)")


def _tell(session: Session, alert: Alert) -> None:
    checks = queries.checks_about(session, alert)
    want(session, DeliveryKind.CHECK, [check_id for check_id, _ in checks])
    want(session, DeliveryKind.COMMENT, sorted({pull_id for _, pull_id in checks if pull_id is not None}))


def _cases(session: Session, alert_ids: Collection[UUID]) -> dict[UUID, list[AlertCaseOut]]:
    found: defaultdict[UUID, list[AlertCaseOut]] = defaultdict(list)
    for row, name in queries.cases(session, alert_ids):
        found[row.alert_id].append(
            AlertCaseOut(
                case=name,
                device_class=row.device_class,
                effect=row.effect,
                interval_low=row.interval_low,
                interval_high=row.interval_high,
                recovered=row.recovered,
            )
        )
    return found


def _fields(row: queries.AlertRow, cases: dict[UUID, list[AlertCaseOut]], github_url: str) -> dict[str, Any]:
    alert, repository, github = row
    commits = f"{github_url}/{github}/commit" if github else None
    return {
        "id": alert.id,
        "repository": repository,
        "kind": alert.kind,
        "group": alert.group,
        "pull_request": alert.pull_request,
        "base": alert.base_sha,
        "head": alert.head_sha,
        "base_url": commits and f"{commits}/{alert.base_sha}",
        "head_url": commits and f"{commits}/{alert.head_sha}",
        "state": AlertState(alert.state),
        "reason": alert.reason,
        "assignee": alert.assignee,
        "created_at": alert.created_at,
        "cases": cases.get(alert.id, []),
    }
