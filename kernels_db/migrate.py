"""Upgrades a log to the current schema, with Alembic, in the caller's transaction.

Alembic is imported only if there is something to do.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from kernels_db.compat import APPLICATION_ID, SCHEMA_VERSION

# Folder of the migrations.
SCRIPTS = Path(__file__).with_name("migrations")


def upgrade(connection: Connection, version: int = SCHEMA_VERSION, scripts: Path = SCRIPTS) -> None:
    """Run the migrations up to ``version``, and mark a file as a log of that version.

    ``connection``: inside a transaction that the caller commits. Both databases undo tables and marks if it
    rolls back. Alembic reads the version from its own table in the log.
    """
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, f"{version:04d}")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {version}")
