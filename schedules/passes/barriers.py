"""Inserts barriers by dependence: where a thread of a block may read what another writes, or overwrite what
another still reads, all threads wait for each other first.

Statements of a block run in phases; a loop over its threads is one phase. A barrier is needed between two
phases of which one writes and the other uses the same shared buffer, also from the end of a loop to its
beginning.

What is copied in the background is written where a thread awaits it, and all see it behind a barrier there. A
copy only waits until what it overwrites was read. What is read between a copy and its wait is another version
of the buffer (`schedules.passes.stages`).
"""

from __future__ import annotations

from dataclasses import dataclass

from schedules.errors import ScheduleError
from schedules.ir import (
    Alloc,
    Await,
    Barrier,
    Copy,
    Guard,
    Loop,
    Seq,
    Stmt,
    bound_to,
    in_order,
    seq,
    walk,
)
from schedules.ir.exprs import loads, written

Names = frozenset[str]


@dataclass(frozen=True)
class _Pending:
    """Shared buffers that were written or read since the last barrier, and those that a statement begins to
    copy to."""

    written: Names = frozenset()
    read: Names = frozenset()
    begun: Names = frozenset()

    def __or__(self, other: _Pending) -> _Pending:
        return _Pending(self.written | other.written, self.read | other.read)


def barriers(s: Stmt, visible: Names) -> Stmt:
    """The body of a block with barriers. ``visible``: buffers that threads share, beside those allocated in
    it with scope "shared". Raises ScheduleError if a barrier would have to be inside a loop over threads."""
    shared = {x.buffer.name for x in walk(s) if isinstance(x, Alloc) and x.buffer.scope == "shared"}
    return _go(s, _Pending(), visible | shared)[0]


def _go(s: Stmt, before: _Pending, shared: Names) -> tuple[Stmt, _Pending]:
    """(the statement with its barriers, what is pending after it)."""
    if isinstance(s, Seq):
        out: list[Stmt] = []
        for x in s.stmts:
            new, before = _go(x, before, shared)
            out.extend(in_order(new))
        return seq(*out), before
    if isinstance(s, Alloc):
        body, after = _go(s.body, before, shared)
        return Alloc(s.buffer, body), after
    if isinstance(s, Loop) and not bound_to(s, "threadIdx"):
        # The next iteration begins with what this one leaves pending.
        _, once = _go(s.body, before, shared)
        body, after = _go(s.body, before | once, shared)
        return Loop(s.var, s.extent, body, s.kind, s.annotations), after | before
    if isinstance(s, Await):
        return seq(s, Barrier()), _Pending()
    if isinstance(s, Guard):
        body, after = _go(s.body, before, shared)
        return Guard(s.cond, body, s.speculative), after | before
    if bound_to(s, "threadIdx") and any(bound_to(x, "threadIdx") for x in walk(s.body)):
        if any(isinstance(x, Barrier) for x in walk(_go(s.body, _Pending(), shared)[0])):
            raise ScheduleError(
                f"loop {s.var} is {s.kind} and holds two loops over threads: one reads shared memory that "
                "the other writes, and threads cannot wait there; put each into a loop of its own"
            )
    own = _uses(s, shared)
    if own.read & before.written or (own.written | own.begun) & (before.written | before.read):
        before, s = _Pending(), seq(Barrier(), s)
    return s, before | own


def _uses(s: Stmt, shared: Names) -> _Pending:
    every = walk(s)
    begun = frozenset(x.buffer for x in every if isinstance(x, Copy))
    stored = frozenset(n for x in every if not isinstance(x, Copy) for n in written(x))
    read = frozenset(x.buffer for y in every for x in loads(y))
    return _Pending(stored & shared, read & shared, begun & shared)
