"""The first schema: workload, target, machine, run, record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "workload",
        sa.Column("digest", sa.Text(), nullable=False, primary_key=True),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("flops", sa.Integer(), nullable=False),
    )
    for name in ("target", "machine"):
        op.create_table(
            name,
            sa.Column("digest", sa.Text(), nullable=False, primary_key=True),
            sa.Column("json", sa.Text(), nullable=False),
        )
    op.create_table(
        "run",
        sa.Column("uid", sa.Text(), nullable=False, primary_key=True),
        sa.Column("workload", sa.Text(), sa.ForeignKey("workload.digest"), nullable=False),
        sa.Column("target", sa.Text(), sa.ForeignKey("target.digest"), nullable=False),
        sa.Column("machine", sa.Text(), sa.ForeignKey("machine.digest"), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("started", sa.Text(), nullable=False),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),
    )
    op.create_table(
        "record",
        sa.Column("uid", sa.Text(), nullable=False, primary_key=True),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("sketch", sa.Text(), nullable=False),
        sa.Column("trace", sa.Text(), nullable=False),
        sa.Column("trace_digest", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("times_s", sa.Text(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=True),
        sa.Column("error", sa.Float(), nullable=True),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("created", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "workload", "target", "machine"],
            ["run.uid", "run.workload", "run.target", "run.machine"],
            name="fk_record_run",
        ),
        sa.CheckConstraint("kind IN ('trial', 'final')", name="ck_record_kind"),
        sa.CheckConstraint(
            "status <> 'ok' OR (time_s IS NOT NULL AND time_s > 0)", name="ck_record_ok_has_time"
        ),
    )
    op.create_index("ix_record_best", "record", ["workload", "target", "status", "time_s", "created", "uid"])
    op.create_index("ix_record_trace", "record", ["workload", "target", "trace_digest", "kind", "created"])
    op.create_index("ix_record_run", "record", ["run"])
