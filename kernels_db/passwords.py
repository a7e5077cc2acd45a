"""Passwords of databases: messages never show them."""

from __future__ import annotations

import re

# A password may hold what it should not, a / or an @: it ends at the last @, whatever comes before. Where a
# URL was taken for a path, one / is left of two.
_PASSWORD = re.compile(r"(:/[^:]*):.*@", re.DOTALL)
_OPTION = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def masked(text: str) -> str:
    """A URL, of any scheme, without its password."""
    return _OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
