"""Kinds of kernels with open extents, at sizes worth tuning, and what becomes of a schedule of their space:
it is compiled once, and run at several sizes between inaccessible pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product

from dag_mutant_runs import apart
from helpers import host, inputs
from open_cases import (
    OpenCase,
    OpenCode,
    Tensors,
    close,
    conv,
    matmul,
    products,
    row_norm,
    sampled,
    softmax,
    with_strides,
)

from autotune.backends.building.from_trace import programs
from schedules import te
from schedules.errors import AutotuneError
from schedules.model import Target, Trace
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import Dim, dim
from schedules.te.open_sizes import at


def gelu(m: object, n: object) -> Tensors:
    x = te.placeholder((m, n), name="x")
    return [
        x, te.compute((m, n), lambda i, j: 0.5 * x[i, j] * (1.0 + te.erf(x[i, j] * 0.70710678)), "y")
    ]  # fmt: skip


def attention(n: object, h: int = 4, g: int = 4, d: int = 64) -> Tensors:
    """Of one token. Keys and values lie as they are written: a row each."""
    q = te.placeholder((h, g, d), name="q")
    k, v = te.placeholder((n, h, d), name="k"), te.placeholder((n, h, d), name="v")
    c, t, t2, t3 = te.reduce_axis(d, "c"), *(te.reduce_axis(n, x) for x in ("t", "t2", "t3"))
    s = te.compute((h, g, n), lambda a, b, i: te.sum(q[a, b, c] * k[i, a, c], axis=c), "s")
    m = te.compute((h, g), lambda a, b: te.max(s[a, b, t], axis=t), "m")
    e = te.compute((h, g, n), lambda a, b, i: te.exp((s[a, b, i] - m[a, b]) * 0.125), "e")
    z = te.compute((h, g), lambda a, b: te.sum(e[a, b, t2], axis=t2), "z")
    o = te.compute((h, g, d), lambda a, b, i: te.sum(e[a, b, t3] * v[t3, a, i], axis=t3), "o")
    return [q, k, v, te.compute((h, g, d), lambda a, b, i: o[a, b, i] / z[a, b], "y")]


KINDS = {
    "rows of a product": OpenCase(lambda n: matmul(n, 64, 48), 256),
    "depth of a product": OpenCase(lambda n: matmul(32, 64, n), 256),
    "columns of a product": OpenCase(lambda n: matmul(32, n, 48), 256),
    "batch of products": OpenCase(lambda n: products(n, 32, 32, 32), 32),
    "rows inside a batch": OpenCase(lambda n: products(4, n, 32, 32), 128),
    "rows of a map": OpenCase(lambda n: gelu(n, 96), 256, exact=False),
    "columns of a map": OpenCase(lambda n: gelu(24, n), 256, exact=False),
    "rows of a norm": OpenCase(lambda n: row_norm(n, 96), 256, exact=False),
    "rows of a softmax": OpenCase(lambda n: softmax(n, 96), 256, exact=False),
    "columns of a softmax": OpenCase(lambda n: softmax(24, n), 256, exact=False),
    "attention": OpenCase(attention, 256, exact=False),
    "batch of a convolution": OpenCase(lambda n: conv(n, 8, 8, 16, 16, 3), 16),
    "height of a convolution": OpenCase(lambda n: conv(2, n, 8, 16, 16, 3), 64),
}


def stored(m: object, n: object, k: object, a: str, b: str) -> Tensors:
    """A product of arrays of dtypes that instructions of products take."""
    x, y, r = te.placeholder((m, k), a, "x"), te.placeholder((k, n), b, "y"), te.reduce_axis(k, "r")
    return [x, y, te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "z")]


def of_instructions(a: str, b: str) -> dict[str, OpenCase]:
    return {
        f"rows of {a}": OpenCase(lambda n: stored(n, 64, 96, a, b), 128),
        f"columns of {a}": OpenCase(lambda n: stored(48, n, 64, a, b), 128),
        f"depth of {a}": OpenCase(lambda n: stored(32, 48, n, a, b), 200),
    }


BFLOATS, BYTES = of_instructions("bfloat16", "bfloat16"), of_instructions("uint8", "int8")


def two(m: int, n: int) -> tuple[Dim, Dim]:
    return dim(1, m, "m", open=True), dim(2, n, "n", open=True)


def rows_and(make: Callable[[Dim, Dim], Tensors], m: int, n: int) -> ComputeDAG:
    return with_strides(te.dag(make(*two(m, n))))


# Of two sizes at once.
PAIRS: dict[str, Callable[[], ComputeDAG]] = {
    "rows and columns": lambda: rows_and(lambda m, n: matmul(m, n, 40), 96, 80),
    "rows and depth": lambda: rows_and(lambda m, n: matmul(m, 48, n), 96, 80),
    "batch and rows": lambda: rows_and(lambda m, n: products(m, n, 32, 24), 8, 60),
    "rows and columns of a softmax": lambda: rows_and(softmax, 24, 96),
    "rows and columns of a map": lambda: rows_and(gelu, 40, 70),
    "batch and height": lambda: rows_and(lambda m, n: conv(m, n, 8, 16, 16, 3), 6, 24),
}


def tried(least: int, most: int) -> list[int]:
    """The least and the largest sizes, those beside the widths of vectors and tiles, and primes between."""
    near = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 37, 64, 101, most // 2 + 1, most - 1, most)
    return sorted({n for n in near if least <= n <= most})


def sizes_tried(dag: ComputeDAG) -> list[dict[str, int]]:
    """Of several sizes, some pairs: each size with a small, a large and another one."""
    assert dag.open is not None
    names, lists = list(dag.open.ranges), [tried(*r) for r in dag.open.ranges.values()]
    if len(names) == 1:
        return [{names[0]: n} for n in lists[0]]
    some = [[x[0], x[1], x[len(x) // 2], x[-2], x[-1]] for x in lists]
    return [dict(zip(names, pair, strict=True)) for pair in product(*some)]


def what_becomes(dag: ComputeDAG, trace: Trace, target: Target, exact: bool) -> str:
    """``right``; ``refused: ...``; or what is wrong."""
    try:
        func, _ = programs(dag, trace, target)
    except AutotuneError as err:
        return f"refused: {err}"
    code = OpenCode(func, target)
    for sizes in sizes_tried(dag):
        here = at(dag, sizes)
        data = inputs(here, sum(sizes.values()))
        want = te.evaluate(here, data)
        for place, got in code.outputs(dag, sizes, data).items():
            if not close(got, want, exact):
                return f"wrong at {sizes}, arrays at {place}"
    return "right"


def outcomes(dag: ComputeDAG, target: Target, each: int, exact: bool) -> Counter[str]:
    """What becomes of ``each`` schedules of each sketch, with how many: each is run in a child."""
    return Counter(apart(lambda t=t: what_becomes(dag, t, target, exact)) for t in sampled(dag, each, target))


def of_kind(kind: OpenCase, threads: int, each: int) -> Counter[str]:
    return outcomes(kind.dag(), host(threads), each, kind.exact)
