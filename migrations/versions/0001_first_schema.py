"""First schema: repositories, jobs, measurements, raw samples, series, verdicts, workers and tokens.

Revision 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

TABLES = (
    "repository",
    "commit",
    "worker",
    "device",
    "token",
    "job",
    "measurement",
    "job_event",
    "case",
    "build",
    "arm_run",
    "sample_block",
    "telemetry_block",
    "series",
    "point",
    "verdict",
)


def upgrade() -> None:
    """Apply."""
    _create_source()
    _create_fleet()
    _create_jobs()
    _create_runs()
    _create_findings()


def downgrade() -> None:
    """Undo."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_source() -> None:
    op.create_table(
        "repository",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("default_branch", sa.String(length=250), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_repository"),
        sa.UniqueConstraint("name", name="uq_repository_name"),
    )
    op.create_table(
        "commit",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("sha", sa.String(length=40), nullable=False),
        sa.Column("tree_hash", sa.String(length=40)),
        sa.Column("parents", JSON),
        sa.Column("first_parent_position", sa.Integer()),
        sa.Column("author", sa.String(length=250)),
        sa.Column("subject", sa.Text()),
        sa.Column("committed_at", sa.DateTime(timezone=True)),
        sa.Column("orphaned", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_commit_repository_id_repository"),
        sa.PrimaryKeyConstraint("id", name="pk_commit"),
        sa.UniqueConstraint("repository_id", "sha", name="uq_commit_repository_id_sha"),
    )
    op.create_index("ix_commit_repository_id", "commit", ["repository_id"])


def _create_fleet() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("executor_id", sa.String(length=120), nullable=False),
        sa.Column("host", sa.String(length=250), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("sandbox", sa.String(length=20), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
        sa.UniqueConstraint("executor_id", name="uq_worker_executor_id"),
    )
    op.create_table(
        "device",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("device_class", sa.String(length=120), nullable=False),
        sa.Column("uuid", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("status_reason", sa.String(length=500)),
        sa.Column("info", JSON, nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name="fk_device_worker_id_worker"),
        sa.PrimaryKeyConstraint("id", name="pk_device"),
        sa.UniqueConstraint("worker_id", "uuid", name="uq_device_worker_id_uuid"),
    )
    op.create_index("ix_device_device_class", "device", ["device_class"])
    op.create_index("ix_device_worker_id", "device", ["worker_id"])
    op.create_table(
        "token",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", JSON, nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True)),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_token"),
        sa.UniqueConstraint("sha256", name="uq_token_sha256"),
    )


def _create_jobs() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("requested_commit", sa.String(length=250), nullable=False),
        sa.Column("requested_baseline", sa.String(length=250), nullable=False),
        sa.Column("commit_sha", sa.String(length=40)),
        sa.Column("baseline_sha", sa.String(length=40)),
        sa.Column("devices", JSON, nullable=False),
        sa.Column("cases", sa.String(length=500), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("pull_request", sa.Integer()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("policy", JSON, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("error", JSON),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=250)),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("token_id", sa.Uuid()),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_job_repository_id_repository"),
        sa.ForeignKeyConstraint(["token_id"], ["token.id"], name="fk_job_token_id_token"),
        sa.PrimaryKeyConstraint("id", name="pk_job"),
        sa.UniqueConstraint("idempotency_key", name="uq_job_idempotency_key"),
    )
    op.create_index("ix_job_commit_sha", "job", ["commit_sha"])
    op.create_index("ix_job_repository_id", "job", ["repository_id"])
    op.create_index("ix_job_state", "job", ["state"])
    op.create_table(
        "measurement",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("device_class", sa.String(length=120), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("stage", sa.String(length=40)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("candidate_id", sa.Uuid()),
        sa.Column("baseline_id", sa.Uuid()),
        sa.Column("worker_id", sa.Uuid()),
        sa.Column("device_id", sa.Uuid()),
        sa.Column("sandbox", sa.String(length=20)),
        sa.Column("error", JSON),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["baseline_id"], ["commit.id"], name="fk_measurement_baseline_id_commit"),
        sa.ForeignKeyConstraint(["candidate_id"], ["commit.id"], name="fk_measurement_candidate_id_commit"),
        sa.ForeignKeyConstraint(["device_id"], ["device.id"], name="fk_measurement_device_id_device"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_measurement_job_id_job"),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name="fk_measurement_worker_id_worker"),
        sa.PrimaryKeyConstraint("id", name="pk_measurement"),
        sa.UniqueConstraint("job_id", "device_class", name="uq_measurement_job_id_device_class"),
    )
    op.create_index("ix_measurement_candidate_id", "measurement", ["candidate_id"])
    op.create_index("ix_measurement_device_class", "measurement", ["device_class"])
    op.create_index("ix_measurement_job_id", "measurement", ["job_id"])
    op.create_index("ix_measurement_state", "measurement", ["state"])
    op.create_table(
        "job_event",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("measurement_id", sa.Uuid()),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("payload", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_job_event_job_id_job"),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name="fk_job_event_measurement_id_measurement"),
        sa.PrimaryKeyConstraint("id", name="pk_job_event"),
    )
    op.create_index("ix_job_event_job_id", "job_event", ["job_id"])


def _create_runs() -> None:
    op.create_table(
        "case",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("name", sa.String(length=250), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("kernel_group", sa.String(length=120), nullable=False),
        sa.Column("definition", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_case"),
        sa.UniqueConstraint("name", "version", name="uq_case_name_version"),
    )
    op.create_index("ix_case_name", "case", ["name"])
    op.create_table(
        "build",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("device_class", sa.String(length=120), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("resources", JSON),
        sa.ForeignKeyConstraint(["commit_id"], ["commit.id"], name="fk_build_commit_id_commit"),
        sa.PrimaryKeyConstraint("id", name="pk_build"),
        sa.UniqueConstraint("key", name="uq_build_key"),
    )
    op.create_index("ix_build_commit_id", "build", ["commit_id"])
    op.create_table(
        "arm_run",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measurement_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("purpose", sa.String(length=20), nullable=False),
        sa.Column("pair_index", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(length=1), nullable=False),
        sa.Column("pair_order", sa.String(length=2), nullable=False),
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("document_sha256", sa.String(length=64), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("environment", JSON, nullable=False),
        sa.Column("gpu_uuid", sa.String(length=80)),
        sa.Column("wall_s", sa.Double(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["commit_id"], ["commit.id"], name="fk_arm_run_commit_id_commit"),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name="fk_arm_run_measurement_id_measurement"),
        sa.PrimaryKeyConstraint("id", name="pk_arm_run"),
        sa.UniqueConstraint(
            "measurement_id",
            "attempt",
            "purpose",
            "pair_index",
            "arm",
            name="uq_arm_run_measurement_id_attempt_purpose_pair_index_arm",
        ),
    )
    op.create_index("ix_arm_run_commit_id", "arm_run", ["commit_id"])
    op.create_index("ix_arm_run_measurement_id", "arm_run", ["measurement_id"])
    op.create_table(
        "sample_block",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("arm_run_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("metric", sa.String(length=40), nullable=False),
        sa.Column("unit", sa.String(length=10), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["arm_run_id"], ["arm_run.id"], name="fk_sample_block_arm_run_id_arm_run"),
        sa.ForeignKeyConstraint(["case_id"], ["case.id"], name="fk_sample_block_case_id_case"),
        sa.PrimaryKeyConstraint("id", name="pk_sample_block"),
        sa.UniqueConstraint("arm_run_id", "case_id", "metric", name="uq_sample_block_arm_run_id_case_id_metric"),
    )
    op.create_index("ix_sample_block_arm_run_id", "sample_block", ["arm_run_id"])
    op.create_index("ix_sample_block_case_id", "sample_block", ["case_id"])
    op.create_table(
        "telemetry_block",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("arm_run_id", sa.Uuid(), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("columns", JSON, nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["arm_run_id"], ["arm_run.id"], name="fk_telemetry_block_arm_run_id_arm_run"),
        sa.PrimaryKeyConstraint("id", name="pk_telemetry_block"),
        sa.UniqueConstraint("arm_run_id", name="uq_telemetry_block_arm_run_id"),
    )


def _create_findings() -> None:
    op.create_table(
        "series",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("repository_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
        sa.Column("metric", sa.String(length=40), nullable=False),
        sa.Column("unit", sa.String(length=10), nullable=False),
        sa.Column("device_class", sa.String(length=120), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["case.id"], name="fk_series_case_id_case"),
        sa.ForeignKeyConstraint(["repository_id"], ["repository.id"], name="fk_series_repository_id_repository"),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint(
            "repository_id",
            "case_id",
            "metric",
            "device_class",
            "backend",
            name="uq_series_repository_id_case_id_metric_device_class_backend",
        ),
    )
    op.create_index("ix_series_case_id", "series", ["case_id"])
    op.create_index("ix_series_repository_id", "series", ["repository_id"])
    op.create_table(
        "point",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("series_id", sa.Uuid(), nullable=False),
        sa.Column("commit_id", sa.Uuid(), nullable=False),
        sa.Column("measurement_id", sa.Uuid(), nullable=False),
        sa.Column("arm", sa.String(length=1), nullable=False),
        sa.Column("gpu_uuid", sa.String(length=80)),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("processes", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(["commit_id"], ["commit.id"], name="fk_point_commit_id_commit"),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name="fk_point_measurement_id_measurement"),
        sa.ForeignKeyConstraint(["series_id"], ["series.id"], name="fk_point_series_id_series"),
        sa.PrimaryKeyConstraint("id", name="pk_point"),
        sa.UniqueConstraint("series_id", "measurement_id", "arm", name="uq_point_series_id_measurement_id_arm"),
    )
    op.create_index("ix_point_commit_id", "point", ["commit_id"])
    op.create_index("ix_point_measurement_id", "point", ["measurement_id"])
    op.create_index("ix_point_series_commit", "point", ["series_id", "commit_id"])
    op.create_table(
        "verdict",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measurement_id", sa.Uuid(), nullable=False),
        sa.Column("case_id", sa.Uuid(), nullable=False),
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
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("gpu_uuid", sa.String(length=80)),
        sa.Column("judged_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["case.id"], name="fk_verdict_case_id_case"),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurement.id"], name="fk_verdict_measurement_id_measurement"),
        sa.PrimaryKeyConstraint("id", name="pk_verdict"),
        sa.UniqueConstraint("measurement_id", "case_id", name="uq_verdict_measurement_id_case_id"),
    )
    op.create_index("ix_verdict_case_id", "verdict", ["case_id"])
    op.create_index("ix_verdict_measurement_id", "verdict", ["measurement_id"])
    op.create_index("ix_verdict_verdict", "verdict", ["verdict"])
