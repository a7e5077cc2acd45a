"""Which operator a stage of a graph is: the stage that the operator's own expression makes of the same
tensors is compared with it, so that no operator has a pattern of its own. Dimensions of extent 1 do not
count: graphs drop them, and keep those of their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from typing import Any, NamedTuple

from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Binary, Expr, Load, Select
from schedules.graph.edit import simplified, without_names
from schedules.loads import with_loads
from schedules.substitutions.operators import OPERATORS, RANKS, TensorKind, TermOperator
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_open
from schedules.te.unique import Taken

_SWAPPED = ("+", "*", "max", "min")
Shape = tuple[int, ...]


class Reading(NamedTuple):
    """A stage as an operator: its name, and the tensors that are its operands with the kinds they have
    there."""

    operator: str
    tensors: tuple[str, ...]
    kinds: tuple[TensorKind, ...]
    kind: TensorKind


def readings(s: Stage, tensors: Mapping[str, Tensor]) -> tuple[Reading, ...]:
    """Every way in which a stage is an operator. ``tensors``: of its graph."""
    reads = list(dict.fromkeys(x.buffer for x in s.reads()))
    if len(s.outputs) != 1 or not s.plain or not 1 <= len(reads) <= 2:
        return ()
    if any(is_open(n) for name in (*reads, s.name) for n in tensors[name].shape):
        return ()
    root, forms = _root(s), dict[tuple[str, ...], Any]()
    found = []
    for o in OPERATORS.values():
        if root not in _ROOTS.get(o.name, ()):
            continue
        for names in _operands(o, reads):
            dtypes = tuple(tensors[n].dtype for n in names)
            if names not in forms:
                forms[names] = _form(s, {n: tensors[n].shape for n in reads}, names)
            for kinds in product(*(kinds_of(tensors[n].shape) for n in names)):
                made = _made(o.name, kinds, dtypes, names[0] == names[-1])
                if made is not None and made.is_as(s, forms[names]):
                    found.append(Reading(o.name, names, kinds, made.kind))
    return tuple(found)


def kinds_of(shape: Shape) -> tuple[TensorKind, ...]:
    """What a tensor of a shape may be."""
    found = [TensorKind(name, shape) for name, rank in RANKS.items() if rank == len(shape)]
    long = without_ones(shape)
    if len(shape) > 2 and len(long) == 2:
        found.append(TensorKind("matrix", long))
    if len(shape) > 1 and len(long) == 1:
        found += [TensorKind("row", long), TensorKind("column", long)]
    if len(shape) == 3:
        found.append(TensorKind("image", (1, *shape)))
    if len(shape) == 2:
        found.append(TensorKind("kernel", (*shape, 1, 1)))
    return tuple(found)


def without_ones(shape: Shape) -> Shape:
    """A shape without its extents of 1."""
    return tuple(n for n in shape if n != 1)


def _operands(o: TermOperator, reads: list[str]) -> Iterator[tuple[str, ...]]:
    if o.arity == len(reads) == 1:
        yield (reads[0],)
    elif o.arity == 2:
        yield from permutations(reads, 2) if len(reads) == 2 else [(reads[0], reads[0])]


@dataclass(frozen=True)
class _MadeStage:
    """What an operator makes of some kinds of operands: its kind, its dtype, and its form."""

    kind: TensorKind
    dtype: str
    form: Any

    def is_as(self, s: Stage, form: Any) -> bool:
        """Whether a stage of this form is the same."""
        out = s.outputs[0]
        same = self.dtype == out.dtype and without_ones(self.kind.shape) == without_ones(out.shape)
        return same and bool(self.form == form)


@lru_cache(maxsize=4096)
def _made(
    operator: str, kinds: tuple[TensorKind, ...], dtypes: tuple[str, ...], same: bool
) -> _MadeStage | None:
    """What an operator makes; None where it is not defined. ``same``: whether all operands are one tensor.
    Equal layers ask for equal ones."""
    o, names = OPERATORS[operator], ("a",) * len(kinds) if same else ("a", "b")
    if same and len({k.shape for k in kinds}) > 1:
        return None  # one tensor cannot have two shapes
    try:
        kind = o.kind(Numbers(), *kinds)
        made = stage_of(o, kinds, [Tensor(n, k.shape, d) for n, k, d in zip(names, kinds, dtypes)], "made")
    except (Undefined, WorkloadError):
        return None
    form = _form(made, {n: k.shape for n, k in zip(names, kinds)}, names)
    return _MadeStage(kind, made.outputs[0].dtype, form)


def stage_of(o: TermOperator, kinds: tuple[TensorKind, ...], operands: list[Tensor], name: str) -> Stage:
    """The stage of an operator of tensors. Raises `WorkloadError` where it has none."""
    given = {t.name: te.placeholder(t.shape, t.dtype, t.name) for t in operands}
    made = o.stage(kinds, *(given[t.name] for t in operands))
    return named(made, name)


def named(made: te.Tensor, name: str) -> Stage:
    """The stage that makes a tensor, under a name."""
    (stage,) = te.dag([*te.inputs(made), made]).stages
    (tensor,) = stage.outputs
    return Stage(
        (Tensor(name, tensor.shape, tensor.dtype),),
        stage.axes,
        stage.reduce_axes,
        stage.values,
        stage.reducer,
    )


# What stands at the root of a stage: (its reduction, its value). Only such operators are compared.
_ROOTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "product": (("+", "*"),), "conv": (("+", "*"), ("", "*")), "add": (("", "+"),), "mul": (("", "*"),),
    "top": (("", "max"),), "relu": (("", "max"), ("", "select")), "transpose": (("", "load"),),
    "pad": (("", "select"),),
    **dict.fromkeys(("join0", "join1"), (("", "select"),)),
    **dict.fromkeys(("first0", "second0", "first1", "second1"), (("", "load"),)),
    **dict.fromkeys(("sum0", "sum1"), (("+", "load"),)),
    **dict.fromkeys(("largest0", "largest1"), (("max", "load"),)),
}  # fmt: skip


def _root(s: Stage) -> tuple[str, str]:
    v = s.values[0]
    value = v.op if isinstance(v, Binary) else {Select: "select", Load: "load"}.get(type(v), "")
    return s.reducer.operation(0) if s.reducer is not None else "", value


def _form(s: Stage, shapes: Mapping[str, Shape], names: tuple[str, ...]) -> Any:
    """A stage without its names, without sums of one term and dimensions of one element, operands that may be
    swapped in one order. ``shapes``: of what it reads, ``names``: in order."""

    def ordered(e: Expr) -> Expr | None:
        if isinstance(e, Binary) and e.op in _SWAPPED:
            a, b = (E.rewrite(x, ordered) for x in (e.a, e.b))
            return Binary(e.op, *sorted((a, b), key=repr))
        return None

    def long(x: Load) -> Expr:
        indices = tuple(i for i, n in zip(x.indices, shapes[x.buffer]) if n != 1)
        return replace(x, buffer=str(names.index(x.buffer)), indices=indices)

    single = {a.var: E.Const(0) for a in (*s.axes, *s.reduce_axes) if a.extent == 1}
    summed = tuple(a for a in s.reduce_axes if a.extent > 1)
    values = tuple(E.substitute(v, single) for v in s.values)
    s = replace(s, values=values, reduce_axes=summed, reducer=s.reducer if summed else None)
    s = replace(s, axes=tuple(a for a in s.axes if a.extent > 1))
    axes, reduced, values, reducer = without_names(simplified(s), long)
    combined = None if reducer is None else tuple(E.rewrite(c, ordered) for c in reducer[1])
    return axes, reduced, tuple(E.rewrite(v, ordered) for v in values), combined


def fitted(s: Stage, kinds: Mapping[str, Shape], shapes: Mapping[str, Shape], shape: Shape) -> Stage:
    """A stage that was made for ``kinds`` of what it reads, for tensors of ``shapes`` and a result of
    ``shape``: they differ in dimensions of one element."""

    def read(x: Load) -> Expr | None:
        long = iter([i for i, n in zip(x.indices, kinds[x.buffer]) if n != 1])
        return replace(x, indices=tuple(E.Const(0) if n == 1 else next(long) for n in shapes[x.buffer]))

    values = tuple(with_loads(v, read) for v in s.values)
    if shape != s.outputs[0].shape:
        single = {a.var: E.Const(0) for a in s.axes if a.extent == 1}
        long, taken = (
            iter([a for a in s.axes if a.extent > 1]),
            Taken(a.var for a in (*s.axes, *s.reduce_axes)),
        )
        axes = tuple(Axis(taken.add("one"), 1) if n == 1 else next(long) for n in shape)
        values = tuple(E.substitute(v, single) for v in values)
        s = replace(s, axes=axes, outputs=(replace(s.outputs[0], shape=shape),))
    return simplified(replace(s, values=values))
