"""What an explanation says, wherever its lines end."""

from __future__ import annotations

from autotune.results.explanation import Explanation


def said(e: Explanation) -> str:
    """The text, with single spaces."""
    return " ".join(str(e).split())
