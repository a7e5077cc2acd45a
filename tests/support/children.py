"""Child processes of tests: where they import from."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def folders(file: str) -> list[str]:
    """Of a test file: its own, what tests share, and the project's. A child then has the names that the
    file has."""
    return [str(Path(file).resolve().parent), str(Path(__file__).resolve().parent), str(ROOT)]


def python_path(file: str) -> str:
    """`folders` as PYTHONPATH."""
    return os.pathsep.join(folders(file))
