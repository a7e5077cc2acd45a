"""The part of a compute DAG that computes a box of its outputs.

A box is a range of places along each dimension. What a stage must compute follows backwards from what is
read of it: each index is bounded over the places of its readers, and the smallest box that holds all reads is
kept. Axes of reductions stay whole, so that every element is what it is in the whole DAG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from schedules import affine
from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Binary, Const, Expr, Load, Var
from schedules.loads import with_loads
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.open_sizes import at

# First place and end along each dimension.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """``dag`` computes what the whole DAG has at ``outputs`` (a box for each of its outputs), from what the
    inputs have at ``inputs``."""

    dag: ComputeDAG
    inputs: tuple[Box, ...]
    outputs: tuple[Box, ...]


def part(dag: ComputeDAG, outputs: Sequence[Box]) -> Part:
    """The part of ``dag`` that computes at least a box of each output.

    ``outputs``: a box for each output, in the order of ``dag.outputs``. An output that another one reads may
    get a larger one.

    >>> p = part(a_matmul_of_1000, [((0, 8), (992, 1000))])
    >>> [t.shape for t in p.dag.inputs]
    [(8, 1000), (1000, 8)]
    """
    if dag.open is not None:
        dag = at(dag, {s.name: s.most for s in dag.open.sizes})
    wanted = dict(zip(dag.outputs, outputs, strict=True))
    for name, box in wanted.items():
        shape = dag.tensors[name].shape
        if len(box) != len(shape) or any(not 0 <= a < b <= n for (a, b), n in zip(box, shape, strict=True)):
            raise ValueError(f"the box {box} is no part of {name}{list(shape)}")
    try:
        return _part(dag, wanted, True)
    except (WorkloadError, ValueError):  # a load that is not proved inside what is kept
        return _part(dag, wanted, False)


def _part(dag: ComputeDAG, wanted: Mapping[str, Box], shrink: bool) -> Part:
    """``shrink``: make also what outputs are made of smaller."""
    boxes: dict[str, Box] = dict(wanted)
    for stage in reversed(dag.stages):
        own = [boxes[t.name] for t in stage.outputs if t.name in boxes]
        if not own:
            continue
        whole = bool(stage.places or stage.scan)  # which of its points make a box is not known
        box = tuple((0, a.extent) for a in stage.axes) if whole else _hull(own)
        boxes |= {t.name: box for t in stage.outputs}
        ranges = {a.var: (lo, hi - 1) for a, (lo, hi) in zip(stage.axes, box, strict=True)}
        ranges |= {a.var: (0, a.extent - 1) for a in stage.reduce_axes}
        for load in stage.reads():
            shape = dag.tensors[load.buffer].shape
            read = _read(load, shape, ranges) if shrink else tuple((0, n) for n in shape)
            known = boxes.get(load.buffer)
            boxes[load.buffer] = read if known is None else _hull([known, read])
    unread = {t.name: ((0, 1),) * len(t.shape) for t in dag.inputs if t.name not in boxes}
    boxes |= unread
    made = ComputeDAG(
        tuple(_cut(t, boxes[t.name]) for t in dag.inputs),
        tuple(_cut_stage(s, boxes) for s in dag.stages if s.name in boxes),
        dag.outputs,
        dag.constants,
    )
    return Part(made, tuple(boxes[t.name] for t in dag.inputs), tuple(boxes[n] for n in dag.outputs))


def _hull(boxes: Sequence[Box]) -> Box:
    return tuple((min(a for a, _ in d), max(b for _, b in d)) for d in zip(*boxes, strict=True))


def _read(load: Load, shape: tuple[int, ...], ranges: affine.Ranges) -> Box:
    """The box of a tensor that a load reads. Conditions around the load may allow less."""
    out = []
    for index, n in zip(load.indices, shape, strict=True):
        found = affine.bounds(index, ranges) or (0, n - 1)
        low = min(max(found[0], 0), n - 1)
        out.append((low, max(min(found[1], n - 1), low) + 1))
    return tuple(out)


def _cut(t: Tensor, box: Box) -> Tensor:
    return replace(t, shape=tuple(hi - lo for lo, hi in box), strides=None)


def _cut_stage(stage: Stage, boxes: Mapping[str, Box]) -> Stage:
    box = boxes[stage.name]
    moved = {a.var: lo for a, (lo, _) in zip(stage.axes, box, strict=True) if lo}

    def place(e: Expr) -> Expr | None:
        return Binary("+", e, Const(moved[e.name])) if isinstance(e, Var) and e.name in moved else None

    def read(x: Load) -> Load:
        pairs = zip(x.indices, boxes[x.buffer], strict=True)
        return replace(x, indices=tuple(_less(i, lo) for i, (lo, _) in pairs))

    values, where, places = (
        tuple(with_loads(E.rewrite(v, place), read) for v in every)
        for every in (stage.values, stage.where, stage.places)
    )
    return replace(
        stage,
        outputs=tuple(_cut(t, box) for t in stage.outputs),
        axes=tuple(Axis(a.var, hi - lo) for a, (lo, hi) in zip(stage.axes, box, strict=True)),
        values=values,
        where=where,
        places=places,
    )


def _less(index: Expr, start: int) -> Expr:
    return Binary("-", index, Const(start)) if start else index
