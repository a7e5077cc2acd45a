"""Expressions with one open extent, in all places where one may stand, and what runs them at a size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from helpers import host, inputs

from autotune.backends.building.from_trace import module_of
from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.codegen.runtime.laid import over
from autotune.measure.arena import Arena, KernelParam
from schedules import expr as E
from schedules import te
from schedules.ir import LoweredFunc, Nest
from schedules.ir.interp import run
from schedules.model import Target, Trace
from schedules.space.derive import derive
from schedules.strides import MemoryLayout, row_major, strides_of
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.dims import dim
from schedules.te.open_sizes import at, extents_of

Tensors = list[te.Tensor]


@dataclass(frozen=True)
class OpenCase:
    """``make``: the tensors of a size. ``most``: the largest. ``exact``: whether whole numbers give the same
    bits in any order."""

    make: Callable[..., Tensors]
    most: int
    exact: bool = True

    def dag(self, least: int = 1, most: int = 0) -> ComputeDAG:
        """With the size open from ``least`` on. Arguments whose strides would depend on it have some of
        numbers."""
        return with_strides(te.dag(self.make(dim(least, most or self.most, "n", open=True))))


def with_strides(dag: ComputeDAG) -> ComputeDAG:
    """Arguments have gaps behind rows whose length is open."""
    shapes, _ = extents_of(dag)
    params = {t.name for t in dag.params}

    def one(t: Tensor) -> Tensor:
        opened = [d for d, n in enumerate(shapes[t.name]) if d and E.variables(n)]
        if not opened or t.name not in params:
            return t
        return replace(t, strides=row_major([n + 3 * (d in opened) for d, n in enumerate(t.shape)]))

    stages = tuple(replace(s, outputs=tuple(map(one, s.outputs))) for s in dag.stages)
    return replace(dag, inputs=tuple(map(one, dag.inputs)), stages=stages)


def matmul(m: object, n: object, k: object) -> Tensors:
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "r")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")]


def products(b: object, m: object, n: object, k: object) -> Tensors:
    x, y, r = te.placeholder((b, m, k), name="x"), te.placeholder((b, k, n), name="y"), te.reduce_axis(k, "r")
    return [x, y, te.compute((b, m, n), lambda h, i, j: te.sum(x[h, i, r] * y[h, r, j], axis=r), "z")]


def elementwise(m: object, n: object) -> Tensors:
    x = te.placeholder((m, n), name="x")
    return [x, te.compute((m, n), lambda i, j: te.maximum(x[i, j], 0.0) * 2.0 + 1.0, "y")]


def row_norm(m: object, n: object) -> Tensors:
    x, w, r = te.placeholder((m, n), name="x"), te.placeholder((n,), name="w"), te.reduce_axis(n, "r")
    s = te.compute((m,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), "s")
    return [x, w, te.compute((m, n), lambda i, j: x[i, j] * te.rsqrt(s[i] * 0.5 + 1e-5) * w[j], "y")]


def softmax(m: object, n: object) -> Tensors:
    x, r, q = te.placeholder((m, n), name="x"), te.reduce_axis(n, "r"), te.reduce_axis(n, "q")
    top = te.compute((m,), lambda i: te.max(x[i, r], axis=r), "top")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    s = te.compute((m,), lambda i: te.sum(e[i, q], axis=q), "s")
    return [x, te.compute((m, n), lambda i, j: e[i, j] / s[i], "y")]


def attention(n: object, h: int = 2, g: int = 2, d: int = 3) -> Tensors:
    q, k, v = (
        te.placeholder((h, g, d), name="q"),
        te.placeholder((h, n, d), name="k"),
        te.placeholder((h, n, d), name="v"),
    )
    c, t, t2, t3 = te.reduce_axis(d, "c"), *(te.reduce_axis(n, x) for x in ("t", "t2", "t3"))
    s = te.compute((h, g, n), lambda a, b, i: te.sum(q[a, b, c] * k[a, i, c], axis=c), "s")
    m = te.compute((h, g), lambda a, b: te.max(s[a, b, t], axis=t), "m")
    e = te.compute((h, g, n), lambda a, b, i: te.exp((s[a, b, i] - m[a, b]) * 0.125), "e")
    z = te.compute((h, g), lambda a, b: te.sum(e[a, b, t2], axis=t2), "z")
    o = te.compute((h, g, d), lambda a, b, i: te.sum(e[a, b, t3] * v[a, t3, i], axis=t3), "o")
    return [q, k, v, te.compute((h, g, d), lambda a, b, i: o[a, b, i] / z[a, b], "y")]


def conv(b: object, h: object, c: int, f: int, wide: int = 3, k: int = 2) -> Tensors:
    """Windows of ``k`` by ``k``, ``h`` by ``wide`` of them."""
    x, w = te.placeholder((b, h + k - 1, wide + k - 1, c), name="x"), te.placeholder((k, k, c, f), name="w")
    p, q, r = te.reduce_axis(k, "p"), te.reduce_axis(k, "q"), te.reduce_axis(c, "r")

    def value(n: E.Expr, i: E.Expr, j: E.Expr, k: E.Expr) -> te.Reduction:
        return te.sum(x[n, i + p, j + q, r] * w[p, q, r, k], axis=(p, q, r))

    return [x, w, te.compute((b, h, wide, f), value, "y")]


def number(n: object) -> E.Expr:
    """A size as a value."""
    return te.cast(n if isinstance(n, E.Expr) else E.wrap(n), "float32")


def less_the_last_row(m: object, n: object) -> Tensors:
    x = te.placeholder((m, n), name="x")
    return [x, te.compute((m, n), lambda i, j: x[i, j] - 2.0 * x[m - 1, j], "y")]


def less_the_mean(m: object, n: object) -> Tensors:
    x, r = te.placeholder((m, n), name="x"), te.reduce_axis(m, "r")
    total = te.compute((n,), lambda j: te.sum(x[r, j], axis=r), "total")
    mean = te.compute((n,), lambda j: total[j] * (1.0 / number(m)), "mean")
    return [x, te.compute((m, n), lambda i, j: x[i, j] - mean[j], "y")]


def turned_around(m: object, n: object) -> Tensors:
    x = te.placeholder((m, n), name="x")
    turned = te.compute((m, n), lambda i, j: x[m - 1 - i, j] + 1.0, "turned")
    return [x, te.compute((m, n), lambda i, j: turned[i, j] * number(m - i), "y")]


def padded_to(most: int, m: object, n: object) -> Tensors:
    """Zeros behind the last row; of the later half of the rows, the negative."""
    x = te.placeholder((m, n), name="x")
    rows = te.compute((most, n), lambda t, j: te.select(t < m, x[te.minimum(t, m - 1), j], 0.0), "rows")
    return [x, te.compute((most, n), lambda t, j: te.select(2 * t < m, rows[t, j], -rows[t, j]), "y")]


def rolled(m: object, n: object) -> Tensors:
    x = te.placeholder((m, n), name="x")
    return [x, te.compute((m, n), lambda i, j: x[(i + 3) % m, j], "y")]


def product_from_the_end(m: object, n: object, k: object) -> Tensors:
    a, b, r = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"), te.reduce_axis(k, "r")
    return [a, b, te.compute((m, n), lambda i, j: te.sum(a[m - 1 - i, k - 1 - r] * b[r, j], axis=r), "C")]


def last_terms(m: object, n: object) -> Tensors:
    """The sum of the last five rows, and of those in the other half."""
    x, r, q = te.placeholder((m, n), name="x"), te.reduce_axis(m, "r"), te.reduce_axis(m, "q")
    last = te.compute((n,), lambda j: te.sum(te.select(r >= m - 5, x[r, j], 0.0), axis=r), "last")
    half = te.compute((n,), lambda j: te.sum(te.select(q < m // 2, x[q, j], 0.0), axis=q), "half")
    return [x, te.compute((n,), lambda j: last[j] - half[j], "y")]


def by_hand(m: object, n: int) -> Tensors:
    """A matrix that lies column by column in one dimension."""
    x = te.placeholder((n * m,), name="x")
    return [x, te.compute((m, n), lambda i, j: x[j * m + i] * 2.0, "y")]


# The size stands in indices and in values too.
VALUES = {
    "last row": OpenCase(lambda n: less_the_last_row(n, 6), 23),
    "mean": OpenCase(lambda n: less_the_mean(n, 6), 17, exact=False),
    "rows turned around": OpenCase(lambda n: turned_around(n, 6), 17),
    "rows that are there": OpenCase(lambda n: padded_to(23, n, 6), 23),
    "rolled rows": OpenCase(lambda n: rolled(n, 6), 23),
    "rows from the end": OpenCase(lambda n: product_from_the_end(n, 6, 5), 23),
    "terms from the end": OpenCase(lambda n: product_from_the_end(4, 6, n), 23),
    "last terms": OpenCase(lambda n: last_terms(n, 6), 23),
    "columns by hand": OpenCase(lambda n: by_hand(n, 3), 17),
}
CASES = {
    "rows of a product": OpenCase(lambda n: matmul(n, 6, 5), 23),
    "depth of a product": OpenCase(lambda n: matmul(4, 6, n), 23),
    "columns of a product": OpenCase(lambda n: matmul(4, n, 5), 23),
    "batch of products": OpenCase(lambda n: products(n, 3, 4, 2), 11),
    "rows inside a batch": OpenCase(lambda n: products(2, n, 4, 3), 17),
    "rows of a map": OpenCase(lambda n: elementwise(n, 6), 23),
    "columns of a map": OpenCase(lambda n: elementwise(5, n), 23),
    "rows of a norm": OpenCase(lambda n: row_norm(n, 6), 17, exact=False),
    "rows of a softmax": OpenCase(lambda n: softmax(n, 5), 17, exact=False),
    "columns of a softmax": OpenCase(lambda n: softmax(4, n), 17, exact=False),
    "attention": OpenCase(lambda n: attention(n, 1, 2, 2), 17, exact=False),
    "batch of a convolution": OpenCase(lambda n: conv(n, 3, 2, 4), 5),
    "height of a convolution": OpenCase(lambda n: conv(1, n, 2, 4), 9),
    **VALUES,
}
# Whose arguments have the open extent in their outermost dimension, so that kernels take them row-major.
OUTERMOST = tuple(name for name, c in CASES.items() if all(t.strides is None for t in c.dag().params))


def laid(t: Tensor, of: Tensor, values: np.ndarray | None = None) -> np.ndarray:
    """Values as an argument of this size holds them: with the strides of the largest size, which ``of``
    has. None: nothing has written it."""
    lies = MemoryLayout(t.shape, strides_of(of))
    memory = np.full(lies.span, np.nan if E.is_float(t.dtype) else 77, t.dtype)
    a = over(memory, lies)
    a[...] = memory[0] if values is None else values
    return a


def interpreted(
    program: Nest | LoweredFunc,
    dag: ComputeDAG,
    sizes: Mapping[str, int],
    seed: int = 0,
    data: Sequence[np.ndarray] | None = None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(outputs of a program at sizes by the interpreter, the right ones). ``data``: its inputs, else some."""
    here = at(dag, sizes)
    data = inputs(here, seed) if data is None else data
    arrays = {t.name: laid(t, dag.tensors[t.name], x) for t, x in zip(here.inputs, data, strict=True)}
    outs = {n: laid(here.tensors[n], dag.tensors[n]) for n in here.outputs}
    run(program, arrays | outs, sizes=sizes)
    return list(outs.values()), te.evaluate(here, data)


def close(got: Sequence[np.ndarray], want: Sequence[np.ndarray], exact: bool) -> bool:
    pairs = zip(got, want, strict=True)
    return all(np.array_equal(a, b) if exact else np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)


def sampled(dag: ComputeDAG, each: int, target: Target | None = None) -> Iterator[Trace]:
    """Schedules of the space, some of each sketch."""
    space, rng = derive(dag, target or host()), np.random.default_rng(5)
    for k in range(len(space.sketches)):
        rows = space.sample(k, 8 * each, rng)
        yield from (space.trace(k, row) for row in rows[space.valid(k, rows)][:each])


class OpenCode:
    """A compiled program with open sizes, which runs on arrays that end, or begin, at inaccessible pages."""

    def __init__(self, func: LoweredFunc, target: Target) -> None:
        self.func, self.target = func, target
        self.loaded = load_object(compile_module(module_of(func, target).text, target))

    def outputs(
        self, dag: ComputeDAG, sizes: Mapping[str, int], data: Sequence[np.ndarray]
    ) -> dict[str, list[np.ndarray]]:
        """By placement."""
        here = at(dag, sizes)
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(self.loaded.address)
        arena = Arena([KernelParam(t.name, t.shape, t.dtype, t.strides) for t in here.params], data)
        arena.fill_outputs()
        scratch = arena.scratch.open(self.loaded.scratch_bytes, "end") if self.loaded.scratch_bytes else 0
        out = {}
        try:
            for n, place in enumerate(arena.placements):
                arena.poison(place, n)
                told = sizes.values()
                words = (ctypes.c_void_p * (len(place.pointers) + len(told)))(*place.pointers, *told)
                kernel(ctypes.addressof(words), scratch, self.target.threads)
                assert not arena.scratch.overrun(self.loaded.scratch_bytes, "end")
                assert not arena.spilled(place)
                out[place.name] = [x.copy() for x in place.outputs]
        finally:
            arena.close()
        return out
