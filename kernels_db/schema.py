"""The tables of the log. Digests are 32 hex digits; JSON columns hold canonical text.

    workload  1 ─┐                       What is computed, for what, and where a session ran are
    target    1 ─┼─ n  run  1 ─ n  record  stored once, by digest. A record repeats the digests of its
    machine   1 ─┘                       run (a composite foreign key keeps them true), so that
                                         the best of a (workload, target) is one index walk.

A change here needs a file in migrations/versions and a step of `compat.SCHEMA_VERSION`; a test
holds the migrated schema equal to this one.
"""

from __future__ import annotations

from sqlalchemy import (
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


class Base(DeclarativeBase):
    """Declarative base of the log's tables."""


class WorkloadRow(Base):
    """What is computed. Identity is ``json``, the DAG; op, params and flops describe it."""

    __tablename__ = "workload"
    digest: Mapped[str] = mapped_column(Text, primary_key=True)
    op: Mapped[str] = mapped_column(Text)
    params: Mapped[str] = mapped_column(Text)
    json: Mapped[str] = mapped_column(Text)
    flops: Mapped[int] = mapped_column(Integer)


class TargetRow(Base):
    """What it is compiled for."""

    __tablename__ = "target"
    digest: Mapped[str] = mapped_column(Text, primary_key=True)
    json: Mapped[str] = mapped_column(Text)


class MachineRow(Base):
    """Where it was measured."""

    __tablename__ = "machine"
    digest: Mapped[str] = mapped_column(Text, primary_key=True)
    json: Mapped[str] = mapped_column(Text)


class RunRow(Base):
    """One tuning session. ``uid`` is the digest of all but ``ended`` and ``state``, which change
    as it goes; ``nonce`` keeps two sessions apart that began in the same microsecond."""

    __tablename__ = "run"
    uid: Mapped[str] = mapped_column(Text, primary_key=True)
    workload: Mapped[str] = mapped_column(ForeignKey("workload.digest"))
    target: Mapped[str] = mapped_column(ForeignKey("target.digest"))
    machine: Mapped[str] = mapped_column(ForeignKey("machine.digest"))
    seed: Mapped[int] = mapped_column(Integer)
    options: Mapped[str] = mapped_column(Text)
    nonce: Mapped[str] = mapped_column(Text)
    started: Mapped[str] = mapped_column(Text)
    ended: Mapped[str | None] = mapped_column(Text)
    state: Mapped[str] = mapped_column(Text)

    __table_args__ = (UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),)


class RecordRow(Base):
    """One measurement. ``uid`` is the digest of its exchange form, so it never changes."""

    __tablename__ = "record"
    uid: Mapped[str] = mapped_column(Text, primary_key=True)
    run: Mapped[str] = mapped_column(Text)
    trial: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(Text)
    workload: Mapped[str] = mapped_column(Text)
    target: Mapped[str] = mapped_column(Text)
    machine: Mapped[str] = mapped_column(Text)
    sketch: Mapped[str] = mapped_column(Text)
    trace: Mapped[str] = mapped_column(Text)
    trace_digest: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text)
    times_s: Mapped[str] = mapped_column(Text)
    time_s: Mapped[float | None] = mapped_column(Float)
    error: Mapped[float | None] = mapped_column(Float)
    environment: Mapped[str] = mapped_column(Text)
    created: Mapped[str] = mapped_column(Text)

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
