"""Whether an output of a lowered program may lie where inputs lie.

All pairs of a store to the output and a load from the input are looked at. A pair is in conflict where the
store may come first, and both may be at one address. What comes first is told by the loops around both: in
the outermost one whose iterations differ, the earlier iteration comes first. Iterations of a parallel loop
have no order. Lanes of a vector have the order of their loop around a single store, which loads before it
stores, and none otherwise. Everything else becomes a `System`, which must be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Compare, Expr, Logic, Var
from schedules.in_place.system import Sum, System, plus
from schedules.ir import Guard, Intrinsic, Loop, LoweredFunc, Seq, Stmt, Store, const, kids, size_ranges
from schedules.ir.exprs import expressions
from schedules.ir.nodes import Buffer
from schedules.ir.strides import known_extents, known_strides
from schedules.model import LINE
from schedules.te.inside import guarded_loads

# Pairs of accesses at most: more take seconds.
MOST_PAIRS = 20_000


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
                if not self.system(store, load, shared[:t], (loop, sign)).is_empty():
                    return self.told(store, load, loop.var, kind)
        if (first or unit) and not self.system(store, load, shared, None).is_empty():
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

    def system(
        self, store: _Access, load: _Access, same: Sequence[Loop], differ: tuple[Loop, int] | None
    ) -> System:
        """Where both are at one address: in one iteration of the loops ``same``, and the store in an earlier
        (1) or later (-1) one of loop ``differ``."""
        s = System()
        alike = frozenset(x.var for x in same)
        names = _Names(s, self.func)
        w, r = (names.side(mark, alike, a) for mark, a in (("w", store), ("r", load)))
        if differ is not None:
            earlier, later = (w, r) if differ[1] > 0 else (r, w)
            v = Var(differ[0].var)
            s.least.append(plus(plus(later.sum(v), earlier.sum(v), -1), ({}, 1), -1))
        apart = self.same_dimensions
        if apart is not None:
            for i, j, d in zip(store.indices, load.indices, apart, strict=True):
                s.equal.append(plus(plus(w.sum(i), r.sum(j), -1), ({}, d)))
        at, of = (
            affine.from_linear(*affine.rejoined(affine.offset(x.indices, known_strides(b))))
            for x, b in ((store, self.output), (load, self.input))
        )
        s.equal.append(plus(plus(w.sum(at), r.sum(of), -1), ({}, self.elements)))
        return s

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


@dataclass
class _Names:
    """Variables of a system. Loops that both accesses share are one variable, others one for each access."""

    system: System
    func: LoweredFunc
    known: dict[tuple[str, Expr], Sum] = field(default_factory=dict)

    def side(self, mark: str, alike: frozenset[str], access: _Access) -> _Side:
        side = _Side(self, mark, alike, frozenset(x.var for x in access.loops))
        for x in access.loops:
            v = side.sum(Var(x.var))
            self.system.least += [v, plus(plus(side.sum(x.extent), v, -1), ({}, 1), -1)]
        for c in access.when:
            side.holds(c)
        return side


@dataclass
class _Side:
    names: _Names
    mark: str
    alike: frozenset[str]
    loops: frozenset[str]

    def holds(self, cond: Expr) -> None:
        """Take a condition on indices into the system, if it is one."""
        match cond:
            case Logic(op="and", args=args):
                for x in args:
                    self.holds(x)
            case Logic(op="not", args=(Logic(op="or", args=args),)):
                for x in args:
                    self.holds(Logic("not", (x,)))
            case Logic(op="not", args=(Compare(op="<" | "<=" as op, a=a, b=b),)):
                self.holds(Compare("<=" if op == "<" else "<", b, a))
        if not isinstance(cond, Compare) or E.dtype_of(cond.a) != E.INDEX:
            return
        less = plus(self.sum(cond.b), self.sum(cond.a), -1)
        system = self.names.system
        if cond.op == "<":
            system.least.append(plus(less, ({}, 1), -1))
        elif cond.op == "<=":
            system.least.append(less)
        elif cond.op == "==":
            system.equal.append(less)

    def sum(self, e: Expr) -> Sum:
        """An index as a sum of variables of the system."""
        terms, rest = affine.linear(e)
        out: Sum = ({}, const(rest) or 0)
        for atom, c in terms.items():
            factor = const(c)
            if factor is None:
                return self.unknown(e)
            out = plus(out, self.atom(atom), factor)
        return out

    def unknown(self, e: Expr) -> Sum:
        return {f"{self.mark}:{E.show(e)}": 1}, 0

    def atom(self, e: Expr) -> Sum:
        mark = "" if E.variables(e) <= self.alike and not E.loads(e) else self.mark
        key = (mark, e)
        if key not in self.names.known:
            self.names.known[key] = self.made(e, mark)
        return self.names.known[key]

    def made(self, e: Expr, mark: str) -> Sum:
        me: Sum = ({f"{mark}:{E.show(e)}": 1}, 0)
        least = self.names.system.least
        if isinstance(e, Var):
            if e.name not in self.loops:  # told by the call, as sizes are: one value for all
                me = ({e.name: 1}, 0)
                low, high = size_ranges(self.names.func.sizes).get(e.name, (0, LINE))
                least += [plus(me, ({}, low), -1), plus(({}, high), me, -1)]
            return me
        if isinstance(e, Binary) and e.op in ("//", "%") and (by := const(e.b)):
            whole: Sum = ({f"{mark}:{E.show(Binary('//', e.a, e.b))}": 1}, 0)
            below = plus(self.sum(e.a), whole, -by)
            least += [below, plus(({}, by - 1), below, -1)]
            return whole if e.op == "//" else below
        if isinstance(e, Binary) and e.op in ("min", "max"):
            a, b = (
                (plus(x, me, -1) if e.op == "min" else plus(me, x, -1)) for x in map(self.sum, (e.a, e.b))
            )
            least += [a, b]
            none: Sum = ({}, 0)
            self.names.system.either.append((plus(none, a, -1), plus(none, b, -1)))
        return me


__all__ = ["Conflict", "Lies", "conflict", "in_place"]
