"""Opens, reopens and closes alerts in the transaction that stores verdicts.

A cause is a kernel group and a change: its cases on every device class are one alert, and so are repeated measurements.
For a pull request the change is the pull request, whatever its head is by now; on the default branch it is the range
that was compared. Other jobs (somebody tries something) alert nobody, nor do jobs that look for a change among several
commits: the job that compares the guilty one with its parent follows, and has the cause of that commit's own job.

An alert closes when each of its cases has recovered: in a pull request by a verdict that is good again; on the default
branch by a later commit whose confirmed improvement makes up for it, or whose numbers are right again, or when a force
push has dropped the commit itself. It opens again only by evidence that is new: a bad verdict after it was closed, or,
where a person accepted it, a case it did not hold or an effect above all that was accepted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.alerts import queries
from service.models import Alert, AlertCase, AlertEvent, AlertState, Case, Delivery, DeliveryKind, Job, Measurement
from service.models import Verdict as VerdictRow
from service.models.upsert import insert_if_new, insert_missing
from service.stats.verdict import Verdict

SPEED, NUMERICS = "speed", "numerics"
SERVICE = "s2bench"
# What is left of a regression after a later improvement may be as small as what never counts as a change.
MADE_UP_FOR = 0.005
GOOD = frozenset({Verdict.IMPROVED, Verdict.UNCHANGED})
Found = Sequence[tuple[VerdictRow, Case]]


@dataclass(frozen=True)
class _Judged:
    session: Session
    job: Job
    device_class: str


def update_alerts(session: Session, job: Job, measurement: Measurement) -> None:
    """Bring alerts in line with the verdicts that a measurement has just got."""
    if job.commit_sha is None or job.baseline_sha is None:
        return
    if job.pull_request is None and queries.position(session, job.repository_id, job.commit_sha) is None:
        return
    if queries.searches_range(session, job.id):
        return
    found = queries.judged(session, measurement.id)
    judged = _Judged(session, job, measurement.device_class)
    causes = _causes(job, found)
    for cause in sorted(causes):
        _raise(judged, cause, causes[cause])
    _recover(judged, found)


def kind_of(verdict: VerdictRow) -> str | None:
    """Return what kind of alert a verdict gives; None for none."""
    if verdict.verdict == Verdict.REGRESSED:
        return SPEED
    wrong = verdict.verdict == Verdict.FAILED and any(one["code"] == "numerics_failed" for one in verdict.reasons)
    return NUMERICS if wrong else None


def add_event(
    session: Session, alert: Alert, kind: str, actor: str, payload: Mapping[str, Any], job_id: UUID | None = None
) -> None:
    """Record what happened to an alert, and have those who want to hear of it told."""
    event = AlertEvent(alert_id=alert.id, kind=kind, actor=actor, job_id=job_id, payload=dict(payload))
    session.add(event)
    session.flush()
    if kind in {"opened", "reopened", "recovered", "dropped"}:
        session.add(Delivery(kind=DeliveryKind.NOTICE, subject_id=event.id))
        session.flush()


def _causes(job: Job, found: Found) -> dict[str, Found]:
    change = f"pull/{job.pull_request}" if job.pull_request is not None else f"{job.baseline_sha}..{job.commit_sha}"
    causes: defaultdict[str, list[tuple[VerdictRow, Case]]] = defaultdict(list)
    for verdict, case in found:
        if (kind := kind_of(verdict)) is not None:
            causes[f"{kind} {case.group} {change}"].append((verdict, case))
    return dict(causes)


def _raise(judged: _Judged, cause: str, bad: Found) -> None:
    session, job = judged.session, judged.job
    key = {"repository_id": job.repository_id, "cause": cause}
    values = {
        "kind": kind_of(bad[0][0]),
        "group": bad[0][1].group,
        "pull_request": job.pull_request,
        "base_sha": job.baseline_sha,
        "head_sha": job.commit_sha,
        "state": AlertState.OPEN,
    }
    is_new = insert_if_new(session, Alert, key | values) is not None
    alert = queries.lock(session, insert_missing(session, Alert, key, values))
    assert alert is not None
    assert job.baseline_sha is not None
    assert job.commit_sha is not None
    known = queries.alert_cases(session, alert.id)
    worse = any(_is_worse(known.get((case.id, judged.device_class)), verdict) for verdict, case in bad)
    for verdict, case in bad:
        _note_case(judged, alert, known.get((case.id, judged.device_class)), verdict, case)
    alert.base_sha, alert.head_sha = job.baseline_sha, job.commit_sha
    closed = alert.state in {AlertState.FIXED, AlertState.INVALID}
    accepted = alert.state in {AlertState.ACKNOWLEDGED, AlertState.EXPECTED}
    payload = {"cases": len(bad), "device_class": judged.device_class, "head": job.commit_sha}
    kind = "opened" if is_new else "reopened" if closed or (accepted and worse) else "evidence"
    if kind == "reopened":
        payload["was"] = alert.state
        alert.state, alert.reason = AlertState.OPEN, None
    add_event(session, alert, kind, SERVICE, payload, job.id)


def _is_worse(known: AlertCase | None, verdict: VerdictRow) -> bool:
    if known is None:
        return True
    if verdict.interval_low is None or known.interval_high is None:
        return False
    return verdict.interval_low > known.interval_high


def _note_case(judged: _Judged, alert: Alert, row: AlertCase | None, verdict: VerdictRow, case: Case) -> None:
    if row is None:
        row = AlertCase(alert_id=alert.id, case_id=case.id, device_class=judged.device_class)
        judged.session.add(row)
    row.verdict_id, row.effect, row.recovered = verdict.id, verdict.effect, False
    row.interval_low, row.interval_high = verdict.interval_low, verdict.interval_high
    judged.session.flush()


def _recover(judged: _Judged, found: Found) -> None:
    session, job = judged.session, judged.job
    by_case = {case.id: verdict for verdict, case in found}
    about = queries.unsettled_about(session, job.repository_id, job.pull_request, list(by_case), judged.device_class)
    for alert_id in about:
        alert = queries.lock(session, alert_id)
        if alert is None or alert.state not in {AlertState.OPEN, AlertState.ACKNOWLEDGED}:
            continue
        if job.pull_request is None and not _is_later(judged, alert):
            continue
        rows = queries.alert_cases(session, alert.id)
        for (case_id, device_class), row in rows.items():
            if device_class == judged.device_class and case_id in by_case:
                row.recovered = row.recovered or _has_recovered(alert, row, by_case[case_id])
        if all(row.recovered for row in rows.values()):
            alert.state = AlertState.FIXED
            add_event(session, alert, "recovered", SERVICE, {"head": job.commit_sha}, job.id)


def withdraw(session: Session, repository_id: UUID, dropped: Sequence[str]) -> None:
    """Close the alerts about commits that no ref holds any more; to be called in the transaction that marks them.

    Whatever has come in their place is measured itself. The alert of a pull request goes on with its head.
    """
    for alert_id in queries.unsettled_of_commits(session, repository_id, dropped):
        alert = queries.lock(session, alert_id)
        if alert is not None and alert.state in {AlertState.OPEN, AlertState.ACKNOWLEDGED}:
            payload = {"was": alert.state, "head": alert.head_sha}
            alert.state = AlertState.FIXED
            add_event(session, alert, "dropped", SERVICE, payload)


def _is_later(judged: _Judged, alert: Alert) -> bool:
    job = judged.job
    before = queries.position(judged.session, job.repository_id, alert.head_sha)
    now = queries.position(judged.session, job.repository_id, job.commit_sha or "")
    return before is not None and now is not None and now > before


def _has_recovered(alert: Alert, row: AlertCase, verdict: VerdictRow) -> bool:
    if alert.kind == NUMERICS:
        return (verdict.numerics or {}).get("status") in {"ok", "grew"}
    if alert.pull_request is not None:
        return verdict.verdict in GOOD
    if verdict.verdict != Verdict.IMPROVED or verdict.effect is None or row.effect is None:
        return False
    return (1 + row.effect) * (1 + verdict.effect) <= 1 + MADE_UP_FOR
