"""A program whose sizes vary, as the workloads of its sizes (ADR 51).

Every size is a workload of its own, with its own records in the log and its own kernel.
`DynamicWorkload.tuned` finds the sizes of a program that a log has.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any

from autotune.run.describing import describe
from autotune.run.workloads import Program, as_workload, named
from kernels_db import lookup
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Expr
from schedules.model import Workload, digest
from schedules.te import dims as te_dims
from schedules.te.dims import Dim
from schedules.te.strided import Strides
from schedules.te.tensors import dims as dims_of

# Values of the dimensions, in their order.
Sizes = tuple[int, ...]
# Factor of FLOPs beyond those of the least and the largest size, within which a log is searched. The FLOPs
# that a log has may be counted by another version.
AROUND = 2.0


@dataclass(frozen=True)
class Seen:
    """Where a dimension is seen: extent ``axis`` of input number ``input`` is ``scale`` times its value, plus
    ``offset``."""

    input: int
    axis: int
    scale: int = 1
    offset: int = 0

    def value(self, extent: int) -> int | None:
        """The value at an extent; None where it is no integer."""
        size, rest = divmod(extent - self.offset, self.scale)
        return None if rest else size

    def extent(self, value: int) -> int:
        """The extent at a value."""
        return self.scale * value + self.offset


@dataclass(frozen=True, eq=False)
class DynamicWorkload:
    """``dims``: the sizes that vary, each with a name; ``make``: the workload of their values. Values are
    checked by `at`. ``told``: where each is seen, if the workload says so."""

    dims: tuple[Dim, ...]
    make: Callable[[Sizes], Workload] = field(repr=False)
    _made: dict[Sizes, Workload] = field(default_factory=dict, repr=False)
    told: tuple[Seen, ...] | None = None

    def at(self, sizes: Sizes) -> Workload:
        """The workload of sizes. Raises `WorkloadError` for sizes outside the range."""
        if sizes not in self._made:
            for d, n in zip(self.dims, sizes, strict=True):
                if not d.lo <= n <= d.hi:
                    raise WorkloadError(f"{d.name}={n} is outside {d.lo}..{d.hi}; tune it with a wider range")
            self._made[sizes] = self.make(sizes)
        return self._made[sizes]

    def named(self, name: str) -> DynamicWorkload:
        """A user's own expression under a name. Raises `WorkloadError` as `workloads.named` does."""
        return DynamicWorkload(self.dims, lambda sizes: named(self.make(sizes), name))

    @property
    def least(self) -> Sizes:
        """The least sizes."""
        return tuple(d.lo for d in self.dims)

    @property
    def largest(self) -> Sizes:
        """The largest sizes."""
        return tuple(d.hi for d in self.dims)

    def given(self, sizes: Mapping[str, int]) -> Sizes:
        """Sizes by name, in order. Raises `WorkloadError` unless each is given once, as an integer."""
        names = [d.name for d in self.dims]
        if sorted(sizes) != sorted(names):
            got = ", ".join(map(repr, sizes)) or "nothing"
            raise WorkloadError(f"the sizes that vary are {', '.join(names)}; {got} was given")
        for name, n in sizes.items():
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                most = self.dims[names.index(name)].hi
                raise WorkloadError(f"{name}={n!r} is not an integer; give a size, such as {name}={most}")
        return tuple(index(sizes[n]) for n in names)

    @cached_property
    def seen(self) -> tuple[Seen, ...]:
        """Where each dimension is seen in the shapes of inputs, best in one that is not known ahead. Raises
        `WorkloadError` if one is seen nowhere."""
        return self.told or tuple(self._seen(k) for k in range(len(self.dims)))

    def _seen(self, k: int) -> Seen:
        d = self.dims[k]

        def shapes(n: int, others: Sizes) -> list[tuple[int, ...]]:
            dag = self.at(tuple(n if i == k else o for i, o in enumerate(others))).dag
            return [t.shape for t in dag.inputs]

        dag = self.at(self.least).dag
        high, apart = shapes(d.hi, self.least), shapes(d.lo, self.largest)
        found = []
        for i, t in enumerate(dag.inputs):
            for j, n in enumerate(t.shape):
                if d.lo == d.hi or high[i][j] == n or apart[i][j] != n:
                    continue
                scale, rest = divmod(high[i][j] - n, d.hi - d.lo)
                if not rest and scale > 0:
                    found.append((t.name in dag.constants, Seen(i, j, scale, n - scale * d.lo)))
        if not found:
            if d.lo == d.hi:
                raise WorkloadError(f"the size {d!r} does not vary; give the number {d.lo}")
            raise WorkloadError(f"no extent of an input tells the size {d!r} of a call; give a number")
        return min(found, key=lambda f: (f[0], f[1].scale, f[1].input, f[1].axis))[1]

    def sizes_of(self, shapes: Sequence[Sequence[int]]) -> Sizes | None:
        """The sizes at which inputs have these shapes, as far as they tell; None if there are none in
        range."""
        sizes = []
        for d, seen in zip(self.dims, self.seen, strict=True):
            if seen.input >= len(shapes) or seen.axis >= len(shapes[seen.input]):
                return None
            n = seen.value(shapes[seen.input][seen.axis])
            if n is None or not d.lo <= n <= d.hi:
                return None
            sizes.append(n)
        return tuple(sizes)

    def tuned(self, where: str | os.PathLike[str]) -> list[Sizes]:
        """The sizes that a log has a kernel of, on whatever machine. Raises `LogError`."""
        ends = [max(self.at(s).flops, 1) for s in (self.least, self.largest)]
        middle = math.isqrt(min(ends) * max(ends))
        factor = AROUND * max(max(ends) / middle, middle / min(ends))
        found = set()
        for text, _ in lookup.about_flops(where, middle, factor):
            try:
                shapes = [[int(n) for n in t[1]] for t in json.loads(text)["dag"]["inputs"]]
            except (ValueError, TypeError, LookupError):  # damaged
                continue
            sizes = self.sizes_of(shapes)
            if sizes is not None and sizes not in found and self.at(sizes).digest == digest(text):
                found.add(sizes)
        return sorted(found)

    def __str__(self) -> str:
        """As `describe` has a workload, with ranges for sizes that vary."""
        words = [w.partition("=") for w in describe(self.at(self.largest)).split(" ")]
        ranges = {d.name: f"{d.lo}..{d.hi}" for d in self.dims}
        text = " ".join(f"{name}{sign}{ranges.pop(name, value)}" for name, sign, value in words)
        return text if not ranges else f"{text} with {', '.join(f'{n}={r}' for n, r in ranges.items())}"


def as_dynamic(
    program: Program,
    params: Mapping[str, Any],
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    caller: Callable[..., Any] | None = None,
    strides: Strides | None = None,
    opened: bool = False,
) -> DynamicWorkload | None:
    """The workloads of each size of a program, whose open sizes stay open; None where no other size varies.
    Arguments as of `as_workload`. ``opened``: whether a size is open that does not say so. Raises
    `WorkloadError`, also where the least or the largest sizes are no program."""
    stays = (True, None) if opened else (True,)
    if isinstance(program, str):
        found = _of_params(params, stays)
        dims = tuple(found.values())
        ranges = tuple(Dim(n, d.lo, d.hi) for n, d in found.items())

        def make(sizes: Sizes) -> Workload:
            values = dict(zip(dims, sizes, strict=True))
            numbers = {k: _numbers(x, values) for k, x in params.items()}
            return as_workload(
                program, numbers, dtype, layout, constant_weights, caller, strides_at(strides, values)
            )
    else:
        tensors: Sequence[Any] = program if isinstance(program, (list, tuple)) else ()
        dims = tuple(d for d in dims_of(tensors) if d.open not in stays)
        ranges = _named(dims)

        def make(sizes: Sizes) -> Workload:
            values = dict(zip(dims, sizes, strict=True))
            dag = te.dag(tensors, values)  # open ones stay
            return as_workload(
                dag, params, dtype, layout, constant_weights, caller, strides_at(strides, values)
            )

    if not dims:
        return None
    dynamic = DynamicWorkload(ranges, make)
    dynamic.at(dynamic.largest)
    _ = dynamic.seen
    return dynamic


def strides_at(strides: Strides | None, values: Mapping[Dim, int]) -> Strides | None:
    """Strides with numbers for the dimensions in them. Raises `WorkloadError`."""
    if not isinstance(strides, Mapping):
        return strides
    listed = {name: s for name, s in strides.items() if isinstance(s, (tuple, list))}
    for name, steps in listed.items():
        for s in steps:
            te_dims.check_stride(name, s, values.keys())
    used = te_dims.dims_of([s for steps in listed.values() for s in steps])
    if missing := [d for d in used if d not in values]:
        raise WorkloadError(f"strides: {missing[0]!r} is no size of the program; use the sizes that it has")

    def numbers(steps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(te_dims.stride_at(s, values) if isinstance(s, Expr) else s for s in steps)

    return {**strides, **{name: numbers(steps) for name, steps in listed.items()}}


def _of_params(params: Mapping[str, Any], stays: Sequence[bool | None]) -> dict[str, Dim]:
    """The dimensions among parameters, by name: that of the first parameter that has it, for one of several
    numbers with its place. Those whose ``open`` is among ``stays`` stay in the program."""
    found: dict[Dim, str] = {}
    for name, x in params.items():
        several = isinstance(x, (list, tuple))
        for i, d in enumerate(x if several else [x]):
            if isinstance(d, Dim) and d.open not in stays:
                found.setdefault(d, f"{name}{i}" if several else name)
    return {name: d for d, name in found.items()}


def _numbers(x: Any, values: Mapping[Dim, int]) -> Any:
    """A parameter with numbers for its dimensions."""
    if isinstance(x, (list, tuple)):
        return tuple(_numbers(i, values) for i in x)
    return values.get(x, x) if isinstance(x, Dim) else x


def _named(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Names for those that have none or another's: ``d0``, ``d1``, ..."""
    taken: list[str] = []
    for i, d in enumerate(dims):
        taken.append(d.name if d.name and d.name not in taken else f"d{i}")
    return tuple(Dim(n, d.lo, d.hi) for n, d in zip(taken, dims, strict=True))
