"""Histories: state per series, change points, drift notices, the jobs that histories ask for; the clock of a point.

Revision 0004, after 0003. What is new in old tables may be null, so the release before works on it. Points from before
are taken in by `s2bench history rebuild`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Apply."""
    # Not in batch mode, which on SQLite would drop a table that others refer to.
    op.add_column("point", sa.Column("clock", sa.Double()))
    op.add_column("point", sa.Column("history", sa.String(length=20)))
    op.create_table(
        "series_history",
        *_identity("series_history"),
        *_reference("series_history", "series_id", "series"),
        sa.Column("state", JSON, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.UniqueConstraint("series_id", name="uq_series_history_series_id"),
    )
    _create_findings()
    op.create_table(
        "history_request",
        *_identity("history_request"),
        *_reference("history_request", "series_id", "series"),
        *_reference("history_request", "job_id", "job"),
        sa.Column("candidate", sa.Integer(), nullable=False),
        sa.Column("baseline", sa.Integer(), nullable=False),
        *_reference("history_request", "cause_id", "commit"),
        *_reference("history_request", "raised_by", "measurement"),
        sa.Column("wave", sa.Integer(), nullable=False),
        sa.Column("level", sa.Double(), nullable=False),
        sa.Column("budget_left", sa.Double(), nullable=False),
        sa.Column("outcome", sa.String(length=20)),
        sa.Column("answered_at", sa.DateTime(timezone=True)),
        sa.UniqueConstraint("series_id", "job_id", name="uq_history_request_series_id_job_id"),
    )
    for table, column in INDEXES:
        op.create_index(f"ix_{table}_{column}", table, [column])


def downgrade() -> None:
    """Undo."""
    for table in ("history_request", "drift_notice", "change_point", "series_history"):
        op.drop_table(table)
    op.drop_column("point", "history")
    op.drop_column("point", "clock")


INDEXES = (
    ("change_point", "series_id"),
    ("change_point", "commit_id"),
    ("drift_notice", "series_id"),
    ("history_request", "series_id"),
    ("history_request", "job_id"),
    ("history_request", "cause_id"),
)


def _create_findings() -> None:
    op.create_table(
        "change_point",
        *_identity("change_point"),
        *_reference("change_point", "series_id", "series"),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("low", sa.Integer(), nullable=False),
        *_reference("change_point", "commit_id", "commit"),
        *_reference("change_point", "low_commit_id", "commit"),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("named", sa.Boolean(), nullable=False),
        sa.Column("effect", sa.Double(), nullable=False),
        sa.Column("interval_low", sa.Double()),
        sa.Column("interval_high", sa.Double()),
        sa.Column("device", sa.String(length=80), nullable=False),
        sa.Column("raised_at", sa.Integer(), nullable=False),
        *_reference("change_point", "job_id", "job", nullable=True),
        *_reference("change_point", "replaced_by", "change_point", nullable=True),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True)),
    )
    op.create_table(
        "drift_notice",
        *_identity("drift_notice"),
        *_reference("drift_notice", "series_id", "series"),
        sa.Column("since", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        *_reference("drift_notice", "since_commit_id", "commit"),
        *_reference("drift_notice", "commit_id", "commit"),
        sa.Column("effect", sa.Double(), nullable=False),
        sa.Column("device", sa.String(length=80), nullable=False),
        sa.Column("withdrawn_at", sa.DateTime(timezone=True)),
    )


def _identity(table: str) -> tuple[sa.Column[object] | sa.Constraint, ...]:
    return (
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
    )


def _reference(
    table: str, column: str, other: str, *, nullable: bool = False
) -> tuple[sa.Column[object] | sa.Constraint, ...]:
    return (
        sa.Column(column, sa.Uuid(), nullable=nullable),
        sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}"),
    )
