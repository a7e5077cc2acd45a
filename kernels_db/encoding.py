"""Checks the encoding of text from outside: it must be UTF-8 without a byte order mark."""

from __future__ import annotations

import codecs

# Bytes that show the encoding.
HEAD = 4
# (byte order mark, encoding). Longer marks come first, as the mark of UTF-16 is the beginning of that of
# UTF-32.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
    (codecs.BOM_UTF8, "UTF-8 with a byte order mark"),
)


def foreign(head: bytes) -> str | None:
    """The encoding of a text that begins so; None for UTF-8 without a mark."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    # Without a mark the first letters show it, because all texts here begin with ASCII.
    zeros = [b == 0 for b in head[:HEAD]]
    if zeros in ([False, True, True, True], [True, True, True, False]):
        return "UTF-32"
    return "UTF-16" if zeros in ([False, True, False, True], [True, False, True, False]) else None


def refusal(what: object, encoding: str) -> str:
    """The message for a text in another encoding."""
    return f"{what} is in {encoding}; save it as UTF-8 without a byte order mark"
