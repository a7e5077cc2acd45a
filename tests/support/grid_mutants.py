"""Small changes of lowered programs of grids, one statement each: what the checkers of such programs have to
notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.expr import Const, Expr
from schedules.instructions import INSTRUCTIONS
from schedules.ir import Alloc, Await, Barrier, Copy, Guard, Intrinsic, Loop, Seq, Signal, Stmt, Store, kids, seq, with_body
from schedules.ir.grid import GridProgram


@dataclass(frozen=True)
class Mutant:
    """``stronger``: whether it only waits for more than the program does."""

    what: str
    program: GridProgram
    stronger: bool = False


Change = tuple[str, Stmt, bool]


def grid_mutants(p: GridProgram) -> Iterator[Mutant]:
    """Every change of every statement of a program."""
    for number, k in enumerate(p.kernels):
        shared = {x.buffer.name: x.buffer for x in _all(k.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"}
        sizes = {n: int(b.shape[0].value) for n, b in shared.items()}  # type: ignore[attr-defined]
        for n, (what, body, stronger) in enumerate(_variants(k.body, lambda s: _changes(s, sizes))):
            kernels = [*p.kernels]
            kernels[number] = replace(k, body=body)
            yield Mutant(f"{n}: {what}", replace(p, kernels=tuple(kernels)), stronger)


def _all(s: Stmt) -> Iterator[Stmt]:
    yield s
    for x in kids(s):
        yield from _all(x)


def _variants(s: Stmt, local: Callable[[Stmt], Iterator[Change]]) -> Iterator[Change]:
    yield from local(s)
    if isinstance(s, Seq):
        for i, x in enumerate(s.stmts):
            before, after = s.stmts[:i], s.stmts[i + 1 :]
            if isinstance(x, (Barrier, Signal, Await)):
                yield f"without {_told(x)}", seq(*before, *after), False
                if after:
                    yield f"{_told(x)} later", seq(*before, after[0], x, *after[1:]), False
            for what, y, stronger in _variants(x, local):
                yield what, seq(*before, y, *after), stronger
    elif not isinstance(s, Intrinsic):
        for x in kids(s):
            for what, y, stronger in _variants(x, local):
                yield what, with_body(s, lambda _, y=y: y), stronger  # type: ignore[misc]


def _told(x: Stmt) -> str:
    return f"Await({x.pending})" if isinstance(x, Await) else type(x).__name__


def _changes(s: Stmt, sizes: dict[str, int]) -> Iterator[Change]:
    match s:
        case Await(pending=n):
            yield f"Await({n}) waits for one less", Await(n + 1), False
            yield f"Await({n}) waits for two less", Await(n + 2), False
            if n:
                yield f"Await({n}) waits for one more", Await(n - 1), True
        case Signal():
            yield "two signals", seq(Signal(), Signal()), False
        case Copy():
            yield from _of_copy(s, sizes)
        case Guard(cond=c, body=body):
            for x in _weaker(c):
                yield f"guard {E.show(c)} becomes {E.show(x)}", replace(s, cond=x), False
            if any(isinstance(x, (Copy, Signal)) for x in _all(body)):
                yield f"without guard {E.show(c)}", body, False
        case Store(value=Const()):
            yield f"without {s.buffer} = {E.show(s.value)}", seq(), False
        case Store(buffer=b, value=v):
            for read in [x for x in E.loads(v) if x.buffer in sizes]:
                for what, at in _moved(read.buffer, read.indices, sizes):
                    changed = E.rewrite(v, lambda e, read=read, at=at: replace(e, indices=at) if e == read else None)
                    yield f"{b} is made of {what}", replace(s, value=changed), False
        case Intrinsic(instruction=ins, operands=ops):
            for other in INSTRUCTIONS.values():
                same = {t.name for t in other.operands} == {t.name for t in ins.operands}
                if other is not ins and other.threads > 1 and same and _like(ins.name, other.name):
                    yield f"{ins.name} becomes {other.name}", replace(s, instruction=other), False
            for i, o in enumerate(ops):
                for what, at in _moved(o.buffer, o.indices, sizes):
                    new = replace(o, indices=at)
                    yield f"{ins.name} of {what}", replace(s, operands=(*ops[:i], new, *ops[i + 1 :])), False


def _like(a: str, b: str) -> bool:
    """Whether two instructions differ in the layout of their operands alone."""
    return a.split("_")[:2] == b.split("_")[:2] and a.startswith("ldmatrix")


def _of_copy(s: Copy, sizes: dict[str, int]) -> Iterator[Change]:
    yield f"without a copy to {s.buffer}", seq(), False
    if s.cond is not None:
        yield f"copy to {s.buffer} whatever {E.show(s.cond)} is", replace(s, cond=None), False
        for x in _weaker(s.cond):
            yield f"copy to {s.buffer} if {E.show(x)}", replace(s, cond=x), False
    if s.count > 1:
        yield f"half a copy to {s.buffer}", replace(s, count=s.count // 2), False
    for what, at in _moved(s.buffer, s.indices, sizes):
        yield f"copy to {what}", replace(s, indices=at), False
    yield f"copy from elsewhere to {s.buffer}", replace(s, places=(*s.places[:-1], s.places[-1] + s.count)), False


def _moved(buffer: str, at: tuple[Expr, ...], sizes: dict[str, int]) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """Indices of another version, or of another row, of a shared buffer."""
    if buffer in sizes and sizes[buffer] > 1:
        yield f"the next {buffer}", ((at[0] + 1) % sizes[buffer], *at[1:])


def _weaker(c: Expr) -> Iterator[Expr]:
    parts = E.conjuncts(c)
    for i in range(len(parts)):
        if len(parts) > 1:
            yield E.all_of(*parts[:i], *parts[i + 1 :])
