"""The first schema: workload, target, machine, run, record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kernels_db.schema import KEY, WHOLE

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "workload",
        sa.Column("digest", KEY, nullable=False, primary_key=True),
        sa.Column("op", KEY, nullable=False),
        sa.Column("params", KEY, nullable=False),
        sa.Column("json", KEY, nullable=False),
        sa.Column("flops", WHOLE, nullable=False),
    )
    for name in ("target", "machine"):
        op.create_table(
            name,
            sa.Column("digest", KEY, nullable=False, primary_key=True),
            sa.Column("json", KEY, nullable=False),
        )
    op.create_table(
        "run",
        sa.Column("uid", KEY, nullable=False, primary_key=True),
        sa.Column("workload", KEY, sa.ForeignKey("workload.digest"), nullable=False),
        sa.Column("target", KEY, sa.ForeignKey("target.digest"), nullable=False),
        sa.Column("machine", KEY, sa.ForeignKey("machine.digest"), nullable=False),
        sa.Column("seed", WHOLE, nullable=False),
        sa.Column("options", KEY, nullable=False),
        sa.Column("nonce", KEY, nullable=False),
        sa.Column("started", KEY, nullable=False),
        sa.Column("ended", KEY, nullable=True),
        sa.Column("state", KEY, nullable=False),
        sa.UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),
    )
    op.create_table(
        "record",
        sa.Column("uid", KEY, nullable=False, primary_key=True),
        sa.Column("run", KEY, nullable=False),
        sa.Column("trial", WHOLE, nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.Column("workload", KEY, nullable=False),
        sa.Column("target", KEY, nullable=False),
        sa.Column("machine", KEY, nullable=False),
        sa.Column("sketch", KEY, nullable=False),
        sa.Column("trace", KEY, nullable=False),
        sa.Column("trace_digest", KEY, nullable=False),
        sa.Column("status", KEY, nullable=False),
        sa.Column("reason", KEY, nullable=False),
        sa.Column("times_s", KEY, nullable=False),
        sa.Column("time_s", sa.Float(), nullable=True),
        sa.Column("error", sa.Float(), nullable=True),
        sa.Column("environment", KEY, nullable=False),
        sa.Column("created", KEY, nullable=False),
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
