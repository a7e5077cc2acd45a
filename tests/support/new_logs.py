"""New logs in tests. The migrations take most of the time of a test that makes a small log. A process runs
them for its first log, and makes later ones by the statements that the first one kept."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from kernels_db import compat, migrate

run_migrations = migrate.upgrade
_kept: list[str] = []


def upgrade(
    connection: Connection, version: int = compat.SCHEMA_VERSION, scripts: Path = migrate.SCRIPTS
) -> None:
    """In place of `migrate.upgrade`."""
    schema = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
    if (
        connection.dialect.name != "sqlite"
        or (version, scripts) != (compat.SCHEMA_VERSION, migrate.SCRIPTS)
        or connection.exec_driver_sql(schema).first()
    ):
        run_migrations(connection, version, scripts)
        return
    if not _kept:
        run_migrations(connection)
        (number,) = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
        _kept.extend(connection.exec_driver_sql(schema).scalars())
        _kept.append(f"INSERT INTO alembic_version VALUES ('{number}')")
        _kept.append(f"PRAGMA application_id = {compat.APPLICATION_ID}")
        _kept.append(f"PRAGMA user_version = {version}")
        return
    for statement in _kept:
        connection.exec_driver_sql(statement)
