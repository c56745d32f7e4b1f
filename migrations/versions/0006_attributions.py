"""Attributions: what each commit of a stack did to each case; and of which kind a job is.

Revision 0006. The release before works on it: its jobs are of the kind that it knows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Apply."""
    # Not in batch mode, which on SQLite would drop a table that others refer to.
    op.add_column("job", sa.Column("kind", sa.String(length=20), nullable=False, server_default="compare"))
    op.create_table(
        "attribution",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measurement_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("baseline_id", sa.Uuid(), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=False),
        sa.Column("reasons", JSON, nullable=False),
        sa.Column("unit", sa.String(length=10), nullable=False),
        sa.Column("before", sa.Double()),
        sa.Column("after", sa.Double()),
        sa.Column("effect", sa.Double()),
        sa.Column("interval_low", sa.Double()),
        sa.Column("interval_high", sa.Double()),
        sa.Column("minimum_detectable_effect", sa.Double()),
        sa.Column("pairs_used", sa.Integer(), nullable=False),
        sa.Column("pairs_rejected", sa.Integer(), nullable=False),
        sa.Column("numerics", JSON),
        sa.Column("gpu_uuid", sa.String(length=80)),
        sa.ForeignKeyConstraint(["baseline_id"], ["commit.id"], name="fk_attribution_baseline_id_commit"),
        sa.ForeignKeyConstraint(["case_id"], ["case.id"], name="fk_attribution_case_id_case"),
        sa.ForeignKeyConstraint(["commit_id"], ["commit.id"], name="fk_attribution_commit_id_commit"),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.id"], name="fk_attribution_measurement_id_measurement"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_attribution"),
        sa.UniqueConstraint(
            "measurement_id", "case_id", "position", name="uq_attribution_measurement_id_case_id_position"
        ),
    )
    op.create_index("ix_attribution_commit_id", "attribution", ["commit_id"])
    op.create_index("ix_attribution_measurement_id", "attribution", ["measurement_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("attribution")
    op.drop_column("job", "kind")
