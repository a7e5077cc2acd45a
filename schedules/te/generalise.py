"""One compute DAG for every size of a range, of DAGs that were made for a few of the sizes.

Whoever makes a DAG of a program, such as an importer, does it with numbers for the sizes. Made for several
sizes, DAGs that differ in numbers alone are one DAG whose numbers depend on the sizes: this is
anti-unification (Plotkin, A note on inductive generalization, 1970), with numbers in place of terms. A number
is the sum of multiples of sizes and a constant, which two samples for each tell and all others confirm. Where
expressions differ in more than numbers, what is computed depends on the size, and there is no such DAG.

Samples are best of sizes that are no other number of the program, so that no extent is equal to a size, or
divided by it, by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import isqrt

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Const, Expr, Hole, Var
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.open_sizes import OpenExtent, OpenSize, OpenSizes, at, variable
from schedules.te.scalars import cast


@dataclass(frozen=True)
class Sample:
    """A DAG without open sizes, made for one number for each size."""

    sizes: Mapping[str, int]
    dag: ComputeDAG


@dataclass(frozen=True)
class Obstacle:
    """Why a stage has no form for all sizes. ``stage``: its name in the first sample; empty for what is no
    stage."""

    stage: str
    why: str


class NoCommonForm(WorkloadError):
    """DAGs of several sizes are no DAG of open sizes. ``obstacles``: why not."""

    def __init__(self, *obstacles: Obstacle) -> None:
        self.obstacles = obstacles
        super().__init__("; ".join(f"{o.stage}: {o.why}" if o.stage else o.why for o in obstacles))


class _Differs(Exception):
    """Why two samples differ in more than numbers that depend on a size."""


def generalised(samples: Sequence[Sample], sizes: Sequence[OpenSize]) -> ComputeDAG:
    """The DAG of open ``sizes`` that is each sample at its sizes. Numbers are those of the largest sizes.

    ``samples``: the first, and for each size at least one in which that alone is another. More of them
    confirm the result; one in which all sizes differ tells numbers that two sizes make together. Raises
    `NoCommonForm`, which names the stages that have none, or for which loads cannot be proved inside at every
    size.

    >>> def made(n):
    ...     x = te.placeholder((n, 4), name="x")
    ...     return Sample({"n": n}, te.dag([x, te.compute((n + 1, 4), lambda i, j: x[i * 0, j], "y")]))
    >>> generalised([made(7), made(11)], [OpenSize("n", 2, 64)]).open.axes[0].extent
    (n + 1)
    """
    first = samples[0].dag
    for s in samples[1:]:
        _check_frame(first, s.dag)
    fit = _Fit([s.sizes for s in samples], sizes)
    obstacles: list[Obstacle] = []
    inputs: list[Tensor] = []
    in_inputs: list[OpenExtent] = []
    for k, each in enumerate(zip(*(s.dag.inputs for s in samples), strict=True)):
        try:
            shape = [fit.extent(x) for x in zip(*(t.shape for t in each), strict=True)]
        except _Differs as err:
            obstacles.append(Obstacle("", f"input {each[0].name}: {err}"))
            continue
        inputs.append(replace(each[0], shape=tuple(map(fit.largest, shape))))
        in_inputs += [OpenExtent(k, d, n) for d, n in enumerate(shape) if isinstance(n, Expr)]
    stages: list[Stage] = []
    in_axes: list[OpenExtent] = []
    for k, same in enumerate(zip(*(s.dag.stages for s in samples), strict=True)):
        try:
            stage, extents = _stage(same, fit)
        except _Differs as err:
            obstacles.append(Obstacle(same[0].name, str(err)))
            continue
        stages.append(stage)
        in_axes += [OpenExtent(k, d, n) for d, n in enumerate(extents) if isinstance(n, Expr)]
    if obstacles:
        raise NoCommonForm(*obstacles)
    opened = OpenSizes(tuple(sizes), tuple(in_inputs), tuple(in_axes))
    return _checked(samples, inputs, stages, opened)


def _checked(
    samples: Sequence[Sample], inputs: Sequence[Tensor], stages: Sequence[Stage], opened: OpenSizes
) -> ComputeDAG:
    """The DAG, after all checks. Raises NoCommonForm."""
    try:
        made = replace(samples[0].dag, inputs=tuple(inputs), stages=tuple(stages), open=opened)
        for s in samples:
            if any(s.sizes[n] not in range(least, most + 1) for n, (least, most) in opened.ranges.items()):
                continue
            there = at(made, s.sizes)
            if there != s.dag:
                odd = next((a.name for a, b in zip(there.stages, s.dag.stages, strict=True) if a != b), "")
                raise NoCommonForm(Obstacle(odd, f"at {_shown(s.sizes)} it is another expression"))
    except NoCommonForm:
        raise
    except ValueError as err:
        told = str(err)
        named = next((s.name for s in stages if told.startswith(f"stage {s.name}: ")), "")
        raise NoCommonForm(Obstacle(named, told.removeprefix(f"stage {named}: "))) from err
    return made


def check_end(made: ComputeDAG, end: Sample) -> None:
    """Raise `NoCommonForm` where a DAG of open sizes has other numbers than one that was made at an end of
    their ranges, as ``max(n, 2)`` has at 1, and ``min(n, 63)`` at 64, though all samples between have those
    of ``n``.

    At an end a size may be another number of the program by chance, or 1. So what is computed there in other
    steps is no obstacle: only shapes of outputs are compared then, and numbers where all else is the same."""
    there = at(made, end.sizes)
    for name, n in zip(there.outputs, end.dag.outputs, strict=False):
        if there.tensors[name].shape != end.dag.tensors[n].shape:
            raise _otherwise(name, end)
    try:
        _check_frame(there, end.dag)
    except NoCommonForm:
        return
    for s, t in zip(there.stages, end.dag.stages, strict=True):
        extents = [(*(a.extent for a in x.axes), *(a.extent for a in x.reduce_axes)) for x in (s, t)]
        both = ((*s.values, *s.where, *s.places), (*t.values, *t.where, *t.places))
        if extents[0] != extents[1] or any(map(_differ_in_numbers, *both)):
            raise _otherwise(s.name, end)


def _otherwise(stage: str, end: Sample) -> NoCommonForm:
    return NoCommonForm(Obstacle(stage, f"at {_shown(end.sizes)} it has other numbers than between the ends"))


def _differ_in_numbers(a: Expr, b: Expr) -> bool:
    """Whether two expressions are the same but for numbers, and not the same."""
    if a == b:
        return False
    todo = [(a, b)]
    while todo:
        x, y = todo.pop()
        kids = E.children(x), E.children(y)
        if type(x) is not type(y) or _own(x) != _own(y) or len(kids[0]) != len(kids[1]):
            return False
        todo += zip(*kids, strict=True)
    return True


def _check_frame(a: ComputeDAG, b: ComputeDAG) -> None:
    """Raise NoCommonForm where two DAGs have not the same tensors and stages."""
    for x, y in zip(a.inputs, b.inputs, strict=False):
        if (x.name, x.dtype, len(x.shape), x.strides) != (y.name, y.dtype, len(y.shape), y.strides):
            raise NoCommonForm(Obstacle("", f"input {x.name} is {x} at one size, and {y} at another"))
    for s, t in zip(a.stages, b.stages, strict=False):
        if _skeleton(s) != _skeleton(t):
            raise NoCommonForm(Obstacle(s.name, "it is computed in other steps at other sizes"))
    if (len(a.inputs), len(a.stages), a.outputs, a.constants) != (
        len(b.inputs), len(b.stages), b.outputs, b.constants
    ):  # fmt: skip
        least = min(len(a.stages), len(b.stages))
        longer = a if len(a.stages) > least else b
        name = longer.stages[least].name if len(longer.stages) > least else ""
        raise NoCommonForm(Obstacle(name, "it is computed in other steps at other sizes"))


def _skeleton(s: Stage) -> object:
    axes = tuple(a.var for a in s.axes), tuple(a.var for a in s.reduce_axes)
    return [(o.name, o.dtype) for o in s.outputs], axes, s.reducer, len(s.where), len(s.places), s.scan


def _stage(each: Sequence[Stage], fit: _Fit) -> tuple[Stage, list[int | Expr]]:
    """(A stage at the largest sizes, the extents of its axes and reduction axes). Raises _Differs."""
    first = each[0]
    axes = [(*s.axes, *s.reduce_axes) for s in each]
    extents = [fit.extent([a.extent for a in same]) for same in zip(*axes, strict=True)]
    made = tuple(Axis(a.var, fit.largest(n)) for a, n in zip(axes[0], extents, strict=True))
    values, where, places = (
        tuple(fit.expr(v) for v in zip(*every, strict=True))
        for every in ([s.values for s in each], [s.where for s in each], [s.places for s in each])
    )
    own = made[: len(first.axes)]
    shape = tuple(a.extent for a in own)
    outputs = tuple(replace(o, shape=shape) for o in first.outputs)
    made_ = replace(first, outputs=outputs, axes=own, reduce_axes=made[len(own) :], values=values)
    return replace(made_, where=where, places=places), extents


@dataclass(frozen=True)
class _Fit:
    """What numbers of samples are of the sizes. ``points``: the sizes of each sample."""

    points: Sequence[Mapping[str, int]]
    sizes: Sequence[OpenSize]

    def extent(self, numbers: Sequence[int]) -> int | Expr:
        """An extent at each sample, as a number or an expression of one size. Raises _Differs."""
        if len(set(numbers)) == 1:
            return numbers[0]
        steps, first = self._line(numbers)
        if len(steps) != 1:
            raise self._together(numbers)
        ((name, step),) = steps.items()
        size = next(s for s in self.sizes if s.name == name)
        if step < 0:
            raise _Differs(f"an extent is smaller where {name} is larger")
        if step * size.least + first < 1:
            raise _Differs(
                f"an extent is {step * size.least + first} where {name} is {size.least}: raise the least "
                f"size to {-(-(1 - first) // step)}"
            )
        return Var(name) * int(step) + int(first)

    def largest(self, extent: int | Expr) -> int:
        """An extent at the largest sizes."""
        if isinstance(extent, int):
            return extent
        return int(E.evaluate(extent, {s.name: s.most for s in self.sizes}))

    def expr(self, each: Sequence[Expr]) -> Expr:
        """One expression for those of the samples. Raises _Differs."""
        first = each[0]
        if all(e is first or e == first for e in each[1:]):
            return first
        if any(type(e) is not type(first) or _own(e) != _own(first) for e in each[1:]):
            raise _Differs(
                f"it computes {_cut(first)} at {self.points[0]}, and something else at another size"
            )
        if isinstance(first, Const):
            return self._number([e for e in each if isinstance(e, Const)])
        kids = [E.children(e) for e in each]
        if len({len(k) for k in kids}) > 1:
            raise _Differs("it reads another number of elements at another size")
        return E.rebuild(first, tuple(map(self.expr, zip(*kids, strict=True))))

    def _number(self, each: Sequence[Const]) -> Expr:
        """A number of a value or an index that depends on a size, as an expression of it."""
        numbers = [c.value for c in each]
        if any(isinstance(n, bool) or n != int(n) for n in numbers if n == n and abs(n) < 2**53):
            raise _Differs(f"it computes with the number {numbers[0]!r}, which depends on a size otherwise")
        steps, first = self._line([int(n) for n in numbers])
        found: Expr = Const(0)
        for name, step in steps.items():
            found = found + Hole(variable(name)) * step
        found = found + first
        return found if each[0].dtype == INDEX else cast(found, each[0].dtype)

    def _line(self, numbers: Sequence[int]) -> tuple[dict[str, int], int]:
        """({size: step}, first) of numbers that are the sum of ``step * size`` and ``first`` at every
        sample."""
        steps: dict[str, int] = {}
        first, base = numbers[0], self.points[0]
        for s in self.sizes:
            x, u = base[s.name], numbers[0]
            for p, v in zip(self.points, numbers, strict=True):
                if [n for n in base if p[n] != base[n]] != [s.name]:
                    continue
                y = p[s.name]
                step, rest = divmod(v - u, y - x)
                if rest or steps.setdefault(s.name, step) != step:
                    raise _Differs(
                        f"the number {u} at {s.name} = {x} is {v} at {y}, which is no multiple of {s.name} "
                        "plus a number"
                    )
            first -= steps.setdefault(s.name, 0) * x
        if any(
            sum(k * p[n] for n, k in steps.items()) + first != m
            for p, m in zip(self.points, numbers, strict=True)
        ):
            raise self._together(numbers)
        return {n: k for n, k in steps.items() if k}, first

    def _together(self, numbers: Sequence[int]) -> _Differs:
        """Why numbers are no sum."""
        return _Differs(
            f"the number {numbers[0]} depends on {' and '.join(s.name for s in self.sizes)} together"
        )


def _own(e: Expr) -> list[object]:
    """What a node says beside its children; of a number, its dtype alone."""
    if isinstance(e, Const):
        return [e.dtype]
    every = (getattr(e, f.name) for f in fields(e))  # type: ignore[arg-type]
    return [
        v
        for v in every
        if not isinstance(v, Expr) and not (isinstance(v, tuple) and any(isinstance(x, Expr) for x in v))
    ]


def _cut(e: Expr) -> str:
    text = E.show(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in sizes.items())


# --- which sizes ------------------------------------------------------------------------------


def sample_sizes(sizes: Sequence[OpenSize], taken: Callable[[int], bool]) -> Iterator[dict[str, int]]:
    """Numbers for the sizes of samples: one for each, then two others for each size alone, then all of them
    otherwise. ``taken``: whether a number should be none of these, as it is one of the program."""
    chosen = {}
    used: set[int] = set()
    for s in sizes:
        chosen[s.name] = _numbers(s, lambda n: taken(n) or n in used)
        used.update(chosen[s.name])
    base = {name: c[0] for name, c in chosen.items()}
    yield base
    for name, c in chosen.items():
        yield from ({**base, name: n} for n in c[1:3])
    yield {name: c[-1] for name, c in chosen.items()}


def _numbers(s: OpenSize, taken: Callable[[int], bool]) -> list[int]:
    """Four numbers of a range: a middle one, a small one, a large one, and a multiple of many."""
    low, high = max(s.least, 2), s.most
    if high - low < 4:  # too few to tell anything from: what is beyond is computed alike
        high = low + 8
    middle = min(max(low, 30), (low + high) // 2)
    step = next(k for k in (24, 12, 6, 4, 2) if 2 * k <= high)
    wanted = [
        (n for n in _around(middle, low, high) if _is_prime(n)),
        (n for n in range(low, high + 1) if _is_prime(n)),
        (n for n in range(high, low - 1, -1) if _is_prime(n)),
        iter(range(high // 2 // step * step, low - 1, -step)),
    ]
    out: list[int] = []
    for numbers in wanted:
        near = list(islice(numbers, 64))
        free = [n for n in near if n not in out and not taken(n)]
        left = (n for n in (*near, *range(low, high + 1)) if n not in out)
        out.append(free[0] if free else next(left))
    return out


def _around(middle: int, low: int, high: int) -> Iterator[int]:
    for d in range(high - low + 1):
        if middle + d <= high:
            yield middle + d
        if d and middle - d >= low:
            yield middle - d


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, isqrt(n) + 1))
