"""Scatters: what they mean, what is refused, and what else looks at them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dag_mutant_runs import apart, outcome
from dag_mutants import mutated
from helpers import interpret, same
from hypothesis import given, settings
from hypothesis import strategies as st
from scatter_cases import counts, means, random_scatter, rows

from schedules import te
from schedules.errors import WorkloadError
from schedules.ir.nest import initial
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops
from schedules.te.rounding import evaluate_with_bounds

IDS, X = te.placeholder((9,), "int32", "ids"), te.placeholder((9,), name="x")
DATA = np.array([0, 3, -1, 3, 4, 2, 9, 3, 1], np.int32), np.arange(1, 10, dtype=np.float32)


# --- meaning ----------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=6, deadline=None)
def test_a_random_scatter_is_what_numpy_makes_of_it(seed: int) -> None:
    c = random_scatter(seed)
    same(te.evaluate(c.dag, c.inputs), c.expected, "the reference")
    same(interpret(initial(c.dag), c.dag, c.inputs), c.expected, "the interpreter")
    bounded = evaluate_with_bounds(c.dag, c.inputs)
    same(bounded.values, c.expected, "the reference with bounds")
    assert not any(b.any() for b in bounded.bounds)  # sums of whole numbers are exact
    assert ComputeDAG.from_json(json.loads(json.dumps(c.dag.to_json()))) == c.dag
    workload = Workload(c.dag)
    assert Workload.from_json(workload.json, names=workload.names).digest == workload.digest


def test_what_lies_outside_is_dropped_or_clipped() -> None:
    for mode, want in (("drop", [1, 9, 6, 14]), ("clip", [4, 9, 6, 26])):
        y = te.scatter_add((4,), lambda n: IDS[n], lambda n: X[n], over=9, mode=mode)
        assert te.evaluate(te.dag([IDS, X, y]), DATA)[0].tolist() == want


def test_what_results_start_from() -> None:
    t = te.placeholder((4,), name="t")
    start = np.array([10, -20, 30, -40], np.float32)
    y = te.scatter_add(None, lambda n: IDS[n], lambda n: X[n], over=9, into=t)
    assert te.evaluate(te.dag([IDS, X, t, y]), (*DATA, start))[0].tolist() == [11, -11, 36, -26]
    top = te.scatter_max((6,), lambda n: IDS[n], lambda n: X[n], over=9)
    assert te.evaluate(te.dag([IDS, X, top]), DATA)[0].tolist() == [1, 9, 6, 8, 5, -np.inf]
    least = te.scatter_min((6,), lambda n: IDS[n], lambda n: X[n], over=9, into=2.0)
    assert te.evaluate(te.dag([IDS, X, least]), DATA)[0].tolist() == [1, 2, 2, 2, 2, 2]


def test_a_histogram_is_numpys() -> None:
    x, w = te.placeholder((40, 25), name="x"), te.placeholder((40, 25), name="w")
    data = np.random.default_rng(0).uniform(-0.1, 1.1, x.shape).astype("float32")
    data[0, :4] = [0.0, 1.0, np.nan, np.inf]
    weights = np.random.default_rng(1).integers(0, 5, x.shape).astype("float32")
    seen = data[np.isfinite(data)]
    h = te.dag([x, te.histogram(x, 16, range=(0.0, 1.0))])
    assert te.evaluate(h, [data])[0].tolist() == np.histogram(seen, 16, (0, 1))[0].tolist()
    h = te.dag([x, w, te.histogram(x, 16, range=(0.0, 1.0), weights=w)])
    want = np.histogram(seen, 16, (0, 1), weights=weights[np.isfinite(data)])[0]
    assert te.evaluate(h, [data, weights])[0].tolist() == want.tolist()
    c = counts()
    same(te.evaluate(c.dag, c.inputs), c.expected, "counts of integers")


def test_several_values_go_to_one_place() -> None:
    c = means()
    same(te.evaluate(c.dag, c.inputs), c.expected, "the reference")
    same(interpret(initial(c.dag), c.dag, c.inputs), c.expected, "the interpreter")
    bounded = evaluate_with_bounds(c.dag, c.inputs)
    assert np.allclose(bounded.values[1], c.expected[1]) and bounded.bounds[1].max() < 1e-5


def test_bounds_know_that_the_order_is_free() -> None:
    y = te.scatter_add((5,), lambda n: IDS[n], lambda n: X[n], over=9)
    dag = te.dag([IDS, X, y])
    data = np.random.default_rng(0).normal(size=9).astype("float32") * 1e3
    bounded = evaluate_with_bounds(dag, (DATA[0], data))
    forward, backward = np.zeros(5, np.float32), np.zeros(5, np.float32)
    for n in range(9):
        for out, k in ((forward, n), (backward, 8 - n)):
            if 0 <= DATA[0][k] < 5:
                out[DATA[0][k]] += data[k]
    for out in (forward, backward):
        assert (np.abs(out - bounded.values[0]) <= bounded.bounds[0]).all()
    lost = forward.copy()
    lost[3] -= data[1]  # a lost update
    assert (np.abs(lost - bounded.values[0]) > bounded.bounds[0]).any()


def test_a_place_that_is_uncertain_makes_what_it_may_change_uncertain() -> None:
    place = te.compute((9,), lambda n: te.cast(X[n] / 3.0 * 3.0, "int32"), name="place")
    y = te.scatter_add((12,), lambda n: place[n], lambda n: X[n], over=9)
    bounded = evaluate_with_bounds(te.dag([X, y]), [DATA[1]])
    assert (bounded.bounds[0] >= 1).all()
    top = te.scatter_max((12,), lambda n: place[n], lambda n: X[n], over=9)
    off = evaluate_with_bounds(te.dag([X, top]), [DATA[1]]).bounds[0]
    assert (off[:9] > 0).all()


def test_operations_are_those_of_terms() -> None:
    c = rows(n=30, d=20, v=12)
    assert count_flops(c.dag) == 30 * 20


def test_digests_know_places() -> None:
    digests = {
        Workload(te.dag([IDS, X, te.scatter_add((4,), at, lambda n: X[n], over=9)])).digest
        for at in (lambda n: IDS[n], lambda n: IDS[8 - n], lambda n: te.minimum(IDS[n], 2))
    }
    assert len(digests) == 3


# --- what is refused --------------------------------------------------------------------------

Y = te.placeholder((4,), "int32", "y")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mode": (lambda: add(mode="wrap"), "mode 'wrap' is neither 'drop' nor 'clip'"),
    "no shape": (lambda: te.scatter_add(None, at, val, 9), "it has no shape; give shape=, or a tensor into="),
    "no function": (lambda: te.scatter_add((4,), 3, val, 9), "index and value are functions of a point"),
    "rank": (lambda: te.scatter_add((4, 2), at, val, 9), "1 indices for 2 dimensions; return one for each"),
    "float index": (lambda: te.scatter_add((4,), lambda n: X[n], val, 9), r"has dtype float32.*te.cast\(x,"),
    "no points": (lambda: te.scatter_add((4,), at, val), r"give those of the points, over=\(n,\)"),
    "start": (lambda: add(into=Y), "into is tensor y.4. int32, and values are float32; convert one"),
    "start's shape": (lambda: add(into=X), r"into is tensor x\[9\].*give one of that shape"),
    "scalar": (lambda: te.scatter_add((), lambda n: (), val, 9), "has one place; reduce instead"),
    "histogram of floats": (lambda: te.histogram(X, 4), r"no integers, which could be bins; say range="),
    "no bins": (lambda: te.histogram(X, 0, (0.0, 1.0)), "te.histogram: bins=0 is no number of bins"),
    "edges": (lambda: te.histogram(X, [0, 1], (0, 1)), r"bins=\[0, 1\] is no number of bins"),  # type: ignore[arg-type]
    "one end": (lambda: te.histogram(X, 4, 3), r"range 3 is not \(least, largest\)"),  # type: ignore[arg-type]
    "no width": (lambda: te.histogram(X, 4, (0.0, math.inf)), "has no width; give finite ends"),
    "an element": (lambda: te.histogram(X[0], 4, (0.0, 1.0)), r"are whole tensors; got x\[0\]$"),  # type: ignore[arg-type]
    "index's points": (
        lambda: te.scatter_add((4,), lambda n, d: n, val, 9),
        "over has 1 dimensions but index takes 2 axes",
    ),
    "value's points": (
        lambda: te.scatter_add((4,), at, lambda n, d: X[n], 9),
        "over has 1 dimensions but value takes 2 axes",
    ),
    "empty range": (lambda: te.histogram(X, 4, (1.0, 1.0)), "is empty; give .least, largest."),
    "weights": (lambda: te.histogram(X, 4, (0.0, 1.0), Y), "does not fit tensor x.9.*a weight for each"),
    "outside": (lambda: te.scatter_add((4,), at, lambda n: X[n + 1], 9), "index 0 of x.* is 9 at n=8"),
}  # fmt: skip


def at(n: Any) -> Any:
    return IDS[n]


def val(n: Any) -> Any:
    return X[n]


def add(**how: Any) -> Any:
    return te.scatter_add((4,), at, val, 9, **how)


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_refused_by_name(case: str) -> None:
    fn, said = REFUSED[case]
    with pytest.raises(WorkloadError, match=said):
        fn()


def changed(f: Callable[[Any], None]) -> Any:
    doc = te.dag([IDS, X, te.scatter_add((4,), at, val, 9, mode="clip", name="y")]).to_json()
    f(doc["stages"][0])
    return doc


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "outside": (lambda s: s.update(places=[["cast", "index", ["load", "ids", "int32", ["var", "n"]]]]),
                "is not proved inside 0..3; cut it off with te.minimum and te.maximum"),
    "number": (lambda s: s.update(places=[["const", "index", 4]]), "is not proved inside 0..3"),
    "many": (lambda s: s.update(places=s["places"] * 2), "2 for 1 dimensions; give one for each"),
    "own axis": (lambda s: s.update(values=[["cast", "float32", ["var", "bin"]]]),
                 "depends on bin, the axis of a dimension that is scattered"),
    "no reducer": (lambda s: s.update(reducer=None), "it has reduction axes and no reducer"),
    "scan": (lambda s: s.update(scan=[["bin", 1]]), "(has no order|scan|order)"),
    "type": (lambda s: s.update(places=[["load", "ids", "int32", ["var", "n"]]]), "int32, which is no index"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_document_is_refused(case: str) -> None:
    change, said = BAD[case]
    with pytest.raises(ValueError, match=said):
        ComputeDAG.from_json(changed(change))


# --- gradients --------------------------------------------------------------------------------


def numeric(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i], down[i] = up[i] + 1e-6, down[i] - 1e-6
        out[i] = (f(up) - f(down)) / 2e-6
    return out


def gradients(
    y: te.Tensor, tensors: list[te.Tensor], data: list[np.ndarray], of: list[te.Tensor]
) -> list[Any]:
    """The gradients, each checked against differences; and the stages of each."""
    rng = np.random.default_rng(5)
    dy = te.placeholder(y.shape, "float64", "dy")
    head, forward, kinds = rng.normal(size=y.shape), te.dag([*tensors, y]), []
    for g, t in zip(te.gradient(y, of, dy), of, strict=True):
        need = te.inputs(g)
        known = {id(a): b for a, b in zip([*tensors, dy], [*data, head], strict=True)}
        dag = te.dag([*need, g])
        (got,) = te.evaluate(dag, [known[id(n)] for n in need])

        def loss(v: np.ndarray, t: te.Tensor = t) -> float:
            return float(
                (
                    te.evaluate(forward, [v if a is t else b for a, b in zip(tensors, data, strict=True)])[0]
                    * head
                ).sum()
            )

        np.testing.assert_allclose(got, numeric(loss, known[id(t)]), atol=1e-6)
        kinds.append([bool(s.places) for s in dag.stages])
    return kinds


def doubles() -> tuple[list[te.Tensor], list[np.ndarray]]:
    rng = np.random.default_rng(4)
    shapes = {"ids": (8,), "x": (8, 2), "w": (5, 2)}
    ts = [te.placeholder(s, "int32" if n == "ids" else "float64", n) for n, s in shapes.items()]
    return ts, [rng.integers(-2, 7, 8).astype("int32"), rng.normal(size=(8, 2)), rng.normal(size=(5, 2))]


@pytest.mark.parametrize("mode", ["drop", "clip"])
@pytest.mark.parametrize("how", [te.scatter_add, te.scatter_max, te.scatter_min])
def test_the_gradient_of_a_scatter_gathers(how: Any, mode: str) -> None:
    (ids, x, w), data = doubles()
    y = how((5, 2), lambda n, d: (ids[n], d), lambda n, d: te.sin(x[n, d]), (8, 2), into=w, mode=mode)
    kinds = gradients(y, [ids, x, w], data, [x, w])
    if how is te.scatter_add:
        assert kinds == [[False], [False]]


def test_the_gradient_of_a_gather_scatters() -> None:
    (ids, x, w), data = doubles()
    y = te.compute((8, 2), lambda n, d: w[ids[n], d] * x[n, d] + te.select(ids[n] > 1, w[ids[n], 1 - d], 0.0))
    kinds = gradients(y, [ids, x, w], data, [x, w])
    assert not any(kinds[0])
    assert any(kinds[1])


@pytest.mark.parametrize("how", [te.scatter_add, te.scatter_max, te.scatter_min])
def test_the_tangent_of_a_scatter_is_one(how: Any) -> None:
    (ids, x, _), (at, data, _) = doubles()
    y = how((5, 2), lambda n, d: (ids[n], d), lambda n, d: te.sin(x[n, d]), (8, 2), into=0.25)
    (dot,) = te.jvp(y, x)
    way = np.random.default_rng(6).normal(size=(8, 2))
    known = {"ids": at, "x": data, "x_dot": way}

    def run(t: te.Tensor, **other: np.ndarray) -> np.ndarray:
        need = te.inputs(t)
        (out,) = te.evaluate(te.dag([*need, t]), [(known | other)[n.name] for n in need])
        return out

    apart = run(y, x=data + 1e-6 * way) - run(y, x=data - 1e-6 * way)
    np.testing.assert_allclose(run(dot), apart / 2e-6, atol=1e-6)


@pytest.mark.slow
def test_a_changed_document_is_refused_or_means_what_it_says() -> None:
    """Places of strangers write nowhere else: what the door lets through runs between inaccessible pages."""
    documents = [c.dag.to_json() for c in (rows(12, 5, 4), counts(30, 4), means(30, 4), random_scatter(3))]
    reducers = [s["reducer"] for d in documents for s in d["stages"]]
    for seed in range(60):
        changed_one = mutated(documents, seed)
        found = apart(lambda v=changed_one: outcome(v, reducers))  # type: ignore[misc]
        assert found.startswith(("refused", "right", "large")), f"{seed}: {found}"
