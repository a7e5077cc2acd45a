"""Spaces of products of parts of one buffer, and of what reads or writes several axes in one dimension."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from grid_cases import TARGET, Case, emulate
from helpers import check_compiled, expected, host, inputs, interpret, same
from space_cases import target

import autotune as at
from schedules import te
from schedules.ir import Nest, const
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.te.compute_dag import ComputeDAG

H, S, D = 2, 7, 8


def attention(kind: str, out: str, heads: int = H, seq: int = S, dim: int = D) -> ComputeDAG:
    """Shaped as attention, without functions, so that small integers are exact. ``kind``: how q, k and v
    lie; ``out``: how results do."""
    size = heads * dim
    if kind == "three":
        given = [te.placeholder((heads, seq, dim), name=n) for n in "qkv"]
        q, k, v = (lambda h, i, c, x=x: x[h, i, c] for x in given)
    elif kind == "stacked":
        given = [te.placeholder((3, heads, seq, dim), name="qkv")]
        q, k, v = (lambda h, i, c, z=z: given[0][z, h, i, c] for z in range(3))
    else:
        given = [te.placeholder((seq, 3 * size), name="qkv")]
        q, k, v = (lambda h, i, c, z=z: given[0][i, z * size + h * dim + c] for z in range(3))
    c, j, m, r = (te.reduce_axis(n, x) for n, x in ((dim, "c"), (seq, "j"), (seq, "m"), (seq, "r")))
    rows = (heads, seq)
    dot = te.compute((*rows, seq), lambda h, i, j: te.sum(q(h, i, c) * k(h, j, c), axis=c), "dot")
    top = te.compute(rows, lambda h, i: te.max(dot[h, i, m], axis=m), "top")
    e = te.compute(dot.shape, lambda h, i, j: dot[h, i, j] - top[h, i], "e")
    total = te.compute(rows, lambda h, i: te.sum(e[h, i, r], axis=r), "total")
    mix = te.compute((*rows, dim), lambda h, i, c: te.sum(e[h, i, j] * v(h, j, c), axis=j), "mix")
    if out == "joined":
        y = te.compute((seq, size), lambda i, n: mix[n // dim, i, n % dim] + total[n // dim, i], "y")
    elif out == "turned":
        y = te.compute((seq, heads, dim), lambda i, h, c: mix[h, i, c] + total[h, i], "y")
    else:
        y = te.compute((*rows, dim), lambda h, i, c: mix[h, i, c] + total[h, i], "y")
    return te.dag([*given, y])


def gram(n: int = 17, k: int = 20) -> ComputeDAG:
    """A buffer times itself, transposed."""
    x, r = te.placeholder((n, k), name="x"), te.reduce_axis(k, "r")
    return te.dag([x, te.compute((n, n), lambda i, j: te.sum(x[i, r] * x[j, r], axis=r), "y")])


def square(n: int = 19) -> ComputeDAG:
    """A buffer times itself."""
    x, r = te.placeholder((n, n), name="x"), te.reduce_axis(n, "r")
    return te.dag([x, te.compute((n, n), lambda i, j: te.sum(x[i, r] * x[r, j], axis=r), "y")])


def padded(n: int = 11, k: int = 12) -> ComputeDAG:
    """A padded buffer times itself, a row further."""
    x, r = te.placeholder((n, k), name="x"), te.reduce_axis(k, "r")
    p = te.compute((n + 1, k), lambda i, j: te.select(i < n, x[i, j], 0.0), "p")
    return te.dag([x, te.compute((n, n), lambda i, j: te.sum(p[i, r] * p[j + 1, r], axis=r), "y")])


def projected() -> ComputeDAG:
    """A product over heads that lie apart, with weights that have them in one dimension."""
    x, w = te.placeholder((H, S, D), name="x"), te.placeholder((H * D, 18), name="w")
    n = te.reduce_axis(H * D, "n")
    return te.dag(
        [x, w, te.compute((S, 18), lambda i, o: te.sum(x[n // D, i, n % D] * w[n, o], axis=n), "y")]
    )


CASES: dict[str, Callable[[], ComputeDAG]] = {
    "one row": lambda: attention("row", "joined"),
    "one row, turned": lambda: attention("row", "turned"),
    "stacked": lambda: attention("stacked", "joined"),
    "three, joined": lambda: attention("three", "joined"),
    "gram": gram,
    "square": square,
    "padded": padded,
    "projected": projected,
}


def rows(space: DerivedSpace, count: int) -> list[tuple[int, np.ndarray]]:
    """Of each sketch, the rows with the largest decisions."""
    rng, out = np.random.default_rng(0), []
    for k in range(len(space.sketches)):
        some = space.sample(k, 32, rng)
        some = some[space.valid(k, some)]
        out += [(k, r) for r in some[np.argsort(-some.sum(axis=1), kind="stable")][:count]]
    return out


@pytest.mark.fast("projected")
@pytest.mark.parametrize("name", CASES)
def test_every_sketch_is_right(name: str) -> None:
    dag = CASES[name]()
    space = derive(dag, target(1 + len(name) % 2))
    data = inputs(dag)
    want = expected(dag, data)
    found = rows(space, 1)
    assert found
    for k, row in found:
        trace = space.trace(k, row)
        nest = Schedule.replay(dag, trace, space.target).nest
        same(interpret(nest, dag, data), want, space.sketches[k])
        check_compiled(dag, trace, space.target, data, want)


@pytest.mark.fast("gram")
@pytest.mark.parametrize("name", ["one row", "gram", "padded"])
def test_every_sketch_for_a_gpu_is_right(name: str) -> None:
    dag = CASES[name]()
    data = inputs(dag)
    emulate(Case(dag, tuple(data), tuple(expected(dag, data))), 2)


def shapes(nest: Nest) -> dict[str, tuple[int, ...]]:
    return {b.name: tuple(const(n) or 0 for n in b.shape) for b in nest.buffers}


def copies(nest: Nest) -> dict[str, int]:
    """The elements of each packed copy. Widths of panels are open."""
    found = {}
    for b in nest.buffers:
        if "_global" in b.name:
            known = [const(n) for n in b.shape]
            found[b.name] = int(np.prod([n for n in known if n]))
    return found


@pytest.mark.parametrize("kind", ["row", "stacked"])
@pytest.mark.parametrize("out", ["joined", "turned", "rows"])
def test_one_buffer_has_the_space_of_three(kind: str, out: str) -> None:
    big = (12, 128, 64)
    three = derive(attention("three", "rows", *big), target())
    one = derive(attention(kind, out, *big), target())
    assert one.sketches == three.sketches
    for k in range(len(one.sketches)):
        holes = [{h for h in x.holes(k) if not h.endswith(".ahead")} for x in (one, three)]
        assert holes[0] == holes[1]
        mine, theirs = copies(one.sketch(k).nest), copies(three.sketch(k).nest)
        assert len(mine) == len(theirs)
        # A copy holds k or v alone, not all of the buffer.
        assert sorted(mine.values()) == sorted(theirs.values())


def test_heads_and_their_elements_are_dimensions() -> None:
    nest = derive(attention("row", "joined"), target()).sketch(0).nest
    assert shapes(nest)["qkv"] == (S, 3 * H, D) and shapes(nest)["y"] == (S, H, D)
    assert [const(n) for n in nest.buffer("qkv").given or ()] == [S, 3 * H * D]
    assert shapes(derive(projected(), target()).sketch(0).nest)["w"] == (H, D, 18)


@pytest.mark.parametrize("make", [lambda: gram(64, 300), lambda: square(64)])
def test_both_operands_of_a_product_with_itself_are_copied_apart(make: Callable[[], ComputeDAG]) -> None:
    space = derive(make(), target())
    packed = [k for k, s in enumerate(space.sketches) if "pack=root" in s or "pack=at" in s]
    assert packed
    for k in packed:
        assert copies(space.sketch(k).nest)


def test_a_product_with_itself_shares_both_operands_on_a_gpu() -> None:
    space = derive(gram(64, 64), TARGET)
    shared = [s for s in range(len(space.sketches)) if "shared" in space.sketches[s]]
    assert shared
    names = {b.name for b in space.sketch(shared[0]).nest.buffers if b.scope == "shared"}
    assert len(names) == 2


def test_windows_and_plain_parts_are_not_split() -> None:
    x = te.placeholder((6, 64), name="x")
    r, s = te.reduce_axis(2, "r"), te.reduce_axis(2, "s")
    pool = te.compute((3, 32), lambda i, j: te.max(x[i * 2 + r, j * 2 + s], axis=(r, s)), "y")
    assert shapes(derive(te.dag([x, pool]), target()).sketch(0).nest)["x"] == (6, 64)
    # Another stage goes along the whole dimension: it is one.
    k = te.reduce_axis(16, "k")
    heads = te.compute((6, 4), lambda i, h: te.sum(x[i, h * 16 + k], axis=k), "heads")
    shifted = te.compute((6, 60), lambda i, j: x[i, j + 4] + heads[i, j // 16], "z")
    assert shapes(derive(te.dag([x, shifted]), target()).sketch(0).nest)["x"] == (6, 64)


def test_a_kernel_of_views_takes_arrays_as_they_are_stated() -> None:
    dag = attention("row", "joined")
    space = derive(dag, target())
    ((k, row),) = rows(space, 1)[:1]
    data = inputs(dag)
    (want,) = expected(dag, data)
    kernel = at.build(Schedule.replay(dag, space.trace(k, row)), target=host())
    assert np.array_equal(kernel(*data), want)
    with pytest.raises(at.ArgumentError, match="qkv"):
        kernel(data[0].reshape(S, 3 * H, D))
