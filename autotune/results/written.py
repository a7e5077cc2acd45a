"""A report that was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Written:
    """A report that was written. ``tasks``, ``trials``: numbers of those that it is about. ``bytes``: its
    size."""

    path: Path
    tasks: int
    trials: int
    bytes: int
