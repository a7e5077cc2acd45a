"""Sums of products of dequantised numbers become sums of products of integers.

The sum over k of ``(a - za) * sa`` times ``(b - zb) * sb``, where no zero point and no scale depends on k, is

    ``(sum of a * b  -  za * sum of b  -  zb * sum of a  +  K * za * zb) * sa * sb``

(Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*,
CVPR 2018, section 2.3). The first sum is what instructions of processors compute. Sums of constants are
constants, which `fold` computes. All integers are exact: the result is rounded fewer times than the floats
that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from schedules import expr as E
from schedules.dtypes import DTYPES, wrapped
from schedules.expr import Binary, Cast, Const, Expr, Load, Select, Var
from schedules.graph.edit import factors, is_sum, remade, steps
from schedules.graph.graph import Graph
from schedules.graph.quantised import SUMS, Quantised, QuantisedReader, number, rewritten
from schedules.te.compute_dag import ComputeDAG, Reducer, Stage, Tensor, operand
from schedules.te.open_sizes import depths_that_depend, with_stages
from schedules.te.unique import Taken

INTEGER_SUM = Reducer("sum", (Const(0, SUMS),), (operand("x0", SUMS) + operand("y0", SUMS),))


def integer_products(graph: Graph) -> Graph:
    """The graph whose products of dequantised numbers, and of integers less zero points, are sums of
    ``int32(a) * int32(b)`` of 8-bit integers, with a map after them.

    A product stays as it is where its sum may leave int32, where a scale or a zero point changes along the
    sum, and where correcting it would take as long as the product itself. Constants of uint8 that have a zero
    point become int8, which instructions multiply with uint8. Padding is with zero points, so that borders
    need no correction."""
    taken = Taken(graph.dag.tensors)
    reader = QuantisedReader(graph.values, graph.values, taken)
    stages, origins = _stages(graph.dag, reader, graph.origins)
    if len(stages) == len(graph.dag.stages):
        return graph
    return remade(replace(graph, origins=origins), stages)


def with_integer_products(dag: ComputeDAG) -> ComputeDAG:
    """`integer_products` of an expression whose inputs are not known; the DAG itself where nothing changes.

    >>> from schedules import te
    >>> a, b = te.placeholder((4, 8), "uint8", "a"), te.placeholder((8, 5), "int8", "b")
    >>> k = te.reduce_axis(8, "k")
    >>> c = te.compute((4, 5), lambda i, j: te.sum((te.cast(a[i, k], "int32") - 3) * b[k, j], axis=k), "c")
    >>> [s.name for s in with_integer_products(te.dag([a, b, c])).stages]
    ['c_sum', 'c_sum_of_b', 'c']
    """
    reader = QuantisedReader(dag.constants, {}, Taken(dag.tensors))
    stages, origins = _stages(dag, reader, {s.name: s.name for s in dag.stages})
    if len(stages) == len(dag.stages):
        return dag
    needed, live = set(dag.outputs), []
    for s in reversed(stages):
        if any(t.name in needed for t in s.outputs):
            live.append(s)
            needed |= {x.buffer for x in s.reads()}
    try:
        return with_stages(dag, tuple(reversed(live)), origins)
    except ValueError:
        if dag.open is None:
            raise
        return dag  # what is computed ahead has other axes, of which nobody knows how long they are


def _stages(
    dag: ComputeDAG, reader: QuantisedReader, origins: Mapping[str, str]
) -> tuple[list[Stage], dict[str, str]]:
    """(the stages with integer products, where they come from)."""

    summed = depths_that_depend(dag)

    def change(s: Stage) -> list[Stage]:
        if s.name in summed:  # how often a zero point counts would depend on the size
            return [s]
        product = _product(s, reader)
        return [s] if product is None else product.stages()

    return rewritten(dag, reader, origins, change)


def _product(s: Stage, reader: QuantisedReader) -> _Product | None:
    """A stage as a product of integers; None where it is none, or is one already, or must stay as it is."""
    if not is_sum(s):
        return None
    parts = _multiplied(s.values[0])
    read = [(e, reader.read(e)) for e in parts]
    pair = [_flipped(q, reader) for _, q in read if q is not None]
    dtype = s.outputs[0].dtype
    if len(pair) != 2 or dtype not in ("float32", SUMS):
        return None
    scales = [e for e, q in read if q is None] + [q.scale for q in pair if q.scale is not None]
    outside = [*scales, *(q.zero for q in pair if q.zero is not None)]
    reduced = {a.var for a in s.reduce_axes}
    if any(E.variables(e) & reduced for e in outside) or not all(map(_is_factor, (q.value for q in pair))):
        return None
    plain = [x.dtype for x in factors(s.values[0])] == [q.dtype for q in pair]
    if dtype == SUMS and (scales or (plain and all(q.zero is None for q in pair))):
        return None
    if len({E.variables(q.value) for q in pair}) == 1:
        return None
    made = _Product(s, pair[0], pair[1], tuple(scales), reader)
    return made if made.fits() and made.pays() else None


def _multiplied(e: Expr) -> list[Expr]:
    """What is multiplied, of integers before they are converted too."""
    match e:
        case Cast(dtype="float32", a=Binary(op="*") as a) if E.dtype_of(a) == SUMS:
            return _multiplied(a)
        case Binary(op="*", a=a, b=b):
            return [*_multiplied(a), *_multiplied(b)]
    return [e]


def _flipped(q: Quantised, reader: QuantisedReader) -> Quantised:
    """A constant of uint8 with a zero point as int8, which instructions multiply with uint8."""
    return reader.flipped(q) if q.dtype == "uint8" and q.zero is not None else q


def _is_factor(value: Expr) -> bool:
    """Whether integers are loaded, perhaps where a condition holds and else a number."""
    match value:
        case Load() | Select(a=Load(), b=Const()):
            return True
    return False


@dataclass(frozen=True)
class _Product:
    """The sum that stage ``s`` makes, of ``a`` times ``b``, times ``scales``, which hold those of both."""

    s: Stage
    a: Quantised
    b: Quantised
    scales: tuple[Expr, ...]
    reader: QuantisedReader

    @property
    def terms(self) -> int:
        """How many products are added up."""
        return prod(x.extent for x in self.s.reduce_axes)

    def fits(self) -> bool:
        """Whether the sum stays within int32, or wraps in the expression too."""
        reach = self.reader.reach(self.a), self.reader.reach(self.b)
        if self.s.outputs[0].dtype == SUMS:
            return True
        if reach[0] is None or reach[1] is None:
            return False
        return self.terms * reach[0] * reach[1] <= DTYPES[SUMS].range[-1]

    def pays(self) -> bool:
        """Whether sums of what is not known take less than half as long as the product."""
        sums = [self._sum(of, "") for of, other in self._corrected() if not self.reader.is_known(of.value)]
        return sum(2 * steps(s) for s in sums) <= steps(self.s)

    def _corrected(self) -> list[tuple[Quantised, Quantised]]:
        """Factors of which sums are needed, each with the other one, which has a zero point."""
        both = ((self.b, self.a), (self.a, self.b))
        return [(of, other) for of, other in both if other.zero is not None]

    def stages(self) -> list[Stage]:
        """The sum of products of integers, with what it needs after it, and the map that has the stage's
        name."""
        s, new = self.s, self.reader.taken.add
        dot = Tensor(new(f"{s.name}_sum"), s.outputs[0].shape, SUMS)
        value = Cast(SUMS, self.a.value) * Cast(SUMS, self.b.value)
        made = [Stage((dot,), s.axes, s.reduce_axes, (value,), INTEGER_SUM)]
        known: list[Expr] = []
        total: Expr = Load(dot.name, tuple(Var(a.var) for a in s.axes), SUMS)
        for of, other in self._corrected():
            assert other.zero is not None
            one = self._sum(of, new(f"{s.name}_sum_of_{'b' if of is self.b else 'a'}"))
            made.append(one)
            times = number(other.zero * Const(-self._repeats(one), SUMS))
            term = Load(one.name, tuple(Var(a.var) for a in one.axes), SUMS) * times
            if self.reader.is_known(of.value) and self.reader.is_known(other.zero):
                known.append(term)
            else:
                total = total + term
        if self.a.zero is not None and self.b.zero is not None:
            both = self.a.zero * self.b.zero * Const(wrapped(self.terms, SUMS), SUMS)
            if self.reader.is_known(both):
                known.append(both)
            else:
                total = total + both
        if known:
            total = total + self._ahead(sum(known[1:], known[0]), f"{s.name}_offset", made)
        made.append(replace(s, reduce_axes=(), reducer=None, values=(self._scaled(total, made),)))
        return made

    def _scaled(self, total: Expr, made: list[Stage]) -> Expr:
        """The sum in the dtype of the stage, times all scales: those that are known as one, where their
        product is a normal number."""
        if self.s.outputs[0].dtype == SUMS:
            return total
        value: Expr = Cast("float32", total)
        known = [e for e in self.scales if self.reader.is_known(e)]
        if known:
            one = known[0]
            for e in known[1:]:
                one = one * e
            size, row = self.reader.sizes(one), DTYPES["float32"]
            if size is not None and row.tiny <= size[0] <= size[1] <= row.largest:
                value = value * self._ahead(one, f"{self.s.name}_scale", made)
            else:
                for e in known:
                    value = value * e
        for e in self.scales:
            value = value if e in known else value * e
        return value

    def _ahead(self, e: Expr, name: str, made: list[Stage]) -> Expr:
        """A load of what is known, which a stage before computes; of one number or load itself."""
        e = number(e)
        if isinstance(e, (Const, Load)):
            return e
        axes = tuple(a for a in self.s.axes if a.var in E.variables(e))
        out = Tensor(self.reader.taken.add(name), tuple(a.extent for a in axes), E.dtype_of(e))
        made.append(Stage((out,), axes, (), (e,)))
        return Load(out.name, tuple(Var(a.var) for a in axes), out.dtype)

    def _sum(self, of: Quantised, name: str) -> Stage:
        """The sum of a factor over the axes along which it changes."""
        own = E.variables(of.value)
        axes, over = (tuple(a for a in every if a.var in own) for every in (self.s.axes, self.s.reduce_axes))
        out = Tensor(name, tuple(a.extent for a in axes), SUMS)
        return Stage((out,), axes, over, (Cast(SUMS, of.value),), INTEGER_SUM if over else None)

    def _repeats(self, one: Stage) -> int:
        """How often a sum counts: once for each point of the other axes of the product's sum."""
        return self.terms // prod(a.extent for a in one.reduce_axes)
