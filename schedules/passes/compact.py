"""Allocates every intermediate buffer around its uses, no larger than the part that is live there."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import expr as E
from schedules.expr import Compare, Expr
from schedules.ir import GPU_AXES, Alloc, Buffer, Guard, Loop, Stmt, Store, kids, with_body
from schedules.ir.exprs import accesses, expressions, loads
from schedules.ir.regions import footprint
from schedules.ir.strides import resized
from schedules.passes.accesses import moved
from schedules.passes.fold_storage import fold, reads_earlier


def compact(s: Stmt, buffers: tuple[Buffer, ...], scans: bool = False) -> Stmt:
    """``s`` with an `Alloc` for each buffer at the innermost statement that holds all its uses. The buffer
    has the region touched from there, and its indices begin at that region's base. ``scans``: whether
    iterations may read what earlier ones wrote. Buffers then stay around such loops, and keep their last
    steps only (`fold`)."""
    named = _Named(scans)
    used = named.by(s)
    around: list[Buffer] = []  # what is allocated around all of it
    for b in buffers:
        if b.name in used:
            s = _place(s, b, named)
            while isinstance(s, Alloc) and not _is_entered_no_further(s.body):
                around.append(s.buffer)
                s = s.body
    for b in reversed(around):
        s = Alloc(b, s)
    return s


class _Named:
    """Which buffers statements name, with those in them. Most statements stay what they are while buffers
    are placed. ``scans``: as of `compact`."""

    def __init__(self, scans: bool) -> None:
        self.scans = scans
        self._known: dict[int, tuple[Stmt, frozenset[str]]] = {}  # by identity; kept alive

    def by(self, s: Stmt) -> frozenset[str]:
        found = self._known.get(id(s))
        if found is None:
            inside = map(self.by, kids(s))
            found = s, frozenset(x.buffer for x in accesses(s)).union(*inside)
            self._known[id(s)] = found
        return found[1]

    def walk(self, s: Stmt, buffer: str) -> Iterator[Stmt]:
        """``s``, and the statements in it that hold a use of a buffer."""
        yield s
        for k in kids(s):
            if buffer in self.by(k):
                yield from self.walk(k, buffer)


def _is_entered_no_further(s: Stmt) -> bool:
    """Whether no allocation stands inside a statement: it is one store, or lanes."""
    return isinstance(s, (Store, Guard)) or (isinstance(s, Loop) and s.kind == "vectorize")


def _place(s: Stmt, b: Buffer, named: _Named) -> Stmt:
    """Descend while a single child holds every use; ``s`` has one. Not into a loop of lanes or threads, nor
    into one whose later iterations read what its first one wrote, as those of a reduction do."""
    own = any(x.buffer == b.name for e in expressions(s) for x in E.loads(e))
    users = list(kids(s))
    if own or len(users) != 1:  # an only child is not searched: allocations nest as deep as there are buffers
        users = [k for k in users if b.name in named.by(k)]
    if not users:
        return s
    in_steps = named.scans and isinstance(s, Loop) and s.kind not in GPU_AXES  # these have no order
    if isinstance(s, Loop) and (_goes_on(s, b) or (in_steps and reads_earlier(s, b))):
        return _folded(s, b, named)
    if len(users) == 1 and not own and not (isinstance(s, Loop) and s.kind == "vectorize"):
        child = users[0]
        if not _is_entered_no_further(child):
            return with_body(s, lambda k: _place(k, b, named) if k is child else k)
        return with_body(s, lambda k: _folded(k, b, named) if k is child else k)
    if isinstance(s, (Loop, Guard, Alloc)):
        return with_body(s, lambda k: _folded(k, b, named))
    return _folded(s, b, named)


def _folded(s: Stmt, b: Buffer, named: _Named) -> Stmt:
    made = _alloc(s, b, named)
    return fold(made) if named.scans and isinstance(made, Alloc) else made


def _goes_on(loop: Loop, b: Buffer) -> bool:
    """Whether iterations read what an earlier one wrote: some writes are for one iteration only, such as
    those of initial values, and some reads are not."""
    writes: list[frozenset[Expr]] = []
    reads: list[frozenset[Expr]] = []

    def go(s: Stmt, conds: frozenset[Expr]) -> None:
        if isinstance(s, Guard) and _is_for_one(s.cond, loop.var):
            conds |= {s.cond}
        if any(ld.buffer == b.name for ld in loads(s)):
            reads.append(conds)
        if isinstance(s, Store) and s.buffer == b.name:
            writes.append(conds)
        for k in kids(s):
            go(k, conds)

    go(loop.body, frozenset())
    return any(not w <= r for w in writes for r in reads)


def _is_for_one(cond: Expr, var: str) -> bool:
    """Whether a condition holds for a single value of a variable, not for a range."""
    return any(isinstance(x, Compare) and x.op == "==" and var in E.variables(x) for x in E.walk(cond))


def _alloc(s: Stmt, b: Buffer, named: _Named) -> Stmt:
    users = list(named.walk(s, b.name))
    inner = {x.var: x.extent for x in users if isinstance(x, Loop)}
    used = [x.indices for y in users for x in accesses(y) if x.buffer == b.name]
    spans = footprint(used, inner, b.shape, clip=False)
    base = [s0 for s0, _ in spans]

    def at(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i - o for i, o in zip(indices, base, strict=True))

    known = {id(x) for x in users}
    placed = moved(s, b.name, b.name, at, lambda x: id(x) in known)
    return Alloc(resized(b, tuple(n for _, n in spans)), placed)
