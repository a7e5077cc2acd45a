"""Run the migrations on the connection that `kernels_db.migrate.upgrade` hands over, inside its
transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
