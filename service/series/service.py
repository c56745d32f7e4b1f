"""Shows histories: series, their points, and one line per series for the overview."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from service.errors import NotFound
from service.models import AlertState, Case, Commit, Point, Series
from service.paging import encode_cursor
from service.series import queries
from service.series.schemas import (
    ChangeBrief,
    ChangePointList,
    ChangePointOut,
    DriftNoticeOut,
    Overview,
    OverviewRow,
    PointList,
    PointOut,
    SearchOut,
    SeriesList,
    SeriesOut,
)

SPARKLINE_POINTS = 30
THROTTLED = "throttled"
UNSETTLED = frozenset({AlertState.OPEN, AlertState.ACKNOWLEDGED})


def get_series(session: Session, series_id: UUID) -> SeriesOut:
    """Return a series."""
    return _series_out(_find(session, series_id))


def list_series(
    session: Session, wanted: queries.SeriesFilter, after: tuple[str, UUID] | None, limit: int
) -> SeriesList:
    """Return a page of series in the order of case names."""
    found = queries.page(session, wanted, after, limit + 1)
    items = [_series_out(parts) for parts in found[:limit]]
    cursor = encode_cursor(items[-1].case, str(items[-1].id)) if len(found) > limit else None
    return SeriesList(items=items, next_cursor=cursor)


def list_points(session: Session, series_id: UUID) -> PointList:
    """Return the points of a series in the order of their commits."""
    parts = _find(session, series_id)
    points = [_point_out(*row) for row in queries.points(session, series_id, parts[0].case_id)]
    return PointList(series=_series_out(parts), unit=parts[0].unit, points=points)


def list_change_points(session: Session, series_id: UUID) -> ChangePointList:
    """Return what the history of a series says, and which jobs it waits for."""
    _find(session, series_id)
    notices = queries.drift_notices(session, series_id)
    return ChangePointList(
        change_points=[_change_out(parts) for parts in queries.change_points(session, series_id)],
        drift=[
            DriftNoticeOut(
                since_commit=since, commit=commit, effect=row.effect, device=row.device, said_at=row.created_at
            )
            for row, since, commit in notices
        ],
        searches=[
            SearchOut(job_id=one.job_id, low=one.baseline, high=one.candidate, asked_at=one.created_at)
            for one in queries.searches(session, series_id)
        ],
    )


def overview(session: Session, repository: str | None) -> Overview:
    """Return one row per series that has points."""
    points: defaultdict[UUID, list[queries.LastPoint]] = defaultdict(list)
    for point in queries.last_points(session, SPARKLINE_POINTS):
        points[point[0]].append(point)
    verdicts = queries.last_verdicts(session)
    changes = {parts[0].series_id: parts for parts in queries.newest_changes(session)}
    rows = []
    for series, name, case in queries.overview(session, repository):
        verdict = verdicts.get((series.repository_id, series.case_id, series.device_class), queries.LastVerdict())
        row = _overview_row(series, name, case, points[series.id], verdict)
        row.open_change = _open_change(changes.get(series.id), points[series.id])
        rows.append(row)
    return Overview(rows=rows)


def _find(session: Session, series_id: UUID) -> queries.SeriesParts:
    parts = queries.series(session, series_id)
    if parts is None:
        expected = "the id of a series (GET /api/v1/series lists them)"
        raise NotFound("unknown_series", f"series_id: got {series_id}, expected {expected}")
    return parts


def _series_out(parts: queries.SeriesParts) -> SeriesOut:
    series, repository, case, points, last_at = parts
    return SeriesOut(
        id=series.id,
        repository=repository,
        case=case.name,
        case_version=case.version,
        group=case.group,
        metric=series.metric,
        unit=series.unit,
        device_class=series.device_class,
        backend=series.backend,
        points=points,
        last_at=last_at,
    )


def _point_out(point: Point, commit: Commit, job_id: UUID, verdict: str | None, effect: float | None) -> PointOut:
    judged = point.arm == "B"  # a verdict is about the candidate
    return PointOut(
        commit=commit.sha,
        subject=commit.subject,
        author=commit.author,
        committed_at=commit.committed_at,
        orphaned=commit.orphaned,
        measured_at=point.created_at,
        value=point.value,
        low=point.low,
        high=point.high,
        processes=point.processes,
        status=point.status,
        history=point.history,
        gpu_uuid=point.gpu_uuid,
        job_id=job_id,
        measurement_id=point.measurement_id,
        arm=point.arm,
        verdict=verdict if judged else None,
        effect=effect if judged else None,
    )


def _overview_row(
    series: Series,
    repository: str,
    case: Case,
    points: list[queries.LastPoint],
    verdict: queries.LastVerdict,
) -> OverviewRow:
    usable = [value for _, value, status, *_ in points if status != THROTTLED]
    _, _, _, last_at, sha, subject, job_id = points[0]
    return OverviewRow(
        series_id=series.id,
        repository=repository,
        case=case.name,
        case_version=case.version,
        group=case.group,
        device_class=series.device_class,
        unit=series.unit,
        last_value=usable[0] if usable else None,
        sparkline=usable[::-1],
        last_verdict=verdict.verdict,
        last_effect=verdict.effect,
        last_interval_low=verdict.interval_low,
        last_interval_high=verdict.interval_high,
        last_commit=sha,
        last_subject=subject,
        last_job_id=job_id,
        last_at=last_at,
        open_change=None,
    )


def _brief_fields(parts: queries.ChangeParts) -> dict[str, Any]:
    row, commit, low_sha, alert_id, alert_state = parts
    return {
        "status": row.status,
        "effect": row.effect,
        "commit": commit.sha,
        "low_commit": low_sha,
        "named": row.named,
        "alert_id": alert_id,
        "alert_state": alert_state,
    }


def _change_out(parts: queries.ChangeParts) -> ChangePointOut:
    row, commit, *_ = parts
    return ChangePointOut(
        **_brief_fields(parts),
        id=row.id,
        subject=commit.subject,
        author=commit.author,
        committed_at=commit.committed_at,
        position=row.position,
        low=row.low,
        interval_low=row.interval_low,
        interval_high=row.interval_high,
        device=row.device,
        said_at=row.created_at,
        job_id=row.job_id,
        replaced_by=row.replaced_by,
        withdrawn_at=row.withdrawn_at,
    )


def _open_change(parts: queries.ChangeParts | None, points: list[queries.LastPoint]) -> ChangeBrief | None:
    if parts is None:
        return None
    brief = ChangeBrief(**_brief_fields(parts))
    if brief.alert_state is not None:
        return brief if brief.alert_state in UNSETTLED else None
    return brief if brief.commit in {sha for *_, sha, _, _ in points} else None
