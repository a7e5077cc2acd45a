"""Which operator a stage of a graph is: the stage that the operator's own expression makes of the same tensors
is compared with it, so that no operator has a pattern of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product
from typing import Any, NamedTuple

from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Binary, Expr, Load, Select
from schedules.graph.edit import simplified, without_names
from schedules.substitutions.operators import OPERATORS, RANKS, Kind, Operator
from schedules.substitutions.sizes import Numbers, Undefined
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.extent import is_open

_KINDS = {rank: tuple(k for k, r in RANKS.items() if r == rank) for rank in range(5)}
_SWAPPED = ("+", "*", "max", "min")


class Reading(NamedTuple):
    """A stage as an operator: its name, and the tensors that are its operands with the kinds they have there."""

    operator: str
    tensors: tuple[str, ...]
    kinds: tuple[Kind, ...]
    kind: Kind


def readings(s: Stage, tensors: Mapping[str, Tensor]) -> tuple[Reading, ...]:
    """Every way in which a stage is an operator. ``tensors``: of its graph."""
    reads = list(dict.fromkeys(x.buffer for x in s.reads()))
    if len(s.outputs) != 1 or not s.plain or not 1 <= len(reads) <= 2:
        return ()
    if any(is_open(n) for name in (*reads, s.name) for n in tensors[name].shape):
        return ()
    root, own = _root(s), None
    found = []
    for o in OPERATORS.values():
        if root not in _ROOTS.get(o.name, ()):
            continue
        own = own or _form(s)
        for names in _operands(o, reads):
            for kinds in product(*(_KINDS.get(len(tensors[n].shape), ()) for n in names)):
                every = tuple(Kind(k, tensors[n].shape) for k, n in zip(kinds, names))
                kind = _made(o, every, s, names, tensors, own)
                if kind is not None:
                    found.append(Reading(o.name, names, every, kind))
    return tuple(found)


def _operands(o: Operator, reads: list[str]) -> Iterator[tuple[str, ...]]:
    if o.arity == len(reads) == 1:
        yield (reads[0],)
    elif o.arity == 2:
        yield from permutations(reads, 2) if len(reads) == 2 else [(reads[0], reads[0])]


def _made(
    o: Operator, kinds: tuple[Kind, ...], s: Stage, names: tuple[str, ...], tensors: Mapping[str, Tensor], own: Any
) -> Kind | None:
    """The kind of the result where the operator makes a stage of this form."""
    try:
        kind = o.kind(Numbers(), *kinds)
        if kind.shape != s.outputs[0].shape:
            return None
        made = stage_of(o, kinds, [tensors[n] for n in names], s.name)
    except (Undefined, WorkloadError):
        return None
    same = made.outputs[0].dtype == s.outputs[0].dtype and _form(made) == own
    return kind if same else None


def stage_of(o: Operator, kinds: tuple[Kind, ...], operands: list[Tensor], name: str) -> Stage:
    """The stage of an operator of tensors. Raises `WorkloadError` where it has none."""
    given = {t.name: te.placeholder(t.shape, t.dtype, t.name) for t in operands}
    made = o.stage(kinds, *(given[t.name] for t in operands))
    return named(made, name)


def named(made: te.Tensor, name: str) -> Stage:
    """The stage that makes a tensor, under a name."""
    (stage,) = te.dag([*te.inputs(made), made]).stages
    (tensor,) = stage.outputs
    return Stage((Tensor(name, tensor.shape, tensor.dtype),), stage.axes, stage.reduce_axes, stage.values, stage.reducer)


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


def _form(s: Stage) -> Any:
    """A stage without its names and without sums of one term, operands that may be swapped in one order."""

    def ordered(e: Expr) -> Expr | None:
        if isinstance(e, Binary) and e.op in _SWAPPED:
            a, b = (E.rewrite(x, ordered) for x in (e.a, e.b))
            return Binary(e.op, *sorted((a, b), key=repr))
        return None

    single = {a.var: E.Const(0) for a in s.reduce_axes if a.extent == 1}
    left = tuple(a for a in s.reduce_axes if a.extent > 1)
    values = tuple(E.substitute(v, single) for v in s.values)
    s = replace(s, reduce_axes=left, values=values, reducer=s.reducer if left else None)
    axes, reduced, values, reducer = without_names(simplified(s))
    combined = None if reducer is None else tuple(E.rewrite(c, ordered) for c in reducer[1])
    return axes, reduced, tuple(E.rewrite(v, ordered) for v in values), combined
