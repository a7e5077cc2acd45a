"""What is joined lies where it is read: the parts of a concatenation are computed in their places.

A map that is one expression up to some index, and another from there on, is cut into boxes. A box that holds
all elements of one tensor, in whatever order, is that tensor: whoever makes it writes with the strides that
it has within the whole, and whoever reads it reads so. Any other box is a map of its own, which may end the
kernel that makes what it reads. So the whole is written by several kernels, and no kernel copies it.

It is done where it is estimated to pay: by the bytes that are not copied, and where rows within the whole are
lines of the caches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Binary, Compare, Const, Expr, Load, Select, Var
from schedules.graph.edit import alike, is_map, points, ranges, readers
from schedules.graph.graph import Argument, Graph
from schedules.graph.kinds import is_joined, is_one_to_one
from schedules.graph.partition import results_of_maps
from schedules.graph.rewrite import RewritePlace, Take, may_lose
from schedules.model import LINE
from schedules.strides import strides_of
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_open, is_same
from schedules.te.unique import Taken

# Boxes of a map, above which it stays one kernel.
MOST_BOXES = 64
# Bytes that are copied in the time of one more call of a kernel.
CALL_BYTES = 8192
# How much longer it takes to copy what does not lie side by side.
GATHERED = 4
# Share of the time of copies that may be left.
LEFT = 0.6


@dataclass(frozen=True)
class _Box:
    """A part of a map: ``ranges`` of its axes, and its value there, by these axes. ``whole``: the extents of
    the map. A box that reaches the end of an open axis does so at every size."""

    ranges: tuple[affine.Range, ...]
    value: Expr
    whole: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """How long it is along each axis."""
        pairs = zip(self.ranges, self.whole, strict=True)
        return tuple(n - lo if hi == n - 1 else hi - lo + 1 for (lo, hi), n in pairs)


@dataclass(frozen=True)
class _Cut:
    """A map that differs before index ``at`` of an axis, by number, and from there on."""

    axis: int
    at: int
    low: _Cut | _Box
    high: _Cut | _Box


@dataclass(frozen=True)
class _Inside:
    """Where a tensor lies in the one that is joined of it. ``origin``: the indices of its first element.
    ``steps``: for each of its dimensions, (which axis, how far along that one index is)."""

    whole: str
    origin: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Stages:
    """What is known of the stages of a graph. ``made``: {tensor: its stage}. ``read``: {tensor: stages}.
    ``kept``: tensors that lie by themselves, since callers or islands get them."""

    made: Mapping[str, Stage]
    read: Mapping[str, Sequence[Stage]]
    kept: Collection[str]

    @staticmethod
    def of(graph: Graph) -> _Stages:
        made = {t.name: s for s in graph.dag.stages for t in s.outputs}
        return _Stages(made, readers(graph.dag.stages), frozenset(graph.dag.outputs))

    def users(self, s: Stage) -> set[str]:
        """Names of the stages that read a stage."""
        return {r.name for t in s.outputs for r in self.read.get(t.name, ())}


@dataclass(frozen=True)
class _Joined:
    """A map that is joined of others. ``whole``: what it is now. ``made``: maps that compute boxes.
    ``inside``: where tensors lie in it."""

    whole: Stage
    made: tuple[Stage, ...]
    inside: Mapping[str, _Inside]


@may_lose()
def join_in_place(graph: Graph, take: Take) -> Graph:
    """The graph in which parts of joined tensors are computed in their places, where that pays."""
    found = [s for s in graph.dag.stages if _is_candidate(s) and s.name not in graph.joins]
    if not found:
        return graph
    alone = results_of_maps(graph)  # kernels of maps alone
    taken = Taken(graph.dag.tensors)
    inside: dict[str, _Inside] = {}
    joined: dict[str, _Joined] = {}
    stages = _Stages.of(graph)
    for s in found:
        one = _joined(stages, s, inside, taken, s.name in alone)
        if one is not None and take(RewritePlace(s.name, alike(s))):
            joined[s.name] = one
            inside |= one.inside
    return _laid(graph, joined, inside) if joined else graph


def _is_candidate(s: Stage) -> bool:
    return is_map(s) and len(s.values) == 1 and is_joined(s)


# -- boxes -----------------------------------------------------------------------------------------


def _cut(s: Stage, box: _Box, budget: int = MOST_BOXES) -> _Cut | _Box | None:
    """A map, cut until no value depends on a condition on one axis, into at most ``budget`` boxes; None where
    that is too few, or a condition is another one."""
    inside = {a.var: r for a, r in zip(s.axes, box.ranges, strict=True)}
    cond = next((x.cond for x in E.walk(box.value) if isinstance(x, Select) and _joins(x)), None)
    if cond is None:
        return box
    place = _border(cond, s, inside)
    if place is None or budget < 2:
        return None
    axis, at = place
    size = s.axes[axis].extent
    if is_open(size) and at >= size.least:  # at some size nothing is behind the border
        return None
    parts: list[_Cut | _Box] = []
    for lo, hi in ((box.ranges[axis][0], at - 1), (at, box.ranges[axis][1])):
        own = (*box.ranges[:axis], (lo, hi), *box.ranges[axis + 1 :])
        value = affine.simplify(box.value, dict(zip(inside, own, strict=True)))
        left = budget - 1 if not parts else budget - len([*_boxes(parts[0])])
        part = _cut(s, _Box(own, value, box.whole), left)
        if part is None:
            return None
        parts.append(part)
    return _merged(_Cut(axis, at, *parts))


def _joins(x: Select) -> bool:
    return bool(E.loads(x.a)) and bool(E.loads(x.b)) and not E.loads(x.cond)


def _border(cond: Expr, s: Stage, inside: Mapping[str, affine.Range]) -> tuple[int, int] | None:
    """(the number of an axis, its first index behind a border) of a condition that changes there alone."""
    if not isinstance(cond, Compare) or cond.op not in ("<", "<="):
        return None
    terms, const = affine.linear(cond.a - cond.b)
    if not isinstance(const, Const) or not all(isinstance(f, Const) for f in terms.values()):
        return None
    c = int(const.value) - (cond.op == "<=")
    for n, a in enumerate(s.axes):
        factor = terms.get(Var(a.var), Const(0))
        assert isinstance(factor, Const)
        step = int(factor.value)
        rest = affine.bounds(
            affine.from_linear({v: f for v, f in terms.items() if v != Var(a.var)}, Const(c)), inside
        )
        if step == 0 or rest is None:
            continue
        # where step * v + rest < 0 ends to hold; of a step below 0, where step * v + rest >= 0 does
        low, high = rest if step > 0 else (-rest[1] - 1, -rest[0] - 1)
        at = -(low // abs(step))
        if abs(step) * (at - 1) + high < 0 and inside[a.var][0] < at <= inside[a.var][1]:
            return n, at
    return None


def _merged(cut: _Cut) -> _Cut | _Box:
    """A cut, or one box where both sides say the same."""
    a, b = cut.low, cut.high
    if isinstance(a, _Box) and isinstance(b, _Box) and a.value == b.value:
        own = (
            *a.ranges[: cut.axis],
            (a.ranges[cut.axis][0], b.ranges[cut.axis][1]),
            *a.ranges[cut.axis + 1 :],
        )
        return _Box(own, a.value, a.whole)
    if isinstance(a, _Box) and isinstance(b, _Cut) and b.axis == cut.axis and isinstance(b.low, _Box):
        first = _merged(_Cut(cut.axis, cut.at, a, b.low))
        if isinstance(first, _Box):
            return replace(b, low=first)
    return cut


def _boxes(cut: _Cut | _Box) -> Iterator[_Box]:
    if isinstance(cut, _Box):
        yield cut
    else:
        yield from _boxes(cut.low)
        yield from _boxes(cut.high)


# -- what a box is ---------------------------------------------------------------------------------


def _joined(stages: _Stages, s: Stage, placed: Collection[str], taken: Taken, alone: bool) -> _Joined | None:
    """A map as it is joined of tensors in place; None where it is better left as it is. ``placed``: tensors
    that lie elsewhere already. ``alone``: whether it is a kernel of its own."""
    every = tuple(ranges(s)[a.var] for a in s.axes)
    cut = _cut(s, _Box(every, s.values[0], tuple(a.extent for a in s.axes)))
    if cut is None or isinstance(cut, _Box):
        return None
    inside: dict[str, _Inside] = {}
    made: list[Stage] = []
    names: list[str] = []  # of the tensor of each box
    copied = left = calls = 0  # bytes that were copied and still are, by their time, and kernels that do
    item = DTYPES[s.outputs[0].dtype].itemsize
    for box in _boxes(cut):
        if _run(box.extents, s.outputs[0].shape) * item < LINE:
            return None
        where = _inside(stages, s, box, {*placed, *inside})
        if where is not None:
            name, inside[name] = where
            part, user = stages.made[name], name
            apart = is_map(part) and stages.users(part) == {s.name}
        else:
            name, user, apart = taken.add(s.name), s.name, True
            part = _part(s, box, name)
            made.append(part)
            inside[name] = _whole(s, box)
        cost = 2 * int(prod(box.extents)) * item * (1 if _goes_along(box, s.axes) else GATHERED)
        copied += cost
        if apart and not _follows(part, user, stages):
            left += cost
            calls += 1
        names.append(name)
    if left + CALL_BYTES * calls > (LEFT * (copied + CALL_BYTES) if alone else 0):
        return None
    whole = replace(s, values=(_value(cut, s, iter(names)),))
    return _Joined(whole, tuple(made), inside)


def _run(extents: Sequence[int], shape: Sequence[int]) -> int:
    """Elements of a box that lie side by side in the whole."""
    n = 1
    for mine, whole in zip(reversed(extents), reversed(shape), strict=True):
        n *= int(mine)
        if not is_same(mine, whole):
            break
    return n


def _goes_along(box: _Box, axes: Sequence[Axis]) -> bool:
    """Whether all that is read lies side by side along the last axis, or is the same there."""
    last = axes[-1].var
    for x in E.loads(_from_zero(box.value, box, axes)):
        if any(last in E.variables(i) for i in x.indices[:-1]):
            return False
        even, uneven = affine.steps_of(x.indices[-1]) if x.indices else ({}, frozenset[str]())
        if last in uneven or even.get(last, 1) != 1:
            return False
    return True


def _inside(stages: _Stages, s: Stage, box: _Box, placed: Collection[str]) -> tuple[str, _Inside] | None:
    """(a tensor, where it lies) of which a box holds every element once, and which may lie there."""
    x = box.value
    if not isinstance(x, Load) or x.buffer in placed or x.buffer in stages.kept:
        return None
    made = stages.made.get(x.buffer)
    if made is None or len(made.outputs) > 1:
        return None
    lies = _digits(box, s.axes, x.indices, made.outputs[0].shape)
    if lies is None:
        return None
    return x.buffer, _Inside(s.name, tuple(lo for lo, _ in box.ranges), lies)


def _digits(
    box: _Box, axes: Sequence[Axis], indices: Sequence[Expr], shape: Sequence[int]
) -> tuple[tuple[int, int], ...] | None:
    """For each dimension of a tensor of ``shape`` the axis along which its indices lie, and how far apart,
    where the ``indices`` in a box reach every element once."""
    number = {a.var: n for n, a in enumerate(axes)}
    found: list[tuple[int, int]] = []
    parts: dict[int, list[tuple[int, int]]] = {}  # {axis: (step, extent) of each dimension along it}
    for i, extent in zip(indices, shape, strict=True):
        if extent == 1:
            found.append((0, 0))
            continue
        digit = _digit(_from_zero(i, box, axes))
        if digit is None or digit[0] not in number:
            return None
        var, step, end = digit
        axis = number[var]
        if not is_same(end or box.extents[axis], step * extent):
            return None
        found.append((axis, step))
        parts.setdefault(axis, []).append((step, extent))
    for axis, extent in enumerate(box.extents):
        step = 1
        for lo, n in sorted(parts.get(axis, ())):
            if not is_same(lo, step):
                return None
            step *= n
        if not is_same(step, extent):
            return None
    return tuple(found)


def _from_zero(e: Expr, box: _Box, axes: Sequence[Axis]) -> Expr:
    """An expression on a box by axes that begin at 0 there."""
    begin = {
        a.var: Var(a.var) + lo if lo < hi else Const(lo) for a, (lo, hi) in zip(axes, box.ranges, strict=True)
    }
    inside = {a.var: (0, int(n) - 1) for a, n in zip(axes, box.extents, strict=True)}
    return affine.simplify(E.substitute(e, begin), inside)


def _digit(e: Expr) -> tuple[str, int, int] | None:
    """(variable, step, end) of an index that is ``variable % end // step``; an end of 0 is none."""
    match e:
        case Var(name=v):
            return v, 1, 0
        case Binary(op="//" | "%" as op, a=a, b=Const(value=c)):
            inner = _digit(a)
            if inner is None or (op == "%" and inner[2]):
                return None
            v, step, end = inner
            return (v, step * int(c), end) if op == "//" else (v, step, step * int(c))
    return None


def _whole(s: Stage, box: _Box) -> _Inside:
    """Where the tensor of a box of its own lies."""
    return _Inside(s.name, tuple(lo for lo, _ in box.ranges), tuple((d, 1) for d in range(len(s.axes))))


def _part(s: Stage, box: _Box, name: str) -> Stage:
    """The map that computes a box."""
    axes = tuple(replace(a, extent=n) for a, n in zip(s.axes, box.extents, strict=True))
    out = Tensor(name, box.extents, s.outputs[0].dtype)
    return Stage((out,), axes, (), (_from_zero(box.value, box, s.axes),), None)


def _follows(part: Stage, user: str, stages: _Stages) -> bool:
    """Whether a map may end the kernel of a product or reduction, which makes what only the stage ``user``
    reads until now."""
    for name in dict.fromkeys(x.buffer for x in part.reads()):
        p = stages.made.get(name)
        if p is None or name in stages.kept or stages.users(p) != {user}:
            continue
        if not is_same(points(p), points(part)):
            continue
        if is_one_to_one(part, [x for x in part.reads() if x.buffer == name]):
            if not is_map(p) or _follows(p, p.name, stages):
                return True
    return False


def _value(
    cut: _Cut | _Box,
    s: Stage,
    names: Iterator[str],
) -> Expr:
    """What is joined, of the tensors of its boxes."""
    if isinstance(cut, _Cut):
        low, high = (_value(c, s, names) for c in (cut.low, cut.high))
        return Select(Var(s.axes[cut.axis].var) < cut.at, low, high)
    name = next(names)
    if isinstance(cut.value, Load) and cut.value.buffer == name:
        return cut.value
    at = tuple(affine.simplify(Var(a.var) - lo, {}) for a, (lo, _) in zip(s.axes, cut.ranges, strict=True))
    return Load(name, at, s.outputs[0].dtype)


# -- where all lies --------------------------------------------------------------------------------


def _laid(graph: Graph, joined: Mapping[str, _Joined], inside: Mapping[str, _Inside]) -> Graph:
    """The graph with joined tensors, and strides of what lies in them."""
    stages: list[Stage] = []
    for s in graph.dag.stages:
        stages += (*joined[s.name].made, joined[s.name].whole) if s.name in joined else (s,)
    lies: dict[str, tuple[str, int, tuple[int, ...]]] = {}  # {tensor: where it begins, and its strides}
    shapes = {t.name: t for s in stages for t in s.outputs}
    for s in reversed(stages):  # a whole before its parts
        name = s.outputs[0].name
        if name in inside:
            own = inside[name]
            whole = tuple(map(int, strides_of(shapes[own.whole])))  # of the largest sizes at every size
            root, start, steps = lies.get(own.whole, (own.whole, 0, whole))
            start += sum(i * step for i, step in zip(own.origin, steps, strict=True))
            lies[name] = root, start, tuple(steps[axis] * far for axis, far in own.steps)

    def lie(t: Tensor) -> Tensor:
        return replace(t, strides=lies[t.name][2]) if t.name in lies else t

    stages = [replace(s, outputs=tuple(map(lie, s.outputs))) for s in stages]
    origins = dict(graph.origins)
    for name, one in joined.items():
        origins |= {p.name: origins[name] for p in one.made if name in origins}
    return replace(
        graph,
        dag=replace(graph.dag, stages=tuple(stages)),
        origins=origins,
        views={**graph.views, **{name: Argument(root, start) for name, (root, start, _) in lies.items()}},
        joins={**graph.joins, **{name: tuple(one.inside) for name, one in joined.items()}},
    )
