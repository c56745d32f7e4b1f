"""Pull requests, checks, webhooks, deliveries and alerts; what GitHub calls a repository.

Revision 0003, after 0002. The release before works on it: what is new in old tables may be null.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

TABLES = ("pull_request", "check_run", "webhook_delivery", "delivery", "alert", "alert_case", "alert_event")


def upgrade() -> None:
    """Apply."""
    # Neither in batch mode, which on SQLite would drop a table that others refer to.
    op.add_column("repository", sa.Column("github", sa.String(length=200)))
    op.add_column("repository", sa.Column("installation_id", sa.BigInteger()))
    op.create_index("ix_repository_github", "repository", ["github"], unique=True)
    _create_github()
    _create_alerts()


def downgrade() -> None:
    """Undo."""
    for table in reversed(TABLES):
        op.drop_table(table)
    op.drop_index("ix_repository_github", "repository")
    op.drop_column("repository", "installation_id")
    op.drop_column("repository", "github")


def _create_github() -> None:
    op.create_table(
        "pull_request",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=250), nullable=False),
        sa.Column("head_sha", sa.String(length=40), nullable=False),
        sa.Column("base_ref", sa.String(length=250), nullable=False),
        sa.Column("is_fork", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("approved_sha", sa.String(length=40)),
        sa.Column("comment_id", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_pull_request"),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_pull_request_repository_id_repository"),
        sa.UniqueConstraint("repository_id", "number", name="uq_pull_request_repository_id_number"),
    )
    op.create_index("ix_pull_request_repository_id", "pull_request", ["repository_id"])
    op.create_table(
        "check_run",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("pull_request_id", sa.Uuid()),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("head_sha", sa.String(length=40), nullable=False),
        sa.Column("cause", sa.String(length=500), nullable=False),
        sa.Column("superseded_by", sa.String(length=500)),
        sa.Column("remote_id", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_check_run"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_check_run_job_id_job"),
        sa.ForeignKeyConstraint(
            ["pull_request_id"], ["pull_request.id"], name="fk_check_run_pull_request_id_pull_request"
        ),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_check_run_repository_id_repository"),
        sa.UniqueConstraint(
            "repository_id", "name", "head_sha", "cause", name="uq_check_run_repository_id_name_head_sha_cause"
        ),
    )
    op.create_index("ix_check_run_head_sha", "check_run", ["head_sha"])
    op.create_index("ix_check_run_job_id", "check_run", ["job_id"])
    op.create_index("ix_check_run_pull_request_id", "check_run", ["pull_request_id"])
    op.create_index("ix_check_run_repository_id", "check_run", ["repository_id"])
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivery_id", sa.String(length=100), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=60), nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.Column("outcome", sa.String(length=250)),
        sa.Column("processed_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_webhook_delivery"),
        sa.UniqueConstraint("body_sha256", name="uq_webhook_delivery_body_sha256"),
        sa.UniqueConstraint("delivery_id", name="uq_webhook_delivery_delivery_id"),
    )
    op.create_table(
        "delivery",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("target", sa.String(length=120), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("delivered", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("leased_until", sa.DateTime(timezone=True)),
        sa.Column("parked", sa.Boolean(), nullable=False),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_delivery"),
        sa.UniqueConstraint("kind", "subject_id", "target", name="uq_delivery_kind_subject_id_target"),
    )
    op.create_index("ix_delivery_due", "delivery", ["parked", "due_at"])


def _create_alerts() -> None:
    op.create_table(
        "alert",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("cause", sa.String(length=300), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("kernel_group", sa.String(length=120), nullable=False),
        sa.Column("pull_request", sa.Integer()),
        sa.Column("base_sha", sa.String(length=40), nullable=False),
        sa.Column("head_sha", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("assignee", sa.String(length=250)),
        sa.PrimaryKeyConstraint("id", name="pk_alert"),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_alert_repository_id_repository"),
        sa.UniqueConstraint("repository_id", "cause", name="uq_alert_repository_id_cause"),
    )
    op.create_index("ix_alert_head_sha", "alert", ["head_sha"])
    op.create_index("ix_alert_repository_id", "alert", ["repository_id"])
    op.create_index("ix_alert_state", "alert", ["state"])
    op.create_table(
        "alert_case",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("alert_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("device_class", sa.String(length=120), nullable=False),
        sa.Column("verdict_id", sa.Uuid(), nullable=False),
        sa.Column("effect", sa.Double()),
        sa.Column("interval_low", sa.Double()),
        sa.Column("interval_high", sa.Double()),
        sa.Column("recovered", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alert_case"),
        sa.ForeignKeyConstraint(["alert_id"], ["alert.id"], name="fk_alert_case_alert_id_alert"),
        sa.ForeignKeyConstraint(["case_id"], ["case.id"], name="fk_alert_case_case_id_case"),
        sa.ForeignKeyConstraint(["verdict_id"], ["verdict.id"], name="fk_alert_case_verdict_id_verdict"),
        sa.UniqueConstraint("alert_id", "case_id", "device_class", name="uq_alert_case_alert_id_case_id_device_class"),
    )
    op.create_index("ix_alert_case_alert_id", "alert_case", ["alert_id"])
    op.create_index("ix_alert_case_case_id", "alert_case", ["case_id"])
    op.create_table(
        "alert_event",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("alert_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("actor", sa.String(length=250), nullable=False),
        sa.Column("job_id", sa.Uuid()),
        sa.Column("payload", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alert_event"),
        sa.ForeignKeyConstraint(["alert_id"], ["alert.id"], name="fk_alert_event_alert_id_alert"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_alert_event_job_id_job"),
    )
    op.create_index("ix_alert_event_alert_id", "alert_event", ["alert_id"])
