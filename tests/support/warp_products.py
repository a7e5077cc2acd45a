"""The product on matrix units by hand of ``examples``, and its steps, for tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.matrix_units import Tiles, by_warps, copy_by_threads, load_by_warps

__all__ = ["Tiles", "by_warps", "copy_by_threads", "load_by_warps"]
