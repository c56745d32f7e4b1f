"""Verdicts on identical code, with the noise floor of their pairs.

Revision 0005, after 0003. The release before does not know the table and works without it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "calibration",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict_id", sa.Uuid(), nullable=False),
        sa.Column("series_id", sa.Uuid()),
        sa.Column("scatter", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_calibration"),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdict.id"], name="fk_calibration_verdict_id_verdict"),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name="fk_calibration_series_id_series"),
        sa.UniqueConstraint("verdict_id", name="uq_calibration_verdict_id"),
    )
    op.create_index("ix_calibration_series_id", "calibration", ["series_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("calibration")
