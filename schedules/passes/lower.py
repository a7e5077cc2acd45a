"""Lowers a scheduled nest to loops around stores, ready for a code generator."""

from __future__ import annotations

from collections.abc import Iterator

from schedules.expr import variables
from schedules.ir import Alloc, LoweredFunc, Nest, Stmt, skew, walk
from schedules.ir.carried import carried_buffers
from schedules.ir.exprs import expressions
from schedules.ir.verify import verify, verify_names
from schedules.passes.expand_blocks import expand_blocks
from schedules.passes.open_sizes import close_sizes
from schedules.passes.partial_sums import partial_sums
from schedules.passes.pipeline import for_cpus, streamed
from schedules.passes.sums_of_zeros import sums_of_zeros


def lower(nest: Nest, name: str = "kernel", *, tails: bool = False) -> LoweredFunc:
    """Lower a nest whose holes are all filled. The result is verified. If it is wrong or a pass fails, the
    passes run again with a check after each, so that the error names the first wrong one. ``tails``: every
    loop that is marked as an instruction may be a tail of it, as at sizes below its tile. Raises
    VerifyError."""
    verify_names(nest)
    nest = partial_sums(sums_of_zeros(close_sizes(nest)))
    params = tuple(nest.buffer(n) for n in nest.params)
    try:
        *_, (_, s) = _passed(nest, tails)
        verify(s, params, "lowering", nest.sizes)
    except Exception:
        _blame(nest, tails)
        raise
    return _lowered(name, nest, s)


def _passed(nest: Nest, tails: bool = False) -> Iterator[tuple[str, Stmt]]:
    """(title, program) after each pass."""
    s = expand_blocks(nest)
    yield "expand_blocks", s
    for title, run in for_cpus(nest, tails):
        s = run(s)
        yield title, s


def _lowered(name: str, nest: Nest, s: Stmt) -> LoweredFunc:
    params = tuple(nest.buffer(n) for n in nest.params)
    used: set[str] = set()
    if streamed(nest, (2,)):  # else no tile moves
        used = {v for x in walk(s) for e in expressions(x) for v in variables(e)}
    skewed = tuple(n for n in nest.params if skew(n).name in used)
    return LoweredFunc(
        name, params, nest.outputs, s, streamed(nest), skewed, sizes=nest.sizes, joined=nest.joined,
        scans=bool(carried_buffers(nest)),
    )  # fmt: skip


def _blame(nest: Nest, tails: bool) -> None:
    """Raise VerifyError for the first pass that leaves something wrong; return if there is none."""
    placed = tuple(nest.buffer(n) for n in nest.params)
    for title, s in _passed(nest, tails):
        # Intermediate buffers are allocated from `compact` on. `simplify` runs before and after it.
        early = title in ("expand_blocks", "whole_lanes", "simplify")
        verify(s, nest.buffers if early else placed, title, nest.sizes)


def stages(nest: Nest) -> list[tuple[str, LoweredFunc]]:
    """(title, program) after each pass, for people and for tests. Before `compact` intermediate buffers are
    allocated whole around the program."""
    nest = partial_sums(sums_of_zeros(close_sizes(nest)))
    intermediate = tuple(b for b in nest.buffers if b.name not in nest.params)

    def func(s: Stmt) -> LoweredFunc:
        placed = {x.buffer.name for x in walk(s) if isinstance(x, Alloc)}
        for b in intermediate:
            if b.name not in placed:
                s = Alloc(b, s)
        return _lowered("kernel", nest, s)

    return [(title, func(s)) for title, s in _passed(nest)]
