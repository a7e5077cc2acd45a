"""Sizes that a call tells: one compute DAG for every size of a range (ADR 79).

A DAG with open sizes has the numbers of the largest sizes everywhere, so that whoever reads extents reads
those. Its `OpenSizes` say which of the numbers are extents that depend on a size, and how. `at` gives the DAG
of one size. In what a stage computes, in its indices too, a size is a hole of the name of its `variable`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from schedules import affine
from schedules import expr as E
from schedules.documents import any_integer, any_text, items, list_of, record
from schedules.errors import WorkloadError
from schedules.expr import Binary, Const, Expr, Var
from schedules.expr_json import from_json, to_json
from schedules.strides import row_major
from schedules.te.dims import MAX_EXTENT
from schedules.te.open_inside import TRIED_SIZES, check_open_loads, shown
from schedules.te.scattered import check_fixed
from schedules.te.sizes_in_values import (
    in_variables,
    stage_with_sizes,
)
from schedules.te.sizes_in_values import variable as variable
from schedules.te.very_stage import VeryStage

if TYPE_CHECKING:
    from schedules.te.compute_dag import ComputeDAG, Stage, Tensor

# Nodes of an extent.
MOST_NODES = 32


@dataclass(frozen=True, slots=True)
class OpenSize:
    """A size from ``least`` to ``most``, both included."""

    name: str
    least: int
    most: int

    @property
    def range(self) -> affine.Range:
        return self.least, self.most


@dataclass(frozen=True, slots=True)
class OpenExtent:
    """An extent that depends on a size: of dimension ``at`` of input number ``of``; or of axis ``at`` of
    stage number ``of``, counted over its axes and then its reduction axes. ``extent``: made of one size, as
    ``2 * n + 1``. It grows with the size or stays."""

    of: int
    at: int
    extent: Expr

    @property
    def size(self) -> str:
        """The name of the size."""
        (name,) = E.variables(self.extent)
        return name

    @property
    def linear(self) -> tuple[int, int] | None:
        """``step`` and ``first`` of ``step * size + first``; None for what is not linear."""
        step, first = affine.isolate(self.extent, self.size)
        return (
            (int(step.value), int(first.value))
            if isinstance(step, Const) and isinstance(first, Const)
            else None
        )

    def told(self, extent: int) -> int | None:
        """The size at which it is ``extent``; None if there is none, or it is not linear."""
        if self.linear is None:
            return None
        n, left = divmod(extent - self.linear[1], self.linear[0])
        return None if left else n


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """The sizes of a DAG that a call tells, and the extents that depend on them. ``roomy``: numbers of the
    arguments that at every size have the strides of a row-major one of the largest sizes, ascending."""

    sizes: tuple[OpenSize, ...]
    inputs: tuple[OpenExtent, ...]
    axes: tuple[OpenExtent, ...]
    roomy: tuple[int, ...] = ()

    @property
    def ranges(self) -> dict[str, affine.Range]:
        """{name: (least, most)}."""
        return {s.name: s.range for s in self.sizes}

    @property
    def telling(self) -> dict[str, OpenExtent]:
        """{name: the extent of an input that a call's size is read from}."""
        return {x.size: x for x in reversed(self.inputs) if x.linear is not None}

    def to_json(self) -> dict[str, Any]:
        def extents(xs: tuple[OpenExtent, ...]) -> list[Any]:
            return [[x.of, x.at, to_json(x.extent)] for x in xs]

        sizes = [[s.name, s.least, s.most] for s in self.sizes]
        more = {"roomy": list(self.roomy)} if self.roomy else {}
        return {"sizes": sizes, "inputs": extents(self.inputs), "axes": extents(self.axes), **more}


_EXTENTS = list_of(lambda x: OpenExtent(*items(any_integer, any_integer, from_json)(x)))
_OPEN = record(
    {
        "sizes": list_of(lambda x: OpenSize(*items(any_text, any_integer, any_integer)(x))),
        "inputs": _EXTENTS,
        "axes": _EXTENTS,
    },
    {"roomy": list_of(any_integer)},
)


def read_open(x: Any) -> OpenSizes:
    """Inverse of `OpenSizes.to_json`, for `schedules.documents`."""
    return OpenSizes(**_OPEN(x))


def at(dag: ComputeDAG, sizes: Mapping[str, int]) -> ComputeDAG:
    """The DAG with a number for each of these open sizes; others stay open. Arguments lie as they did at that
    size. Raises `WorkloadError` for sizes outside their ranges.

    >>> m = te.dim(1, 512, open=True)
    >>> x = te.placeholder((m, 64))
    >>> at(te.dag([x, te.compute((m, 64), lambda i, j: x[i, j] + 1.0)]), {"n0": 37}).inputs[0].shape
    (37, 64)
    """
    if dag.open is None:
        return dag
    left = tuple(s for s in dag.open.sizes if s.name not in sizes)
    for s in dag.open.sizes:
        if s not in left and not s.least <= sizes[s.name] <= s.most:
            raise WorkloadError(f"the size {s.name} is {sizes[s.name]}, outside {s.least}..{s.most}")

    def number(x: OpenExtent) -> int:
        return int(E.evaluate(x.extent, sizes))

    def still(extents: tuple[OpenExtent, ...]) -> tuple[OpenExtent, ...]:
        return tuple(x for x in extents if x.size not in sizes)

    inputs, stages = [*dag.inputs], [*dag.stages]
    for x in dag.open.inputs:
        if x.size in sizes:
            t = inputs[x.of]
            inputs[x.of] = replace(t, shape=(*t.shape[: x.at], number(x), *t.shape[x.at + 1 :]))
    for x in dag.open.axes:
        if x.size in sizes:
            stages[x.of] = _with_extent(stages[x.of], x.at, number(x))
    numbers = {variable(n): sizes[n] for n in dag.open.ranges if n in sizes}
    stages = [stage_with_sizes(s, numbers) for s in stages]

    def lie(t: Tensor) -> Tensor:
        steps = open_strides(dag, dag.tensors[t.name])
        return t if t.strides == steps else replace(t, strides=steps)

    return replace(
        dag,
        inputs=tuple(map(lie, inputs)),
        stages=tuple(replace(s, outputs=tuple(map(lie, s.outputs))) for s in stages),
        open=OpenSizes(left, still(dag.open.inputs), still(dag.open.axes)) if left else None,
    )


def at_most(dag: ComputeDAG) -> ComputeDAG:
    """The DAG of the largest sizes, whose arguments lie as those of ``dag``."""
    if dag.open is None:
        return dag
    most = largest_sizes(dag.open)
    return replace(dag, stages=tuple(stage_with_sizes(s, most) for s in dag.stages), open=None)


def largest_sizes(opened: OpenSizes) -> dict[str, int]:
    """{variable: the largest size}."""
    return {variable(s.name): s.most for s in opened.sizes}


def open_strides(dag: ComputeDAG, t: Tensor) -> tuple[int, ...] | None:
    """The strides that a tensor of the DAG has at every size; None: row-major at each."""
    if dag.open is not None and t.name in {dag.params[k].name for k in dag.open.roomy}:
        return row_major(t.shape)
    return t.strides


def with_room(dag: ComputeDAG, names: Collection[str]) -> ComputeDAG:
    """The DAG whose row-major arguments of these names are `OpenSizes.roomy`, as far as they have an open
    extent."""
    if dag.open is None:
        return dag
    shapes, _ = extents_of(dag)
    roomy = tuple(
        k
        for k, t in enumerate(dag.params)
        if t.name in names and t.strides is None and any(map(E.variables, shapes[t.name]))
    )
    return replace(dag, open=replace(dag.open, roomy=roomy))


def _with_extent(s: Stage, which: int, extent: int) -> Stage:
    axes = [*s.axes, *s.reduce_axes]
    axes[which] = replace(axes[which], extent=extent)
    own = tuple(axes[: len(s.axes)])
    shape = tuple(a.extent for a in own)
    return replace(
        s,
        axes=own,
        reduce_axes=tuple(axes[len(s.axes) :]),
        outputs=tuple(replace(o, shape=shape) for o in s.outputs),
    )


def sizes_of(dag: ComputeDAG, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The sizes at which the inputs have these shapes, as far as the extents that tell them say. Raises
    `WorkloadError` for sizes that are out of range or no integers."""
    out: dict[str, int] = {}
    if dag.open is None:
        return out
    if wrong := untold(dag):
        raise WorkloadError(wrong)
    telling = dag.open.telling
    for s in dag.open.sizes:
        x = telling[s.name]
        t, shape = dag.inputs[x.of], shapes[x.of]
        if len(shape) != len(t.shape):
            raise WorkloadError(f"input {t.name} has {len(shape)} dimensions, not {len(t.shape)}")
        n = x.told(shape[x.at])
        if n is None or not s.least <= n <= s.most:
            least = int(E.evaluate(x.extent, {s.name: s.least}))
            raise WorkloadError(
                f"input {t.name} has extent {shape[x.at]} in dimension {x.at}; the size {s.name} may be "
                f"{s.least} to {s.most}, which is an extent of {least} to {t.shape[x.at]}"
            )
        out[s.name] = n
    return out


# -- checks ------------------------------------------------------------------------------------


def check_sizes(sizes: Sequence[OpenSize]) -> None:
    """Raise ValueError for sizes of names that no code can have, or of no range."""
    seen = set()
    for s in sizes:
        if not s.name.isidentifier() or s.name in seen:
            raise ValueError(f"the name {s.name[:40]!r} of a size is no identifier, or stands twice")
        if not 1 <= s.least < s.most <= MAX_EXTENT:
            raise ValueError(
                f"the size {s.name} is {s.least} to {s.most}; give the least size, from 1 on, then a larger "
                f"one, up to {MAX_EXTENT}"
            )
        seen.add(s.name)


def check_open(dag: ComputeDAG) -> None:
    """Raise ValueError unless the open sizes fit the DAG, and every load is inside at all of them.
    `ComputeDAG` has checked the largest sizes before."""
    assert dag.open is not None
    ranges = dag.open.ranges
    check_extents(dag.open.inputs, [t.shape for t in dag.inputs], ranges, "input")
    axes = [tuple(a.extent for a in (*s.axes, *s.reduce_axes)) for s in dag.stages]
    check_extents(dag.open.axes, axes, ranges, "stage")
    plain = {k for k, t in enumerate(dag.params) if t.strides is None}
    if list(dag.open.roomy) != sorted(plain & {*dag.open.roomy}):
        raise ValueError(f"{list(dag.open.roomy)} are no numbers of row-major arguments, ascending")
    for x in dag.open.inputs:
        if dag.inputs[x.of].name in dag.constants:
            raise ValueError(
                f"constant {dag.inputs[x.of].name} has the open extent {E.show(x.extent)}, so that it is "
                "another array at each size; leave it out of the constants, or give open=False for a kernel "
                "of each size"
            )
    shapes, stages = extents_of(dag)
    for s, extents in zip(dag.stages, stages, strict=True):
        read = {x.buffer: shapes[x.buffer] for x in s.reads()}
        if s.places:
            check_fixed(s, [*extents, *(n for shape in read.values() for n in shape)])
        check_open_loads(VeryStage(s), extents, tuple(read.items()), dag.open.sizes)


def untold(dag: ComputeDAG) -> str:
    """What is wrong with a DAG one of whose sizes no extent of an input tells; nothing if none is so. A
    kernel of one is given its sizes by a program."""
    told = {} if dag.open is None else dag.open.telling
    for s in () if dag.open is None else dag.open.sizes:
        if s.name not in told:
            return f"no extent of an input tells the size {s.name} of a call; give a number"
    return ""


def check_extents(
    extents: Sequence[OpenExtent],
    numbers: Sequence[tuple[int, ...]],
    ranges: affine.Ranges,
    what: str,
) -> None:
    """Raise ValueError for an extent that is no extent, or not that of ``numbers`` at the largest size.
    ``ranges``: of the sizes, by name. ``what``: what ``numbers`` are of, for messages."""
    seen = set()
    for x in extents:
        where = f"extent {x.at} of {what} {x.of}"
        if not (0 <= x.of < len(numbers) and 0 <= x.at < len(numbers[x.of])) or (x.of, x.at) in seen:
            raise ValueError(f"{where} is not there, or open twice")
        seen.add((x.of, x.at))
        _check_form(x.extent, ranges, where)
        least, most = ranges[x.size]
        if x.linear is None and most - least >= TRIED_SIZES:
            raise ValueError(f"{where}, {_brief(x.extent)}, is not linear, of more than {TRIED_SIZES} sizes")
        sizes = (least, most) if x.linear is not None else range(least, most + 1)
        values = [int(E.evaluate(x.extent, {x.size: n})) for n in sizes]
        if values[0] < 1 or any(a > b for a, b in pairwise(values)):
            raise ValueError(f"{where}, {_brief(x.extent)}, is below 1 or shrinks where {x.size} grows")
        if values[-1] != numbers[x.of][x.at]:
            raise ValueError(f"{where}, {_brief(x.extent)}, is not {numbers[x.of][x.at]} at the largest size")


def _check_form(e: Expr, ranges: affine.Ranges, where: str) -> None:
    """Raise ValueError unless an extent is arithmetic of one size and integers."""
    if len(list(E.walk(e))) > MOST_NODES:
        raise ValueError(f"{where} has more than {MOST_NODES} operations")
    for x in E.walk(e):
        match x:
            case Const(value=int(), dtype=E.INDEX) | Binary(op="+" | "-" | "*"):
                continue
            case Var(name=name) if name in ranges:
                continue
            case Binary(op="//" | "ceildiv", b=Const(value=int(by))) if by > 0:
                continue
        raise ValueError(f"{where}, {_brief(e)}, is no sum, product or quotient of one size and integers")
    if len(E.variables(e)) != 1:
        raise ValueError(f"{where}, {_brief(e)}, must depend on one size")


def _brief(e: Expr) -> str:
    """An extent of a file of others, whose names may be long."""
    text = E.show(e)
    return text if len(text) <= 100 else f"{text[:97]}..."


def extents_of(dag: ComputeDAG) -> tuple[dict[str, tuple[Expr, ...]], list[tuple[Expr, ...]]]:
    """({tensor: its extents}, the extents of the axes and reduction axes of each stage): numbers, and
    expressions of `variable` of a size where they are open."""
    opened = dag.open
    inputs = {(x.of, x.at): in_variables(x.extent) for x in opened.inputs} if opened else {}
    axes = {(x.of, x.at): in_variables(x.extent) for x in opened.axes} if opened else {}
    shapes = {
        t.name: tuple(inputs.get((k, d), Const(n)) for d, n in enumerate(t.shape))
        for k, t in enumerate(dag.inputs)
    }
    stages = []
    for k, s in enumerate(dag.stages):
        every = (*s.axes, *s.reduce_axes)
        stages.append(tuple(axes.get((k, d), Const(a.extent)) for d, a in enumerate(every)))
        shapes |= {o.name: stages[-1][: len(s.axes)] for o in s.outputs}
    return shapes, stages


def with_stages(dag: ComputeDAG, stages: Sequence[Stage], origins: Mapping[str, str]) -> ComputeDAG:
    """The DAG with other stages, which compute the same. ``origins``: {stage: the stage of ``dag`` from which
    it has its axes}. One with the name of an axis there is as long as that at every size. Raises
    ValueError."""
    if dag.open is None:
        return replace(dag, stages=tuple(stages))
    known = {(x.of, _axes(dag.stages[x.of])[x.at]): x.extent for x in dag.open.axes}
    numbers = {s.name: k for k, s in enumerate(dag.stages)}
    axes = tuple(
        OpenExtent(k, d, extent)
        for k, s in enumerate(stages)
        for d, var in enumerate(_axes(s))
        if (extent := known.get((numbers[origins[s.name]], var))) is not None
    )
    return replace(dag, stages=tuple(stages), open=replace(dag.open, axes=axes))


def depths_that_depend(dag: ComputeDAG) -> set[str]:
    """Stages that sum over an axis whose extent depends on a size."""
    every = () if dag.open is None else dag.open.axes
    return {dag.stages[x.of].name for x in every if x.at >= len(dag.stages[x.of].axes)}


def _axes(s: Stage) -> list[str]:
    return [a.var for a in (*s.axes, *s.reduce_axes)]


def strides_that_depend(dag: ComputeDAG) -> str:
    """What is wrong with an argument whose strides depend on a size, with the remedy; nothing if none is
    so."""
    shapes, _ = extents_of(dag)
    for t in dag.params:
        for d, n in enumerate(shapes[t.name]):
            if open_strides(dag, t) is None and E.variables(n) and prod(t.shape[:d]) > 1:
                return (
                    f"argument {t.name} has the open extent {shown(n)} in dimension {d}, so that its "
                    "strides depend on a size; make that its outermost dimension, give it the strides of "
                    f"the largest size, {list(row_major(t.shape))}, or open=False for a kernel of each size"
                )
    return ""
