"""Lowering: a scheduled nest becomes loops around stores, ready for a code generator."""

from __future__ import annotations

from collections.abc import Callable

from schedules.expr import loads, variables
from schedules.ir import Alloc, Block, LoweredFunc, Nest, Stmt, blocks, skew, walk
from schedules.passes.begin_with_lines import begin_with_lines
from schedules.passes.compact import compact
from schedules.passes.expand_blocks import expand_blocks
from schedules.passes.fetch_ahead import fetch_ahead
from schedules.passes.partial_sums import partial_sums
from schedules.passes.partition import partition
from schedules.passes.promote import promote
from schedules.passes.reuse import reuse
from schedules.passes.simplify import expressions, simplify
from schedules.passes.software_pipeline import software_pipeline
from schedules.passes.speculate import speculate
from schedules.passes.spread import spread
from schedules.passes.trim import trim
from schedules.passes.unswitch import unswitch
from schedules.verify import verify, verify_names

Pass = Callable[[Stmt], Stmt]


def pipeline(nest: Nest) -> list[tuple[str, Pass]]:
    """The passes after `partial_sums` and `expand_blocks`, in order, by name."""
    params = tuple(nest.buffer(n) for n in nest.params)
    dtypes = {b.name: b.dtype for b in nest.buffers}
    intermediate = tuple(b for b in nest.buffers if b.name not in nest.params)
    streamed = _streamed(nest)
    stay = tuple(n for n in nest.outputs if n not in streamed)
    by_lines = _streamed(nest, (2,))
    return [
        # sizes and guards are read off simplified indices
        ("simplify", simplify),
        ("compact", lambda s: compact(s, intermediate)),
        # indices are now relative to their region: fold them again
        ("simplify", simplify),
        # before partition, so that only guards that matter cost a copy of the loop
        ("speculate", lambda s: speculate(s, params)),
        ("partition", partition),
        # what partition could not decide
        ("unswitch", unswitch),
        # last, because it makes extents depend on outer loops
        ("trim", trim),
        ("simplify", simplify),
        # tails are decided: what is left of them shows where loops overlap
        ("reuse", lambda s: reuse(s, params, stay)),
        # needs the final loops: guards would be in its way
        ("promote", lambda s: promote(s, dtypes)),
        # what is not in registers by now is in memory
        ("spread", spread),
        # stages are what they will be
        ("software_pipeline", software_pipeline),
        # tiles are what they will be
        ("begin_with_lines", lambda s: begin_with_lines(s, params, by_lines)),
        # where the code is that reads
        ("fetch_ahead", lambda s: fetch_ahead(s, tuple(n for n in nest.params if n not in nest.outputs))),
    ]


def lower(nest: Nest, name: str = "kernel") -> LoweredFunc:
    """Lower a nest whose holes are all filled. What comes out is verified; where it is wrong, or a pass
    fails, all is done again with a look after each pass, so that the error names the first that erred.
    Raises VerifyError."""
    verify_names(nest)
    params = tuple(nest.buffer(n) for n in nest.params)
    nest = partial_sums(nest)
    try:
        s = expand_blocks(nest)
        for _, run in pipeline(nest):
            s = run(s)
        verify(s, params, "lowering")
    except Exception:
        _blame(nest)
        raise
    return _lowered(name, nest, s)


def _lowered(name: str, nest: Nest, s: Stmt) -> LoweredFunc:
    params = tuple(nest.buffer(n) for n in nest.params)
    used: set[str] = set()
    if _streamed(nest, (2,)):  # else nothing moves
        used = {v for x in walk(s) for e in expressions(x) for v in variables(e)}
    skewed = tuple(n for n in nest.params if skew(n).name in used)
    return LoweredFunc(name, params, nest.outputs, s, _streamed(nest), skewed)


def _streamed(nest: Nest, hints: tuple[int, ...] = (1, 2)) -> tuple[str, ...]:
    """Outputs that only blocks with one of these hints write, and none reads."""
    every = blocks(nest.body)
    read = {x.buffer for b in every for v in (*b.values, *b.where) for x in loads(v)}

    def hinted(b: Block) -> bool:
        return b.reducer is None and dict(b.annotations).get("nontemporal") in hints

    return tuple(
        n
        for n in nest.outputs
        if n not in read and all(hinted(b) for b in every if any(w.buffer == n for w in b.writes))
    )


def _blame(nest: Nest) -> None:
    """Raise VerifyError after the first pass that leaves something wrong, if there is one."""
    placed = tuple(nest.buffer(n) for n in nest.params)
    s = expand_blocks(nest)
    verify(s, nest.buffers, "expand_blocks")
    for title, run in pipeline(nest):
        s = run(s)
        # `compact` allocates the intermediate buffers; simplifying comes before it, too
        verify(s, placed if title != "simplify" else nest.buffers, title)


def stages(nest: Nest) -> list[tuple[str, LoweredFunc]]:
    """The program after each pass, for people and for tests: until `compact` places them, intermediate
    buffers are allocated whole around it."""
    nest = partial_sums(nest)
    intermediate = tuple(b for b in nest.buffers if b.name not in nest.params)

    def func(s: Stmt) -> LoweredFunc:
        placed = {x.buffer.name for x in walk(s) if isinstance(x, Alloc)}
        for b in intermediate:
            if b.name not in placed:
                s = Alloc(b, s)
        return _lowered("kernel", nest, s)

    s = expand_blocks(nest)
    out = [("expand_blocks", func(s))]
    for title, run in pipeline(nest):
        s = run(s)
        out.append((title, func(s)))
    return out
