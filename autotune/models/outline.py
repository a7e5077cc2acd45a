"""`Outline`: what a compiled model is, as data: tensors, calls of kernels and islands, in order.

It has neither code nor values. A saved model has one too, so nothing in it is trusted: whatever makes one is
told by a ValueError what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from autotune.models.kept_states import StateOrder, check_states
from autotune.models.row_counts import RowCount, check_told, row_counts
from autotune.models.sizes import Extents, ProgramSize, check_sizes, check_step, open_extents, sizes_of
from schedules.dtypes import DTYPES
from schedules.graph.graph import Argument, Graph, GraphState, Group, Island, PlaceMove
from schedules.graph.plan import ALIGNMENT, Plan, PlanStep, plan
from schedules.model import Workload
from schedules.strides import flaw, strides_of
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.extent import is_open
from schedules.te.flops import count_flops
from schedules.te.marks import as_index, unmarked
from schedules.te.sizes_in_values import without_holes

Part = Group | Island


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel. ``task``: the number of its workload. ``reads``: in the order of the workload's
    inputs. ``writes``: names of tensors in the order of its outputs. ``origins``: names of the model's
    nodes. ``sizes``: names of the program's sizes, in the order of the workload's open ones."""

    task: int
    reads: tuple[Argument, ...]
    writes: tuple[str, ...]
    origins: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outline:
    """A model as calls of kernels.

    ``tensors``: everything that lies between steps, by name. ``inputs``, ``outputs``: names, in the order of
    a call. ``constants``: names of the weights. ``tasks``: each workload once. ``steps``: in an order in
    which all is written before it is read. ``labels``: {name of an input or output: what users call it},
    where that is another name. ``views``: {tensor: where in another one it lies}. ``joins``: {tensor that no
    step writes: the tensors that are its parts, or the one that it is a part of}, which lie where it does.
    ``sizes``: what a call tells; tensors have the extents of the largest. ``extents``: those of inputs and
    outputs that depend on one.
    ``states``: {what users call it: what calls keep}, without initial values. Its new value lies where the
    old one does, of which it is joined with what was written there; or apart, and is copied when the call
    ends. ``counts``: sizes of steps that a call tells by numbers. Raises ValueError for steps that read
    outside a tensor, or before it is written, or after it was written over, for views that do not lie inside
    of what they are part of, for sizes that do not fit, and for weights that no step reads."""

    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    tasks: tuple[Workload, ...]
    steps: tuple[KernelCall | Island, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, Argument] = field(default_factory=dict)
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: tuple[ProgramSize, ...] = ()
    extents: Extents = field(default_factory=dict)
    states: Mapping[str, GraphState] = field(default_factory=dict)
    counts: tuple[RowCount, ...] = ()

    def __post_init__(self) -> None:
        for what, names in (("input", self.inputs), ("weight", self.constants), ("output", self.outputs)):
            for name in names:
                if name not in self.tensors:
                    raise ValueError(f"{what} {name!r} is no tensor of the model")
        given = [*self.inputs, *self.constants]
        if len(set(given)) != len(given):
            raise ValueError("two inputs or weights have one name")
        kept = {s.tensor for s in self.states.values()}
        check_states(self)
        self._check_strides()
        self._check_views(kept)
        check_told(self)
        if self.sizes or self.extents:
            check_sizes(self)
        written, order = {*given, *kept}, StateOrder(self)
        for step in self.steps:
            self._check_step(step, written)
            check_step(self, step)
            order.step(_reads(step), _writes(step))
            self._join(written)
        order.end()
        if missing := [n for n in self.outputs if n not in written - set(given)]:
            raise ValueError(f"no step writes output {missing[0]!r}")
        read = {n for s in self.steps for n in _reads(s)}
        if idle := [n for n in self.constants if n not in read]:
            raise ValueError(f"no step reads weight {idle[0]!r}")

    def _check_step(self, step: KernelCall | Island, written: set[str]) -> None:
        """Raise ValueError for a step that cannot run after those that wrote ``written``, which grows."""
        if isinstance(step, Island):
            reads = [(Argument(name), self._of(name)) for name in step.reads]
            writes = [(t.name, t) for t in step.writes]
        else:
            if not 0 <= step.task < len(self.tasks):
                raise ValueError(f"a step runs task {step.task} of {len(self.tasks)}")
            dag = self.tasks[step.task].dag
            if len(step.reads) != len(dag.inputs) or len(step.writes) != len(dag.outputs):
                raise ValueError(f"a step does not fit the arguments of task {step.task}")
            reads = [*zip(step.reads, dag.inputs, strict=True)]
            writes = [(n, dag.tensors[o]) for n, o in zip(step.writes, dag.outputs, strict=True)]
            for a, t in reads:
                if t.name in dag.constants and a.tensor not in self.constants:
                    raise ValueError(f"{a.tensor!r} is read as a weight, which it is not")
                if a.moves and a.tensor in self.constants:
                    raise ValueError(f"weight {a.tensor!r} is read from a place on that moves")
        for a, t in reads:
            self._check_read(a, t, written)
        for name, t in writes:
            whole = self._of(name)
            if name in written:
                raise ValueError(f"{name!r} is written twice")
            if name in self.joins:
                raise ValueError(f"{name!r} is written, and joined of others")
            if (t.dtype, prod(t.shape), _span(t)) != (whole.dtype, prod(whole.shape), _span(whole)):
                raise ValueError(f"{name!r} is written as {t.dtype}{list(t.shape)}, which it is not")
            written.add(name)

    def _check_read(self, a: Argument, t: Tensor, written: Collection[str]) -> None:
        """Raise ValueError where a step that reads ``t`` there would not find it."""
        name, whole = a.tensor, self._of(a.tensor)
        if name not in written:
            raise ValueError(f"{name!r} is read before it is written")
        if t.dtype != whole.dtype:
            raise ValueError(f"{name!r} is read as {t.dtype}; it is {whole.dtype}")
        if min(strides_of(t), default=0) < 0:
            raise ValueError(f"{name!r} is read backwards, before its first element")
        if a.start < 0 or _end(a, t) > _span(whole):
            raise ValueError(f"elements {a.start} to {_end(a, t)} of {name!r} are read")

    def _check_strides(self) -> None:
        """Raise ValueError for strides of what callers or islands have otherwise, and for inputs that could
        not be copied there."""
        lying = {name: t for name, t in self.tensors.items() if t.strides is not None}
        for name, t in lying.items():
            if name not in self.views and (name not in self.inputs or name in self.outputs):
                raise ValueError(f"{name!r} has strides, and is neither an input nor part of another tensor")
            if wrong := flaw(t.shape, strides_of(t), written=True):
                raise ValueError(f"tensor {name!r}: {wrong}")
        read = (name for s in self.steps if isinstance(s, Island) for name in _reads(s) + _writes(s))
        if odd := [name for name in read if name in self.views]:
            raise ValueError(f"an island has {odd[0]!r}, which lies in another tensor")

    def _check_views(self, kept: Collection[str]) -> None:
        """Raise ValueError for views and joins that are none. ``kept``: tensors of states."""
        for name, at in self.views.items():
            part, whole = self._of(name), self._of(at.tensor)
            if at.tensor in self.views or {name, at.tensor} & {*self.inputs, *self.constants}:
                raise ValueError(f"{name!r} cannot lie in {at.tensor!r}")
            alone = self.joins.get(name) == (at.tensor,)  # no step writes it: it is a part of what one wrote
            if name in self.outputs or not (alone or at.tensor in {*self.joins, *kept}):
                raise ValueError(f"{name!r} is no part of {at.tensor!r}")
            moved = at != Argument(at.tensor) or part.shape != whole.shape
            if at.tensor in kept and name in self.joins and moved:
                raise ValueError(f"{name!r} is no value of state {at.tensor!r}")
            if part.dtype != whole.dtype or at.start < 0 or _end(at, part) > _span(whole):
                raise ValueError(f"{name!r} does not lie inside of {at.tensor!r}")
        for name, parts in self.joins.items():
            if name in self.inputs or name in self.constants:
                raise ValueError(f"{name!r} is given, and joined of others")
            root = self.root(name)
            own = parts[1:] if root in kept else parts  # the first is what was there
            of_one = own == (root,) and root not in self.joins
            if not own or any(self.root(p) != root for p in parts) or (root in own and not of_one):
                raise ValueError(f"{name!r} is not joined of tensors that lie in it")

    def _join(self, written: set[str]) -> None:
        """Add to what is ``written`` what is joined of it."""
        left = [name for name in self.joins if name not in written]
        while ready := [name for name in left if written.issuperset(self.joins[name])]:
            written.update(ready)
            left = [name for name in left if name not in written]

    def root(self, name: str) -> str:
        """The tensor in whose memory a tensor lies, which may be itself."""
        return self.views[name].tensor if name in self.views else name

    def _of(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(f"{name!r} is no tensor of the model")
        return self.tensors[name]

    @property
    def told(self) -> tuple[ProgramSize | RowCount, ...]:
        """All sizes of steps that a call tells, by extents and by numbers."""
        return (*self.sizes, *self.counts)

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The calls of kernels, in order."""
        return tuple(s for s in self.steps if isinstance(s, KernelCall))

    def label(self, name: str) -> str:
        """What users call an input or output."""
        return self.labels.get(name, name)

    def nodes(self, task: int) -> tuple[str, ...]:
        """Names of the model's nodes that a task runs, each once."""
        return tuple(
            dict.fromkeys(o for c in self.calls if c.task == task for o in (c.origins or c.writes[:1]))
        )

    def count(self, task: int) -> int:
        """How often a call of the model runs a task."""
        return sum(c.task == task for c in self.calls)


def nbytes(t: Tensor) -> int:
    """Bytes of memory from the first element of a tensor to its last."""
    return t.nbytes


def _span(t: Tensor) -> int:
    """The same in elements."""
    return t.nbytes // DTYPES[t.dtype].itemsize


def _end(a: Argument, t: Tensor) -> int:
    """The element behind the last one of a tensor that lies at a place, as far as the call may move it."""
    return a.start + _span(t) + sum(m.most * m.stride for m in a.moves)


def arena(outline: Outline, alignment: int = ALIGNMENT) -> Plan:
    """Places of what lies between steps and is neither given nor returned, at multiples of ``alignment``
    bytes."""
    elsewhere = {*outline.inputs, *outline.outputs, *outline.constants, *outline.views}
    elsewhere |= {s.tensor for s in outline.states.values()}
    sizes = {n: nbytes(t) for n, t in outline.tensors.items() if n not in elsewhere}

    def roots(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(outline.root, names))

    # what lies in another tensor needs the place of that
    steps = [PlanStep(roots(_reads(s)), roots(_writes(s))) for s in outline.steps]
    kept = [outline.root(s.new) for s in outline.states.values()]  # what is copied in the end
    return plan(steps, sizes, [n for n in kept if n in sizes], alignment)


def outline(graph: Graph, parts: Sequence[Part], labels: Mapping[str, str] | None = None) -> Outline:
    """The outline of a graph that was cut into ``parts``, in topological order. Groups with one expression,
    whatever its names, are one task. Raises ValueError for parts that do not make the graph."""
    tasks: dict[str, int] = {}
    workloads: list[Workload] = []
    steps: list[KernelCall | Island] = []
    for part in parts:
        if isinstance(part, Island):
            steps.append(part)
            continue
        workload = workload_of(part.dag)
        number = tasks.setdefault(workload.digest, len(workloads))
        if number == len(workloads):
            workloads.append(workload)
        sizes = () if part.dag.open is None else tuple(s.name for s in part.dag.open.sizes)
        reads = tuple(map(_counted, part.inputs))
        steps.append(KernelCall(number, reads, part.outputs, part.origins, sizes))
    names = {*graph.inputs, *graph.values, *graph.joins, *(n for p in parts for n in _writes(p))}
    names |= {s.tensor for s in graph.states.values()}
    dag = unmarked(graph.dag)
    tensors = {n: t for n, t in dag.tensors.items() if n in names}
    read = {n for p in parts for n in _reads(p)}
    constants = tuple(n for n in dag.constants if n in read)
    tensors = {n: t for n, t in tensors.items() if n not in graph.values or n in constants}
    return Outline(
        tensors, graph.inputs, graph.outputs, constants, tuple(workloads), tuple(steps), dict(labels or {}),
        {n: _counted(a) for n, a in graph.views.items()}, dict(graph.joins), sizes_of(dag, graph.inputs),
        open_extents(dag, (*graph.inputs, *dict.fromkeys(graph.outputs))),
        {name: GraphState(s.tensor, s.new) for name, s in graph.states.items()},
        row_counts(graph.short, steps),
    )  # fmt: skip


def _counted(a: Argument) -> Argument:
    """A place without extents that know their sizes."""

    def move(m: PlaceMove) -> PlaceMove:
        counted = without_holes(as_index(m.rows)) if is_open(m.rows) else m.counted
        return replace(m, index=without_holes(m.index), rows=int(m.rows), counted=counted)

    return replace(a, moves=tuple(map(move, a.moves))) if a.moves else a


def workload_of(dag: ComputeDAG) -> Workload:
    """The workload of a group's expression."""
    return Workload(dag, flops=count_flops(dag))


def _reads(x: Part | KernelCall) -> tuple[str, ...]:
    """Names of what a part or a step reads."""
    if isinstance(x, Island):
        return x.reads
    return tuple(a.tensor for a in (x.inputs if isinstance(x, Group) else x.reads))


def _writes(x: Part | KernelCall) -> tuple[str, ...]:
    if isinstance(x, Island):
        return tuple(t.name for t in x.writes)
    return x.outputs if isinstance(x, Group) else x.writes
