"""compute_ahead: compute what a step does not wait for ahead of the loop of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from schedules import expr as E
from schedules.expr import Binary, Bits, Call, Cast, Expr, Fma, Load, Select, Var
from schedules.ir import Access, Block, Buffer, Loop, Nest, blocks, loops_around
from schedules.ir.carried import comes_after
from schedules.ir.nest import (
    add_buffer,
    block_names,
    find_block,
    find_loop,
    in_loops_like,
    insert_before,
    loop_path,
    loops_of,
    replace_stmt,
    with_values,
)
from schedules.model import Target
from schedules.primitives.base import Primitive
from schedules.te.inside import guarded_loads

# What costs time, of an expression.
_OPERATIONS = (Binary, Call, Fma, Cast, Bits)


@dataclass(frozen=True)
class ComputeAhead(Primitive[str]):
    """Compute the parts of the value of ``block`` that do not wait for iterations of ``loop``, in a block of
    their own ahead of the loop, for all of its iterations.

    Before: ``for j: y[i, j] = y[i, j - 1] * a + (x[i, j] + y[i - 1, j]) * b``. After compute_ahead::

        for j: y_ahead[i, j] = (x[i, j] + y[i - 1, j]) * b
        for j: y[i, j] = y[i, j - 1] * a + y_ahead[i, j]

    So what is left in a chain of steps is short, and the rest runs in vectors. A part is a whole operand of
    the expression as it is written: nothing is grouped otherwise, and every result is the same. `ComputeAt`
    moves the new block into a tile of the loop, and its buffer shrinks to what the tile reads. Legal for a
    block without a reduction that has such a part, which computes something. Cost: the parts are stored and
    loaded. Returns the name of the new block.

    >>> x = te.placeholder((8, 64), name="x")
    >>> y = te.scan((8, 64), lambda y, i, j: y[i, j - 1] + x[i, j] * 2.0, init=0.0, axis=1, name="y")
    >>> t = at.Schedule([x, y])
    >>> t.compute_ahead("y", "y_j")
    'y_ahead'
    >>> t.loops("y_ahead")
    ['y_j_ahead', 'y_i_ahead']
    """

    name: ClassVar[str] = "compute_ahead"
    block: str
    loop: str

    def result(self) -> str:
        return f"{self.block}_ahead"

    def sentence(self) -> str:
        return (
            f"Compute what `{self.block}` does not wait for ahead of loop `{self.loop}`, in "
            f"`{self.result()}`."
        )

    def check(self, nest: Nest, target: Target | None = None) -> None:
        b, new = find_block(nest, self.block), self.result()
        loop = find_loop(nest, self.loop)
        around = loops_of(nest, self.block)
        if not any(x is loop for x in around):
            raise self.refused(
                f"{self.loop} is no loop around it; those are {', '.join(x.var for x in around)}"
            )
        if b.reducer is not None:
            raise self.refused("it is a reduction; use it on a block that stores plain values")
        if any(isinstance(x, Loop) and x.kind == "vectorize" for x in loop_path(nest, self.loop)):
            raise self.refused("lanes hold no loops; use it before vectorize")
        if new in block_names(nest) or any(x.name.startswith(new) for x in nest.buffers):
            raise self.refused(f"{new} exists already")
        if any(E.holes(x.extent) for x in around):
            raise self.refused("a loop around it has an extent that is not known yet; use it before split")
        if not parts(nest, self.block, self.loop):
            raise self.refused(
                f"every operation of it waits for iterations of {self.loop}, or none does; leave it as it is"
            )

    def apply(self, nest: Nest) -> Nest:
        b, loop = find_block(nest, self.block), find_loop(nest, self.loop)
        at, shape = tuple(Var(i.var) for i in b.iters), tuple(i.extent for i in b.iters)
        found = parts(nest, self.block, self.loop)
        names = [f"{self.result()}{n or ''}" for n in range(len(found))]
        taken: dict[Expr, Expr] = {}
        for name, e in zip(names, found, strict=True):
            taken[e] = Load(name, at, E.dtype_of(e))
            nest = add_buffer(nest, Buffer(name, shape, E.dtype_of(e)))
        nest = _with_ahead(nest, loop, b, _ahead(b, self.result(), names, found))
        return replace_stmt(nest, b, with_values(b, lambda v: E.rewrite(v, taken.get)))


def parts(nest: Nest, block: str, loop: str) -> tuple[Expr, ...]:
    """The largest operands in the values of a block that read nothing which iterations of a loop around it
    have to make before: of all that they read, every write comes before the loop. Those without an operation
    are left out, and so are sides of selects, which may read only where they are chosen."""
    b, at = find_block(nest, block), find_loop(nest, loop)
    made = {w.buffer for x in blocks(at.body) for w in x.writes}
    after = _with_ahead(nest, at, b, _ahead(b, f"{block}_ahead", (), b.values))
    reader = find_block(after, f"{block}_ahead")
    late = {
        id(x)
        for v in b.values
        for x, guards in guarded_loads(v, b.where)
        if x.buffer in made and not comes_after(after, reader, x, guards)
    }
    waits = dict[int, bool]()
    for x in E.distinct(*b.values):
        waits[id(x)] = id(x) in late or any(waits[id(k)] for k in E.children(x))
    found, stack = dict[Expr, None](), [v for v in b.values[::-1] if waits[id(v)]]
    while stack:
        x = stack.pop()
        if not waits[id(x)]:
            if _computes(x):
                found[x] = None
        elif not isinstance(x, (Select, Load)):
            stack += E.children(x)[::-1]
    return tuple(found)


def _computes(e: Expr) -> bool:
    """Whether an expression has an operation beside those of places and conditions."""
    if isinstance(e, _OPERATIONS) and E.dtype_of(e) != E.INDEX:
        return True
    return not isinstance(e, Load) and any(map(_computes, E.children(e)))


def _ahead(b: Block, name: str, outputs: Sequence[str], values: tuple[Expr, ...]) -> Block:
    """A block over the axes of another that stores values of it."""
    at = tuple(Var(i.var) for i in b.iters)
    return Block(name, b.iters, b.binds, tuple(Access(o, at) for o in outputs), values, where=b.where)


def _with_ahead(nest: Nest, loop: Loop, b: Block, ahead: Block) -> Nest:
    """The nest with a block ahead of a loop around ``b``, whose axes it has, in loops of its own."""
    return insert_before(nest, loop.var, in_loops_like(nest, loops_around(b, loop), ahead, "ahead"))
