"""Hides passwords of databases in messages."""

from __future__ import annotations

import re

# A password of a URL. It ends at the last @, because it may hold a / or an @ by mistake. A URL that was taken
# for a path has only one / left.
_PASSWORD = re.compile(r"(:/[^:]*):.*@", re.DOTALL)
# A password among the options of a URL.
_OPTION = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)


def masked(text: str) -> str:
    """A URL of any scheme without its password."""
    return _OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
