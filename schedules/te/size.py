"""How large the expression of a stage may be."""

from __future__ import annotations

from collections.abc import Sequence

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Expr


def check_size(values: Sequence[Expr], what: str) -> None:
    """Raise WorkloadError for values that take minutes to compile, or exceed Python's recursion limit."""
    sizes = [E.size(v) for v in values]
    if max(d for _, d in sizes) > E.MAX_DEPTH:
        raise too_deep(what)
    nodes = sum(n for n, _ in sizes)
    if nodes > E.MAX_NODES:
        count = f"{nodes}" if nodes < 10**6 else "millions of"
        raise WorkloadError(
            f"{what}: its expression has {count} operations and operands, more than {E.MAX_NODES}; a part "
            "that is used several times counts each time: make it a stage of its own (te.compute)"
        )


def too_deep(what: str) -> WorkloadError:
    """What is raised for an expression that Python's recursion cannot follow."""
    return WorkloadError(
        f"{what}: its expression nests more than {E.MAX_DEPTH} levels; split it into several stages "
        "(te.compute), or write a long chain of one operation as a reduction (te.sum, te.reducer)"
    )
