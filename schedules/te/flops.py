"""Counts the arithmetic of a DAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import repeat
from math import prod
from typing import Any

from schedules import expr as E
from schedules.te.compute_dag import ComputeDAG


def count_flops(dag: ComputeDAG) -> int:
    """Arithmetic operations of a DAG on its tensors' elements, without comparisons and selects: 2 for each
    multiply-add of a contraction, as in library operators. An expression that a stage uses or states several
    times counts once."""
    total = 0
    for s in dag.stages:
        points = prod(a.extent for a in (*s.axes, *s.reduce_axes))
        per_point = _operations(s.values)
        if s.reducer is not None:
            per_point += _operations(s.reducer.combine)
        total += points * per_point
    return total


def _operations(values: Sequence[E.Expr]) -> int:
    numbers: dict[tuple[Any, ...], int] = {}  # {content of a node: its number}, for different nodes
    found: set[int] = set()
    fused: set[int] = set()  # numbers of multiply-adds, which count twice

    def number(e: E.Expr, inside: bool) -> int:
        # Indices and conditions are not arithmetic on tensors.
        inside = inside and not isinstance(e, (E.Load, E.Compare, E.Logic))
        parts = [getattr(e, f.name) for f in fields(e)]  # type: ignore[arg-type]
        own = [e] if isinstance(e, E.Const) else [x for x in parts if not isinstance(x, (E.Expr, tuple))]
        made = (E.kind(e), *own, *map(number, E.children(e), repeat(inside)))
        n = numbers.setdefault(made, len(numbers))
        if inside and isinstance(e, (E.Binary, E.Call, E.Fma)) and E.dtype_of(e) != E.INDEX:
            found.add(n)
            if isinstance(e, E.Fma):
                fused.add(n)
        return n

    for v in values:
        number(v, True)
    return len(found) + len(fused)
