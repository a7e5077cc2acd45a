"""Loads of a loop that read elements of the iteration before again: the hint ``slide``.

A stencil reads each element of a row once for each neighbour, at places that are no whole vectors apart. A
load that crosses a line of the cache takes two turns. In its place the lanes are picked out of two vectors,
one of which the iteration before has loaded. Nothing is read that the loop would not read otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from autotune.codegen.llvm.scope import Scope, Scopes

_BITS = {"double": "i64", "float": "i32", "half": "i16", "bfloat": "i16"}
_LOAD = re.compile(r"  (%\w+) = load <(\d+) x (\w+)>, ptr (%\w+), align (\d+)")


@dataclass(frozen=True, slots=True)
class Carried:
    """A vector that goes from iteration to iteration. ``first``: before the first one; ``after``: at the end
    of one."""

    kind: str
    name: str
    first: str
    after: str


@dataclass(frozen=True, slots=True)
class _Row:
    """Loads from places ``pointer + offset``, where ``pointer`` begins at ``start`` and moves by ``step``
    elements with each iteration. ``loads``: {offset: (line, name)}."""

    pointer: str
    start: str
    step: int
    lanes: int
    element: str
    align: str
    loads: dict[int, tuple[int, str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Lanes as integers, which x86 picks out of two vectors by an instruction of its own (valign)."""
        return f"<{self.lanes} x {_BITS.get(self.element, self.element)}>"

    def parts(self) -> Iterator[_Row]:
        """The loads that are further apart than a vector is long, as those of rows above each other."""
        part: dict[int, tuple[int, str]] = {}
        for at in sorted(self.loads):
            if part and at - max(part) > self.lanes:
                yield replace(self, loads=part)
                part = {}
            part[at] = self.loads[at]
        yield replace(self, loads=part)

    @property
    def vector(self) -> str:
        """The type of what is loaded."""
        return f"<{self.lanes} x {self.element}>"

    @property
    def fresh(self) -> int:
        """Vectors that an iteration must load."""
        return self.step // self.lanes

    @property
    def places(self) -> range:
        """Where vectors begin that have all elements, from the last backwards."""
        last, w = max(self.loads), self.lanes
        return range(last, min(self.loads) - w, -w)

    @property
    def pays(self) -> bool:
        """Whether fewer loads are left, and the other vectors are those of the iteration before."""
        whole = self.step > 0 and self.step % self.lanes == 0
        return whole and self.fresh < len(self.loads) and self.fresh < len(self.places) <= 2 * self.fresh


def slide(body: Scope, counter: str, s: Scopes) -> list[Carried]:
    """Rewrite loads in the ``body`` of a loop that is one basic block and is entered at least once. What the
    first iteration needs is loaded in the current scope. ``counter``: the loop's."""
    rows = [r for found in _rows(body, counter) for r in found.parts() if r.pays]
    return [c for r in rows for c in _slid(r, body, s)]


def _rows(body: Scope, counter: str) -> Iterable[_Row]:
    """Loads from places that are a known number of elements apart. Those of what is stored to in the loop are
    not remembered, and stay."""
    moving = {name: (start, by) for name, start, _, by in body.pointers}
    apart: dict[str, tuple[str, int]] = {}
    for key, made in body.memo.items():
        match key:
            case ("gep", str(pointer), str(by), int(c)) if by == counter:
                moving[made] = pointer, c
            case ("gep", str(pointer), int(c), 1):
                apart[made] = pointer, c
    remembered = {ref for key, ref in body.memo.items() if isinstance(key, tuple) and key[0] == "load"}
    rows: dict[tuple[str, str, str], _Row] = {}
    for n, line in enumerate(body.lines):
        m = _LOAD.fullmatch(line)
        if m is None or m[1] not in remembered:
            continue
        pointer, offset = apart.get(m[4], (m[4], 0))
        if pointer in moving:
            start, step = moving[pointer]
            new = _Row(pointer, start, step, int(m[2]), m[3], m[5])
            rows.setdefault((pointer, m[2], m[3]), new).loads[offset] = n, m[1]
    return rows.values()


def _slid(row: _Row, body: Scope, s: Scopes) -> list[Carried]:
    places, fresh, kind = row.places, row.fresh, row.kind
    held = {at: s.fresh("old") for at in places[fresh:]}
    have = dict(held)

    def load(at: int) -> list[str]:
        """Lines for the vector there, if this iteration loads it and has not yet."""
        if at in have:
            return []
        name, have[at] = s.fresh("p"), s.fresh("new")
        return [
            f"  {name} = getelementptr inbounds {row.element}, ptr {row.pointer}, i64 {at}",
            f"  {have[at]} = load {kind}, ptr {name}, align {row.align}",
        ]

    for at, (n, name) in sorted(row.loads.items(), key=lambda x: x[1][0]):
        over = (places[0] - at) % row.lanes
        high = at + over  # its elements lie in the vectors that begin here and before
        lines = load(high)
        if over:
            low = high - row.lanes
            lines += load(low)
            found = s.fresh("near")
            lines.append(f"  {found} = {_picked(kind, have[low], have[high], row.lanes - over)}")
        lines.append(f"  {name} = bitcast {kind} {found if over else have[high]} to {row.vector}")
        body.lines[n] = "\n".join(lines)
    body.lines += [x for at in places[: len(held)] for x in load(at)]
    first = {at: _before(row, at, s) for at in held}
    return [Carried(kind, name, first[at], have[at + row.step]) for at, name in held.items()]


def _before(row: _Row, at: int, s: Scopes) -> str:
    """The vector of the iteration before the first, without elements that nothing reads."""
    begin = max(at, min(row.loads))
    pointer = s.emit(f"getelementptr inbounds {row.element}, ptr {row.start}, i64 {begin}", hint="p")
    found = s.emit(f"load {row.kind}, ptr {pointer}, align {row.align}")
    return s.emit(_picked(row.kind, "poison", found, row.lanes + at - begin)) if begin > at else found


def _picked(kind: str, low: str, high: str, skipped: int) -> str:
    """As many elements as a vector has of two, one after the other, without the first ones."""
    lanes = int(kind[1:].split(" ")[0])
    which = ", ".join(f"i32 {skipped + k}" for k in range(lanes))
    return f"shufflevector {kind} {low}, {kind} {high}, <{lanes} x i32> <{which}>"


__all__ = ["Carried", "slide"]
