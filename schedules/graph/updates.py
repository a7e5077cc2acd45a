"""Finds what a stage writes to a state: rows from a place on that each call tells.

A write of rows is a stage that makes the whole tensor anew: ``new[t] = select(start <= t < start + n,
rows[t - start], old[t])``, or whatever means the same. It is found by its expression: where a condition
changes along an axis, the axis is cut, and in each piece the expression is simplified. A piece of which
``old`` itself is left keeps what it has. Every other piece is written.

Only calls with 0 <= ``start`` <= (extent of the axis) - ``n`` are looked at: others are refused
(`PlaceMove`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Load, Select, Var
from schedules.graph.call_indices import MARK, CallIndices
from schedules.graph.edit import is_map
from schedules.graph.graph import Graph, GraphState
from schedules.graph.told_sizes import WithSizes, in_holes, least_of, ordered, size_of
from schedules.te.compute_dag import Stage
from schedules.te.extent import Extent, is_same

# Pieces of a stage, and stages in a row, above which nothing is looked for.
MOST_PIECES, MOST_STAGES = 64, 8


@dataclass(frozen=True)
class RowSpan:
    """The indices of an axis that are written: ``extent`` of them from ``start`` on. That is a number of
    dtype int64 that the call tells, an expression of elements of inputs and states; or a constant. The
    extent may depend on an open size."""

    start: Expr
    extent: int


@dataclass(frozen=True)
class UpdateRows:
    """What is written: ``value``, by the axes of the stage, each counted from the start of its span.
    ``spans``: one for each axis. ``value`` has index variables for numbers of the call, ``numbers``."""

    spans: tuple[RowSpan, ...]
    value: Expr


@dataclass(frozen=True)
class Update:
    """A stage that writes to a state. ``old``: the tensor, of its shape, whose other elements stay, which is
    the state before the call or another update. ``rows``: what is written, in pieces that do not overlap."""

    stage: Stage
    old: str
    rows: tuple[UpdateRows, ...]

    @property
    def new(self) -> str:
        """The tensor with the rows written."""
        return self.stage.name


def updates(graph: Graph, state: GraphState) -> tuple[Update, ...]:
    """The updates that make the new value of a state out of the old one, in their order; empty where its new
    value is made otherwise.

    After the last one, ``span.start + span.extent`` of a span with a start that the call tells is the number
    of rows that were written, if rows are written one after the other."""
    made = {t.name: s for s in graph.dag.stages for t in s.outputs}
    return _chain(graph, made, state.new, state.tensor) or ()


def _chain(graph: Graph, made: Mapping[str, Stage], new: str, state: str) -> tuple[Update, ...] | None:
    """The updates from a ``state`` to a tensor; None where there are none."""
    if new == state:
        return ()
    s = made.get(new)
    for u in () if s is None else _found(graph, made, s, state):
        before = _chain(graph, made, u.old, state)
        if before is not None:
            return *before, u
    return None


def _found(graph: Graph, made: Mapping[str, Stage], s: Stage, state: str) -> list[Update]:
    """What a stage may write, to the ``state`` or to another tensor, the best first."""
    if not is_map(s) or len(s.values) > 1:
        return []
    calls = CallIndices(graph)
    value, found = s.values[0], list[Update]()
    for _ in range(MOST_STAGES):
        read = calls.read(value)
        olds = [n for n in _olds(read, s) if graph.dag.tensors[n].shape == s.outputs[0].shape]
        found += [u for u in (_of_value(calls, s, read, n) for n in olds) if u is not None]
        # stages that take a part of the state, and put it back, may say more if they are one
        through = _through(made, value, {state, *olds})
        if through == value:
            break
        value = through
    return sorted(found, key=lambda u: (u.old != state, _points(u)))


def _points(u: Update) -> int:
    total = 0
    for r in u.rows:
        n = 1
        for span in r.spans:
            n *= span.extent
        total += n
    return total


def _olds(value: Expr, s: Stage) -> list[str]:
    """Tensors of the stage's shape that some branch of it leaves as they are."""
    same = tuple(Var(a.var) for a in s.axes)
    fixed = tuple(Var(a.var) if a.extent > 1 else Const(0) for a in s.axes)
    found = []
    for x in _branches(value):
        if isinstance(x, Load) and len(x.indices) == len(same):
            if all(i in (v, w) for i, v, w in zip(x.indices, same, fixed, strict=True)):
                found.append(x.buffer)
    return list(dict.fromkeys(found))


def _branches(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Select):
        yield from _branches(e.a)
        yield from _branches(e.b)
    else:
        yield e


def _through(made: Mapping[str, Stage], value: Expr, roots: Collection[str]) -> Expr:
    """A value with the maps of which it consists, which read one of ``roots``, in their place."""

    def reads(name: str, depth: int) -> bool:
        p = made.get(name)
        if name in roots or p is None or not is_map(p) or len(p.values) > 1 or depth > MOST_STAGES:
            return name in roots
        return any(reads(x.buffer, depth + 1) for x in p.reads())

    def visit(e: Expr) -> Expr:
        if isinstance(e, Select):
            return replace(e, a=visit(e.a), b=visit(e.b))
        if isinstance(e, Load) and e.buffer not in roots and reads(e.buffer, 0):
            p = made[e.buffer]
            return E.substitute(p.values[0], {a.var: i for a, i in zip(p.axes, e.indices, strict=True)})
        return e

    return visit(value)


# -- pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """A part of a stage. ``at``: {axis: its index in the stage, by the index in the piece}. ``extents``: of
    the piece; 0 for what ends with the axis, where that depends on the call. ``value``: by its own axes."""

    at: Mapping[str, Expr]
    extents: Mapping[str, int]
    value: Expr


@dataclass(frozen=True)
class _Border:
    """Where conditions on an axis change: at each of ``offsets`` from ``base`` on, which the call tells where
    it is no constant. Offsets are in order at all sizes."""

    axis: str
    base: Expr
    offsets: tuple[int, ...]


def _of_value(calls: CallIndices, s: Stage, value: Expr, old: str) -> Update | None:
    """The update that leaves ``old`` where it writes nothing; None where the ``value`` is none, or writes
    nothing at all."""
    whole = {a.var: a.extent for a in s.axes}
    todo = [_Piece({a.var: Var(a.var) for a in s.axes}, whole, in_holes(value))]
    written: list[UpdateRows] = []
    for _ in range(MOST_PIECES):
        if not todo:
            return Update(s, old, tuple(written)) if written else None
        piece = todo.pop()
        ends = {v: n or whole[v] for v, n in piece.extents.items()}
        ranges = {v: (0, int(n) - 1) for v, n in ends.items()}
        piece = replace(piece, value=_simplified(piece.value, ranges, WithSizes(ends)))
        if _is_old(piece, old, ranges):
            continue
        keeps = any(isinstance(x, Load) and x.buffer == old for x in _branches(piece.value))
        if keeps and isinstance(piece.value, Select):
            border = _border(piece.value.cond, piece.extents)
            if border is None:
                return None
            todo += _parts(piece, border)
        else:
            rows = _rows(calls, piece, whole)
            if keeps or rows is None:
                return None
            written.append(rows)
    return None


def _simplified(value: Expr, ranges: Mapping[str, affine.Range], sizes: WithSizes) -> Expr:
    """A value without branches that are never taken."""
    made = sizes.simplified(affine.simplify(value, ranges))
    return made if made == value else _simplified(made, ranges, sizes)


def _is_old(piece: _Piece, old: str, ranges: Mapping[str, affine.Range]) -> bool:
    """Whether a piece is what was there."""
    x = piece.value
    if not isinstance(x, Load) or x.buffer != old:
        return False
    places = zip(x.indices, piece.at.values(), strict=True)
    return all(_is_zero(affine.simplify(i - at, ranges)) for i, at in places)


def _is_zero(e: Expr) -> bool:
    """Whether an index is 0 at all sizes."""
    terms, const = affine.linear(e)
    n = size_of(const)
    return not terms and n is not None and is_same(n, 0)


def _rows(calls: CallIndices, piece: _Piece, whole: Mapping[str, int]) -> UpdateRows | None:
    """What a piece writes; None where its place cannot be told by a call."""
    spans = []
    for axis, n in piece.extents.items():
        start = calls.stated(affine.simplify(E.substitute(piece.at[axis], {axis: Const(0)}), {}))
        if n == 0 or least_of(n) < 1 or start is None:
            return None
        spans.append(RowSpan(start, n))
    value = _by_call(calls, piece, tuple(spans), whole)
    return None if value is None else UpdateRows(tuple(spans), value)


def _by_call(
    calls: CallIndices, piece: _Piece, spans: tuple[RowSpan, ...], whole: Mapping[str, int]
) -> Expr | None:
    """The value of a piece with numbers of the call in place of variables; None where one is in an index that
    it would not be held inside of."""
    value = piece.value
    for span, (axis, extent) in zip(spans, whole.items(), strict=True):
        base = affine.simplify(E.substitute(piece.at[axis], {axis: Const(0)}), {})
        terms, const = affine.linear(base)
        if len(terms) == 1 and isinstance(const, Const):
            ((atom, factor),) = terms.items()
            if isinstance(atom, Var) and factor == Const(1):
                value = E.substitute(value, {atom.name: held(span, extent) - int(const.value)})
    left = {v: calls.numbers[v] for v in E.variables(value) if v.startswith(MARK)}
    return E.substitute(value, {v: E.Cast(E.INDEX, e) for v, e in left.items()})


def held(span: RowSpan, extent: int) -> Expr:
    """The start of a span as an index that is held inside an axis, whatever the call tells."""
    if isinstance(span.start, Const):
        return Const(int(span.start.value))
    n = extent - span.extent
    most = E.Cast("int64", in_holes(n.expr)) if isinstance(n, Extent) else Const(int(n), "int64")
    return E.Cast(E.INDEX, E.minimum(E.maximum(span.start, Const(0, "int64")), most))


def _border(cond: Expr, extents: Mapping[str, int]) -> _Border | None:
    """Where a condition changes along one axis; None where that cannot be told."""
    found: dict[tuple[str, Expr], list[int]] = {}
    for x in E.walk(cond):
        if isinstance(x, Compare) and E.dtype_of(x.a) == E.INDEX:
            one = _changes(x, extents)
            if one is not None:
                axis, base, offsets = one
                inside = [n for n in offsets if base != Const(0) or _is_inside(n, extents[axis])]
                for n in inside:
                    known = found.setdefault((axis, base), [])
                    known += [] if any(is_same(n, k) for k in known) else [n]
    # what the call tells comes last: its pieces have no end
    for (axis, base), offsets in sorted(found.items(), key=lambda item: item[0][1] != Const(0)):
        every = ordered(offsets)
        if every is not None:
            return _Border(axis, base, every)
    return None


def _is_inside(n: int, extent: int) -> bool:
    """Whether an index cuts an axis, and lies in it at all sizes."""
    ends = is_same(n, 0) or is_same(n, extent)
    return not ends and least_of(n) >= 0 and least_of(extent - n) >= 0


def _changes(x: Compare, extents: Mapping[str, int]) -> tuple[str, Expr, Sequence[int]] | None:
    """(the axis, the base, the offsets) at which a comparison changes."""
    terms, const = affine.linear(x.a - x.b)
    axes = [a for a in terms if any(not v.startswith(MARK) for v in E.variables(a))]
    number = size_of(const)
    if len(axes) != 1 or not isinstance(axes[0], Var) or number is None:
        return None
    axis, step = axes[0].name, terms[axes[0]]
    if extents.get(axis, 0) == 0 or step not in (Const(1), Const(-1)):
        return None
    up = step == Const(1)
    rest = affine.from_linear({a: c for a, c in terms.items() if a != axes[0]}, Const(0))
    base = affine.simplify(rest * (-1 if up else 1), {})
    at = number * (-1 if up else 1)  # it is equal at base + at
    if x.op in ("==", "!="):
        return axis, base, (at, at + 1)
    after = (x.op == "<=") == up  # whether the equal one belongs to what is before
    return axis, base, (at + 1 if after else at,)


def _parts(piece: _Piece, border: _Border) -> Iterator[_Piece]:
    """The parts of a piece between the borders."""
    axis, base, offsets = border.axis, border.base, border.offsets
    v, extent = Var(axis), piece.extents[axis]

    def part(index: Expr, n: int) -> _Piece:
        index = in_holes(index)
        at = {a: E.substitute(i, {axis: index}) for a, i in piece.at.items()}
        return _Piece(at, {**piece.extents, axis: n}, E.substitute(piece.value, {axis: index}))

    if base == Const(0):
        offsets = (0, *offsets, extent)
    else:
        yield part(base + (offsets[0] - 1) - v, 0)
        yield part(base + offsets[-1] + v, 0)
    for low, high in pairwise(offsets):
        yield part(base + low + v, high - low)
