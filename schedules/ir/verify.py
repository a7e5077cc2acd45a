"""Well-formedness of a nest before it is lowered, and of lowered code, checked between passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.errors import AutotuneError
from schedules.expr import Const, Expr
from schedules.ir import (
    Alloc,
    Block,
    Buffer,
    Loop,
    Nest,
    Seq,
    Stmt,
    blocks,
    const,
    kids,
    size_ranges,
    skew,
    walk,
)
from schedules.ir.exprs import expressions, places, written
from schedules.strides import flaw
from schedules.te.open_sizes import OpenSize


class VerifyError(AutotuneError):
    """A pass produced code that breaks an invariant of the IR, or a primitive did: a bug of this project."""


def verify_names(nest: Nest) -> None:
    """Raise VerifyError unless every loop, every buffer and every iteration of a block has a name of its own:
    passes look them up by name."""
    _each_once("loops", (x.var for x in walk(nest.body) if isinstance(x, Loop)))
    _each_once("buffers", (b.name for b in nest.buffers))
    for b in blocks(nest.body):
        _each_once(f"iterations of block {b.name}", (i.var for i in b.iters))


def _each_once(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for n in names:
        if n in seen:
            raise VerifyError(f"before lowering: two {what} are named {n}")
        seen.add(n)


def _flaw(b: Buffer, written: set[str]) -> str:
    """What is wrong with the strides of a buffer, with the remedy."""
    shape, strides = ([const(e) for e in es] for es in (b.shape, b.strides or ()))
    if len(shape) == len(strides) and None in (*shape, *strides):
        shown = ", ".join(map(E.show, (*b.shape, *(b.strides or ()))))
        return f"its extents and strides ({shown}) are no numbers; fill the holes before it is lowered"
    return flaw([n or 0 for n in shape], [s or 0 for s in strides], written=b.name in written)


def verify(s: Stmt, params: tuple[Buffer, ...], after: str, sizes: tuple[OpenSize, ...] = ()) -> None:
    """Raise VerifyError unless every variable and buffer is defined where it is used, ranks fit, strides keep
    written elements apart, no block or hole is left, and lanes hold no loops."""

    def refuse(flaws: Iterable[str]) -> None:
        for what in flaws:
            raise VerifyError(f"after {after}: {what}")

    def go(x: Stmt, names: frozenset[str], ranks: dict[str, int]) -> None:
        refuse(_flaws(x, names, ranks))
        if isinstance(x, Loop):
            names = names | {x.var}
        if isinstance(x, Alloc):
            ranks = ranks | {x.buffer.name: len(x.buffer.shape)}
        for k in kids(x):
            go(k, names, ranks)

    most = {v: hi for v, (_, hi) in size_ranges(sizes).items()}
    refuse(_flaws_of_strides(s, tuple(_at_most(b, most) for b in params)))
    known = frozenset(skew(b.name).name for b in params) | most.keys()
    go(s, known, {b.name: len(b.shape) for b in params})


def _at_most(b: Buffer, sizes: dict[str, int]) -> Buffer:
    """A buffer at the largest sizes."""
    if not any(map(affine.has_size, b.shape)):
        return b
    return replace(b, shape=tuple(Const(int(E.evaluate(n, sizes))) for n in b.shape))


def _flaws_of_strides(s: Stmt, params: tuple[Buffer, ...]) -> Iterator[str]:
    every = walk(s)
    buffers = (*params, *(x.buffer for x in every if isinstance(x, Alloc)))
    if strided := [b for b in buffers if b.strides is not None]:
        stored = {name for x in every for name in written(x)}
        for b in strided:
            if wrong := _flaw(b, stored):
                yield f"buffer {b.name}: {wrong}"


def _flaws(x: Stmt, names: frozenset[str], ranks: dict[str, int]) -> Iterator[str]:
    """What is wrong with a statement, without those inside it. ``names``: the variables that are defined;
    ``ranks``: the buffers that there are, with their ranks."""
    if isinstance(x, Block):
        yield f"block {x.name} is left"
    for e in expressions(x):
        yield from _flaws_of_expr(e, names, ranks)
    for p in places(x):
        if ranks.get(p.buffer) != len(p.indices):
            yield f"a {type(x).__name__.lower()} to {p.buffer} has the wrong rank, or no buffer"
    if isinstance(x, Loop) and x.kind == "vectorize" and any(isinstance(y, Loop) for y in walk(x.body)):
        yield f"vectorized loop {x.var} holds a loop"
    if isinstance(x, Seq) and any(isinstance(y, Seq) for y in x.stmts):
        yield "a sequence stands directly inside a sequence"


def _flaws_of_expr(e: Expr, names: frozenset[str], ranks: dict[str, int]) -> Iterator[str]:
    for name in E.holes(e):
        yield f"hole {name} is not decided"
    for name in E.variables(e) - names:
        yield f"variable {name} is not defined in {E.show(e)}"
    for y in E.loads(e):
        if ranks.get(y.buffer) != len(y.indices):
            yield f"{E.show(y)} reads a buffer that is not there, or not of that rank"
