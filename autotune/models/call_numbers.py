"""Numbers that a call tells: integers that are computed of elements of its inputs and states, and of its
sizes, in Python.

They say where rows of a state lie (`schedules.graph.graph.PlaceMove`). A saved model has their expressions
too, so that nothing but arithmetic of integers is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.errors import ArgumentError
from schedules import expr as E
from schedules.dtypes import DTYPES, is_float
from schedules.expr import INDEX, Binary, Cast, Compare, Const, Expr, Load, Logic, Select, Var
from schedules.expr.operators import FOLD, NUMERIC
from schedules.graph.graph import PlaceMove
from schedules.te.compute_dag import Tensor

# The number of the arrays of a call: of its inputs, then of its states, then of the numbers of its sizes.
Number = Callable[[Sequence[Any]], Any]
# Nodes of an expression of a saved model.
MOST_NODES = 4096
_ARITHMETIC = ("+", "-", "*", "//", "%", "min", "max", "&", "|", "^")


def number(e: Expr, places: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Number:
    """What computes an integer of the arrays of a call. ``places``: which of the arrays each tensor is, and
    each variable of a size. As kernels do, it wraps at the ends of its dtype. Raises ValueError for what is
    no arithmetic of integers, or reads anything else.

    >>> at = number(Load("pos", (Const(0),), "int64") + 1, {"pos": 0}, {"pos": Tensor("pos", (1,), "int64")})
    >>> at([np.array([4])])
    5
    """
    if E.size(e)[0] > MOST_NODES:
        raise ValueError("a number of the call has too large an expression")
    return _compiled(e, places, tensors)


def _compiled(e: Expr, places: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Number:
    if isinstance(e, Var) and e.name in places and e.name not in tensors:
        n = places[e.name]
        return lambda arrays: arrays[n]
    if not isinstance(e, (Const, Load, Binary, Compare, Logic, Select, Cast)):
        raise ValueError(f"{E.show(e)} is no number that a call tells")
    dtype = E.dtype_of(e)
    if dtype != INDEX and (dtype not in DTYPES or is_float(dtype)):
        raise ValueError(f"{E.show(e)} is no integer")
    if isinstance(e, Const):
        value = e.value
        return lambda arrays: value
    if isinstance(e, Load):
        return _loaded(e, places, tensors)
    kids = [_compiled(k, places, tensors) for k in E.children(e)]
    wrap = _wrapped(dtype)
    match e:
        case Binary(op=op) if op in _ARITHMETIC:
            a, b = kids
            f = NUMERIC[op] if op in NUMERIC else FOLD[op]
            return lambda arrays: wrap(f(a(arrays), b(arrays)))
        case Compare(op=op):
            a, b = kids
            holds = FOLD[op]
            return lambda arrays: bool(holds(a(arrays), b(arrays)))
        case Logic(op=op):
            if op == "not":
                return lambda arrays: not kids[0](arrays)
            both = all if op == "and" else any
            return lambda arrays: both(k(arrays) for k in kids)
        case Select():
            c, a, b = kids
            return lambda arrays: a(arrays) if c(arrays) else b(arrays)
        case Cast():
            (a,) = kids
            return lambda arrays: wrap(int(a(arrays)))
    raise ValueError(f"{E.show(e)} is no number that a call tells")


def _loaded(x: Load, places: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Number:
    t = tensors.get(x.buffer)
    if t is None or x.buffer not in places or t.dtype != x.dtype or len(t.shape) != len(x.indices):
        raise ValueError(f"{E.show(x)} is no element of an input or a state")
    at = tuple(int(i.value) for i in x.indices if isinstance(i, Const))
    if len(at) < len(x.indices) or any(not 0 <= i < n for i, n in zip(at, t.shape, strict=True)):
        raise ValueError(f"{E.show(x)} is no element of {x.buffer!r}")
    n = places[x.buffer]
    return lambda arrays: arrays[n].item(at)


def _wrapped(dtype: str) -> Callable[[Any], Any]:
    """What has an integer wrap at the ends of a dtype."""
    if dtype == "bool":
        return bool
    values = DTYPES["int64" if dtype == INDEX else dtype].range
    low, size = values[0], values[-1] - values[0] + 1
    return lambda x: x if low <= x < low + size else (x - low) % size + low


def checked(move: PlaceMove, at: Any, n: int, what: str) -> int:
    """Where ``n`` rows begin along their axis. Raises ArgumentError for rows that are not inside of it.
    ``what``: what they are called."""
    if not 0 <= at <= move.extent - n:
        rows = "1 row" if n == 1 else f"{n} rows"
        raise ArgumentError(
            f"{what}: {rows} from position {at} on {'is' if n == 1 else 'are'} not inside its "
            f"{move.extent}: give a position from 0 to {move.extent - n}, or begin with a new state"
        )
    return int(at)
