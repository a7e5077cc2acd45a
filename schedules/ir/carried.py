"""Whether every read of a scan's tensors still comes after the write of the element that it reads.

The statement after a primitive is looked at, not the primitive: for each pair of accesses, a read that runs
at the same time as the write of its element, or before it, is shown to be impossible. What reads then are
values that stand in memory whatever the order of all else is, as each element has one value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Block, Loop, Nest
from schedules.ir.deps import unshifted
from schedules.ir.nest import bound, domain, places_of, readers, reads, writers
from schedules.ir.nest_index import index_of
from schedules.te.infeasible import impossible
from schedules.te.inside import guarded_loads
from schedules.te.sizes_in_values import without_holes

# How a loop of the read is called beside that of the write.
_OTHER = "'"
_SERIAL = ("serial", "unroll")
# Variable, extent and kind of loops, from the outside.
Around = tuple[tuple[str, Expr, str], ...]


def carried_buffers(nest: Nest) -> frozenset[str]:
    """Buffers that a block reads before a block that writes them, or that writes them itself at another
    place: those of values that later iterations read."""
    order = index_of(nest.body).blocks
    last = {w.buffer: n for n, b in enumerate(order) for w in b.writes}
    found = set()
    for n, b in enumerate(order):
        own = {(w.buffer, w.indices) for w in b.writes}
        for x in reads(b):
            if last.get(x.buffer, -1) >= n and (x.buffer, x.indices) not in own:
                found.add(x.buffer)
    return frozenset(found)


def late_read(nest: Nest, buffers: Collection[str]) -> str:
    """What is wrong with the first read of one of the buffers that is not proved to come after every write of
    its element; nothing if there is none. What holes decide is not looked at."""
    for name in buffers:
        writing = writers(nest, name)
        for r in readers(nest, name):
            for load, guards in _reads(r, name):
                if not writing:
                    return f"block {r.name} reads {E.show(load)}, which no block would write any more"
                for w in writing:
                    if not _after(nest, w, r, load, guards):
                        places = next(x for x in w.writes if x.buffer == name)
                        made = f"{name}[{', '.join(map(E.show, places.indices))}]"
                        return (
                            f"block {r.name} reads {E.show(load)}, and block {w.name} writes {made}: the "
                            "read is not proved to come after the write of its element"
                        )
    return ""


def comes_after(nest: Nest, r: Block, load: Load, guards: Sequence[Expr]) -> bool:
    """Whether a read of a block, under conditions on its axes, is proved to come after all writes of its
    element."""
    return all(_after(nest, w, r, load, tuple(guards)) for w in writers(nest, load.buffer))


@lru_cache(maxsize=1 << 12)  # a primitive changes few blocks, and sketches have many in common
def _reads(b: Block, buffer: str) -> tuple[tuple[Load, tuple[Expr, ...]], ...]:
    """Reads of a buffer, with the conditions on the block's axes under which they happen."""
    parts = (*((v, b.where) for v in (*b.values, *places_of(b))), *((w, ()) for w in b.where))
    found = (x for e, guards in parts for x in guarded_loads(e, guards) if x[0].buffer == buffer)
    return tuple(dict.fromkeys(found))


def _after(nest: Nest, w: Block, r: Block, load: Load, guards: tuple[Expr, ...]) -> bool:
    """Whether each read of the load comes after all writes of ``w`` to its element."""
    index = index_of(nest.body)
    loops, others = ([x for x in index.path(b) if isinstance(x, Loop)] for b in (w, r))
    shared = sum(1 for _ in takewhile(lambda p: p[0] is p[1], zip(loops, others, strict=False)))
    ordered = w is not r and _stands_before(nest, w, r)
    if ordered and not shared:
        return True
    if any(E.holes(x.extent) for x in (*loops, *others)):
        return True  # numeric: decided when the trace is replayed with numbers
    around = (tuple((x.var, x.extent, x.kind) for x in each) for each in (loops, others))
    return _proved_after(w, r, load, guards, *around, shared, ordered)


@lru_cache(maxsize=1 << 13)
def _proved_after(
    w: Block,
    r: Block,
    load: Load,
    guards: tuple[Expr, ...],
    loops: Around,
    others: Around,
    shared: int,
    ordered: bool,
) -> bool:
    """`_after`. ``loops``, ``others``: those around the write and the read, of which so many are the same
    ones. ``ordered``: whether the write stands before the read in an iteration."""
    # Tiles that are moved inwards run some instances again, later, and with the values that stand there.
    w, r = (replace(b, binds=tuple(map(unshifted, b.binds))) for b in (w, r))
    env: dict[str, Expr] = {v: Var(v + _OTHER) for v, _, _ in others}
    ranges = dict(_ranges(loops, ""))
    ranges |= dict(_ranges(others, _OTHER))

    def there(e: Expr) -> Expr:
        return without_holes(E.substitute(bound(r, e), env))

    place = next(x for x in w.writes if x.buffer == load.buffer)
    conds = [c for i, e in zip(w.iters, w.binds, strict=True) for c in domain(i, e)]
    conds += [there(c) for i in r.iters for c in domain(i, Var(i.var))]
    conds += map(there, guards)
    conds += [
        E.compare("==", without_holes(bound(w, a)), there(b))
        for a, b in zip(place.indices, load.indices, strict=True)
    ]
    conds = [c for c in conds if c != E.TRUE]
    equal: list[Expr] = []
    for var, _, kind in loops[:shared]:
        a, b = Var(var), Var(var + _OTHER)
        wrong = [b < a] if kind in _SERIAL else [b < a, a < b]
        if not all(impossible((*conds, *equal, c), ranges) for c in wrong):
            return False
        equal.append(E.compare("==", a, b))
    if ordered:
        return True
    return impossible((*conds, *equal), ranges)


def _ranges(loops: Around, suffix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for var, extent, _ in loops:
        n = extent.value if isinstance(extent, Const) else 2**40
        yield var + suffix, (0, int(n) - 1)


def _stands_before(nest: Nest, a: Block, b: Block) -> bool:
    return next(x for x in index_of(nest.body).blocks if x is a or x is b) is a
