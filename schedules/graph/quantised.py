"""Reads what an expression says of 8-bit integers: which it widens, less which zero point, times which scale.

`QuantisedReader` looks through stages that convert, move or pad elements, as models spell them: a load of
floats that a stage made of integers is read as these integers. What pads floats with zeros pads integers with
the zero point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedules import expr as E
from schedules.affine import Range
from schedules.dtypes import DTYPES, is_float, is_integer
from schedules.expr import Binary, Cast, Const, Expr, Load, Select, Var
from schedules.graph.edit import is_map, simplified
from schedules.graph.graph import Array
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.evaluator import evaluate
from schedules.te.scalars import cast
from schedules.te.unique import Taken

# What may be multiplied as integers; sums of it are made in SUMS.
STORED, SUMS = ("int8", "uint8"), "int32"
# Most numbers of a constant whose values are looked at.
MAX_ELEMENTS = 1 << 16
FLIP = 128  # from uint8 to the int8 of the same bits but the highest


@dataclass(frozen=True)
class Quantised:
    """``scale * (value - zero)``. ``value``: of 8 bits; ``zero``: int32, None: 0; ``scale``: float32, None:
    1."""

    value: Expr
    zero: Expr | None = None
    scale: Expr | None = None

    @property
    def dtype(self) -> str:
        """That of the stored integers."""
        return E.dtype_of(self.value)

    def at(self, place: Mapping[str, Expr]) -> Quantised:
        """With other expressions in place of axes."""
        zero, scale = (None if e is None else E.substitute(e, place) for e in (self.zero, self.scale))
        return Quantised(E.substitute(self.value, place), zero, scale)


class QuantisedReader:
    """Reads expressions over stages that come one after the other (`add`). ``constants``: names of inputs
    that are known, ``values``: their values, where they are given. ``pads``: stages that pad integers, or
    flip constants, which what was read may load; their names are ``taken``."""

    def __init__(self, constants: Collection[str], values: Mapping[str, Array], taken: Taken) -> None:
        self.constants, self.values, self.taken = set(constants), values, taken
        self.pads: dict[str, Stage] = {}
        self._stages: dict[str, Stage] = {}
        self._known: dict[str, Quantised | None] = {}
        self._flips: dict[str, str] = {}

    def add(self, s: Stage) -> None:
        """Know a stage, which later expressions may read."""
        if is_map(s) and len(s.values) == 1:
            self._stages[s.name] = s

    def read(self, e: Expr) -> Quantised | None:
        """What an expression says; None where it says anything else."""
        match e:
            case Load(dtype=d):
                return self._of_stage(e) or (Quantised(e) if d in STORED else None)
            case Cast(dtype="float32" | "int32", a=a) if E.dtype_of(a) != "float32":
                return self.read(a)
            case Binary(op="-", a=a, b=b):
                return self._less(self.read(a), whole(b))
            case Binary(op="+", a=a, b=Const(value=c, dtype=d)) if c == int(c):
                return self._less(self.read(a), Const(-int(c), SUMS))
            case Binary(op="*", a=a, b=b) if is_float(E.dtype_of(e)):
                return self._scaled(a, b)
            case Select(cond=c, a=a, b=Const(value=0)) if not E.loads(c):
                return self._padded(c, self.read(a))
        return None

    def _less(self, q: Quantised | None, zero: Expr | None) -> Quantised | None:
        if q is None or zero is None or q.scale is not None or q.zero is not None:
            return None
        return replace(q, zero=None if self.is_zero(zero) else zero)

    def _scaled(self, a: Expr, b: Expr) -> Quantised | None:
        one, other = self.read(a), self.read(b)
        if (one is None) == (other is None):
            return None
        q, scale = (one, b) if one is not None else (other, a)
        assert q is not None
        return replace(q, scale=scale if q.scale is None else q.scale * scale)

    def _padded(self, cond: Expr, q: Quantised | None) -> Quantised | None:
        """Zeros where a condition does not hold. As an integer a zero is the zero point, if there is one."""
        if q is None:
            return None
        fill = Const(0, q.dtype) if q.zero is None else stored(q.zero, q.dtype)
        return None if fill is None else replace(q, value=Select(cond, q.value, fill))

    def _of_stage(self, x: Load) -> Quantised | None:
        s = self._stages.get(x.buffer)
        if s is None or (x.dtype in STORED and not isinstance(s.values[0], Load)):
            return None
        if s.name not in self._known:
            self._known[s.name] = self._kept(s, self.read(s.values[0]))
        q = self._known[s.name]
        return None if q is None else q.at(_places(s, x))

    def _kept(self, s: Stage, q: Quantised | None) -> Quantised | None:
        """What a stage makes, with what pads as a stage of its own, which pads integers."""
        if q is None or not isinstance(q.value, Select):
            return q
        name = self.taken.add(f"{s.name}_{q.dtype}")
        out = Tensor(name, tuple(a.extent for a in s.axes), q.dtype)
        self.pads[name] = simplified(Stage((out,), s.axes, (), (q.value,)))
        return replace(q, value=Load(name, tuple(Var(a.var) for a in s.axes), q.dtype))

    def read_extreme(self, e: Expr, fill: float, end: int) -> Quantised | None:
        """`read` of what the largest or least is taken of. It may be padded with an infinity, ``fill``, which
        is ``end`` as an integer."""
        match e:
            case Select(cond=c, a=a, b=Const(value=v)) if v == fill and not E.loads(c):
                q = self.read(a)
                return None if q is None else replace(q, value=Select(c, q.value, Const(end, q.dtype)))
            case Load(buffer=b) if b in self._stages and self.read(e) is None:
                s = self._stages[b]
                q = self._kept(s, self.read_extreme(s.values[0], fill, end))
                return None if q is None else q.at(_places(s, e))
        return self.read(e)

    def flipped(self, q: Quantised) -> Quantised:
        """A load of a constant of uint8 as int8, each number and the zero point less 128; itself where its
        values are not given."""
        x = q.value
        if not isinstance(x, Load) or x.buffer not in self.values:
            return q
        name = self._flips.get(x.buffer)
        if name is None:
            axes = tuple(Axis(f"i{n}", extent) for n, extent in enumerate(self.values[x.buffer].shape))
            every = Load(x.buffer, tuple(Var(a.var) for a in axes), x.dtype)
            name = self._flips[x.buffer] = self.taken.add(f"{x.buffer}_int8")
            self.constants.add(name)
            out = Tensor(name, self.values[x.buffer].shape, "int8")
            self.pads[name] = Stage((out,), axes, (), (cast(cast(every, SUMS) - FLIP, "int8"),))
        zero = (Const(0, SUMS) if q.zero is None else q.zero) - FLIP
        return Quantised(
            replace(x, buffer=name, dtype="int8"), None if self.is_zero(zero) else zero, q.scale
        )

    # -- what is known of numbers ------------------------------------------------------------------

    def is_zero(self, e: Expr) -> bool:
        """Whether a zero point is known to be 0 everywhere."""
        found = self.range(e)
        return found == (0, 0)

    def range(self, e: Expr) -> Range | None:
        """The least and the largest value of an int32 expression that is known to have some; of a constant
        those that it has."""
        match e:
            case Const(value=v):
                return int(v), int(v)
            case Cast(a=a):
                return self.range(a)
            case Load(buffer=b, dtype=d):
                value, made = self.values.get(b), self._stages.get(b)
                if value is not None and value.size <= MAX_ELEMENTS:
                    return int(np.min(value)), int(np.max(value))
                if made is not None and d not in STORED:
                    return self.range(made.values[0])
                return (DTYPES[d].range[0], DTYPES[d].range[-1]) if d in STORED else None
            case Binary(op="min", a=Binary(op="max", b=Const(value=low, dtype=d)), b=Const(value=high)):
                return (min(int(low), int(high)), int(high)) if is_integer(d) else None
            case Binary(op="-" | "+" as op, a=a, b=Const(value=c)):
                r = self.range(a)
                by = int(c) if op == "+" else -int(c)
                return None if r is None else (r[0] + by, r[1] + by)
        return None

    def is_known(self, e: Expr) -> bool:
        """Whether an expression is made of constants and literals alone."""
        return all(x.buffer in self.constants for x in E.loads(e))

    def sizes(self, e: Expr) -> tuple[float, float] | None:
        """The least absolute value of a scale but 0, and the largest; None where they are not known."""
        match e:
            case Const(value=v):
                return abs(float(v)), abs(float(v))
            case Load(buffer=b) if b in self.values and self.values[b].size <= MAX_ELEMENTS:
                every = np.abs(self.values[b].astype(np.float64))
                some = every[every != 0]
                return (float(np.min(some)), float(np.max(some))) if some.size else (1.0, 1.0)
            case Binary(op="*", a=a, b=b):
                one, other = self.sizes(a), self.sizes(b)
                return None if one is None or other is None else (one[0] * other[0], one[1] * other[1])
        return None

    def reach(self, q: Quantised) -> int | None:
        """The largest absolute value of ``value - zero``; None where it may be any."""
        low, high = DTYPES[q.dtype].range[0], DTYPES[q.dtype].range[-1]
        zero = (0, 0) if q.zero is None else self.range(q.zero)
        return None if zero is None else max(high - zero[0], zero[1] - low)


def _places(s: Stage, x: Load) -> dict[str, Expr]:
    """{axis of a stage: where a load has it}."""
    return {a.var: i for a, i in zip(s.axes, x.indices, strict=True)}


def rewritten(
    dag: ComputeDAG,
    reader: QuantisedReader,
    origins: Mapping[str, str],
    change: Callable[[Stage], Sequence[Stage]],
) -> tuple[list[Stage], dict[str, str]]:
    """(the stages of a DAG, each as others, with those of ``reader.pads`` that they read; where they come
    from)."""
    stages: dict[str, Stage] = {}
    found = dict(origins)

    def put(s: Stage, origin: str | None) -> None:
        for x in s.reads():
            if x.buffer in reader.pads and x.buffer not in stages:
                put(reader.pads[x.buffer], origin)
        stages[s.name] = s
        reader.add(s)
        if origin is not None:
            found.setdefault(s.name, origin)

    for s in dag.stages:
        for new in change(s):
            put(new, found.get(s.name))
    return list(stages.values()), found


def whole(e: Expr) -> Expr | None:
    """A zero point as int32: a whole literal, or an integer that is loaded; None for anything else."""
    match e:
        case Const(value=v, dtype=d) if v == int(v) and int(v) in DTYPES[SUMS].range and d in DTYPES:
            return Const(int(v), SUMS)
        case Cast(dtype=d, a=Load(dtype=of)) if d == SUMS and is_integer(of):
            return e
        case Cast(a=a):
            return whole(a)
        case Load(dtype=d) if is_integer(d) and d != "int64":
            return cast(e, SUMS)
    return None


def stored(zero: Expr, dtype: str) -> Expr | None:
    """A zero point as the 8-bit integer that it is; None where it may be none."""
    match zero:
        case Const(value=v):
            return Const(int(v), dtype) if int(v) in DTYPES[dtype].range else None
        case Cast(a=Load(dtype=d) as x) if d == dtype:
            return x
    return None


def number(e: Expr) -> Expr:
    """Itself; a literal where it is made of literals alone, rounded or wrapped as a kernel would."""
    if isinstance(e, Const) or E.loads(e) or E.variables(e) or E.holes(e):
        return e
    one = Stage((Tensor("number", (), E.dtype_of(e)),), (), (), (e,))
    return Const(evaluate(ComputeDAG((), (one,), ("number",)), [])[0].item(), E.dtype_of(e))
