"""Operations and transfers of a DAG, by how much of it is one kernel.

A transfer is an element that a kernel reads from memory or writes to it, each element of an array once. Apart
from that nothing is known of caches, so the quotient is the most that any schedule can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Expr
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.flops import count_flops


@dataclass(frozen=True, slots=True)
class Fusion:
    """``kernels``: how many. ``operations``: of arithmetic. ``transfers``: elements read and written.
    ``bytes``: of these."""

    kernels: int
    operations: int
    transfers: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations a transfer."""
        return self.operations / self.transfers if self.transfers else 0.0


def by_operation(dag: ComputeDAG) -> Fusion:
    """Every operation of an expression is a kernel that reads and writes arrays. A reduction is one kernel
    with what it reduces, since nobody stores that.

    E = D + (A + B)·C: three kernels of one operation, two arrays read and one written: 3 / 9 = 1/3.
    """
    kernels = transfers = moved = 0
    for s in dag.stages:
        steps = [] if s.reducer is not None else _steps(s)
        if len(steps) < 2:
            n, size = _of_stage(dag, s)
            kernels, transfers, moved = kernels + 1, transfers + n, moved + size
            continue
        points = prod(a.extent for a in s.axes)
        for e in steps:
            arrays = [_array(dag, x, points) for x in _operands(e)]
            arrays.append((points, _item(e)))
            kernels += 1
            transfers += sum(n for n, _ in arrays)
            moved += sum(n * item for n, item in arrays)
    return Fusion(kernels, count_flops(dag), transfers, moved)


def by_stage(dag: ComputeDAG) -> Fusion:
    """Every stage is a kernel: what one computes goes to memory, and the next ones read it there."""
    each = [_of_stage(dag, s) for s in dag.stages]
    return Fusion(len(each), count_flops(dag), sum(n for n, _ in each), sum(b for _, b in each))


def fused(dag: ComputeDAG) -> Fusion:
    """One kernel: inputs are read and outputs written. E = D + (A + B)·C: 3/5."""
    read = {x.buffer for s in dag.stages for x in s.reads()}
    arrays = [t for t in dag.inputs if t.name in read] + [dag.tensors[name] for name in dag.outputs]
    return Fusion(1, count_flops(dag), sum(prod(t.shape) for t in arrays), sum(t.own_bytes for t in arrays))


def _of_stage(dag: ComputeDAG, s: Stage) -> tuple[int, int]:
    """(Elements, bytes) that a stage reads and writes."""
    own = {t.name for t in s.outputs}
    arrays = [dag.tensors[name] for name in {x.buffer for x in s.reads()} - own] + [*s.outputs]
    return sum(prod(t.shape) for t in arrays), sum(t.own_bytes for t in arrays)


def _steps(s: Stage) -> list[Expr]:
    """The operations of a stage's values, each once, without those of indices and conditions."""
    found: dict[Expr, None] = {}

    def visit(e: Expr) -> None:
        if isinstance(e, (E.Load, E.Compare, E.Logic)):
            return
        for x in E.children(e):
            visit(x)
        if _operation(e):
            found[e] = None

    for v in s.values:
        visit(v)
    return [*found]


def _operation(e: Expr) -> bool:
    return isinstance(e, (E.Binary, E.Call, E.Fma)) and E.dtype_of(e) != E.INDEX


def _operands(e: Expr) -> list[Expr]:
    """The arrays that an operation takes: loads, and results of other operations. Casts and selects are done
    on the way."""
    found: dict[Expr, None] = {}

    def visit(x: Expr) -> None:
        if isinstance(x, E.Load) or _operation(x):
            found[x] = None
        else:
            for y in E.children(x):
                visit(y)

    for x in E.children(e):
        visit(x)
    return [*found]


def _array(dag: ComputeDAG, e: Expr, points: int) -> tuple[int, int]:
    """(Elements, bytes of each) of an operand."""
    if isinstance(e, E.Load):
        return prod(dag.tensors[e.buffer].shape), DTYPES[e.dtype].itemsize
    return points, _item(e)


def _item(e: Expr) -> int:
    return DTYPES[E.dtype_of(e)].itemsize
