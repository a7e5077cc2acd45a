"""One expression under any names has one digest; another expression has another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import space_expressions
from hypothesis import given, settings
from hypothesis import strategies as st
from small_shapes import SMALL

from schedules import ops, te
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.names import Names, StageNames, canonical, rename

WORKLOADS = [ops.workload(op, p) for op, p in SMALL.items()]
OWN = [
    te.dag(make(space_expressions.Draw(np.random.default_rng(n), 9), "float32")[0])
    for n, make in enumerate(vars(space_expressions).values())
    if callable(make) and getattr(make, "__name__", "").startswith("_") and n
    and getattr(make, "__module__", "") == "space_expressions"
]  # fmt: skip
DAGS = [*(w.dag for w in WORKLOADS), *OWN]
# What looks like the canonical names, like what primitives give, and letters of elsewhere.
LIKELY = [f"{x}{n}" for x in "TikrxpA" for n in range(4)] + ["C_i", "T0_i0", "x0", "y0", "A_shared", "lambda"]
ANY = st.from_regex(r"[^\W\d]\w{0,5}", fullmatch=True).filter(str.isidentifier)
WORDS = st.one_of(st.sampled_from(LIKELY), ANY)


def renamings(dag: ComputeDAG) -> st.SearchStrategy[Names]:
    own = Names.of_dag(dag.to_json())

    def texts(n: int) -> st.SearchStrategy[tuple[str, ...]]:
        return st.lists(WORDS, min_size=n, max_size=n, unique=True).map(tuple)

    def put(drawn: tuple[Any, ...]) -> Names:
        tensors, axes, reducers = drawn
        rest = iter(tensors)
        inputs = tuple(next(rest) for _ in own.inputs)
        stages = tuple(
            StageNames(tuple(next(rest) for _ in s.outputs), a, None if s.reducer is None else r)
            for s, a, r in zip(own.stages, axes, reducers, strict=True)
        )
        return Names(inputs, stages)

    each = st.tuples(*(texts(len(s.axes)) for s in own.stages))
    return st.tuples(texts(len(own.tensors)), each, st.tuples(*(WORDS for _ in own.stages))).map(put)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_any_renaming_has_one_digest_and_is_undone(data: st.DataObject) -> None:
    dag = data.draw(st.sampled_from(DAGS))
    names = data.draw(renamings(dag))
    other = ComputeDAG.from_json(rename(dag.to_json(), names))
    a, b = Workload(dag), Workload(other)
    assert a.digest == b.digest and a.json == b.json and a.canonical == b.canonical
    assert Names.of_dag(other.to_json()) == names
    assert Workload.from_json(b.json, names=b.names) == b
    assert Names.from_json(names.to_json()) == names
    assert (a.named_digest == b.named_digest) == (dag == other)
    assert Workload(a.canonical).json == a.json and Workload(a.canonical).names == {}


def test_names_that_change_places_are_changed_at_once() -> None:
    w = ops.workload("matmul", SMALL["matmul"])
    own = Names.of_dag(w.dag.to_json())
    (stage,) = own.stages
    turned = Names(own.inputs[::-1], (replace(stage, axes=stage.axes[::-1]),))
    other = Workload(ComputeDAG.from_json(rename(w.dag.to_json(), turned)))
    assert other.digest == w.digest and other.dag != w.dag
    assert [t.name for t in other.dag.inputs] == ["b", "a"]


def test_the_library_and_a_user_state_one_task() -> None:
    m, n, k = 5, 7, 3
    digests = {ops.workload("matmul", {"m": m, "n": n, "k": k}).digest}
    for a, b, c, axes in (("A", "B", "C", "ijk"), ("B", "A", "X", "jik"), ("T2", "T1", "T0", "kij")):
        x, y = te.placeholder((m, k), name=a), te.placeholder((k, n), name=b)
        r = te.reduce_axis(k, axes[2])
        made = eval(f"lambda {axes[0]}, {axes[1]}: te.sum(x[{axes[0]}, r] * y[r, {axes[1]}], axis=r)",
                    {"te": te, "x": x, "y": y, "r": r})  # fmt: skip
        digests.add(Workload(te.dag([x, y, te.compute((m, n), made, c)])).digest)
    assert len(digests) == 1


def _product(
    a: tuple[int, ...] = (6, 6),
    dtype: str = "float32",
    value: Callable[[Any, Any, Any, Any, Any], Any] = lambda a, b, i, j, k: a[i, k] * b[k, j],
    reduce: Callable[..., Any] = te.sum,
    turned: bool = False,
) -> ComputeDAG:
    x, y = te.placeholder(a, dtype, "A"), te.placeholder((6, 6), dtype, "B")
    k = te.reduce_axis(6, "k")
    c = te.compute((6, 6), lambda i, j: reduce(value(x, y, i, j, k), axis=k), "C")
    return te.dag([y, x, c] if turned else [x, y, c])


def test_another_expression_has_another_digest() -> None:
    """What differs in one thing that is no name."""
    other = te.reducer((0,), lambda x, y: (x[0] + y[0] + 0.0,), "sum")
    dags = {
        "as it is": _product(),
        "dtype": _product(dtype="float64"),
        "shape": _product(a=(6, 7)),
        "left transposed": _product(value=lambda a, b, i, j, k: a[k, i] * b[k, j]),
        "right transposed": _product(value=lambda a, b, i, j, k: a[i, k] * b[j, k]),
        "both transposed": _product(value=lambda a, b, i, j, k: a[k, i] * b[j, k]),
        "result transposed": _product(value=lambda a, b, i, j, k: a[j, k] * b[k, i]),
        "operands exchanged": _product(value=lambda a, b, i, j, k: b[k, j] * a[i, k]),
        "inputs exchanged": _product(turned=True),
        "constant": _product(value=lambda a, b, i, j, k: a[i, k] * b[k, j] * 2.0),
        "other constant": _product(value=lambda a, b, i, j, k: a[i, k] * b[k, j] * 3.0),
        "zero": _product(value=lambda a, b, i, j, k: a[i, k] * b[k, j] + 0.0),
        "minus zero": _product(value=lambda a, b, i, j, k: a[i, k] * b[k, j] + -0.0),
        "operation": _product(value=lambda a, b, i, j, k: a[i, k] + b[k, j]),
        "reduction": _product(reduce=te.max),
        "own reduction": _product(reduce=lambda x, axis: other(x, axis=axis)),
        "constants": replace(_product(), constants=("B",)),
        "other constants": replace(_product(), constants=("A",)),
    }
    for (x, a), (y, b) in combinations(dags.items(), 2):
        assert Workload(a).digest != Workload(b).digest, (x, y)


def test_axes_are_told_apart_by_their_order() -> None:
    def of(extents: tuple[int, int], swap: bool) -> str:
        a = te.placeholder((2, 6), name="A")
        r, s = te.reduce_axis(extents[0], "r"), te.reduce_axis(extents[1], "s")
        c = te.compute((2,), lambda i: te.sum(a[i, r * extents[1] + s], axis=(s, r) if swap else (r, s)), "C")
        return Workload(te.dag([a, c])).digest

    assert len({of(e, s) for e in ((2, 3), (3, 2)) for s in (False, True)}) == 4


@pytest.mark.parametrize(
    "names",
    [
        {"inputs": []},
        {"inputs": ["a"], "stages": []},
        {"inputs": 1, "stages": []},
        {"inputs": ["a", "b"], "stages": [[["c"], ["i", "j"], "sum"]]},
        {"inputs": ["a", "b"], "stages": [[["c"], ["i", "j", "k"], None]]},
        {"inputs": ["a", "a"], "stages": [[["c"], ["i", "j", "k"], "sum"]]},
        {"inputs": ["a", "b"], "stages": [[["c"], ["i", "i", "k"], "sum"]]},
    ],
)
def test_names_that_do_not_fit_are_refused(names: Any) -> None:
    with pytest.raises(ValueError, match="malformed names|two tensors|share a name"):
        Workload.from_json(ops.workload("matmul", SMALL["matmul"]).json, names=names)


def test_canonical_names_are_told_by_place() -> None:
    dag = ops.workload("matmul_bias_relu", SMALL["matmul_bias_relu"]).dag
    names = canonical(dag.to_json())
    assert names.tensors == tuple(f"T{n}" for n in range(len(dag.tensors)))
    assert names.stages[0].axes == ("i0", "i1", "k0") and names.stages[0].reducer == "sum"
