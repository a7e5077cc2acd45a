"""Where a record came from, what verifying found, and pins."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from kernels_db.schema import KEY

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("record", sa.Column("imported", KEY, nullable=True))
    op.create_table(
        "verification",
        sa.Column("record", KEY, sa.ForeignKey("record.uid"), nullable=False, primary_key=True),
        sa.Column("host", KEY, nullable=False, primary_key=True),
        sa.Column("status", KEY, nullable=False),
        sa.Column("time_s", sa.Float(), nullable=True),
        sa.Column("checked", KEY, nullable=False),
        sa.CheckConstraint(
            "status IN ('ok', 'slower', 'wrong', 'failed')", name="ck_verification_status"
        ),
    )
    op.create_table(
        "pin",
        sa.Column("workload", KEY, sa.ForeignKey("workload.digest"), nullable=False, primary_key=True),
        sa.Column("target", KEY, sa.ForeignKey("target.digest"), nullable=False, primary_key=True),
        sa.Column("record", KEY, sa.ForeignKey("record.uid"), nullable=False),
        sa.Column("pinned", KEY, nullable=False),
    )
    op.create_index("ix_pin_record", "pin", ["record"])
