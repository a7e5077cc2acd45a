"""Random programs whose extents are of sizes that stay open: chains of maps, sums, products, windows,
softmaxes, gathers, in several dtypes, over extents such as ``2 * n + 1`` and ``(n + 1) // 2``, with arguments
that lie apart.

Every value is a whole number and small, so that results are the same bits in any order of computing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from open_cases import with_strides
from random_stages import _largest

from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, computed, is_float
from schedules.errors import WorkloadError
from schedules.ops.axes import named
from schedules.strides import row_major
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.dims import Dim, dim

Extent = Any  # an integer, or an expression of a size
NUMBERS = ("float32", "float32", "float32", "bfloat16", "float16", "float64", "int32", "int8", "uint8")
READ = 8  # the largest size of a value that is multiplied
STORED = 64  # and of one that is stored
POINTS = 1500  # of a stage at the largest size


class OpenWriter:
    """A program while it is drawn."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.sizes = [self.size(name) for name in "nm"[: rng.choice((1, 1, 1, 2))]]
        self.shapes: dict[te.Tensor, tuple[Extent, ...]] = {}
        self.inputs: list[te.Tensor] = []
        self.count = 0

    def size(self, name: str) -> Dim:
        least = self.rng.choice((1, 1, 1, 2, 3))
        return dim(least, least + self.rng.randint(2, 16), name, open=True)

    def flag(self, p: float) -> bool:
        return self.rng.random() < p

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    # -- extents -----------------------------------------------------------------------------

    def open_extent(self) -> Extent:
        n, k = self.rng.choice(self.sizes), self.rng.randint(1, 3)
        forms: list[Callable[[], Extent]] = [lambda: n] * 8
        forms += [lambda: n + k, lambda: 2 * n + 1, lambda: 2 * n, lambda: 3 * n - 1]
        forms += [lambda: (n + 1) // 2, lambda: E.ceildiv(n, 3), lambda: (n + k) // k]
        return self.rng.choice(forms)()

    def extent(self) -> Extent:
        return self.open_extent() if self.flag(0.45) else self.rng.choice((1, 2, 3, 4, 5, 8))

    def most(self, e: Extent) -> int:
        return self.number(e, [d.hi for d in self.sizes])

    def least(self, e: Extent) -> int:
        return self.number(e, [d.lo for d in self.sizes])

    def number(self, e: Extent, at: Sequence[int]) -> int:
        if isinstance(e, int):
            return e
        known = dict(zip(self.sizes, at, strict=True))
        filled = E.rewrite(e, lambda x: E.Const(known[x]) if isinstance(x, Dim) else None)
        return int(E.evaluate(filled, {}))

    def points(self, *extents: Extent) -> int:
        return int(np.prod([self.most(e) for e in extents], dtype=object))

    # -- where something is read -------------------------------------------------------------

    def index(self, e: Extent, axes: dict[Any, Extent]) -> Any:
        """A place in a dimension of extent ``e``, which may not be inside it at every size: the door of
        `te.dag` says."""
        rng = self.rng
        equal = [a for a, f in axes.items() if f is e or (isinstance(f, int) and f == e)]
        if equal and self.flag(0.85):
            return e - 1 - rng.choice(equal) if self.flag(0.08) else rng.choice(equal)
        least = self.least(e)
        ways: list[Callable[[], Any]] = [lambda: rng.randrange(least), lambda: e - 1]
        if axes:
            a = rng.choice(list(axes))
            longest, step = self.most(axes[a]), rng.choice((1, 1, 2))
            ways += [lambda: te.minimum(a, least - 1), lambda: a % least]
            ways += [lambda: te.minimum(a, e - 1), lambda: te.maximum(e - 1 - a, 0)]
            ways += [lambda: a * step + rng.randint(0, 2)] * 2
            ways += [lambda: a // 2, lambda: a // -(-longest // least)]
            ways += [lambda: a + rng.choice(list(axes))]
        return rng.choice(ways)()

    def read(self, t: te.Tensor, axes: dict[Any, Extent]) -> Any:
        left, place = dict(axes), []
        for e in self.shapes[t]:
            a = next((a for a, f in left.items() if f is e), None)
            if a is not None and self.flag(0.8):
                del left[a]
                place.append(a)
            else:
                place.append(self.index(e, axes))
        return t[tuple(place)]

    def small(self, t: te.Tensor, axes: dict[Any, Extent], dtype: str, most: int = READ) -> Any:
        x = self.read(t, axes)
        if t.dtype == "bool":
            return te.cast(te.select(x, 1, 0), dtype)
        return te.clip(te.cast(x, dtype), 0 if dtype.startswith("uint") else -most, most)

    # -- what is computed --------------------------------------------------------------------

    def value(self, axes: dict[Any, Extent], dtype: str, depth: int) -> Any:
        rng = self.rng
        if depth == 0 or self.flag(0.1):
            if axes and self.flag(0.06):
                return te.cast(te.minimum(rng.choice(list(axes)), READ), dtype)
            if self.flag(0.06):
                return te.cast(te.minimum(E.wrap(rng.choice(self.sizes)), READ), dtype)
            return self.small(rng.choice(list(self.shapes)[-5:]), axes, dtype)
        a = self.value(axes, dtype, depth - 1)
        if axes and self.flag(0.08):
            i, n = rng.choice(list(axes)), rng.choice(self.sizes)
            return te.select(i < n - rng.randint(0, 2), a, rng.choice((0, 1)))
        if self.flag(0.3):
            return self.function(a, dtype)
        b = self.value(axes, dtype, depth - 1)
        return rng.choice(
            (
                lambda: a + b,
                lambda: a - b,
                lambda: te.clip(a, -READ, READ) * te.clip(b, -READ, READ),
                lambda: te.maximum(a, b),
                lambda: te.minimum(a, b),
                lambda: te.select(a < b, a, b + 1),
            )
        )()

    def function(self, x: Any, dtype: str) -> Any:
        """A function whose results are whole, however a kernel rounds."""
        ways: list[Callable[[], Any]] = [lambda: te.abs(x), lambda: te.maximum(x, 0), lambda: 1 - x]
        if is_float(dtype):
            ways += [
                lambda: te.floor(te.tanh(x) * 3.5),
                lambda: te.floor(te.exp(-te.abs(x)) * 4.5),
                lambda: te.floor(x / 2.0),
            ]
        return self.rng.choice(ways)()

    # -- stages ------------------------------------------------------------------------------

    def placeholder(self, shape: Sequence[Extent] | None = None, dtype: str = "") -> te.Tensor:
        shape = tuple(shape if shape is not None else self.shape())
        t = te.placeholder(shape, dtype or self.rng.choice(NUMBERS), self.name("x"))
        self.shapes[t] = shape
        self.inputs.append(t)
        return t

    def shape(self, most: int = 3) -> list[Extent]:
        known = [e for s in self.shapes.values() for e in s]
        shape = [
            self.rng.choice(known) if known and self.flag(0.6) else self.extent()
            for _ in range(self.rng.choice((1, 2, 2, 3, 3)[: most + 2]))
        ]
        while self.points(*shape) > POINTS:
            shape[self.rng.randrange(len(shape))] = self.rng.choice((1, 2))
        return shape

    def compute(
        self, shape: Sequence[Extent], one: Callable[[dict[Any, Extent]], Any], dtype: str, letter: str
    ) -> te.Tensor:
        """A stage over ``shape``, if the door takes it; raises `WorkloadError`."""
        letters = "ijkl"[: len(shape)]

        def body(*args: Any) -> Any:
            v = one(dict(zip(args, shape, strict=True)))
            return v if isinstance(v, te.Reduction) else te.cast(te.clip(v, -STORED, STORED), dtype)

        made = te.compute(tuple(shape), named(letters, body), self.name(letter))
        te.dag([*te.inputs([made]), made], {d: d.hi for d in self.sizes})
        te.dag([*self.telling([made]), made])
        self.shapes[made] = tuple(shape)
        return made

    def telling(self, outputs: Sequence[te.Tensor]) -> list[te.Tensor]:
        return list(te.inputs(list(outputs)))

    def stage(self) -> None:
        rng = self.rng
        dtype = rng.choice(NUMBERS)
        kinds = (self.map, self.reduction, self.product, self.window, self.softmax, self.gather, self.first)
        rng.choices(kinds, (5, 3, 4, 3, 1, 2, 1))[0](dtype, computed(dtype))

    def map(self, dtype: str, wide: str) -> None:
        like = self.rng.choice(list(self.shapes.values())) if self.flag(0.7) else self.shape()
        self.compute(like, lambda axes: self.value(axes, wide, self.rng.choice((1, 2, 2))), dtype, "m")

    def reduction(self, dtype: str, wide: str) -> None:
        t = self.rng.choice(list(self.shapes))
        shape = list(self.shapes[t])
        cut = self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape)))
        axes = {te.reduce_axis(shape[d], self.name("r")): shape[d] for d in cut}
        how = getattr(te, self.rng.choice(("sum", "sum", "max", "min")))
        depth = self.rng.choice((0, 0, 1, 2))
        own = [e for d, e in enumerate(shape) if d not in cut] or [1]
        self.compute(own, lambda a: how(self.value(a | axes, wide, depth), axis=tuple(axes)), dtype, "s")

    def product(self, dtype: str, wide: str) -> None:
        rng = self.rng
        a = rng.choice(list(self.shapes))
        k = rng.choice(self.shapes[a])
        with_k = [t for t, s in self.shapes.items() if t is not a and any(e is k for e in s)]
        b = rng.choice(with_k) if with_k and self.flag(0.7) else self.placeholder([k, self.extent()])
        r = te.reduce_axis(k, self.name("r"))
        own = [e for e in (*self.shapes[a], *self.shapes[b]) if e is not k][:3] or [1]

        def value(axes: dict[Any, Extent]) -> Any:
            every = {r: k, **axes}
            x, y = self.small(a, every, wide), self.small(b, every, wide)
            return te.sum(x * y, axis=r)

        self.compute(own, value, dtype, "p")

    def window(self, dtype: str, wide: str) -> None:
        rng = self.rng
        t = rng.choice(list(self.shapes))
        shape, at = list(self.shapes[t]), rng.randrange(len(self.shapes[t]))
        k, step = rng.choice((2, 3)), rng.choice((1, 1, 2))
        e = shape[at]
        padded = self.flag(0.4)
        out = e if padded and step == 1 else (e - k) // step + 1 if step > 1 else e - k + 1
        if isinstance(out, int) and out < 1:
            return
        own = [*shape[:at], out, *shape[at + 1 :]]
        r = te.reduce_axis(k, self.name("r"))

        def value(axes: dict[Any, Extent]) -> Any:
            place: list[Any] = list(axes)
            place[at] = place[at] * step + r - (1 if padded else 0)
            x = te.clip(te.cast(t[tuple(place)], wide), -READ, READ)
            if padded:
                x = te.select(te.all(place[at] >= 0, place[at] < e), x, 0)
            return te.sum(x, axis=r)

        self.compute(own, value, dtype, "w")

    def softmax(self, dtype: str, wide: str) -> None:
        t = self.rng.choice(list(self.shapes))
        shape = list(self.shapes[t])
        at = self.rng.randrange(len(shape))
        own = [e for d, e in enumerate(shape) if d != at] or [1]
        rows = len(shape) > 1

        def behind(axes: Sequence[Any], x: Any) -> tuple[Any, ...]:
            return (*axes[:at], x, *axes[at:]) if rows else (x,)

        def before(axes: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(a for d, a in enumerate(axes) if d != at) if rows else (0,)

        r, q = (te.reduce_axis(shape[at], self.name("r")) for _ in range(2))
        x = lambda *i: te.clip(te.cast(t[i], "float32"), -READ, READ)  # noqa: E731
        top = self.compute(own, lambda a: te.max(x(*behind(list(a), r)), axis=r), "float32", "t")
        e = self.compute(
            shape,
            lambda a: te.floor(te.exp(x(*a) - top[before(list(a))]) * 4.5),
            "float32",
            "e",
        )
        s = self.compute(own, lambda a: te.sum(e[behind(list(a), q)], axis=q), "float32", "z")
        self.compute(shape, lambda a: te.floor(e[tuple(a)] * 8.0 / (s[before(list(a))] + 0.25)), dtype, "y")

    def gather(self, dtype: str, wide: str) -> None:
        t = self.rng.choice(list(self.shapes))
        shape = self.shapes[t]
        where = self.placeholder([self.extent()], "int32")
        own = [*self.shapes[where], *shape[1:]]
        most = self.least(shape[0]) - 1

        def value(axes: dict[Any, Extent]) -> Any:
            first, *others = axes
            return te.clip(te.cast(t[(te.clip(where[first], 0, most), *others)], wide), -READ, READ)

        self.compute(own, value, dtype, "g")

    def first(self, dtype: str, wide: str) -> None:
        """The place of a largest element, and the element."""
        t = self.rng.choice([t for t in self.shapes if t.dtype != "bool"])
        *own, e = self.shapes[t]
        own = own or [1]
        r = te.reduce_axis(e, self.name("r"))
        names = (self.name("at"), self.name("top"))
        rows = len(self.shapes[t]) > 1

        def body(*axes: Any) -> Any:
            x = t[(*axes, r)] if rows else t[(r,)]
            return _largest()((te.cast(r, "int32"), te.cast(x, wide)), axis=(r,))

        made = te.compute(tuple(own), named("ijkl"[: len(own)], body), names)
        te.dag([*te.inputs(list(made)), *made])
        self.shapes |= dict.fromkeys(made, tuple(own))


def random_open(rng: Random) -> ComputeDAG:
    """A program of one to five stages with open sizes, as its inputs tell them."""
    while True:
        w = OpenWriter(rng)
        first = w.shape()
        first[rng.randrange(len(first))] = rng.choice(w.sizes)
        for extents in (first, *([w.shape()] if w.flag(0.5) else [])):
            w.placeholder(extents)
        for _ in range(rng.choice((1, 2, 2, 3, 4, 5))):
            try:
                w.stage()
            except WorkloadError:
                continue
        made = [t for t in w.shapes if t not in w.inputs]
        outputs = [t for t in made if t is made[-1] or w.flag(0.15)]
        try:
            dag = te.dag([*te.inputs(outputs), *outputs]) if outputs else None
        except WorkloadError:
            continue
        if dag is not None and dag.open is not None and dag.stages:
            return apart(with_strides(dag), rng)


def apart(dag: ComputeDAG, rng: Random) -> ComputeDAG:
    """Some row-major arguments with gaps between rows, or with rows in the other order."""

    def one(t: Tensor) -> Tensor:
        if t.strides is not None or len(t.shape) < 2 or rng.random() < 0.75:
            return t
        steps = list(row_major([n + (rng.choice((0, 1, 5)) if d else 0) for d, n in enumerate(t.shape)]))
        if rng.random() < 0.2 and t in dag.inputs:
            steps[0] = -steps[0]
        return replace(t, strides=tuple(steps))

    params = {t.name for t in dag.params}
    changed = {t.name: one(t) for t in dag.tensors.values() if t.name in params}
    stages = tuple(
        replace(s, outputs=tuple(changed.get(o.name, o) for o in s.outputs)) for s in dag.stages
    )
    return replace(dag, inputs=tuple(changed[t.name] for t in dag.inputs), stages=stages)


def open_inputs(dag: ComputeDAG, seed: int) -> list[np.ndarray]:
    """Small whole numbers in the dtype of each input of a DAG of one size."""
    rng = np.random.default_rng(seed)

    def drawn(t: Tensor) -> np.ndarray:
        low = 0 if t.dtype.startswith("u") else -4
        return rng.integers(low, 5, t.shape).astype(DTYPES[t.dtype].numpy)

    return [drawn(t) for t in dag.inputs]
