"""The tuning log: every trial of every run, in one SQLite file or PostgreSQL database.

Importing this package costs nothing. `Log`, and with it SQLAlchemy, is imported when it is first used,
because loading a tuned kernel needs only `kernels_db.lookup`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels_db.errors import LogError
    from kernels_db.records import Hit, MergeResult, NewRecord, Record, Run
    from kernels_db.store import Log

__all__ = ["Hit", "Log", "LogError", "MergeResult", "NewRecord", "Record", "Run"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"Log": "kernels_db.store", "LogError": "kernels_db.errors"}
    return getattr(import_module(homes.get(name, "kernels_db.records")), name)
