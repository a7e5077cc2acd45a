"""Sketches that walk rows in parts: where they are offered, what they hold, and that they are right."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import execute
from space_cases import LIMITS, own_case, target

from schedules import ops, te
from schedules.ir import Alloc, nbytes, walk
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.rules.cpu import row_parts

PARTS = "y.by=parts"
LONG = LIMITS["l2_bytes"] // row_parts.TILE // 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts at the extents of tests."""
    monkeypatch.setattr(row_parts, "TILE", 1 << 30)
    monkeypatch.setattr(row_parts, "PARTS", (1, 2, 4))


def long_rows(seq: int) -> DerivedSpace:
    return derive(ops.workload("attention", {"heads": 2, "seq": seq, "dim": 32}).dag, target())


def held(space: DerivedSpace, row: np.ndarray) -> dict[str, int]:
    """Bytes of what a candidate in parts allocates, but for the operands packed beforehand."""
    s = Schedule.replay(space.dag, space.trace(space.sketches.index(PARTS), row), space.target)
    buffers = [x.buffer for x in walk(lower(s.nest).body) if isinstance(x, Alloc)]
    return {b.name: nbytes(b) for b in buffers if not b.name.endswith("_global")}


@pytest.mark.slow
def test_what_a_block_holds_does_not_grow_with_its_rows() -> None:
    short, long = long_rows(LONG), long_rows(4 * LONG)
    rows = short.sample(1, 256, np.random.default_rng(0))
    row = rows[short.valid(1, rows)][0]
    at = dict(zip(short.holes(1), row.tolist(), strict=True))
    same = [at.get(name, 0) for name in long.holes(1)]  # results of their size may be streamed, too
    more = held(long, np.array(same))
    # sums beyond the limit are done in runs, each in a place of its own (`partial_sums`)
    runs = {name: more.pop(name) for name in list(more) if name.endswith("_run")}
    assert held(short, row) == more
    assert all(size <= more.get(name.removesuffix("_run"), 0) for name, size in runs.items())
    assert held(short, row)["dot"] == at["y.rows"] * at["row_max.part"] * 4


def test_offered_where_rows_are_long() -> None:
    assert long_rows(LONG).sketches == ("y.by=blocks", PARTS, "y.by=rows")
    assert long_rows(LONG // 2).sketches == ("y.by=blocks", "y.by=rows")


def test_not_offered_where_whole_rows_are_read(small: None) -> None:
    """The rows of exponentials are the result."""
    dag = ops.workload("transpose_batch_matmul_softmax", {"seq": 32, "heads": 2, "dim": 4}).dag
    assert derive(dag, target()).sketches == ("y.by=blocks", "y.by=rows")


def test_not_offered_where_the_sums_cannot_be_rescaled(small: None) -> None:
    n = 32
    a, b = te.placeholder((n, 4), name="a"), te.placeholder((n, 4), name="b")
    r, k, q = te.reduce_axis(4, "r"), te.reduce_axis(n, "k"), te.reduce_axis(n, "q")
    s = te.compute((n, n), lambda i, j: te.sum(a[i, r] * b[j, r], axis=r), "s")
    top = te.compute((n,), lambda i: te.max(s[i, k], axis=k), "top")
    e = te.compute((n, n), lambda i, j: te.tanh(s[i, j] - top[i]), "e")
    o = te.compute((n, 4), lambda i, c: te.sum(e[i, q] * b[q, c], axis=q), "o")
    y = te.compute((n, 4), lambda i, c: te.sqrt(o[i, c]), "y")
    assert not any("parts" in name for name in derive(te.dag([a, b, y]), target()).sketches)


@pytest.mark.slow
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("n", [40, 64, 67])
def test_candidates_are_right(n: int, vector_bytes: int, small: None) -> None:
    """With whole parts and with a tail, interpreted and compiled."""
    w = ops.workload("attention", {"heads": 1, "seq": n, "dim": 6})
    rng = np.random.default_rng(n)
    data = [rng.normal(size=t.shape).astype(t.dtype) for t in w.dag.inputs]
    space = derive(w.dag, target(2, vector_bytes))
    k = space.sketches.index(PARTS)
    rows = space.sample(k, 64, rng)
    rows = rows[space.valid(k, rows)][:3]
    (want,) = _attention(data)
    for row in rows:
        trace = space.trace(k, row)
        for place, (got,) in execute(w.dag, trace, space.target, data).items():
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{place} {row}")
    if n == 40:
        y = np.full(want.shape, np.nan, np.float32)
        nest = Schedule.replay(w.dag, space.trace(k, rows[0]), space.target).nest
        run(lower(nest), dict(zip("qkv", data, strict=True)) | {"y": y})
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


def _attention(data: list[np.ndarray]) -> list[np.ndarray]:
    q, k, v = (x.astype(np.float64) for x in data)
    s = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5
    e = np.exp(s - s.max(3, keepdims=True))
    return [e / e.sum(3, keepdims=True) @ v]


@pytest.mark.slow
def test_users_own_sums_are_walked_in_parts(small: None) -> None:
    seeds = np.random.default_rng(0)
    found = 0
    for _ in range(4):
        case = own_case("relative_sums", seeds, 40)
        space = derive(case.dag, target())
        for k in [k for k, name in enumerate(space.sketches) if "parts" in name]:
            rows = space.sample(k, 64, seeds)
            row = rows[space.valid(k, rows)][0]
            for got in execute(case.dag, space.trace(k, row), space.target, case.inputs).values():
                assert not case.compare(got), case.label
            found += 1
    assert found
