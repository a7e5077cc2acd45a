"""Numbers as people read them: durations, sizes, rates, shares and counts. And text of strangers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

# Control characters, ends of lines among them, marks that turn the direction of text, and halves of
# characters, which no terminal's encoding has.
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""A text on one line, in which control characters are spelled: names of a stranger's log must not move
    the cursor of a terminal.

    >>> visible("a\x1b[2J b")
    'a\\x1b[2J b'
    """
    return _INVISIBLE.sub(lambda found: repr(found[0])[1:-1], text)


def visible_lines(text: str) -> str:
    """`visible` of every line of a text."""
    return "\n".join(map(visible, text.split("\n")))


def seconds(value: float | None) -> str:
    """A duration with three digits and a fitting unit: ``1.23 ms``."""
    if value is None or not math.isfinite(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}" if value < 1000 * scale else f"{value / scale:.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def size(count: int) -> str:
    """A number of bytes: ``6.2 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"


def rate(flops: int, moved_bytes: int, time_s: float | None) -> str:
    """GFLOP/s, or GB/s of compulsory traffic if the operator has fewer than 2 FLOPs a byte: memory bounds
    those on every machine of today."""
    if time_s is None or not math.isfinite(time_s) or time_s <= 0:
        return "-"
    if flops < 2 * moved_bytes:
        return f"{moved_bytes / time_s / 1e9:.1f} GB/s"
    return f"{flops / time_s / 1e9:.1f} GFLOP/s"


def digits(value: float) -> str:
    """Three digits, and zeros where the value is larger: ``6.61``, ``246,000``."""
    return f"{float(f'{value:.3g}'):,.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"


def number(n: int, what: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def some(names: Sequence[str], most: int) -> str:
    """A list of names, few of many.

    >>> some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# A share of the peak above this: the peak was disturbed when it was measured. Clocks vary by less.
MOST_SHARE = 1.08
DISTURBED = "peak disturbed"


def disturbed(share: float | None) -> bool:
    """Whether no machine can reach this share of its peak."""
    return share is not None and share > MOST_SHARE


def peak_share(share: float | None, instruction: str | None = None) -> str:
    """A share of the machine's peak in a cell: ``97.0 %``, ``97.0 % of vpdpbusd``, ``peak disturbed``.
    ``instruction``: whose peak it is."""
    if share is None or disturbed(share):
        return percent(share) if share is None else DISTURBED
    return percent(share) + ("" if instruction is None else f" of {instruction}")


def peak(instruction: str | None) -> str:
    """What a share is of: ``peak``, ``the peak of vpdpbusd``."""
    return "peak" if instruction is None else f"the peak of {instruction}"


def of_peak(share: float, what: str = "peak") -> str:
    """A share of the machine's peak in a sentence: ``97.0 % of peak``."""
    return f"{what} was disturbed when measured" if disturbed(share) else f"{percent(share)} of {what}"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "-" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def counts(failed: Mapping[str, int]) -> str:
    """``compile_error 2, timeout 1``, most frequent first; empty when nothing failed."""
    ordered = sorted(failed.items(), key=lambda x: (-x[1], x[0]))
    return ", ".join(f"{name} {n}" for name, n in ordered if n)
