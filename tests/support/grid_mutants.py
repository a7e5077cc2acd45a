"""Small changes of lowered programs of grids, one statement each: what the checkers of such programs have to
notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from schedules import expr as E
from schedules.expr import Const, Expr
from schedules.instructions import INSTRUCTIONS
from schedules.ir import (
    Alloc,
    Await,
    Barrier,
    Copy,
    Guard,
    Intrinsic,
    Seq,
    Signal,
    Stmt,
    Store,
    const,
    kids,
    seq,
    walk,
    with_body,
)
from schedules.ir.grid import GridProgram

# How a change can be none: the program only waits for more, or it copies to places that nobody reads.
STRONGER, UNREAD = "stronger", "unread"


@dataclass(frozen=True)
class Mutant:
    """``harmless``: `STRONGER` or `UNREAD` where it may change nothing, and why; else nothing."""

    what: str
    program: GridProgram
    harmless: str = ""


Change = tuple[str, Stmt, str]
Places = tuple[Expr, ...]


def grid_mutants(p: GridProgram) -> Iterator[Mutant]:
    """Every change of every statement of a program."""
    for number, k in enumerate(p.kernels):
        shared = [x.buffer for x in walk(k.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"]
        versions = {b.name: const(b.shape[0]) or 1 for b in shared}
        for what, body, harmless in _variants(k.body, versions):
            kernels = (*p.kernels[:number], replace(k, body=body), *p.kernels[number + 1 :])
            yield Mutant(what, replace(p, kernels=kernels), harmless)


def _variants(s: Stmt, versions: dict[str, int]) -> Iterator[Change]:
    if type(s) in CHANGES:
        yield from CHANGES[type(s)](s, versions)
    if isinstance(s, Seq):
        for i, x in enumerate(s.stmts):
            before, after = s.stmts[:i], s.stmts[i + 1 :]
            if isinstance(x, (Barrier, Signal, Await)):
                yield f"without {_told(x)}", seq(*before, *after), ""
            if isinstance(x, (Barrier, Signal, Await)) and after:
                groups = isinstance(x, Signal) and not any(isinstance(y, Await) for y in walk(after[0]))
                later = seq(*before, after[0], x, *after[1:])
                yield f"{_told(x)} later", later, STRONGER if groups else ""  # groups are larger
            for what, y, harmless in _variants(x, versions):
                yield what, seq(*before, y, *after), harmless
    elif not isinstance(s, Intrinsic):
        for x in kids(s):
            for what, y, harmless in _variants(x, versions):
                yield what, with_body(s, partial(_always, y)), harmless


def _always(y: Stmt, _: Stmt) -> Stmt:
    return y


def _told(x: Stmt) -> str:
    return f"Await({x.pending})" if isinstance(x, Await) else type(x).__name__


def _of_await(s: Await, _: dict[str, int]) -> Iterator[Change]:
    for more in (1, 2):
        yield f"{_told(s)} waits for {more} less", Await(s.pending + more), ""
    if s.pending:
        yield f"{_told(s)} waits for one more", Await(s.pending - 1), STRONGER


def _of_signal(s: Signal, _: dict[str, int]) -> Iterator[Change]:
    yield "two signals", seq(s, s), STRONGER  # of the last groups, one more is empty


def _of_guard(s: Guard, _: dict[str, int]) -> Iterator[Change]:
    for x in _weaker(s.cond):
        yield f"if {E.show(x)} in place of {E.show(s.cond)}", replace(s, cond=x), ""
    yield f"whether or not {E.show(s.cond)}", s.body, ""


def _of_store(s: Store, versions: dict[str, int]) -> Iterator[Change]:
    if isinstance(s.value, Const):
        yield f"without {s.buffer} = {E.show(s.value)}", seq(), ""
    for x in (x for x in E.loads(s.value) if versions.get(x.buffer, 1) > 1):
        there = replace(x, indices=_next(x.indices, versions[x.buffer]))
        value = E.rewrite(s.value, lambda e, x=x, there=there: there if e == x else None)  # type: ignore[misc]
        yield f"{s.buffer} is made of the next version of {x.buffer}", replace(s, value=value), ""


def _of_copy(s: Copy, versions: dict[str, int]) -> Iterator[Change]:
    yield f"without a copy to {s.buffer}", seq(), ""
    if s.cond != E.TRUE:
        yield f"copy to {s.buffer} whether or not {E.show(s.cond)}", replace(s, cond=E.TRUE), UNREAD
    for x in _weaker(s.cond):
        yield f"copy to {s.buffer} if {E.show(x)}", replace(s, cond=x), UNREAD
    yield f"half a copy to {s.buffer}", replace(s, count=s.count // 2), ""
    if versions[s.buffer] > 1:
        at = _next(s.indices, versions[s.buffer])
        yield f"copy to the next version of {s.buffer}", replace(s, indices=at), ""
    beyond = (*s.value.indices[:-1], s.value.indices[-1] + s.count)
    yield f"copy of what is beyond to {s.buffer}", replace(s, value=replace(s.value, indices=beyond)), ""


def _of_intrinsic(s: Intrinsic, versions: dict[str, int]) -> Iterator[Change]:
    names = {t.name for t in s.instruction.operands}
    for other in INSTRUCTIONS.values():
        if other is not s.instruction and _alike(s.instruction.name, other.name):
            assert {t.name for t in other.operands} == names
            yield f"{other.name} in place of {s.instruction.name}", replace(s, instruction=other), ""
    for i, o in enumerate(s.operands):
        if versions.get(o.buffer, 1) > 1:
            moved = replace(o, indices=_next(o.indices, versions[o.buffer]))
            others = (*s.operands[:i], moved, *s.operands[i + 1 :])
            yield f"{s.instruction.name} of the next version of {o.buffer}", replace(s, operands=others), ""


def _alike(a: str, b: str) -> bool:
    """Whether two instructions load the same, to other places."""
    return a.startswith("ldmatrix") and a.split("_")[:2] == b.split("_")[:2]


def _next(at: Places, versions: int) -> Places:
    return ((at[0] + 1) % versions, *at[1:])


def _weaker(c: Expr) -> Iterator[Expr]:
    parts = E.conjuncts(c)
    for i in range(len(parts) if len(parts) > 1 else 0):
        yield E.all_of(*parts[:i], *parts[i + 1 :])


CHANGES = {
    Await: _of_await,
    Signal: _of_signal,
    Guard: _of_guard,
    Store: _of_store,
    Copy: _of_copy,
    Intrinsic: _of_intrinsic,
}
