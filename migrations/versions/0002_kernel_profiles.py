"""Kernel profiles: which kernels each arm of a measurement ran, and how long.

Revision 0002, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "kernel_profile",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measurement_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(length=1), nullable=False),
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("document", JSON),
        sa.ForeignKeyConstraint(["commit_id"], ["commit.id"], name="fk_kernel_profile_commit_id_commit"),
        sa.ForeignKeyConstraint(
            ["measurement_id"], ["measurement.id"], name="fk_kernel_profile_measurement_id_measurement"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_kernel_profile"),
        sa.UniqueConstraint("measurement_id", "attempt", "arm", name="uq_kernel_profile_measurement_id_attempt_arm"),
    )
    op.create_index("ix_kernel_profile_commit_id", "kernel_profile", ["commit_id"])
    op.create_index("ix_kernel_profile_measurement_id", "kernel_profile", ["measurement_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("kernel_profile")
