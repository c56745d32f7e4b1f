"""Sums calibrations up, always from their stored rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from service.calibration import queries
from service.calibration.queries import CalibrationFilter, CalibrationRow
from service.calibration.schemas import (
    CalibrationOut,
    CalibrationSum,
    FalseAlarm,
    GroupCalibration,
    SeriesCalibration,
)
from service.stats.calibration import Calibration, IdenticalVerdict
from service.stats.sequential import CHANGES
from service.stats.verdict import Verdict

Key = tuple[str, ...]


def running_rates(session: Session, wanted: CalibrationFilter, days: int) -> CalibrationOut:
    """Return false-alarm rates, noise floors and detectable effects of the calibrations since a time."""
    found = queries.rows(session, wanted)
    by_group = _split(found, lambda row: (row.device_class, row.group))
    by_series = _split(found, lambda row: (row.repository, row.device_class, row.case, row.case_version))
    return CalibrationOut(
        days=days,
        since=wanted.since,
        devices=[CalibrationSum(**_sum(rows)) for _, rows in _split(found, lambda row: (row.device_class,))],
        groups=[GroupCalibration(**_sum(rows), group=group) for (_, group), rows in by_group],
        series=[_series(rows) for _, rows in by_series],
        false_alarms=[FalseAlarm.model_validate(asdict(row)) for row in found if row.verdict in CHANGES],
    )


def _split(
    found: Sequence[CalibrationRow], key: Callable[[CalibrationRow], Key]
) -> list[tuple[Key, list[CalibrationRow]]]:
    parts: defaultdict[Key, list[CalibrationRow]] = defaultdict(list)
    for row in found:
        parts[key(row)].append(row)
    return sorted(parts.items())


def _sum(rows: Sequence[CalibrationRow]) -> dict[str, Any]:
    """Return the fields of a sum over rows, of which there is at least one, the newest first."""
    verdicts = (
        IdenticalVerdict(Verdict(row.verdict), row.effect, row.scatter, row.minimum_detectable_effect) for row in rows
    )
    return {
        **Calibration.of(verdicts).to_dict(),
        "device_class": rows[0].device_class,
        "jobs": len({row.job_id for row in rows}),
        "last_at": rows[0].judged_at,
    }


def _series(rows: Sequence[CalibrationRow]) -> SeriesCalibration:
    newest = rows[0]
    return SeriesCalibration(
        **_sum(rows),
        repository=newest.repository,
        case=newest.case,
        case_version=newest.case_version,
        group=newest.group,
        series_id=next((row.series_id for row in rows if row.series_id is not None), None),
    )
