"""Sizes of a program: numbers that a call tells, and the shapes of inputs and outputs at these.

Between kernels all lies as it does at the largest sizes. An input or output is row-major, of as many rows as
it has, unless its strides would depend on a size: then the program has it with room for the largest one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Var
from schedules.graph.graph import Island, PlaceMove
from schedules.strides import MemoryLayout, row_major, settled, strides_of
from schedules.te.open_sizes import (
    OpenExtent,
    OpenSize,
    check_extents,
    extents_of,
    open_strides,
    strides_that_depend,
)
from schedules.te.sizes_in_values import variable

if TYPE_CHECKING:
    from autotune.models.outline import KernelCall, Outline
    from schedules.te.compute_dag import ComputeDAG, Tensor

# {input or output: (dimension, its extent, an expression of one size) of each that is open}.
Extents = Mapping[str, tuple[tuple[int, Expr], ...]]


@dataclass(frozen=True)
class ExtentOf:
    """Where a call tells a size: dimension ``dim`` of ``input`` has ``step * size + first`` elements."""

    input: str
    dim: int
    step: int = 1
    first: int = 0

    def told(self, extent: int) -> int | None:
        """The size at which there are so many elements; None if there is none."""
        size, left = divmod(extent - self.first, self.step)
        return None if left else size

    def extent(self, size: int) -> int:
        """Inverse of `told`."""
        return self.step * size + self.first


@dataclass(frozen=True)
class ProgramSize(OpenSize):
    """A size of a program. ``source``: what of a call tells it."""

    source: ExtentOf


def sizes_of(dag: ComputeDAG, inputs: Sequence[str]) -> tuple[ProgramSize, ...]:
    """The open sizes of a graph's DAG, of which a caller gives ``inputs``. Raises ValueError where no extent
    of these tells one."""
    if dag.open is None:
        return ()
    told: dict[str, ExtentOf] = {}
    for x in dag.open.inputs:
        name = dag.inputs[x.of].name
        if name in inputs and x.linear is not None:
            told.setdefault(x.size, ExtentOf(name, x.at, *x.linear))
    for s in dag.open.sizes:
        if s.name not in told:
            raise ValueError(f"no extent of an input tells the size {s.name} of a call; give a number")
    return tuple(ProgramSize(s.name, s.least, s.most, told[s.name]) for s in dag.open.sizes)


def told_sizes(sizes: Iterable[tuple[str, int, int, str, int]], extents: Extents) -> tuple[ProgramSize, ...]:
    """Sizes as a file has them: name, least, most, and the input and its dimension that tell it. Raises
    ValueError where that extent does not."""
    found = []
    for name, least, most, of, dim in sizes:
        e = dict(extents.get(of, ())).get(dim)
        linear = None if e is None or E.variables(e) != {name} else OpenExtent(0, dim, e).linear
        if linear is None or linear[0] < 1:
            raise ValueError(f"no extent of an input tells the size {name[:40]!r}")
        found.append(ProgramSize(name, least, most, ExtentOf(of, dim, *linear)))
    return tuple(found)


def open_extents(dag: ComputeDAG, names: Sequence[str]) -> dict[str, tuple[tuple[int, Expr], ...]]:
    """The open extents of these tensors, by names of sizes."""
    if dag.open is None:
        return {}
    of_sizes: dict[str, Expr] = {variable(s.name): Var(s.name) for s in dag.open.sizes}
    shapes, _ = extents_of(dag)
    found = {
        name: tuple((d, E.substitute(n, of_sizes)) for d, n in enumerate(shapes[name]) if E.variables(n))
        for name in names
    }
    return {name: extents for name, extents in found.items() if extents}


def shape_at(ol: Outline, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input or output at sizes, by name."""
    shape = list(ol.tensors[name].shape)
    for d, extent in ol.extents.get(name, ()):
        shape[d] = int(E.evaluate(extent, sizes))
    return tuple(shape)


def layout_at(ol: Outline, name: str, sizes: Mapping[str, int]) -> MemoryLayout:
    """How the program has an input or output at sizes."""
    t, shape = ol.tensors[name], shape_at(ol, name, sizes)
    if t.strides is None and not is_roomy(ol, name):
        return MemoryLayout(shape)
    return MemoryLayout(shape, settled(shape, strides_of(t)))


def is_roomy(ol: Outline, name: str) -> bool:
    """Whether a row-major input or output has room for the largest sizes, as its strides would depend on
    one."""
    t = ol.tensors[name]
    return t.strides is None and any(prod(t.shape[:d]) > 1 for d, _ in ol.extents.get(name, ()))


# -- checks ----------------------------------------------------------------------------------------


def check_sizes(ol: Outline) -> None:
    """Raise ValueError for sizes that no input tells, and for extents that are not those of the largest
    sizes."""
    ranges = {s.name: s.range for s in ol.sizes}
    names = list(ol.extents)
    if odd := [n for n in names if n not in ol.inputs and n not in ol.outputs]:
        raise ValueError(f"{odd[0]!r} has open extents, and is neither an input nor an output")
    extents = [OpenExtent(k, d, e) for k, n in enumerate(names) for d, e in ol.extents[n]]
    check_extents(extents, [ol.tensors[n].shape for n in names], ranges, "tensor")
    known = {(names[x.of], x.at, *(x.linear or ())): x.size for x in extents}
    for s in ol.sizes:
        at = s.source
        if at.input not in ol.inputs or known.get((at.input, at.dim, at.step, at.first)) != s.name:
            raise ValueError(f"no extent of an input tells the size {s.name}")


def check_step(ol: Outline, step: KernelCall | Island) -> None:
    """Raise ValueError for a call of a kernel whose sizes do not fit, for one that reads or writes outside of
    what a caller gives at some sizes, and for an island in a model with sizes. `Outline` has checked the
    largest ones."""
    if isinstance(step, Island):
        if ol.sizes:
            raise ValueError(
                f"{step.name!r} ({step.op}) is no expression, and is called at one size only; give a number "
                f"for {', '.join(s.name for s in ol.sizes)}"
            )
    elif ol.sizes or step.sizes or ol.tasks[step.task].dag.open is not None:
        _check_call(ol, step)


def _check_call(ol: Outline, call: KernelCall) -> None:
    dag = ol.tasks[call.task].dag
    own = () if dag.open is None else dag.open.sizes
    known = {s.name: s.range for s in ol.told}
    if len(call.sizes) != len(own):
        raise ValueError(f"a step gives {len(call.sizes)} sizes to task {call.task}, which takes {len(own)}")
    for name, s in zip(call.sizes, own, strict=True):
        if name not in known or not s.least <= known[name][0] <= known[name][1] <= s.most:
            raise ValueError(f"a step gives the size {name[:40]!r} to task {call.task}, which takes another")
    if wrong := strides_that_depend(dag):
        raise ValueError(f"task {call.task}: {wrong}")
    names = dict(zip((s.name for s in own), call.sizes, strict=True))
    written = zip(call.writes, dag.outputs, strict=True)
    given = [(a.tensor, a.start, t) for a, t in zip(call.reads, dag.inputs, strict=True)]
    given += [(name, 0, dag.tensors[o]) for name, o in written]
    for name, _, t in given:
        if moves := ol.views[name].moves if name in ol.views else ():
            _check_rows(ol, call.task, name, moves, _span(dag, t, names), known)
    for name, start, t in given:
        if name not in ol.extents or is_roomy(ol, name):
            continue  # it has room for the largest
        left = _room(ol, name) - start - _span(dag, t, names)
        found = affine.bounds(affine.simplify(left, known), known)
        if found is None or found[0] < 0:
            raise ValueError(f"task {call.task} may go beyond the end of {name!r}")


def _check_rows(
    ol: Outline, task: int, name: str, moves: Sequence[PlaceMove], span: Expr, known: affine.Ranges
) -> None:
    """Raise ValueError where a task may write or read beyond the end of a state: ``span`` elements of
    ``name``, which a call moves."""
    at = ol.views[name]
    whole = ol.tensors[at.tensor]
    left = _reach([Const(n) for n in whole.shape], strides_of(whole)) - at.start - span
    by_name: dict[str, Expr] = {variable(s.name): Var(s.name) for s in ol.sizes}
    for m in moves:
        rows = Const(m.rows) if m.counted is None else E.substitute(m.counted, by_name)
        left = left - (m.extent - rows) * m.stride
    found = affine.bounds(affine.simplify(left, known), known)
    if found is None or found[0] < 0:
        raise ValueError(f"task {task} may go beyond the end of state {at.tensor!r}")


def _room(ol: Outline, name: str) -> Expr:
    """Elements from the first of an input or output to its last, by sizes."""
    t = ol.tensors[name]
    extents: list[Expr] = [Const(n) for n in t.shape]
    for d, e in ol.extents[name]:
        extents[d] = e
    return _reach(extents, strides_of(t))


def _span(dag: ComputeDAG, t: Tensor, names: Mapping[str, str]) -> Expr:
    """The same of an argument of a task, by the sizes that it is given."""
    of_sizes: dict[str, Expr] = {variable(own): Var(given) for own, given in names.items()}
    extents = [E.substitute(n, of_sizes) for n in extents_of(dag)[0][t.name]]
    return _reach(extents, open_strides(dag, t) or row_major(t.shape))


def _reach(extents: Sequence[Expr], strides: Sequence[int]) -> Expr:
    return sum(((n - 1) * abs(s) for n, s in zip(extents, strides, strict=True)), start=E.wrap(1))
