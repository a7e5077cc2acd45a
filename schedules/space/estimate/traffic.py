"""Bytes that a nest moves between a cache and what lies beyond it, from its accesses and loops alone.

A loop whose body touches no more than the cache holds reads every line once, however often it comes back to
it. A loop whose body touches more begins anew each time (reuse distance by whole loops: Wolf & Lam, 1991). So
a matmul by v1 x v2 tiles reads n^3/v1 + n^3/v2 elements, which nothing here states: it follows from the
footprints. What is written is fetched before and written back after.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr
from schedules.ir import Block, Buffer, Loop, Nest, Seq, Stmt, blocks
from schedules.ir.nest import bound, reads
from schedules.ir.regions import footprint, values_at_most
from schedules.ir.strides import as_row_major
from schedules.model import LINE


@dataclass(frozen=True, slots=True)
class TrafficTerm:
    """One term of the traffic of a buffer: a footprint of ``bytes`` that is touched inside ``loop``, the
    outermost loop whose iterations the cache holds ("" for a block by itself), once for each iteration of the
    loops ``outside``: (name, extent), outermost first."""

    loop: str
    bytes: int
    outside: tuple[tuple[str, int], ...]

    @property
    def times(self) -> int:
        """How often the footprint is fetched."""
        return math.prod(n for _, n in self.outside)


@dataclass(frozen=True, slots=True)
class BufferTraffic:
    """Traffic of one buffer beyond a cache. ``size``: bytes of the buffer. ``fetched`` and ``written``:
    bytes. ``parts``: the terms that ``fetched`` is the sum of."""

    buffer: str
    size: int
    fetched: int
    written: int
    parts: tuple[TrafficTerm, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of a nest beyond a cache of ``capacity`` bytes."""

    capacity: float
    buffers: tuple[BufferTraffic, ...]

    @property
    def bytes(self) -> int:
        """Bytes fetched and written back."""
        return sum(b.fetched + b.written for b in self.buffers)


class BlockAccess(NamedTuple):
    """An access of a block, as of a row-major buffer: where, by the loops, and whether it writes."""

    buffer: Buffer
    at: tuple[Expr, ...]
    write: bool


def traffic(nest: Nest, capacity: float, registers: float = 0.0) -> Traffic:
    """Bytes that a nest moves beyond a cache of ``capacity`` bytes, buffer by buffer. The nest has no holes
    left. The cache is empty at first, replaces what was used least recently, and is fully associative.
    A buffer that is no argument is as large as what is used of it at a time; those of at most ``registers``
    bytes stay in registers and move nothing.

        >>> traffic(Schedule(dag).nest, 32 << 10).bytes
    """
    return _Count(nest, capacity, registers).of_nest()


class _Count:
    def __init__(self, nest: Nest, capacity: float, registers: float) -> None:
        self.nest, self.capacity = nest, capacity
        self.uses = {id(b): places_of(nest, b) for b in blocks(nest.body)}
        self.known: dict[int, dict[str, int]] = {}
        self.again = _again(nest, self.uses)
        self.held = {b.name for b in nest.buffers if b.name not in nest.params}
        sizes = self._touched(nest.body)
        self.held = {name for name in self.held if sizes.get(name, 0) <= registers}
        self.sizes = {name: n for name, n in sizes.items() if name not in nest.params}

    def of_nest(self) -> Traffic:
        terms: dict[str, list[TrafficTerm]] = {}
        self.walk(self.nest.body, (), terms)
        written = self.writes()
        out = []
        for b in self.nest.buffers:
            parts = tuple(terms.get(b.name, ()))
            if not parts or b.name in self.held:
                continue
            fetched = sum(p.times * p.bytes for p in parts)
            wrote = sum(p.times * p.bytes for p in written.get(b.name, ()))
            whole = math.prod(_int(n) for n in b.shape) * DTYPES[b.dtype].itemsize
            size = self.sizes.get(b.name, whole)
            out.append(BufferTraffic(b.name, size, fetched, wrote, parts))
        return Traffic(self.capacity, tuple(out))

    def writes(self) -> dict[str, list[TrafficTerm]]:
        """The terms of what is written."""
        terms: dict[str, list[TrafficTerm]] = {}
        self.walk(self.nest.body, (), terms, writes=True)
        return terms

    def walk(
        self,
        s: Stmt,
        outside: tuple[tuple[str, int], ...],
        terms: dict[str, list[TrafficTerm]],
        writes: bool = False,
    ) -> None:
        """Add the terms of a statement inside such loops."""
        inside = s.body if isinstance(s, Loop) else s
        if isinstance(s, Block) or sum(self.touched(inside).values()) <= self.capacity:
            name = s.var if isinstance(s, Loop) else ""
            wrote = {u.buffer.name for b in blocks(s) for u in self.uses[id(b)] if u.write}
            each = self.touched(inside)
            for buffer, n in self.touched(s).items():
                if not writes or buffer in wrote:
                    if n > self.capacity and isinstance(s, Loop) and self.gathers(s, buffer):
                        anew = (*outside, (s.var, _int(s.extent)))
                        terms.setdefault(buffer, []).append(TrafficTerm("", each[buffer], anew))
                        continue
                    whole = isinstance(s, Loop) and each.get(buffer) == n
                    around = self.returning(s, buffer, outside) if whole else outside
                    terms.setdefault(buffer, []).append(TrafficTerm(name, n, around))
        elif isinstance(s, Loop):
            self.walk(s.body, (*outside, (s.var, _int(s.extent))), terms, writes)
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.walk(x, outside, terms, writes)

    def gathers(self, loop: Loop, buffer: str) -> bool:
        """Whether each iteration of a loop reads a buffer at places that are read from others: anywhere."""
        return any(
            E.loads(i) and loop.var in E.variables(i)
            for b in blocks(loop)
            for u in self.uses[id(b)]
            if u.buffer.name == buffer
            for i in u.at
        )

    def returning(
        self, s: Stmt, buffer: str, outside: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[str, int], ...]:
        """The loops outside that fetch a buffer again, of which each iteration of the loop ``s`` uses all
        that ``s`` does. It stays through loops that do not move on in it: it is used again as soon as within
        ``s``."""
        moving = frozenset().union(
            *(
                E.variables(i)
                for b in blocks(s)
                for u in self.uses[id(b)]
                if u.buffer.name == buffer
                for i in u.at
            )
        )
        while outside and outside[-1][0] not in moving:
            outside = outside[:-1]
        return outside

    def touched(self, s: Stmt) -> dict[str, int]:
        """{buffer: bytes of the lines that a statement touches, what is outside of it standing still}."""
        if id(s) not in self.known:
            self.known[id(s)] = self._touched(s)
        return self.known[id(s)]

    def _touched(self, s: Stmt) -> dict[str, int]:
        places: dict[str, list[tuple[BlockAccess, dict[str, Expr]]]] = {}
        for b, loops in _blocks(s, ()):
            for u in self.uses[id(b)]:
                name = u.buffer.name
                inner = {x.var: x.extent for x in loops if x.var not in self.again.get(name, ())}
                places.setdefault(u.buffer.name, []).append((u, inner))
        out = {}
        for name, found in places.items():
            if s is not self.nest.body and name in self.held:
                continue
            # Accesses by different blocks have different loops: the largest stands for all.
            groups: dict[tuple[str, ...], list[BlockAccess]] = {}
            inners = {}
            for u, inner in found:
                groups.setdefault(tuple(inner), []).append(u)
                inners[tuple(inner)] = inner
            out[name] = max(_lines([u.at for u in us], us[0].buffer, inners[k]) for k, us in groups.items())
        return {name: LINE * n for name, n in out.items()}


def _again(nest: Nest, uses: dict[int, tuple[BlockAccess, ...]]) -> dict[str, set[str]]:
    """{buffer that is no argument: loops around all blocks that use it}. Their iterations use the same memory
    again (`schedules.passes.compact`)."""
    found: dict[str, set[str]] = {}
    for b, loops in _blocks(nest.body, ()):
        around = {x.var for x in loops}
        for name in {u.buffer.name for u in uses[id(b)]} - {*nest.params}:
            found[name] = found.get(name, around) & around
    return found


def _blocks(s: Stmt, loops: tuple[Loop, ...]) -> list[tuple[Block, tuple[Loop, ...]]]:
    if isinstance(s, Block):
        return [(s, loops)]
    if isinstance(s, Loop):
        return _blocks(s.body, (*loops, s))
    return [x for part in s.stmts for x in _blocks(part, loops)] if isinstance(s, Seq) else []


def places_of(nest: Nest, b: Block) -> tuple[BlockAccess, ...]:
    """What a block writes, then what it reads, each once."""
    named = [(w.buffer, w.indices, True) for w in b.writes]
    named += [(x.buffer, x.indices, False) for x in dict.fromkeys(reads(b))]
    return tuple(
        BlockAccess(*as_row_major(nest.buffer(n), tuple(bound(b, i) for i in ix)), write)
        for n, ix, write in named
    )


def _lines(ats: Sequence[tuple[Expr, ...]], buf: Buffer, inner: dict[str, Expr]) -> int:
    """Cache lines of the box that accesses touch together. Rows that lie closer than a line share lines.
    Where a place is read from a buffer, each of its values has lines of its own, as far as there are some."""
    if not buf.shape:
        return 1
    shape = [_int(n) for n in buf.shape]
    item = DTYPES[buf.dtype].itemsize
    box = [
        max(1, min(_int(n), m))
        for (_, n), m in zip(footprint(list(ats), inner, buf.shape, clip=True), shape, strict=True)
    ]
    lines, reach, pitch, dense = 1, item, item, True
    for d in reversed(range(len(shape))):
        places = list(dict.fromkeys(at[d] for at in ats))
        if any(map(E.loads, places)):
            count = sum(_int(values_at_most(i, inner)) for i in places)
            whole = math.ceil(shape[d] * pitch / LINE) if dense else lines * shape[d]
            lines, dense = max(1, min(lines * count, whole)), False
            pitch *= shape[d]
            continue
        step = _step([at[d] for at in ats], inner)
        count, apart = math.ceil(box[d] / step), step * pitch
        if dense and apart - reach < LINE:  # rows that leave out no line
            reach += (count - 1) * apart
            lines = math.ceil(reach / LINE)
        else:
            lines *= count
            dense = dense and count == 1
        pitch *= shape[d]
    return lines


def _step(indices: Sequence[Expr], inner: dict[str, Expr]) -> int:
    """The step of an index between its values; 1 where several accesses lie between."""
    if len(set(indices)) > 1:
        return 1
    terms = affine.linear(indices[0])[0].items()
    steps = [c for x, c in terms if inner.keys() & E.variables(x)]
    return math.gcd(*(int(c.value) if isinstance(c, Const) else 1 for c in steps)) or 1


def _int(e: Expr) -> int:
    """The value of an extent; what depends on loops outside is taken at their first iteration."""
    return int(E.evaluate(e, dict.fromkeys(E.variables(e), 0)))
