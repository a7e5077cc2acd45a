"""Counts the arithmetic and the special functions of a DAG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import repeat
from math import prod
from typing import Any

from schedules import expr as E
from schedules.dtypes import computed
from schedules.functions import FUNCTIONS
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.domains import points
from schedules.te.scattered import term_axes


def count_flops(dag: ComputeDAG) -> int:
    """Arithmetic operations of a DAG on its tensors' elements, without comparisons and selects: 2 for each
    multiply-add of a contraction, as in library operators. An expression that a stage uses or states several
    times counts once."""
    return flops_by_dtype(dag).total()


def count_flops_per_point(dag: ComputeDAG) -> tuple[int, ...]:
    """`count_flops` of one point of each stage, which is the same at every size of a DAG with open sizes."""
    return tuple(flops_of_stage(s).total() // max(_points(s), 1) for s in dag.stages)


def flops_of_points(dag: ComputeDAG, each: Sequence[int]) -> int:
    """`count_flops`, where that of one point of each stage is known."""
    return sum(n * _points(s) for n, s in zip(each, dag.stages, strict=True))


def _points(s: Stage) -> int:
    return points(s) if s.where else prod(a.extent for a in term_axes(s))


def flops_by_dtype(dag: ComputeDAG) -> Counter[str]:
    """{dtype that they are computed with: operations of `count_flops`}."""
    return sum(map(flops_of_stage, dag.stages), Counter())


def flops_of_stage(s: Stage) -> Counter[str]:
    """`flops_by_dtype` of one stage."""
    total: Counter[str] = Counter()
    points = _points(s)
    for values in (s.values, () if s.reducer is None else s.reducer.combine):
        for dtype, n in _operations(values).items():
            total[dtype] += points * n
    return total


def evaluations(dag: ComputeDAG) -> Counter[tuple[str, str]]:
    """{(special function, dtype): evaluations}, each stage counted on its own."""
    found: Counter[tuple[str, str]] = Counter()
    for s in dag.stages:
        points = _points(s)
        for v in (*s.values, *(s.reducer.combine if s.reducer is not None else ())):
            for x in E.walk(v):
                if isinstance(x, E.Call) and not FUNCTIONS[x.fn].cheap:
                    found[x.fn, E.dtype_of(x)] += points
    return found


def main_dtype(dag: ComputeDAG) -> str:
    """The dtype of most of a DAG's arithmetic; without any, what its first input is computed with."""
    found = flops_by_dtype(dag).most_common(1)
    return found[0][0] if found else computed((*dag.inputs, *dag.params)[0].dtype)


def _operations(values: Sequence[E.Expr]) -> Counter[str]:
    numbers: dict[tuple[Any, ...], int] = {}  # {content of a node: its number}, for different nodes
    found: dict[int, str] = {}  # {number: dtype}
    fused: set[int] = set()  # numbers of multiply-adds, which count twice

    known: dict[tuple[int, bool], int] = {}  # {node by identity, whether it is inside: its number}

    def number(e: E.Expr, inside: bool) -> int:
        if (id(e), inside) in known:
            return known[id(e), inside]
        # Indices and conditions are not arithmetic on tensors.
        outer, inside = inside, inside and not isinstance(e, (E.Load, E.Compare, E.Logic))
        parts = [getattr(e, f.name) for f in fields(e)]  # type: ignore[arg-type]
        own = [e] if isinstance(e, E.Const) else [x for x in parts if not isinstance(x, (E.Expr, tuple))]
        made = (E.kind(e), *own, *map(number, E.children(e), repeat(inside)))
        n = numbers.setdefault(made, len(numbers))
        if inside and isinstance(e, (E.Binary, E.Call, E.Fma)) and E.dtype_of(e) != E.INDEX:
            found[n] = E.dtype_of(e)
            if isinstance(e, E.Fma):
                fused.add(n)
        known[id(e), outer] = n
        return n

    for v in values:
        number(v, True)
    counted = Counter(found.values())
    counted.update(found[n] for n in fused)
    return counted
