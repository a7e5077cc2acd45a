"""Warnings that name the line of the user's program, however deep they arise."""

from __future__ import annotations

import sys
import warnings

# A user's program calls autotune, or torch does so for it.
_BETWEEN = ("autotune.", "torch.")


def warn(message: str) -> None:
    """Warn with the line of the innermost caller outside of autotune and torch."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
