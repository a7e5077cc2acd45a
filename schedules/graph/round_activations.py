"""Activations of products with weights of few bits become integers of 8 bits, rounded in the call.

``part[i, j, g] = sum over t of x[i, g, t] * (code[j, g, t] - zero)`` is, with ``x`` about ``x_scale[i, g] *
x_codes[i, g, t]``, a sum of integers:

    ``x_scale[i, g] * (sum of x_codes * code  -  zero * sum of x_codes)``

which instructions of processors compute. The result is another one: that of rounded activations. Whatever
states such a sum is found by its expression: weights of few bits of any front end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from schedules import affine, te
from schedules import expr as E
from schedules.dtypes import DTYPES, is_float, is_integer
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.graph.constant_products import KnownTensors, bare
from schedules.graph.edit import is_sum, ranges, remade, renamed
from schedules.graph.graph import Graph
from schedules.graph.integers import INTEGER_SUM
from schedules.graph.quantised import SUMS
from schedules.loads import with_loads
from schedules.ops.few_bits import LARGEST, place, rounded_rows
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.extent import is_open, is_same
from schedules.te.tensors import marked_dag
from schedules.te.unique import Taken


@dataclass(frozen=True)
class CodeSum:
    """A stage that sums ``x`` times numbers that integers of constants are. ``x``: the load. ``code``: int32,
    less ``zero`` the number. ``rows``: places of the stage's axes along which ``x`` goes, that of groups
    last where there is one. ``group``: numbers in a sum. ``constants``: what the code is made of."""

    stage: Stage
    x: Load
    code: Expr
    zero: int
    rows: tuple[int, ...]
    group: int
    constants: tuple[str, ...]


def code_sums(graph: Graph, known: KnownTensors) -> list[CodeSum]:
    """The sums of floats times integers of constants, in order."""
    found = (_code_sum(s, known) for s in graph.dag.stages)
    return [x for x in found if x is not None]


def round_activations(graph: Graph, refuse: Callable[[CodeSum], str]) -> Graph:
    """The graph that rounds the activations of products with integers, but where ``refuse`` gives a reason
    why not. What several products read is rounded once."""
    sums = {c.stage.name: c for c in code_sums(graph, KnownTensors(graph)) if not refuse(c)}
    if not sums:
        return graph
    made = _Rounding(graph, frozenset((*graph.dag.outputs, *(c.x.buffer for c in sums.values()))))
    stages: list[Stage] = []
    for s in graph.dag.stages:
        if s.name in sums:
            stages += made.product(sums[s.name])
        else:
            stages.append(replace(s, values=tuple(with_loads(v, made.scaled) for v in s.values)))
    origins = {**graph.origins, **{n: graph.origins[of] for n, of in made.of.items() if of in graph.origins}}
    return remade(replace(graph, origins=origins), stages)


class _Rounding:
    """Makes products of rounded activations. ``of``: {new stage: the one that it comes from}. ``kept``:
    tensors that stay floats: a caller gets them, or they are rounded themselves."""

    def __init__(self, graph: Graph, kept: frozenset[str]) -> None:
        self.graph, self.kept, self.taken = graph, kept, Taken(graph.dag.tensors)
        self.of: dict[str, str] = {}
        self._rows: dict[tuple[str, int], tuple[str, str]] = {}  # by tensor and group: codes, scales
        self._made: dict[str, tuple[CodeSum, str, str]] = {}  # by sum: what its zeros add, scales

    def product(self, c: CodeSum) -> list[Stage]:
        """The stages that stand for a sum, which now is one of integers."""
        s, new = c.stage, []
        key = c.x.buffer, c.group
        if key not in self._rows:
            new += self._rounded(c)
        codes, scales = self._rows[key]
        x = Cast(SUMS, Load(codes, c.x.indices, "int8"))
        name = self.taken.add(f"{s.name}_sums") if s.name in self.kept else s.name
        out = replace(s.outputs[0], name=name, dtype=SUMS)
        zeros = ""
        if c.zero:
            zeros = self.taken.add(f"{s.name}_zeros")
            axes = tuple(s.axes[n] for n in c.rows)
            low = Tensor(zeros, tuple(a.extent for a in axes), SUMS)
            new.append(Stage((low,), axes, s.reduce_axes, (x * Const(c.zero, SUMS),), INTEGER_SUM))
        self._made[name] = c, zeros, scales
        new.append(replace(s, outputs=(out,), values=(x * c.code,), reducer=INTEGER_SUM))
        self.of |= {m.name: s.name for m in new}
        if name != s.name:
            value = self.scaled(Load(name, tuple(Var(a.var) for a in s.axes), SUMS))
            assert value is not None
            new.append(Stage(s.outputs, s.axes, (), (value,)))
        return new

    def scaled(self, x: Load) -> Expr | None:
        """What stands for a load of a sum: that of integers, less what zeros add, times the scale of the
        group."""
        if x.buffer not in self._made:
            return None
        c, zeros, scales = self._made[x.buffer]
        at = tuple(x.indices[n] for n in c.rows)
        whole: Expr = Load(x.buffer, x.indices, SUMS)
        if zeros:
            whole = whole - Load(zeros, at, SUMS)
        ranks = len(self.graph.dag.tensors[c.x.buffer].shape)
        groups = at if len(at) == ranks else (*at, Const(0))
        return Cast("float32", whole) * Load(scales, groups, "float32")

    def _rounded(self, c: CodeSum) -> list[Stage]:
        """Stages that round a tensor by groups."""
        t = self.graph.dag.tensors[c.x.buffer]
        x = te.placeholder(t.shape, t.dtype, t.name)
        rows = rounded_rows(x, c.group)
        dag = marked_dag([x, rows.codes, rows.scales])
        stages = renamed(dag.stages, {s.name: self.taken.add(f"{t.name}_{s.name}") for s in dag.stages})
        names = dict(zip((s.name for s in dag.stages), (s.name for s in stages), strict=True))
        codes, scales = (names[n] for n in dag.outputs)
        self._rows[c.x.buffer, c.group] = codes, scales
        return stages


def _code_sum(s: Stage, known: KnownTensors) -> CodeSum | None:
    if not is_sum(s) or len(s.reduce_axes) != 1:
        return None
    match s.values[0]:
        case Binary(op="*", a=a, b=Cast(dtype="float32", a=whole)) if (x := bare(a)) is not None:
            pass
        case Binary(op="*", a=Cast(dtype="float32", a=whole), b=b) if (x := bare(b)) is not None:
            pass
        case _:
            return None
    (t,) = s.reduce_axes
    read = list(dict.fromkeys(y.buffer for y in E.loads(whole)))
    integers = is_integer(E.dtype_of(whole)) and all(n in known for n in read)
    if not read or not integers or not is_float(x.dtype) or x.buffer in known or is_open(t.extent):
        return None
    rows = _rows(s, x)
    code, zero = _less(whole)
    reach = affine.value_bounds(code, ranges(s))
    if rows is None or reach is None:
        return None
    depth = t.extent if x.indices[-1] == Var(t.var) else s.axes[rows[-1]].extent * t.extent
    fits = max(map(abs, reach)) * LARGEST * int(t.extent) <= DTYPES[SUMS].range[-1]
    if not fits or not is_same(depth, known.graph.dag.tensors[x.buffer].shape[-1]):
        return None
    roots = tuple(dict.fromkeys(r for n in read for r in known.roots(n)))
    return CodeSum(s, x, E.widen(code), zero, rows, int(t.extent), roots)


def _rows(s: Stage, x: Load) -> tuple[int, ...] | None:
    """Places of the axes along which a load goes, that of groups last; None where it goes otherwise."""
    (t,) = s.reduce_axes
    places = {a.var: n for n, a in enumerate(s.axes)}
    *before, last = x.indices
    walked = [i.name for i in before if isinstance(i, Var) and i.name in places]
    if len(walked) != len(before):
        return None
    if last != Var(t.var):
        groups = [v for v in E.variables(last) if v in places]
        if len(groups) != 1 or last != place(Var(groups[0]), Var(t.var), int(t.extent)):
            return None
        walked.append(groups[0])
    return tuple(places[v] for v in walked) if len(set(walked)) == len(walked) else None


def _less(whole: Expr) -> tuple[Expr, int]:
    """(an integer, what is taken off it)."""
    match whole:
        case Binary(op="-", a=a, b=Const(value=z)):
            return a, int(z)
        case Binary(op="+", a=a, b=Const(value=z)):
            return a, -int(z)
    return whole, 0
