"""Overlaps copies to shared memory with the iterations of a loop on a GPU that read them: the hints
``stages`` and ``prefetch``.

With ``stages=n``, what can be copied in the background (`schedules.passes.background`) gets ``n`` versions.
``for k: {S = G[k]}; {use S}`` becomes::

    {begin S[0] = G[0]}; signal; ...                                   n - 1 iterations' copies
    for k: await n - 2; {begin S[(k + n - 1) % n] = G[k + n - 1]}; signal; {use S[k % n]}

Version ``(k + n - 1) % n`` is the one that iteration ``k - 1`` read. So one barrier an iteration, behind the
wait, is enough: it shows all threads what the others copied, and tells that they have read the version
before. Copies are begun n - 1 iterations before they are read.

Everything else, and with ``prefetch=1`` alone all, goes through registers, one iteration ahead:
``R = G[0]; for k: {S = R}; {R = G[k + 1]}; {use S}``, as in SGEMM kernels since MAGMA's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Alloc,
    Await,
    Buffer,
    Copy,
    Guard,
    Loop,
    Seq,
    Signal,
    Stmt,
    Store,
    allocated,
    allocations,
    const,
    in_order,
    seq,
    walk,
    with_body,
)
from schedules.ir.exprs import loads, substitute, written
from schedules.ir.nest import numbered_each
from schedules.ir.strides import elements, known_strides
from schedules.passes.accesses import buffers, moved
from schedules.passes.background import CopyArrays, begun
from schedules.passes.simplify import Ranges, inside


def stages(s: Stmt, background: Collection[str], held: Sequence[Buffer], ranges: Ranges) -> Stmt:
    """``s``, the work of a block, with its copies to shared memory begun ahead of their loops' iterations
    where hints say so, and in the background to the buffers ``background``. ``held``: global arrays.
    ``ranges``: of the variables around."""
    lies = {x.buffer.name: x.buffer for x in walk(s) if isinstance(x, Alloc)}
    return _go(s, CopyArrays(background, lies | {b.name: b for b in held}), ranges)


def _go(s: Stmt, arrays: CopyArrays, ranges: Ranges) -> Stmt:
    if isinstance(s, Loop):
        one = _folded(s)
        if one.kind == "serial" and (staged := _staged(one, arrays, inside(one, ranges))) is not None:
            return staged
        ranges = inside(s, ranges)
    if isinstance(s, Seq):
        return _awaited(s.stmts, arrays, ranges)
    return with_body(s, lambda x: _go(x, arrays, ranges))


def _folded(s: Loop) -> Loop:
    """A loop in stages and the loops around it as one, so that it is filled and emptied once: steps of
    channels within the taps of a convolution."""
    if s.kind != "serial" or s.annotations or not isinstance(s.body, Loop):
        return s
    inner = _folded(s.body)
    n, m, k = const(s.extent), const(inner.extent), Var(f"{s.var}_{inner.var}")
    if inner.kind != "serial" or dict(inner.annotations).get("stages", 1) < 2 or n is None or m is None:
        return s
    body = substitute(inner.body, {s.var: k // m, inner.var: k % m})
    return Loop(k.name, Const(n * m), body, "serial", inner.annotations)


def _awaited(stmts: Sequence[Stmt], arrays: CopyArrays, ranges: Ranges) -> Stmt:
    """Statements in order, those that copy in the background awaited before the first that uses a copy, or
    that overwrites what is copied."""
    out: list[Stmt] = []
    copied: set[str] = set()
    sources: set[str] = set()
    for x in stmts:
        copies = begun(x, arrays, ranges)
        if copied & buffers(x) or sources & _written(x):
            out += [Signal(), Await(0)]
            copied, sources = set(), set()
        if copies is None:
            out.append(_go(x, arrays, ranges))
        else:
            out.append(copies)
            copied |= _written(x)
            sources |= _loaded(x)
    if copied:
        out += [Signal(), Await(0)]
    return seq(*out)


def _written(s: Stmt) -> set[str]:
    return {n for x in walk(s) for n in written(x)}


def _loaded(s: Stmt) -> set[str]:
    return {y.buffer for x in walk(s) for y in loads(x)}


@dataclass(frozen=True)
class _Phases:
    """The copies of a loop's body in the ``background``; those ``through`` registers that it begins with,
    each with its store and its loops; and the ``rest``."""

    background: list[Stmt]
    through: list[tuple[Stmt, Store, list[tuple[str, int]]]]
    rest: list[Stmt]


def _phases(s: Loop, shared: set[str], arrays: CopyArrays, ranges: Ranges) -> _Phases:
    changed = _written(s)
    staged = dict(s.annotations).get("stages", 1) > 1
    found = _Phases([], [], [])
    before: set[str] = set()
    for x in in_order(allocations(s.body)[1]):
        # not what an iteration makes for a later one, nor where something else stands before
        moves = not changed & _loaded(x) and not before & _written(x)
        ahead = staged and moves and _written(x) <= shared
        copies = begun(x, arrays, ranges) if ahead else None
        if copies is not None:
            found.background.append(copies)
        elif moves and not found.rest and (copy := _copy(x, shared)) is not None:
            found.through.append((x, *copy))
        else:
            found.rest.append(x)
            before |= buffers(x)
    return found


def _staged(s: Loop, arrays: CopyArrays, ranges: Ranges) -> Stmt | None:
    """A loop that has a hint and copies, with these ahead; None for others."""
    hints = dict(s.annotations)
    ahead = max(hints.get("stages", 1) - 1, int(hints.get("prefetch") == 1))
    allocs, _ = allocations(s.body)
    shared = {b.name for b in allocs if b.scope == "shared"}
    if not ahead or ("stages" not in hints and len(shared) < len(allocs)):
        return None
    found = _phases(s, shared, arrays, ranges)
    if not found.rest or not (found.background or found.through):
        return None
    rest = in_order(_awaited(found.rest, arrays, ranges))
    first, here, registers = _through_registers(s, found, allocs)
    if not found.background:
        inside = allocated(allocs, seq(*here, *rest))
        return allocated(registers, seq(*first, replace(s, body=inside)))
    names = {n for x in found.background for n in _written(x)}
    stay, versions = [b for b in allocs if b.name not in names], [b for b in allocs if b.name in names]
    k, extent = Var(s.var), s.extent

    def copies(at: Expr, version: Expr) -> Stmt:
        of = seq(*(_version(substitute(x, {s.var: at}), names, version) for x in found.background))
        return Guard(E.compare("<", at, extent), of)

    for i in range(ahead):
        first += [copies(Const(i), Const(i)), Signal()]
    body = seq(
        Await(ahead - 1),
        *here[: len(found.through)],
        copies(k + ahead, (k + ahead) % (ahead + 1)),
        Signal(),
        *here[len(found.through) :],
        *(_version(x, names, k % (ahead + 1)) for x in rest),
    )
    loop = seq(*first, replace(s, body=allocated(stay, body)))
    return allocated([*(_versions(b, ahead + 1, found.background) for b in versions), *registers], loop)


def _versions(b: Buffer, n: int, copies: Sequence[Stmt]) -> Buffer:
    """A buffer with ``n`` versions of its elements, one after another, each from where ``copies`` to it may
    begin. It is no larger than that, as estimates say."""
    width = max(x.count for s in copies for x in walk(s) if isinstance(x, Copy) and x.buffer == b.name)
    step = -(-elements(b) // width) * width
    strides = tuple(map(Const, (step, *known_strides(b))))
    return replace(b, shape=(Const(n), *b.shape), strides=strides)


def _version(s: Stmt, names: Collection[str], version: Expr) -> Stmt:
    """``s`` with every access to the buffers as one to a version."""
    for name in names:
        s = moved(s, name, name, lambda ix: (version, *ix))
    return s


def _through_registers(
    s: Loop, found: _Phases, allocs: Sequence[Buffer]
) -> tuple[list[Stmt], list[Stmt], list[Buffer]]:
    """(what is loaded before the loop; what its body begins with: the stores of an iteration, in as many
    statements as phases, and the loads of the next; the registers between them)."""
    if not found.through:
        return [], [], []
    dtypes = {b.name: b.dtype for b in allocs}
    here: list[Stmt] = []
    ahead: list[Stmt] = []
    held = []
    named = numbered_each((f"{store.buffer}_next" for _, store, _ in found.through), buffers(s))
    for (x, store, loops), name in zip(found.through, named, strict=False):
        register = Buffer(name, tuple(Const(n) for _, n in loops), dtypes[store.buffer], "local")
        held.append(register)
        at: tuple[Expr, ...] = tuple(Var(v) for v, _ in loops)
        ahead.append(_with_store(x, Store(register.name, at, store.value)))
        here.append(
            _with_store(x, Store(store.buffer, store.indices, Load(register.name, at, register.dtype)))
        )
    after = Var(s.var) + 1
    first: list[Stmt] = [substitute(x, {s.var: Const(0)}) for x in ahead]
    if not isinstance(s.extent, Const):  # a piece of a loop, which may be empty
        first = [Guard(E.compare("<", Const(0), s.extent), seq(*first))]
    later = Guard(E.compare("<", after, s.extent), seq(*(substitute(x, {s.var: after}) for x in ahead)))
    return first, [*here, later], held


def _copy(s: Stmt, shared: set[str]) -> tuple[Store, list[tuple[str, int]]] | None:
    """(the only store of a phase that fills a shared buffer from elsewhere, its loops); None for other
    phases."""
    every = walk(s)
    stores = [x for x in every if isinstance(x, Store)]
    loops = [(x.var, _most(x.extent)) for x in every if isinstance(x, Loop)]
    if len(stores) != 1 or stores[0].buffer not in shared or any(isinstance(x, Alloc) for x in every):
        return None
    if any(x.buffer in shared for x in E.loads(stores[0].value)):
        return None
    fixed = [(v, n) for v, n in loops if n is not None]
    return (stores[0], fixed) if len(fixed) == len(loops) and fixed else None


def _most(extent: Expr) -> int | None:
    """Most iterations of a loop whose tail is cut off, if known; else None."""
    if isinstance(extent, E.Binary) and extent.op == "min":
        known = [n for n in (_most(extent.a), _most(extent.b)) if n is not None]
        return min(known, default=None)
    return const(extent)


def _with_store(s: Stmt, store: Store) -> Stmt:
    return store if isinstance(s, Store) else with_body(s, lambda x: _with_store(x, store))
