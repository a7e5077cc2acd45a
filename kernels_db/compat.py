"""Decides which logs this version reads, and explains why it refuses others.

A log has three marks. SQLite's ``application_id`` says whose file it is. ``user_version`` is the schema, the
number of migrations. An export's header line has a ``version``. On PostgreSQL the schema ``autotune`` and
Alembic's table replace the first two.
"""

from __future__ import annotations

from typing import Any, Literal

from kernels_db.errors import LogError
from schedules.distribution import UPGRADE

# SQLite's application_id of a log: "atLg", big-endian, at byte 68 of the file.
APPLICATION_ID = 0x61744C67
# Number of the newest file in migrations/versions.
SCHEMA_VERSION = 3
# Header line of an export.
EXPORT_FORMAT = "autotune-log"
EXPORT_VERSION = 2
HEADER: dict[str, Any] = {"format": EXPORT_FORMAT, "version": EXPORT_VERSION}


def check_schema(
    path: str, application_id: int, version: int, empty: bool
) -> Literal["new", "current", "older"]:
    """What to do with the database at ``path``. ``empty``: it has no tables. Raises `LogError` for a foreign
    database and for a newer schema."""
    if application_id == 0 and version == 0 and empty:
        return "new"
    if application_id != APPLICATION_ID:
        raise LogError(
            f"{path} is a database of another application, not a tuning log; nothing was changed. "
            f"Choose another place"
        )
    if version > SCHEMA_VERSION:
        raise LogError(
            f"{path} has schema version {version}, and this autotune reads up to version {SCHEMA_VERSION}; "
            f"update autotune: {UPGRADE}. Or export it with the newer version, by "
            f"autotune log export log.jsonl --db {path}, and import log.jsonl here"
        )
    return "current" if version == SCHEMA_VERSION else "older"


def older(place: object) -> LogError:
    """The error for a log of an older schema that is only to be read."""
    return LogError(
        f"{place} has an older schema and is opened for reading only; upgrade it once by opening it for "
        f"writing: autotune log stats --db {place}"
    )


def is_header(value: object) -> bool:
    """Whether a line is the first one of an export of this version or of one before."""
    versions = range(1, EXPORT_VERSION + 1)
    return isinstance(value, dict) and any(value == {"format": EXPORT_FORMAT, "version": v} for v in versions)


def check_header(source: str, header: Any) -> None:
    """Raises `LogError` unless ``header`` is the first line of an export that this version reads."""
    if not isinstance(header, dict) or header.get("format") != EXPORT_FORMAT:
        raise LogError(
            f"{source} is neither a tuning log nor an export of one (its first line is not "
            f'{{"format":"{EXPORT_FORMAT}",...}}); give a file that `autotune log export` wrote'
        )
    version = header.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LogError(
            f"{source}: export version {str(version)[:40]!r} is not a number; export the log again"
        )
    if version > EXPORT_VERSION:
        raise LogError(
            f"{source} has export version {version}, and this autotune reads up to version {EXPORT_VERSION}; "
            f"update autotune: {UPGRADE}"
        )
