"""Keeps accumulators of a reduction in registers while its innermost loops run (scalar replacement).

``for k: for i (unroll): for j (lanes): C[i, j] += ...`` becomes loads of the tile before the loop over k,
accumulation in a local buffer, and stores after it. Schedules that accumulate in a small local buffer have
this already. It matters if a reduction is split and its outer part returns to the same tile.

Loops that are one instruction may be innermost: those over its terms stay inside of the tile. An instruction
with registers of its own holds its sums there itself.
"""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Alloc, Buffer, Guard, Loop, Stmt, Store, const, loop_nest, seq, with_body
from schedules.ir.deps import recovered
from schedules.ir.nest import numbered
from schedules.passes.accesses import buffers

# Most elements of a tile: a larger one does not fit registers and would only be copied.
MAX_ELEMENTS = 1024


def promote(s: Stmt, dtypes: dict[str, str]) -> Stmt:
    """``s`` with every outermost serial or unrolled loop over a single accumulating store promoted.
    ``dtypes``: {buffer: its dtype}."""
    return _go(s, dtypes, buffers(s))


def _go(s: Stmt, dtypes: dict[str, str], taken: set[str]) -> Stmt:
    if isinstance(s, Loop) and s.instruction is not None:
        return s  # no loop around it goes on with its sums
    if isinstance(s, Loop) and s.kind in ("serial", "unroll"):
        new = _promoted(s, dtypes, taken)
        if new is not None:
            return new
    return with_body(s, lambda k: _go(k, dtypes, taken))


def _promoted(outer: Loop, dtypes: dict[str, str], taken: set[str]) -> Stmt | None:
    loops, s = loop_nest(outer)
    if not isinstance(s, Store) or any(x.kind not in ("serial", "unroll", "vectorize") for x in loops):
        return None
    if s.buffer not in dtypes:
        return None  # already local
    place = Load(s.buffer, s.indices, dtypes[s.buffer])
    own = [x for x in E.loads(s.value) if x.buffer == s.buffer]
    used = frozenset().union(*(E.variables(i) for i in s.indices)) if s.indices else frozenset()
    if not own or any(x != place for x in own):
        return None
    one = next((n for n, x in enumerate(loops) if x.instruction is not None), len(loops))
    around, run = loops[:one], loops[one:]
    if run and (ins := run[0].instruction) is not None and ins.registers is not None:
        return None
    chain = [x for x in around if x.kind == "serial" or (x.kind == "unroll" and x.var not in used)]
    ones = [x for x in run if x.var in used]
    tile = [*around[len(chain) :], *ones]
    if loops[: len(chain)] != chain or used <= {x.var for x in tile}:
        return None  # a local buffer used in the tile only, which code generation keeps in registers
    if any(x.var not in used for x in tile) or any(outer.var in E.variables(x.extent) for x in tile):
        return None
    if len(recovered(list(s.indices), {x.var: x.extent for x in tile})) < len(tile):
        return None  # several iterations of the tile share an element
    extents = [const(x.extent) for x in tile]
    elements = 1
    for n in extents:
        if n is None:
            return None
        elements *= n
    if elements > MAX_ELEMENTS or any(x.var in used for x in chain):
        return None
    name = numbered(f"{s.buffer}_reg", taken)
    reg = Buffer(name, tuple(Const(n) for n in extents if n is not None), place.dtype, "local")
    at: tuple[Expr, ...] = tuple(Var(x.var) for x in tile)
    here = Load(reg.name, at, reg.dtype)
    value = E.rewrite(s.value, lambda e: here if e == place else None)
    body = _wrap(loops, Store(reg.name, at, value, s.update))
    copied = [replace(x, kind="unroll", annotations=()) if x in ones[:-1] else x for x in tile]
    if ones:
        copied[-1] = replace(ones[-1], kind="vectorize", annotations=())
    before = _wrap(copied, Store(reg.name, at, place))
    after = _wrap(copied, Store(s.buffer, s.indices, here))
    # A peeled part of a loop may be empty, and its place then outside the buffer.
    inner = {x.var for x in chain}
    runs = [x.extent for x in chain if const(x.extent) is None and not E.variables(x.extent) & inner]
    whole = seq(before, body, after)
    if runs:
        whole = Guard(E.all_of(*(E.compare("<", Const(0), n) for n in runs)), whole)
    return Alloc(reg, whole)


def _wrap(loops: list[Loop], s: Stmt) -> Stmt:
    for x in reversed(loops):
        s = replace(x, body=s)
    return s
