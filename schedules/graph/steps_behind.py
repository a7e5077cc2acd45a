"""Whether results are exact where something is decided by them, so that no other rounding is the same.

Sums in another order are rounded otherwise. A step (a comparison, a floor, a cast to an integer) may then
decide otherwise for what lies at its edge. A sum with arbitrary weights is rounded in any order, so both
results are right (ADR 35). With weights of few bits, such as those of edges, counts and ternary networks,
sums of whole numbers are exact, and many of them lie at an edge.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from schedules import expr as E
from schedules.dtypes import is_float
from schedules.expr import Call, Cast, Compare, Expr, Load
from schedules.functions import FUNCTIONS
from schedules.graph.graph import Array, Graph
from schedules.te.compute_dag import Stage

# Bits of weights of which sums of whole numbers are still exact: half of those of a float32.
FEW_BITS = 12


def has_few_bits(value: Array) -> bool:
    """Whether all elements are multiples of one power of two, and at most 2**`FEW_BITS` times as large."""
    largest = float(np.abs(value).max(initial=0.0))
    if not 0.0 < largest < np.inf:
        return largest == 0.0
    # exact: a power of two, and what stays below 2**12
    scaled = np.ldexp(value.astype(np.float64), FEW_BITS - int(np.frexp(largest)[1]))
    return bool((scaled == np.rint(scaled)).all())


def has_step_behind(graph: Graph, name: str) -> bool:
    """Whether a step depends on a tensor, in this call or through a state in a later one. An island is one:
    nothing is known of it."""
    made, new = {name}, True
    while new:  # once more where a state carries it to a next call
        for s in graph.dag.stages:
            if any(x.buffer in made for x in s.reads()):
                if _decides(s, made):
                    return True
                made |= {t.name for t in s.outputs}
        if any(made.intersection(i.reads) for i in graph.islands):
            return True
        kept = {s.tensor for s in graph.states.values() if s.new in made} - made
        made, new = made | kept, bool(kept)
    return False


def _decides(s: Stage, made: Container[str]) -> bool:
    """Whether a stage has a step at a value of which a part is ``made``."""
    combined = s.reducer.combine if s.reducer is not None else ()
    return any(_is_step(e) for c in combined for e in E.distinct(c)) or any(
        _is_step(e) and any(x.buffer in made for x in E.loads(e))
        for e in E.distinct(*s.values, *s.where, *s.places)
    )


def _is_step(e: Expr) -> bool:
    """Whether a value jumps where its operand changes a little. A float of storage is not meant: it rounds
    to the nearest."""
    match e:
        case Compare(a=a, b=b):
            return a != b  # what is compared with itself is NaN or not
        case Call(fn=fn):
            return FUNCTIONS[fn].change is None
        case Cast(dtype=d, a=a):
            return is_float(E.dtype_of(a)) and not is_float(d)
        case Load(indices=at):
            return any(E.loads(i) for i in at)
    return False
