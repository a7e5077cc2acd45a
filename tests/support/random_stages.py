"""Random programs of several stages: maps of any rank, windows, strides, gathers, reductions, tuples.

Every value is a whole number and small, so that results are the same bits in any order of computing. What is
drawn comes from a `Random`, which hypothesis has too (`strategies.randoms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES, computed, is_float
from schedules.ops.axes import named
from schedules.te.compute_dag import ComputeDAG

Axes = dict[Any, int]  # {axis: its extent}
# Extents of programs: ones, primes, just beside powers of two.
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 24, 31, 33)
# Largest size of a value that is read and of one that is reduced. Products stay whole floats.
READ, REDUCED, PRODUCT = 32, 64, 1 << 14


@dataclass
class Writer:
    """A program while it is drawn. ``sizes``: of values of each tensor, at most."""

    rng: Random
    extents: Sequence[int]
    dtypes: Sequence[str]
    most: int  # points of a stage; of a reduction four times as many

    def __post_init__(self) -> None:
        self.sizes: dict[te.Tensor, int] = {}
        self.count = 0

    def flag(self, p: float) -> bool:
        return self.rng.random() < p

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def extent(self) -> int:
        return self.rng.choice(self.extents)

    def shape(self) -> tuple[int, ...]:
        shape = [self.extent() for _ in range(self.rng.choice((0, 0, 1, 1, 2, 2, 2, 3, 3, 4)))]
        while prod(shape) > self.most:
            shape[self.rng.randrange(len(shape))] = self.rng.choice((1, 2))
        return tuple(shape)

    # -- where something is read -------------------------------------------------------------

    def index(self, n: int, axes: Axes) -> Any:
        """A place in a dimension of ``n``, which all points of the axes have."""
        rng = self.rng
        fit = [a for a, extent in axes.items() if extent <= n]
        equal = [a for a in fit if axes[a] == n]
        if equal and self.flag(0.6):
            a = rng.choice(equal)
            return n - 1 - a if self.flag(0.1) else a
        ways: list[Callable[[], Any]] = [lambda: rng.randrange(n)]
        if fit:
            near = rng.choice(fit)
            room, apart = n - axes[near], n - 1 - 2 * (axes[near] - 1)
            ways += [lambda: near + rng.randint(0, room)] * 4
            if apart >= 0:
                ways += [lambda: near * 2 + rng.randint(0, apart)] * 2
            if others := [b for b in axes if b is not near and axes[b] <= room + 1]:
                ways += [lambda: near + rng.choice(others)] * 3
        if axes:
            a = rng.choice(list(axes))
            b = rng.choice(list(axes))
            ways += [lambda: a % n, lambda: te.minimum(te.maximum(a - 1, 0), n - 1)]
            ways += [lambda: te.minimum(a + rng.randint(0, 3), n - 1)]
            if axes[a] > n:
                ways.append(lambda: a // -(-axes[a] // n))
            if b is not a and axes[a] * axes[b] <= n:
                ways += [lambda: a * axes[b] + b] * 2
            whole = [t for t in self.sizes if not is_float(t.dtype) and t.dtype != "bool"]
            if whole:
                t = rng.choice(whole)
                ways.append(lambda: t[tuple(self.index(k, axes) for k in t.shape)])
        return rng.choice(ways)()

    def in_order(self, t: te.Tensor, axes: Axes) -> list[Any]:
        """A place for each dimension: the axes of the same extents in their order, as of a broadcast."""
        left = list(axes)
        place: list[Any] = []
        for n in t.shape:
            at = next((k for k, a in enumerate(left) if axes[a] == n), None)
            place.append(self.index(n, axes) if at is None else left[at])
            left = left if at is None else left[at + 1 :]
        return place

    def read(self, axes: Axes, tensor: te.Tensor | None = None) -> tuple[Any, int]:
        """(an element, its largest size)."""
        t = tensor or self.rng.choice(list(self.sizes)[-6:])
        x = t[tuple(self.in_order(t, axes) if self.flag(0.5) else [self.index(n, axes) for n in t.shape])]
        if t.dtype == "bool":
            return te.select(x, 1, 0) if self.flag(0.3) else te.cast(x, "int32"), 1
        if self.sizes[t] > READ:
            return te.clip(x, -READ, READ), READ
        return x, self.sizes[t]

    # -- what is computed --------------------------------------------------------------------

    def value(self, axes: Axes, dtype: str, depth: int = 2) -> tuple[Any, int]:
        """(an expression of ``dtype``, which is computed with, and its largest size)."""
        rng = self.rng
        if depth == 0 or self.flag(0.15):
            if axes and self.flag(0.08):
                a = rng.choice(list(axes))
                return te.cast(a, dtype), axes[a]
            if self.flag(0.05):
                return te.const(rng.randint(-2, 3), dtype), 3
            x, size = self.read(axes)
            return te.cast(x, dtype), size
        a, sa = self.value(axes, dtype, depth - 1)
        if self.flag(0.3):
            return self.function(a, sa, dtype)
        if self.flag(0.12) and axes:
            return self.guarded(axes, a, dtype), max(sa, READ)
        b, sb = self.value(axes, dtype, depth - 1)
        if sa * sb > PRODUCT:
            return te.maximum(te.minimum(a, b), -2), max(sa, sb)
        return rng.choice(
            (
                lambda: (a + b, sa + sb),
                lambda: (a - b, sa + sb),
                lambda: (a * b, sa * sb),
                lambda: (te.maximum(a, b), max(sa, sb)),
                lambda: (te.minimum(a, b), max(sa, sb)),
                lambda: (te.select(a < b, a, b + 1), max(sa, sb) + 1),
            )
        )()

    def function(self, x: Any, size: int, dtype: str) -> tuple[Any, int]:
        """A function whose results are whole, however a kernel rounds."""
        if not is_float(dtype):
            return self.rng.choice((lambda: (te.abs(x), size), lambda: (x // 3, size), lambda: (x % 5, 5)))()
        return self.rng.choice(
            (
                lambda: (te.floor(te.tanh(x) * 3.5), 4),
                lambda: (te.floor(te.exp(-te.abs(x)) * 4.5), 5),
                lambda: (te.floor(te.sin(x) * 3.5), 4),
                lambda: (te.floor(x / 2.0), size),
                lambda: (te.abs(x), size),
                lambda: (-x, size),
            )
        )()

    def guarded(self, axes: Axes, other: Any, dtype: str) -> Any:
        """A read that only a condition holds inside, as of padding."""
        t = self.rng.choice(list(self.sizes))
        if not t.shape or t.dtype == "bool":
            return te.maximum(other, -1)
        inside, place = [], []
        for n in t.shape:
            a = self.rng.choice(list(axes))
            off = self.rng.randint(-1, 2)
            inside += [a >= off, a < n + off]
            place.append(a - off)
        x = te.cast(te.clip(t[tuple(place)], -READ, READ), dtype)
        return te.select(te.all(*inside), x, self.rng.choice((0, other)))

    # -- stages ------------------------------------------------------------------------------

    def stage(self) -> None:
        """One more stage."""
        rng = self.rng
        like = rng.choice(list(self.sizes)).shape if self.flag(0.5) else self.shape()
        dtype = rng.choice(self.dtypes)
        kind = rng.choices(("map", "reduction", "tuple", "largest"), (6, 4, 1, 1))[0]
        shape = like if prod(like) <= self.most else (2,)
        letters = "ijklmnop"[: len(shape)]
        wide = computed(dtype)

        def axes_of(args: Sequence[Any]) -> Axes:
            return dict(zip(args, shape, strict=True))

        sizes: list[int] = []

        def one(args: Sequence[Any]) -> Any:
            v, size = self.value(axes_of(args), wide)
            if size > READ and self.flag(0.5):
                v, size = te.clip(v, -READ, READ), READ
            sizes.append(size)
            return v if size > 100 else te.cast(v, dtype)

        if kind == "map":
            made: Any = te.compute(shape, named(letters, lambda *a: one(a)), self.name("m"))
        elif kind == "tuple":
            names = (self.name("p"), self.name("q"))
            made = te.compute(shape, named(letters, lambda *a: (one(a), one(a))), names)
        else:
            made = self.reduction(shape, letters, wide, kind == "largest", sizes)
        for t, size in zip(made if isinstance(made, tuple) else (made,), sizes, strict=True):
            self.sizes[t] = size

    def reduction(
        self, shape: tuple[int, ...], letters: str, dtype: str, largest: bool, sizes: list[int]
    ) -> Any:
        rng = self.rng
        source = rng.choice(list(self.sizes))
        extents = [rng.choice((*source.shape, self.extent())) for _ in range(rng.choice((1, 1, 2, 3)))]
        while prod(extents) * prod(shape) > 4 * self.most:
            extents[rng.randrange(len(extents))] = rng.choice((1, 2))
        axes = [te.reduce_axis(n, f"r{k}") for k, n in enumerate(extents)]
        first = self.flag(0.4)  # axes of the reduction are met before those of the output

        def value(args: Sequence[Any]) -> tuple[Any, int]:
            own, reduced = dict(zip(args, shape, strict=True)), dict(zip(axes, extents, strict=True))
            every = reduced | own if first else own | reduced
            v, size = self.value(every, dtype, rng.choice((0, 1, 2)))
            return (te.clip(v, -REDUCED, REDUCED), REDUCED) if size > REDUCED else (v, size)

        def one(args: Sequence[Any]) -> Any:
            v, size = value(args)
            if largest:
                sizes.extend((prod(extents), size))
                place: Any = 0
                for a, n in zip(axes, extents, strict=True):
                    place = place * n + a
                return _largest()((te.cast(place, "int32"), v), axis=tuple(axes))
            how = rng.choice(("sum", "sum", "max", "min", "prod"))
            if how == "prod":
                v = te.clip(v, -1, 1)
            sizes.append(size * prod(extents) if how == "sum" else size)
            return getattr(te, how)(v, axis=tuple(axes))

        name = (self.name("at"), self.name("top")) if largest else self.name("r")
        return te.compute(shape, named(letters, lambda *a: one(a)), name)


def _largest() -> Any:
    """The largest value and its first place."""

    def join(x: Any, y: Any) -> Any:
        wins = te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0]))
        return te.select(wins, x[0], y[0]), te.maximum(x[1], y[1])

    low = lambda i, v: (te.max_value(i), -te.inf if is_float(v) else te.min_value(v))  # noqa: E731
    return te.reducer(low, join, "argmax")


def random_stages(rng: Random, extents: Sequence[int], dtypes: Sequence[str], most: int) -> ComputeDAG:
    """The DAG of `random_tensors`."""
    return te.dag(random_tensors(rng, extents, dtypes, most))


def random_tensors(rng: Random, extents: Sequence[int], dtypes: Sequence[str], most: int) -> list[te.Tensor]:
    """A program of two to eight stages, of at most ``most`` points each, over one to three inputs: its inputs
    and outputs."""
    few = [rng.choice(extents) for _ in range(rng.choice((1, 2, 2, 3)))]  # that shapes meet
    w = Writer(rng, few, dtypes, most)
    for _ in range(rng.randint(1, 3)):
        dtype = rng.choice(dtypes)
        w.sizes[te.placeholder(w.shape(), dtype, w.name("x"))] = 1 if dtype == "bool" else 4
    given = list(w.sizes)
    for _ in range(rng.choice((2, 3, 4, 5, 6, 7, 8))):
        w.stage()
    made = [t for t in w.sizes if t not in given]
    outputs = [t for t in made if t is made[-1] or w.flag(0.15)]
    read = te.inputs(outputs)
    if not read:  # as of what counts its axes only
        (first,) = given[:1]
        zero = te.cast(te.clip(te.cast(first[tuple(0 for _ in first.shape)], "int32"), 0, 0), "int32")
        outputs.append(te.compute((), lambda: zero, w.name("z")))
        read = te.inputs(outputs)
    return [*read, *outputs]


def whole_inputs(dag: ComputeDAG, rng: np.random.Generator) -> list[np.ndarray]:
    """Small whole numbers in the dtype of each input."""
    return [
        rng.integers(*((0, 2) if t.dtype == "bool" else (-4, 5)), t.shape).astype(DTYPES[t.dtype].numpy)
        for t in dag.inputs
    ]
