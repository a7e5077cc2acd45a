"""The first schema: workload, target, machine, run, record."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from kernels_db.schema import KEY, WHOLE

revision = "0001"
down_revision = None


def column(name: str, kind: Any = KEY, **more: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, **{"nullable": False, **more})


def columns(*names: str) -> list[sa.Column[Any]]:
    return [column(name) for name in names]


def upgrade() -> None:
    op.create_table(
        "workload",
        column("digest", primary_key=True),
        *columns("op", "params", "json"),
        column("flops", WHOLE),
    )
    for name in ("target", "machine"):
        op.create_table(name, column("digest", primary_key=True), column("json"))
    op.create_table(
        "run",
        column("uid", primary_key=True),
        *(
            sa.Column(name, KEY, sa.ForeignKey(f"{name}.digest"), nullable=False)
            for name in ("workload", "target", "machine")
        ),
        column("seed", WHOLE),
        *columns("options", "nonce", "started"),
        column("ended", nullable=True),
        column("state"),
        sa.UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),
    )
    op.create_table(
        "record",
        column("uid", primary_key=True),
        column("run"),
        column("trial", WHOLE),
        *columns("kind", "workload", "target", "machine", "sketch", "trace", "trace_digest", "status"),
        *columns("reason", "times_s"),
        column("time_s", sa.Float(), nullable=True),
        column("error", sa.Float(), nullable=True),
        *columns("environment", "created"),
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
