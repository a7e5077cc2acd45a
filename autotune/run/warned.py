"""Warnings that name the line of the user's program, however deep they arise."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warn with the line of the innermost caller outside of autotune."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("autotune."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
