"""The tables of the log. Digests are 32 hex digits; JSON columns hold canonical text.

    workload  1 ─┐                       What is computed, for what, and where a session ran are
    target    1 ─┼─ n  run  1 ─ n  record  stored once, by digest. A record repeats the digests of its
    machine   1 ─┘                       run (a composite foreign key keeps them true), so that
                                         the best of a (workload, target) is one index walk.
    verification, pin                    What this log says of its records; it never leaves in an export.
    former                               Digests of schemas before, and what they are now.

A change here needs a file in migrations/versions and a step of `compat.SCHEMA_VERSION`; a test
holds the migrated schema equal to this one.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Column types. PostgreSQL sorts text by the server's language unless told otherwise, and its integers have 32
# bits.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
WHOLE = Integer().with_variant(BigInteger(), "postgresql")


class Base(DeclarativeBase):
    """Declarative base of the log's tables."""

    type_annotation_map = {str: KEY, int: WHOLE}


class WorkloadRow(Base):
    """What is computed. Identity is ``json``, the DAG under canonical names; op, params, flops, and the names
    that it is shown under (`Workload.names`) describe it."""

    __tablename__ = "workload"
    digest: Mapped[str] = mapped_column(primary_key=True)
    op: Mapped[str] = mapped_column()
    params: Mapped[str] = mapped_column()
    json: Mapped[str] = mapped_column()
    flops: Mapped[int] = mapped_column()
    names: Mapped[str] = mapped_column(server_default="{}")


class TargetRow(Base):
    """What it is compiled for."""

    __tablename__ = "target"
    digest: Mapped[str] = mapped_column(primary_key=True)
    json: Mapped[str] = mapped_column()


class MachineRow(Base):
    """Where it was measured."""

    __tablename__ = "machine"
    digest: Mapped[str] = mapped_column(primary_key=True)
    json: Mapped[str] = mapped_column()


class RunRow(Base):
    """One tuning session. ``uid``: digest of all columns except ``ended`` and ``state``, which change.
    ``nonce``: distinguishes sessions that began in the same microsecond."""

    __tablename__ = "run"
    uid: Mapped[str] = mapped_column(primary_key=True)
    workload: Mapped[str] = mapped_column(ForeignKey("workload.digest"))
    target: Mapped[str] = mapped_column(ForeignKey("target.digest"))
    machine: Mapped[str] = mapped_column(ForeignKey("machine.digest"))
    seed: Mapped[int] = mapped_column()
    options: Mapped[str] = mapped_column()
    nonce: Mapped[str] = mapped_column()
    started: Mapped[str] = mapped_column()
    ended: Mapped[str | None] = mapped_column()
    state: Mapped[str] = mapped_column()

    __table_args__ = (UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),)


class RecordRow(Base):
    """One measurement. ``uid``: digest of its exchange form, which never changes."""

    __tablename__ = "record"
    uid: Mapped[str] = mapped_column(primary_key=True)
    run: Mapped[str] = mapped_column()
    trial: Mapped[int] = mapped_column()
    kind: Mapped[str] = mapped_column()
    workload: Mapped[str] = mapped_column()
    target: Mapped[str] = mapped_column()
    machine: Mapped[str] = mapped_column()
    sketch: Mapped[str] = mapped_column()
    trace: Mapped[str] = mapped_column()
    trace_digest: Mapped[str] = mapped_column()
    status: Mapped[str] = mapped_column()
    reason: Mapped[str] = mapped_column()
    times_s: Mapped[str] = mapped_column()
    time_s: Mapped[float | None] = mapped_column(Float)
    error: Mapped[float | None] = mapped_column(Float)
    environment: Mapped[str] = mapped_column()
    created: Mapped[str] = mapped_column()
    imported: Mapped[str | None] = mapped_column()  # when it was imported; None if it was measured here

    __table_args__ = (
        ForeignKeyConstraint(
            ["run", "workload", "target", "machine"],
            ["run.uid", "run.workload", "run.target", "run.machine"],
            name="fk_record_run",
        ),
        CheckConstraint("kind IN ('trial', 'final')", name="ck_record_kind"),
        CheckConstraint(
            "status <> 'ok' OR (time_s IS NOT NULL AND time_s > 0)", name="ck_record_ok_has_time"
        ),
        Index("ix_record_best", "workload", "target", "status", "time_s", "created", "uid"),
        Index("ix_record_trace", "workload", "target", "trace_digest", "kind", "created"),
        Index("ix_record_run", "run"),
    )


class VerificationRow(Base):
    """What `autotune log verify` found of a record on one kind of machine (`records.host_digest`)."""

    __tablename__ = "verification"
    record: Mapped[str] = mapped_column(ForeignKey("record.uid"), primary_key=True)
    host: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column()
    time_s: Mapped[float | None] = mapped_column(Float)
    checked: Mapped[str] = mapped_column()

    __table_args__ = (
        CheckConstraint("status IN ('ok', 'slower', 'wrong', 'failed')", name="ck_verification_status"),
    )


class PinRow(Base):
    """The record with which a task is loaded, whatever is measured later."""

    __tablename__ = "pin"
    workload: Mapped[str] = mapped_column(ForeignKey("workload.digest"), primary_key=True)
    target: Mapped[str] = mapped_column(ForeignKey("target.digest"), primary_key=True)
    record: Mapped[str] = mapped_column(ForeignKey("record.uid"))
    pinned: Mapped[str] = mapped_column()

    __table_args__ = (Index("ix_pin_record", "record"),)


class FormerRow(Base):
    """What the key of a workload, a run or a record of workload version 1 is now: lock files of pins, and
    people, know it by the former one."""

    __tablename__ = "former"
    former: Mapped[str] = mapped_column(primary_key=True)
    now: Mapped[str] = mapped_column()
