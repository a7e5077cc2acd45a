"""Whether an output of a lowered program may lie where inputs lie.

All pairs of a store to the output and a load from the input are looked at. A pair is in conflict where the
store may come first, and both may be at one address. What comes first is told by the loops around both: in
the outermost one whose iterations differ, the earlier iteration comes first. Iterations of a parallel loop
have no order. Lanes of a vector have the order of their loop around a single store, which loads before it
stores, and none otherwise. Conditions tell what holds where both are at one address; they must be proved
impossible together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Expr, Var
from schedules.ir import Guard, Intrinsic, Loop, LoweredFunc, Seq, Stmt, Store, const, kids, size_ranges
from schedules.ir.exprs import expressions
from schedules.ir.nodes import Buffer
from schedules.ir.strides import known_extents, known_strides
from schedules.loads import with_loads
from schedules.model import LINE
from schedules.te.infeasible import impossible
from schedules.te.inside import guarded_loads

# Pairs of accesses at most: more take seconds.
MOST_PAIRS = 20_000
# Iterations of a loop whose extent is no number, and how its variable is called around the load.
_MOST, _OTHER = 2**40, "'"


@dataclass(frozen=True)
class Lies:
    """An output that begins ``elements`` after the beginning of an input, in its memory."""

    output: str
    input: str
    elements: int = 0


@dataclass(frozen=True)
class Conflict:
    """A store and a load that may be at one address, though the store may come first. ``loop``: the one whose
    iterations tell; "" where both are in one iteration. ``kind``: of that loop."""

    store: tuple[str, tuple[Expr, ...]]
    load: tuple[str, tuple[Expr, ...]]
    loop: str
    kind: str

    def __str__(self) -> str:
        wrote, read = (f"{n}[{', '.join(map(E.show, at))}]" for n, at in (self.store, self.load))
        when = {
            "": "later in the same iteration",
            "serial": f"in a later iteration of loop {self.loop}",
            "parallel": f"in another iteration of loop {self.loop}, which is parallel",
            "vectorize": f"in another lane of loop {self.loop}",
            "many": "later: there are too many of both to look at",
        }[self.kind]
        return f"{wrote} is written before {read} is read {when}, and both may be one element"


@dataclass(frozen=True)
class _Access:
    """``around``: statements around it, with their positions in sequences. ``when``: conditions under which
    it is reached."""

    buffer: str
    indices: tuple[Expr, ...]
    around: tuple[tuple[object, int], ...]
    when: tuple[Expr, ...]

    @property
    def loops(self) -> list[Loop]:
        return [s for s, _ in self.around if isinstance(s, Loop)]


def conflict(func: LoweredFunc, lies: Lies, threads: int) -> Conflict | None:
    """A pair of accesses that forbids it that an output lies so, or None where it is proved that every
    element is read before it is overwritten. ``threads``: of the kernel; with one, parallel
    loops run in order."""
    buffers = {b.name: b for b in func.params}
    found = list(_accesses(func.body, (), ()))
    stores = [a for w, a in found if w and a.buffer == lies.output]
    loads = list(dict.fromkeys(a for w, a in found if not w and a.buffer == lies.input))
    order = _Order(buffers[lies.output], buffers[lies.input], lies.elements, threads, func)
    if len(stores) * len(loads) > MOST_PAIRS:
        return order.told(stores[0], loads[0], "", "many")
    for store in dict.fromkeys(stores):
        for load in loads:
            if (wrong := order.conflict(store, load)) is not None:
                return wrong
    return None


def in_place(func: LoweredFunc, places: Sequence[Lies], threads: int) -> LoweredFunc:
    """The program whose outputs may lie in the memory of inputs. Raises ScheduleError, which names a pair of
    accesses, where an element may be read after it was overwritten."""
    for lies in places:
        wrong = conflict(func, lies, threads)
        if wrong is not None:
            raise ScheduleError(
                f"output {lies.output!r} cannot lie in the memory of input {lies.input!r}: {wrong}"
            )
    written = {x.output for x in places}
    return replace(
        func,
        # what was just read is in the caches
        streamed=tuple(n for n in func.streamed if n not in written),
        overlapping=tuple((x.output, x.input) for x in places),
    )


def _accesses(
    s: Stmt, around: tuple[tuple[object, int], ...], when: tuple[Expr, ...]
) -> Iterator[tuple[bool, _Access]]:
    """(whether it writes, access) of a statement."""
    for e in expressions(s):
        for load, conditions in guarded_loads(e, when):
            here = around if isinstance(s, (Loop, Guard)) else (*around, (s, 0))
            yield False, _Access(load.buffer, load.indices, here, conditions)
    if isinstance(s, Store):
        yield True, _Access(s.buffer, s.indices, (*around, (s, 0)), when)
    elif isinstance(s, Seq):
        for n, x in enumerate(s.stmts):
            yield from _accesses(x, (*around, (s, n)), when)
    else:
        inner = (*when, *E.conjuncts(s.cond)) if isinstance(s, Guard) else when
        for x in kids(s):
            yield from _accesses(x, (*around, (s, 0)), inner)


@dataclass
class _Order:
    """What is the same for all pairs of accesses."""

    output: Buffer
    input: Buffer
    elements: int
    threads: int
    func: LoweredFunc

    def told(self, store: _Access, load: _Access, loop: str, kind: str) -> Conflict:
        return Conflict((store.buffer, store.indices), (load.buffer, load.indices), loop, kind)

    def conflict(self, store: _Access, load: _Access) -> Conflict | None:
        shared: list[Loop] = []
        unit, first = False, False
        for (a, m), (b, n) in zip(store.around, load.around, strict=False):
            if a is not b:
                break
            if m != n:
                first = m < n
                break
            unit = unit or isinstance(a, Intrinsic)
            if isinstance(a, Loop):
                shared.append(a)
        for t, loop in enumerate(shared):
            kind = self.kind(loop, unit)
            for sign in (1,) if kind == "serial" else (1, -1):
                if not self.apart(store, load, shared[:t], (loop, sign)):
                    return self.told(store, load, loop.var, kind)
        if (first or unit) and not self.apart(store, load, shared, None):
            return self.told(store, load, "", "")
        return None

    def kind(self, loop: Loop, unit: bool) -> str:
        """How iterations of a loop come one after another."""
        if loop.kind == "parallel" and self.threads > 1:
            return "parallel"
        if unit:
            return "vectorize"
        if loop.kind == "vectorize":
            body = loop.body
            while isinstance(body, Guard):
                body = body.body
            return "serial" if isinstance(body, Store) else "vectorize"
        return "serial"

    def apart(
        self, store: _Access, load: _Access, same: Sequence[Loop], differ: tuple[Loop, int] | None
    ) -> bool:
        """Whether it is proved that both are at no one address in one iteration of the loops ``same``, with
        the store in an earlier (1) or later (-1) one of loop ``differ``."""
        alike = {x.var for x in same}
        others = {x.var: Var(x.var + _OTHER) for x in load.loops if x.var not in alike}
        conds: list[Expr] = []
        loops: dict[str, tuple[int, int]] = {}

        def there(e: Expr) -> Expr:
            return with_loads(E.substitute(e, others), lambda x: replace(x, buffer=x.buffer + _OTHER))

        for access, named in ((store, _here), (load, there)):
            for x in access.loops:
                v, n = named(Var(x.var)), const(x.extent)
                loops |= dict.fromkeys(E.variables(v), (0, (_MOST if n is None else n) - 1))
                if n is None:
                    conds.append(E.compare("<", v, named(x.extent)))
            conds += map(named, access.when)
        if differ is not None:
            w = Var(differ[0].var)
            r = there(w)
            conds.append(w < r if differ[1] > 0 else r < w)
        if self.same_dimensions is not None:
            for i, k, d in zip(store.indices, load.indices, self.same_dimensions, strict=True):
                conds.append(E.compare("==", i + d, there(k)))
        at, of = (
            affine.from_linear(*affine.rejoined(affine.offset(x.indices, known_strides(b))))
            for x, b in ((store, self.output), (load, self.input))
        )
        conds.append(E.compare("==", at + self.elements, there(of)))
        # what is no variable of a loop is told by the call, as sizes are
        told = {v: (0, LINE) for c in conds for v in E.variables(c)}
        return impossible(conds, told | size_ranges(self.func.sizes) | loops)

    @property
    def same_dimensions(self) -> tuple[int, ...] | None:
        """By how much each index of the input is above that of the output at the same address; None where the
        dimensions do not tell. Programs read and write arguments inside of their dimensions alone."""
        steps = known_strides(self.input)
        if steps != known_strides(self.output) or len(set(steps)) < len(steps):
            return None
        rest, found = self.elements, [0] * len(steps)
        for d in sorted(range(len(steps)), key=lambda d: -abs(steps[d])):
            if steps[d] <= 0:
                return None
            found[d], rest = divmod(rest, steps[d])
        ins, outs = known_extents(self.input), known_extents(self.output)
        inside = all(0 <= d and d + m <= n for d, m, n in zip(found, outs, ins, strict=True))
        return tuple(found) if inside and not rest else None


def _here(e: Expr) -> Expr:
    return e


__all__ = ["Conflict", "Lies", "conflict", "in_place"]
