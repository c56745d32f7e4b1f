"""What each commit of a stack did."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base, Identified


class Attribution(Identified, Base):
    """What a measurement of a stack says of one case and one commit, against the last commit measured before it.

    `position` counts the commits of the stack from 1, the oldest. The values mean what those of `Verdict` mean; the
    evidence of all commits of a case is that of its verdict, which is on the whole stack.
    """

    __tablename__ = "attribution"
    __table_args__ = (UniqueConstraint("measurement_id", "case_id", "position"),)

    measurement_id: Mapped[UUID] = mapped_column(ForeignKey("measurement.id"), index=True)
    case_id: Mapped[UUID] = mapped_column(ForeignKey("case.id"))
    position: Mapped[int]
    commit_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"), index=True)
    baseline_id: Mapped[UUID] = mapped_column(ForeignKey("commit.id"))
    verdict: Mapped[str] = mapped_column(String(20))
    reasons: Mapped[list[Any]]  # [{"code", "detail"}]
    unit: Mapped[str] = mapped_column(String(10))
    before: Mapped[float | None]
    after: Mapped[float | None]
    effect: Mapped[float | None]
    interval_low: Mapped[float | None]
    interval_high: Mapped[float | None]
    minimum_detectable_effect: Mapped[float | None]
    pairs_used: Mapped[int]
    pairs_rejected: Mapped[int]
    numerics: Mapped[dict[str, Any] | None]
    gpu_uuid: Mapped[str | None] = mapped_column(String(80))
