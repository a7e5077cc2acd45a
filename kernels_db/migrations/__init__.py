"""Alembic's environment and one file per schema version; `kernels_db.migrate` runs them."""
