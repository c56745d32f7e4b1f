"""Stores what histories say: change points, what takes them back, and drift notices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import and_, update
from sqlalchemy.orm import Session

from service.history import queries
from service.models import ChangePoint as ChangeRow
from service.models import DriftNotice as DriftRow
from service.models import utc_now
from service.stats.drift import DriftNotice
from service.stats.history_state import Action, ChangePoint, ChangeStatus

ChangeKey = tuple[int, int, str, str]
DriftKey = tuple[int, int, str]


@dataclass
class Recorder:
    """Stores what one series says. Rows in `changes` and `drifts` are said again rather than stored twice."""

    session: Session
    series_id: UUID
    repository_id: UUID
    changes: dict[ChangeKey, ChangeRow] = field(default_factory=dict)
    drifts: dict[DriftKey, DriftRow] = field(default_factory=dict)

    @classmethod
    def again(cls, session: Session, series_id: UUID, repository_id: UUID) -> Recorder:
        """Return a recorder of everything that a series has said, to be said again."""
        changes = queries.changes(session, ChangeRow.series_id == series_id)
        drifts = queries.notices(session, DriftRow.series_id == series_id)
        return cls(
            session,
            series_id,
            repository_id,
            {(row.position, row.low, row.status, row.device): row for row in changes},
            {(row.since, row.position, row.device): row for row in drifts},
        )

    def record(self, actions: Iterable[Action], job_id: UUID | None, device: str) -> None:
        """Store what follows from a measurement: of `job_id`, on `device`."""
        for action in actions:
            if isinstance(action, ChangePoint):
                self._change(action, job_id, device)
            elif isinstance(action, DriftNotice):
                self._drift(action)

    def withdraw_rest(self) -> None:
        """Take back what was not said again."""
        rows: list[ChangeRow | DriftRow] = [*self.changes.values(), *self.drifts.values()]
        for row in rows:
            row.withdrawn_at = utc_now()
        self.session.flush()

    def _change(self, change: ChangePoint, job_id: UUID | None, device: str) -> None:
        confirmed = change.status is ChangeStatus.CONFIRMED
        if not confirmed:
            device = change.device
            job_id = queries.showing_job(self.session, self.series_id, change.position, change.low)
        commits = queries.commits_at(self.session, self.repository_id, (change.position, change.low))
        row = self.changes.pop((change.position, change.low, str(change.status), device), None)
        if row is None:
            row = ChangeRow(series_id=self.series_id, position=change.position, low=change.low, device=device)
            self.session.add(row)
        row.commit_id, row.low_commit_id = commits[change.position], commits[change.low]
        row.status, row.named, row.effect = str(change.status), change.named, change.effect
        row.interval_low, row.interval_high = change.interval or (None, None)
        row.raised_at, row.job_id, row.replaced_by = change.raised_at, job_id, None
        self.session.flush()
        if change.replaces is not None:
            self._replace(change.replaces, row)

    def _replace(self, position: int, by: ChangeRow) -> None:
        doubtful = ChangeRow.status != ChangeStatus.CONFIRMED
        for row in queries.changes(
            self.session, ChangeRow.series_id == self.series_id, ChangeRow.position == position, doubtful
        ):
            row.replaced_by = row.replaced_by or by.id
        self.session.flush()

    def _drift(self, notice: DriftNotice) -> None:
        commits = queries.commits_at(self.session, self.repository_id, (notice.since, notice.position))
        row = self.drifts.pop((notice.since, notice.position, notice.device), None)
        if row is None:
            row = DriftRow(series_id=self.series_id, since=notice.since, position=notice.position, device=notice.device)
            self.session.add(row)
        row.since_commit_id, row.commit_id = commits[notice.since], commits[notice.position]
        row.effect = notice.effect
        self.session.flush()


def withdraw_from(session: Session, series_ids: Sequence[UUID], position: int) -> None:
    """Take back what series have said of commits from a position on."""
    taken_back = {"withdrawn_at": utc_now()}
    for model in (ChangeRow, DriftRow):
        columns = model.__table__.c
        of_these = and_(columns.series_id.in_(series_ids), columns.position >= position, columns.withdrawn_at.is_(None))
        session.execute(update(model).where(of_these).values(taken_back))
