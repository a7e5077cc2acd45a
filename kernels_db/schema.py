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

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

# Column types. PostgreSQL sorts text by the server's language unless told otherwise, and its integers have 32
# bits.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
WHOLE = Integer().with_variant(BigInteger(), "postgresql")
# All tables.
METADATA = MetaData()


def _column(name: str, kind: Any = KEY, to: str | None = None, **more: Any) -> Column[Any]:
    """``to``: the column that it refers to."""
    return Column(name, kind, *([ForeignKey(to)] if to else []), **{"nullable": False, **more})


def _texts(*names: str) -> list[Column[Any]]:
    return [_column(name) for name in names]


# What is computed. Identity is ``json``, the DAG under canonical names; op, params, flops, and the names that
# it is shown under (`Workload.names`) describe it.
WORKLOAD = Table(
    "workload",
    METADATA,
    _column("digest", primary_key=True),
    *_texts("op", "params", "json"),
    _column("flops", WHOLE),
    _column("names", server_default="{}"),
)
# What it is compiled for.
TARGET = Table("target", METADATA, _column("digest", primary_key=True), _column("json"))
# Where it was measured.
MACHINE = Table("machine", METADATA, _column("digest", primary_key=True), _column("json"))
# One tuning session. ``uid``: digest of all columns except ``ended`` and ``state``, which change. ``nonce``:
# distinguishes sessions that began in the same microsecond.
RUN = Table(
    "run",
    METADATA,
    _column("uid", primary_key=True),
    *(_column(name, to=f"{name}.digest") for name in ("workload", "target", "machine")),
    _column("seed", WHOLE),
    *_texts("options", "nonce", "started"),
    _column("ended", nullable=True),
    _column("state"),
    UniqueConstraint("uid", "workload", "target", "machine", name="uq_run_identity"),
)
# Runs that say something by themselves, and need no records: which rewrites of a model's graph are applied.
CHOOSES = RUN.c.options.contains('"rewrites":')
# One measurement. ``uid``: digest of its exchange form, which never changes. ``imported``: when it was; null
# if it was measured here.
RECORD = Table(
    "record",
    METADATA,
    _column("uid", primary_key=True),
    _column("run"),
    _column("trial", WHOLE),
    *_texts("kind", "workload", "target", "machine", "sketch", "trace", "trace_digest", "status", "reason"),
    _column("times_s"),
    _column("time_s", Float, nullable=True),
    _column("error", Float, nullable=True),
    *_texts("environment", "created"),
    _column("imported", nullable=True),
    ForeignKeyConstraint(
        ["run", "workload", "target", "machine"],
        ["run.uid", "run.workload", "run.target", "run.machine"],
        name="fk_record_run",
    ),
    CheckConstraint("kind IN ('trial', 'final')", name="ck_record_kind"),
    CheckConstraint("status <> 'ok' OR (time_s IS NOT NULL AND time_s > 0)", name="ck_record_ok_has_time"),
    Index("ix_record_best", "workload", "target", "status", "time_s", "created", "uid"),
    Index("ix_record_trace", "workload", "target", "trace_digest", "kind", "created"),
    Index("ix_record_run", "run"),
)
# What `autotune log verify` found of a record on one kind of machine (`records.host_digest`).
VERIFICATION = Table(
    "verification",
    METADATA,
    _column("record", to="record.uid", primary_key=True),
    _column("host", primary_key=True),
    _column("status"),
    _column("time_s", Float, nullable=True),
    _column("checked"),
    CheckConstraint("status IN ('ok', 'slower', 'wrong', 'failed')", name="ck_verification_status"),
)
# The record with which a task is loaded, whatever is measured later.
PIN = Table(
    "pin",
    METADATA,
    _column("workload", to="workload.digest", primary_key=True),
    _column("target", to="target.digest", primary_key=True),
    _column("record", to="record.uid"),
    _column("pinned"),
    Index("ix_pin_record", "record"),
)
# What the key of a workload, a run or a record of workload version 1 is now: lock files of pins, and people,
# know it by the former one.
FORMER = Table("former", METADATA, _column("former", primary_key=True), _column("now"))
