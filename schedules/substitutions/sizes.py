"""Extents of tensors by symbols, and the solver that says for which extents a term is defined.

An operator states what its operands must have in common: `equal` and `halved`. `Numbers` checks that of
whole numbers, `Equations` solves it for symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Protocol, TypeVar

S = TypeVar("S", bound="int | SymbolicExtent")


class Undefined(ValueError):
    """A term that is defined for no extents."""


@dataclass(frozen=True, eq=False)
class SymbolicExtent:
    """``constant`` + the sum of symbols, each as often as it says. Their order is that in which they were
    added, and does not count where extents are compared.

    >>> str(SymbolicExtent((("m", 2), ("n", 1)), -1))
    '2m+n-1'
    """

    parts: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SymbolicExtent):
            return NotImplemented
        return self.constant == other.constant and set(self.parts) == set(other.parts)

    def __hash__(self) -> int:
        return hash((frozenset(self.parts), self.constant))

    def __add__(self, other: SymbolicExtent | int) -> SymbolicExtent:
        return self._with(other, 1)

    def __sub__(self, other: SymbolicExtent | int) -> SymbolicExtent:
        return self._with(other, -1)

    def _with(self, other: SymbolicExtent | int, sign: int) -> SymbolicExtent:
        o = SymbolicExtent((), other) if isinstance(other, int) else other
        found = dict(self.parts)
        for s, n in o.parts:
            found[s] = found.get(s, 0) + sign * n
        return SymbolicExtent(tuple((s, n) for s, n in found.items() if n), self.constant + sign * o.constant)

    def times(self, n: int) -> SymbolicExtent:
        """As often as this."""
        return SymbolicExtent(tuple((s, n * m) for s, m in self.parts), n * self.constant)

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for sizes of all symbols."""
        return self.constant + sum(n * sizes[s] for s, n in self.parts)

    def put(self, by: Mapping[str, SymbolicExtent]) -> SymbolicExtent:
        """With extents in place of symbols."""
        made = SymbolicExtent((), self.constant)
        for s, n in self.parts:
            made = made + (by[s].times(n) if s in by else SymbolicExtent(((s, n),)))
        return made

    def __str__(self) -> str:
        every = [f"{'' if n == 1 else '-' if n == -1 else n}{s}" for s, n in self.parts]
        every += [str(self.constant)] if self.constant or not every else []
        return "+".join(every).replace("+-", "-")


_PART = re.compile(r"([+-]?)(\d{0,3})([a-z]?)")


def read_extent(text: str) -> SymbolicExtent:
    """The extent of its text. Raises ValueError for other text.

    >>> read_extent("2m+n-1").at({"m": 3, "n": 5})
    10
    """
    made, at = SymbolicExtent(), 0
    while at < len(text) and (found := _PART.match(text, at)) and found.end() > at + len(found[1]):
        if at and not found[1]:
            break
        n = int(found[2] or 1) * (-1 if found[1] == "-" else 1)
        made = made + (SymbolicExtent(((found[3], n),)) if found[3] else n)
        at = found.end()
    if at != len(text) or not text:
        raise ValueError(f"{text[:20]!r} is no extent, such as 2m+1")
    return made


class Solver(Protocol[S]):
    """What operators ask for the extents of their operands."""

    def equal(self, a: S, b: S) -> S:
        """Have both equal, and return it. Raises `Undefined` where they can't be."""

    def halved(self, a: S) -> S:
        """Half of an even extent. Raises `Undefined` for another."""

    def is_one(self, a: S) -> bool:
        """Whether an extent is the number 1, along which an operand is repeated."""

    def checked(self, a: S) -> S:
        """An extent that was computed. Raises `Undefined` where it is below 1."""


class Numbers:
    """The solver of whole numbers."""

    def equal(self, a: int, b: int) -> int:
        if a != b:
            raise Undefined(f"extents {a} and {b} differ")
        return a

    def halved(self, a: int) -> int:
        if a % 2:
            raise Undefined(f"extent {a} is odd")
        return a // 2

    def is_one(self, a: int) -> bool:
        return a == 1

    def checked(self, a: int) -> int:
        if a < 1:
            raise Undefined(f"extent {a} is below 1")
        return a


class Equations:
    """The solver of symbols. ``known``: {symbol: its extent by those that are left}. ``paired``: sums that
    are equal in many ways have equal parts, the first with the first of the same kind and axis."""

    def __init__(self, *, paired: bool = False) -> None:
        self.known: dict[str, SymbolicExtent] = {}
        self.paired = paired

    def now(self, a: SymbolicExtent) -> SymbolicExtent:
        """An extent by the symbols that are left."""
        return a.put(self.known)

    def equal(self, a: SymbolicExtent, b: SymbolicExtent) -> SymbolicExtent:
        a, b = self.now(a), self.now(b)
        self._vanish(a - b)
        return self.now(a)

    def halved(self, a: SymbolicExtent) -> SymbolicExtent:
        a = self.now(a)
        odd = [s for s, n in a.parts if n % 2]
        if a.constant % 2 and not odd:
            raise Undefined(f"extent {a} is odd")
        for s, other in zip(odd[::2], odd[1::2]):
            self._put(other, SymbolicExtent(((s, 1),)))
        if len(odd) % 2:
            self._put(odd[-1], SymbolicExtent(((f"{odd[-1]}.half", 2),), a.constant % 2))
        a = self.now(a)
        if a.constant % 2:
            raise Undefined(f"extent {a} is odd")
        return SymbolicExtent(tuple((s, n // 2) for s, n in a.parts), a.constant // 2)

    def is_one(self, a: SymbolicExtent) -> bool:
        return self.now(a) == SymbolicExtent((), 1)

    def checked(self, a: SymbolicExtent) -> SymbolicExtent:
        if not a.parts and a.constant < 1:
            raise Undefined(f"extent {a} is below 1")
        return a

    def _vanish(self, d: SymbolicExtent) -> None:
        """Have an extent be 0."""
        if not d.parts:
            if d.constant:
                raise Undefined(f"extents differ by {abs(d.constant)}")
            return
        shared = gcd(*(n for _, n in d.parts), d.constant)
        d = SymbolicExtent(tuple((s, n // shared) for s, n in d.parts), d.constant // shared)
        solved = [
            (s, SymbolicExtent((), 0) - rest if n > 0 else rest)
            for s, n in d.parts
            if abs(n) == 1
            for rest in (d - SymbolicExtent(((s, n),)),)
        ]
        whole = [(s, r) for s, r in solved if r.constant >= 0 and all(n > 0 for _, n in r.parts)]
        if whole:
            self._put(*whole[-1])
            return
        plus = [s for s, n in d.parts for _ in range(n)]
        minus = [s for s, n in d.parts for _ in range(-n)]
        if self.paired and d.constant == 0 and len(plus) == len(minus):
            alike = [s for s in minus if _family(s) == _family(plus[0])]
            self._vanish(SymbolicExtent(((plus[0], 1), ((alike or minus)[0], -1))))
            self._vanish(self.now(d))
            return
        if not solved:
            raise Undefined(f"{d} = 0 has no solution by sums")
        self._put(*solved[-1])

    def _put(self, symbol: str, by: SymbolicExtent) -> None:
        self.known = {s: e.put({symbol: by}) for s, e in self.known.items()}
        self.known[symbol] = by


def _family(symbol: str) -> tuple[str, ...]:
    """Kind and axis of a symbol that `schedules.substitutions.rules.general` made."""
    kind, _, axis, *_ = symbol.split(".")
    return kind, axis
