"""Checks of documents: JSON that comes from a file, a database or another process.

A check takes a value and returns what the value stands for. It raises `Malformed`, which names the place,
what is expected there and what is there. Larger checks are made of smaller ones, once, where a module is
imported:

>>> pair = record({"name": text(40), "sizes": list_of(integer(1, 8), most=3)})
>>> pair({"name": "x", "sizes": [1, 9]})
Traceback (most recent call last):
    ...
schedules.documents.Malformed: sizes[1]: expected a whole number from 1 to 8, got 9

Any function may be a check: its ValueError gets the place too. True is no number, and numbers are finite.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from operator import call, length_hint
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
Check = Callable[[Any], T]
# Largest size of a number, unless a check says another.
LARGEST = 1e300


class Malformed(ValueError):
    """A document that is not what it must be. ``way``: names and numbers that lead to the place."""

    def __init__(self, reason: str, way: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason)
        self.reason, self.way = reason, way

    def __str__(self) -> str:
        place = "".join(f"[{x}]" if isinstance(x, int) else f".{x[:40]}" for x in self.way)
        return f"{place.removeprefix('.')}: {self.reason}" if place else self.reason

    def __reduce__(self) -> tuple[type[Malformed], tuple[str, tuple[str | int, ...]]]:
        return Malformed, (self.reason, self.way)


def wrong(x: object, wanted: str) -> Malformed:
    """The error for a value that is not what is wanted there."""
    return Malformed(f"expected {wanted}, got {short(x)}")


def short(x: object) -> str:
    """A value of a file for a message: a few words of it, however large or deep it is."""
    return reprlib.repr(x)[:120]


def _inside(step: str | int, err: Exception) -> Malformed:
    """An error of a part, as one of the whole."""
    if isinstance(err, Malformed):
        return Malformed(err.reason, (step, *err.way))
    reason = "it is nested too deeply" if isinstance(err, RecursionError) else str(err)[:400]
    return Malformed(reason, (step,))


# What a check of a part may raise.
_FAULTS = (ValueError, RecursionError)

# -- texts ----------------------------------------------------------------------------------------------

# Looking for a value inside itself takes a third of the time; one that is ends in a RecursionError.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def canonical(value: Any) -> str:
    """Canonical JSON text of a JSON value."""
    return _CANONICAL.encode(value)


def digest(text: str) -> str:
    """32 hex digits of blake2b over UTF-8 text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):  # such as 1e999
        raise ValueError(f"{text[:40]} is too large for a number")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)[:40]!r} stands twice in an object")
    return found


_PLAIN = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_ONCE = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_once)


def parsed(text: object, *, once: bool = True) -> Any:
    """The value of JSON text, or of its bytes in UTF-8. Raises `Malformed` for anything else: also for
    numbers that are not finite, and for names that stand twice in an object. Without ``once`` the last of
    these counts, which is faster: for texts that stand in a log, or in a document that was read."""
    if not isinstance(text, (str, bytes)):
        raise Malformed(f"the JSON object must be str or bytes, not {type(text).__name__}")
    try:
        return (_ONCE if once else _PLAIN).decode(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise Malformed("it is no JSON that can be read: it is nested too deeply") from None
    except ValueError as err:
        raise Malformed(f"it is no JSON: {str(err)[:200]}") from None


def parsed_object(text: object, *, once: bool = True) -> dict[str, Any]:
    """`parsed`, of an object. Raises `Malformed`."""
    value = parsed(text, once=once)
    if not isinstance(value, dict):
        raise Malformed("it is no JSON object")
    return value


# -- values ---------------------------------------------------------------------------------------------


def any_integer(x: Any) -> int:
    """Any whole number."""
    if type(x) is not int:
        raise wrong(x, "an integer")
    return x


def integer(least: int, most: float = math.inf, wanted: str = "") -> Check[int]:
    """A whole number. ``wanted``: what it is in words, for errors; here and below."""
    words = wanted or f"a whole number from {least} to {most}"

    def check(x: Any) -> int:
        if type(x) is not int or not least <= x <= most:
            raise wrong(x, words)
        return x

    return check


def number(
    least: float = -LARGEST, most: float = LARGEST, wanted: str = "", *, real: bool = False
) -> Check[float]:
    """A finite number as a float. ``real``: one with a fraction or an exponent in the text; 1 is none."""
    words = wanted or ("a number" if least == -LARGEST else f"a number from {least:g} to {most:g}")
    types = (float,) if real else (float, int)

    def check(x: Any) -> float:
        if type(x) not in types or not least <= x <= most:
            raise wrong(x, words)
        return float(x)

    return check


def any_text(x: Any) -> str:
    """Any text."""
    if not isinstance(x, str):
        raise wrong(x, "a text")
    return x


def text(most: int, pattern: str = "", wanted: str = "") -> Check[str]:
    """Text of at most so many characters that a regular expression matches as a whole."""
    compiled = re.compile(pattern, re.DOTALL) if pattern else None
    words = wanted or f"a text of at most {most} characters"

    def check(x: Any) -> str:
        if not isinstance(x, str) or len(x) > most or (compiled is not None and not compiled.fullmatch(x)):
            raise wrong(x, words)
        return x

    return check


def name(x: Any) -> str:
    """A short text of one line."""
    if not isinstance(x, str) or len(x) > 200 or not x.isprintable():
        raise wrong(x, "a name of at most 200 printable characters")
    return x


digest_text = text(32, "[0-9a-f]{32}", "32 hex digits")


def flag(x: Any) -> bool:
    """True or false."""
    if not isinstance(x, bool):
        raise wrong(x, "true or false")
    return x


def one_of(*options: str) -> Check[str]:
    """One of these texts."""
    words = f"one of {', '.join(options)}"

    def check(x: Any) -> str:
        if not isinstance(x, str) or x not in options:
            raise wrong(x, words)
        return x

    return check


def nullable(check: Check[T]) -> Check[T | None]:
    """Null, or what another check takes."""
    return lambda x: None if x is None else check(x)


# -- lists and objects ----------------------------------------------------------------------------------


def an_object(x: Any) -> dict[str, Any]:
    """Any object."""
    if not isinstance(x, dict):
        raise wrong(x, "an object")
    return x


def list_of(check: Check[T], most: int = 1 << 30, least: int = 0) -> Check[tuple[T, ...]]:
    """A list whose parts pass a check, as a tuple."""
    words = f"a list of {least} to {most} parts" if most < 1 << 30 else "a list"

    def checked(x: Any) -> tuple[T, ...]:
        if not isinstance(x, list) or not least <= len(x) <= most:
            raise wrong(x, words)
        left = iter(x)
        try:
            return tuple(map(check, left))
        except _FAULTS as err:
            raise _inside(len(x) - length_hint(left) - 1, err) from None

    return checked


def items(*checks: Check[Any]) -> Check[tuple[Any, ...]]:
    """A list with one part for each check, as a tuple."""

    def checked(x: Any) -> tuple[Any, ...]:
        if not isinstance(x, list) or len(x) != len(checks):
            raise wrong(x, f"a list of {len(checks)}")
        left = iter(x)
        try:
            return tuple(map(call, checks, left))
        except _FAULTS as err:
            raise _inside(len(x) - length_hint(left) - 1, err) from None

    return checked


def mapping_of(check: Check[T], most: int = 1 << 30, key: Check[str] | None = None) -> Check[dict[str, T]]:
    """An object with any names (that pass ``key``), whose values pass a check."""

    def checked(x: Any) -> dict[str, T]:
        if not isinstance(x, dict) or len(x) > most:
            raise wrong(x, f"an object of at most {most}" if most < 1 << 30 else "an object")
        found: dict[str, T] = {}
        at = ""
        try:
            for at, part in x.items():
                found[at if key is None else key(at)] = check(part)
        except _FAULTS as err:
            raise _inside(at, err) from None
        return found

    return checked


def record(
    fields: Mapping[str, Check[Any]],
    optional: Mapping[str, Check[Any]] | None = None,
    *,
    open_ended: bool = False,
) -> Check[dict[str, Any]]:
    """An object with these fields, and no others unless it is ``open_ended``. Those of ``optional`` may be
    missing, also in what is returned."""
    needed, others = tuple(fields.items()), tuple((optional or {}).items())
    every = dict(needed + others)

    def checked(x: Any) -> dict[str, Any]:
        if not isinstance(x, dict):
            raise wrong(x, f"an object of {', '.join(fields)}")
        found: dict[str, Any] = {}
        at = ""
        try:
            for at, check in needed:
                found[at] = check(x[at])
            for at, check in others:
                if at in x:
                    found[at] = check(x[at])
        except KeyError:
            if at in x:
                raise
            raise Malformed("it is missing", (at,)) from None
        except _FAULTS as err:
            raise _inside(at, err) from None
        if len(found) != len(x) and not open_ended:
            odd = next(str(k) for k in x if k not in every)
            raise Malformed(f"{odd[:40]!r} is not known; known are {', '.join(every)}")
        return found

    return checked


def canonical_object(most: int, deepest: int) -> Check[str]:
    """Any object whose `canonical` text has at most ``most`` characters, nested at most ``deepest`` levels,
    as this text."""

    def check(x: Any) -> str:
        if not isinstance(x, dict):
            raise wrong(x, "an object")
        try:
            found = canonical(x)
        except (TypeError, ValueError, RecursionError):  # of no JSON, infinite, or deep
            raise wrong(x, "an object of finite numbers, texts, lists and objects") from None
        if len(found) > most:
            raise Malformed(f"expected an object of at most {most} characters, got {len(found)}")
        if found.count("{") + found.count("[") > deepest and depth(x, deepest) > deepest:
            raise Malformed(f"it is nested more than {deepest} levels deep")
        return found

    return check


def depth(x: Any, most: int) -> int:
    """Depth of lists and objects, counted up to one more than ``most``."""
    level, found = [x], 0
    while level and found <= most:
        nested = [v for v in level if isinstance(v, (list, tuple, dict))]
        level = [y for v in nested for y in (v.values() if isinstance(v, dict) else v)]
        found += bool(nested)
    return found
