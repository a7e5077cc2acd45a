"""What is dequantised and quantised again is done with less arithmetic, or with none.

- Quantising with the scale and the zero point that a number was dequantised with gives the integer again. The
  largest of dequantised numbers is the largest integer, dequantised.
- Dividing a sum of integers, times scales and plus biases, by the scale of the result is folded into these
  (B. Jacob et al., *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
  Inference*, CVPR 2018, section 2.2). What is rounded may differ in its last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from schedules import expr as E
from schedules.dtypes import DTYPES, is_storage
from schedules.expr import Binary, Call, Cast, Const, Expr, Load, Var
from schedules.graph.edit import is_map, readers, remade
from schedules.graph.graph import Graph
from schedules.graph.quantised import STORED, SUMS, Quantised, QuantisedReader, number, rewritten, whole
from schedules.te.compute_dag import Reducer, Stage, Tensor, operand
from schedules.te.unique import Taken

# Scales between these, times an integer of 9 bits and over themselves again, give it within 1/2.
LEAST, MOST = 2.0**-100, 2.0**100


def drop_requantised(graph: Graph) -> Graph:
    """The graph without numbers that are dequantised and quantised with the same scale and zero point, each
    by itself or the largest or least of several."""
    again = _Again(graph)
    stages, origins = rewritten(graph.dag, again.reader, graph.origins, again.change)
    return remade(replace(graph, origins=origins), stages) if again.found else graph


class _Again:
    """Looks for what is quantised again, from stage to stage. ``found``: whether there was any."""

    def __init__(self, graph: Graph) -> None:
        self.reader = QuantisedReader(graph.values, graph.values, Taken(graph.dag.tensors))
        self.found = False
        users = readers(graph.dag.stages)
        once = {n for n, every in users.items() if len(every) == 1}
        self._once = once - set(graph.dag.outputs)
        self._reduced: dict[str, Stage] = {}  # what one stage reads

    def change(self, s: Stage) -> list[Stage]:
        """A stage without what is quantised again."""
        if is_map(s):
            return [replace(s, values=tuple(E.rewrite(v, self._integer) for v in s.values))]
        if s.name in self._once:
            self._reduced[s.name] = s
        return [s]

    def _integer(self, e: Expr) -> Expr | None:
        """The integer that a number was, where it is quantised as it was dequantised."""
        stored = _Stored.of(e)
        if stored is None or not isinstance(stored.scale, Const):
            return None
        q = self.reader.read(stored.value) or self._of_several(stored)
        zero = None if stored.zero is None or self.reader.is_zero(stored.zero) else stored.zero
        fits = LEAST <= abs(stored.scale.value) <= MOST
        if q is None or not fits or (q.scale, q.zero, q.dtype) != (stored.scale, zero, stored.dtype):
            return None
        self.found = True
        return q.value

    def _of_several(self, stored: _Stored) -> Quantised | None:
        """The largest or least of quantised numbers, as a stage of int32. Where a window is padding alone it
        is infinite, which is the end of the dtype when it is quantised."""
        x = stored.value
        s = self._reduced.get(x.buffer) if isinstance(x, Load) else None
        op = "" if s is None or s.reducer is None else s.reducer.operation(0)
        if s is None or op not in ("max", "min") or len(s.values) != 1 or not isinstance(x, Load):
            return None
        fill, place = (-math.inf, 0) if op == "max" else (math.inf, -1)
        q = self.reader.read_extreme(s.values[0], fill, DTYPES[stored.dtype].range[place])
        constant = q is not None and not any(
            E.variables(e) or E.holes(e) for e in (q.zero, q.scale) if e is not None
        )
        if q is None or not constant or not isinstance(q.scale, Const) or q.scale.value <= 0:
            return None
        out = Tensor(self.reader.taken.add(f"{s.name}_{SUMS}"), s.outputs[0].shape, SUMS)
        both = operand("x0", SUMS), operand("y0", SUMS)
        reducer = Reducer(op, (Const(DTYPES[SUMS].range[place], SUMS),), (Binary(op, *both),))
        self.reader.pads[out.name] = Stage((out,), s.axes, s.reduce_axes, (Cast(SUMS, q.value),), reducer)
        return replace(q, value=Cast(q.dtype, Load(out.name, x.indices, SUMS)))


@dataclass(frozen=True)
class _Stored:
    """round(value / scale) + zero point, cut off at the ends of ``dtype``, as that."""

    value: Expr
    scale: Expr
    zero: Expr | None
    dtype: str

    @staticmethod
    def of(e: Expr) -> _Stored | None:
        """An expression as that; None for any other."""
        match e:
            case Cast(dtype=d, a=Cast(dtype="int32", a=Binary(op="min", a=Binary(op="max") as low, b=high))):
                if d not in STORED:
                    return None
                ends = (low.b, high)
                if ends != tuple(Const(float(DTYPES[d].range[n]), "float32") for n in (0, -1)):
                    return None
                return _Stored._rounded(low.a, None, d)
        return None

    @staticmethod
    def _rounded(q: Expr, zero: Expr | None, dtype: str) -> _Stored | None:
        match q:
            case Binary(op="+", a=a, b=b) if zero is None:
                zero = whole(b)
                return None if zero is None else _Stored._rounded(a, zero, dtype)
            case Call(fn="round", args=(Binary(op="/", a=value, b=scale),)):
                return _Stored(value, scale, zero, dtype)
        return None


# --- scales of results ----------------------------------------------------------------------------


def fold_result_scales(graph: Graph) -> Graph:
    """The graph in which no sum of integers with scales and biases that are known is divided by a literal
    before it is rounded: these are."""
    taken = Taken(graph.dag.tensors)
    stages: list[Stage] = []
    for s in graph.dag.stages:
        scaled = _Scaled(s, graph, taken)
        values = tuple(E.rewrite(v, scaled.visit) for v in s.values) if is_map(s) else s.values
        stages += [*scaled.made, s if values == s.values else replace(s, values=values)]
    return graph if tuple(stages) == graph.dag.stages else remade(graph, stages)


class _Scaled:
    """Divides what is rounded in a stage. ``made``: stages of what is known, which come before it."""

    def __init__(self, s: Stage, graph: Graph, taken: Taken) -> None:
        self.s, self.graph, self.taken = s, graph, taken
        self.made: list[Stage] = []

    def visit(self, e: Expr) -> Expr | None:
        """A quotient that is rounded, without the division."""
        match e:
            case Call(fn="round", args=(Binary(op="/", a=a, b=Const(value=c) as by),)) if LEAST <= c <= MOST:
                if any(_is_integer(x) for x in E.walk(a)):
                    before = len(self.made)
                    over = self._over(a, by)
                    if over is None:
                        del self.made[before:]
                    return None if over is None else Call("round", (E.rewrite(over, self.visit),))
        return None

    def _over(self, e: Expr, by: Const) -> Expr | None:
        """``e / by`` without a division of what is not known; None where it needs one."""
        if self._is_known(e):
            return self._ahead(e / by)
        match e:
            case Binary(op="*", a=a, b=b) if self._is_known(b):
                return a * self._ahead(b / by)
            case Binary(op="*", a=a, b=b) if self._is_known(a):
                return self._ahead(a / by) * b
            case Binary(op="+" | "-" | "max" | "min" as op, a=a, b=b):
                one, other = self._over(a, by), self._over(b, by)
                return None if one is None or other is None else Binary(op, one, other)
            case Cast(dtype="float32", a=a) if not is_storage(E.dtype_of(a)):
                return e * self._ahead(1.0 / by)
        return None

    def _is_known(self, e: Expr) -> bool:
        return E.dtype_of(e) == "float32" and all(x.buffer in self.graph.values for x in E.loads(e))

    def _ahead(self, e: Expr) -> Expr:
        """A load of what is known, which a stage before computes; a literal where it is one."""
        e = number(e)
        if isinstance(e, Const):
            return e
        axes = tuple(a for a in self.s.axes if a.var in E.variables(e))
        out = Tensor(self.taken.add(f"{self.s.name}_over"), tuple(a.extent for a in axes), "float32")
        self.made.append(Stage((out,), axes, (), (e,)))
        return Load(out.name, tuple(Var(a.var) for a in axes), "float32")


def _is_integer(e: Expr) -> bool:
    """Whether integers are made floats."""
    return isinstance(e, Cast) and e.dtype == "float32" and E.dtype_of(e.a) == SUMS
