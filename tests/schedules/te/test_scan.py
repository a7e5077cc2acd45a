"""Scans of `te`: what they compute, what is refused, and what documents may say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import expected, inputs, same

from schedules import te
from schedules.errors import WorkloadError
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import evaluate_with_bounds
from schedules.te.scans import groups


def both(tensors: list[Any], seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs, and what evaluation and plain loops give for them."""
    dag = te.dag(tensors)
    data = inputs(dag, seed)
    got = te.evaluate(dag, data)
    same(expected(dag, data), got, "plain loops")
    assert ComputeDAG.from_json(dag.to_json()).to_json() == dag.to_json()
    return data, got


def test_one_state() -> None:
    a, b = (te.placeholder((7, 5), name=n) for n in "ab")
    y = te.scan((7, 5), lambda y, t, i: te.minimum(a[t, i] * y[t - 1, i], 9.0) + b[t, i], init=0.0, name="y")
    (x, z), (got,) = both([a, b, y])
    row = np.zeros(5, np.float32)
    for t in range(7):
        row = np.minimum(x[t] * row, 9) + z[t]
        assert np.array_equal(got[t], row)


def test_before_the_first_step_is_init() -> None:
    b = te.placeholder((6, 5), name="b")
    y = te.scan((6, 5), lambda y, t, i: y[t - 2, i] + b[t, i], init=lambda t, i: b[t + 2, i] * 2.0, name="y")
    (x,), (got,) = both([b, y])
    assert np.array_equal(got[0], 2 * x[0] + x[0])
    assert np.array_equal(got[1], 2 * x[1] + x[1])
    assert np.array_equal(got[4], got[2] + x[4])


def test_backwards() -> None:
    b = te.placeholder((6, 5), name="b")
    y = te.scan((6, 5), lambda y, t, i: b[t, i] - y[t + 1, i], init=1.0, reverse=True, name="y")
    (x,), (got,) = both([b, y])
    assert np.array_equal(got[5], x[5] - 1)
    assert np.array_equal(got[2], x[2] - got[3])


def test_several_states_of_one_step() -> None:
    x = te.placeholder((9,), name="x")
    a, b = te.scan(
        [(9,), (9,)], lambda a, b, t: (b[t - 1] + x[t], a[t - 1]), init=[1.0, 2.0], name=["a", "b"]
    )
    (v,), (p, q) = both([x, a, b])
    assert p[0] == v[0] + 2 and q[0] == 1
    assert np.array_equal(p[1:], q[:-1] + v[1:]) and np.array_equal(q[1:], p[:-1])


def test_a_step_of_several_stages() -> None:
    w, x = te.placeholder((5, 5), name="w"), te.placeholder((7, 5), name="x")
    h, k = te.state((7, 5), init=lambda t, j: x[0, j], name="h"), te.reduce_axis(5, name="k")
    g = te.compute((7, 5), lambda t, j: te.sum(w[j, k] * h[t - 1, k], axis=k), name="g")
    out = te.scan(h, te.compute((7, 5), lambda t, j: te.minimum(te.maximum(g[t, j] + x[t, j], -9.0), 9.0)))
    later = te.compute((7, 5), lambda t, j: out[t, j] + g[t, j], name="later")
    dag = te.dag([w, x, later, out])
    assert [s.name for s in dag.stages] == ["g", "h", "later"] and groups(dag) == ((0, 1),)
    (m, v), (_, got) = both([w, x, later, out])
    row = v[0]
    for t in range(7):
        row = np.clip(m @ row + v[t], -9, 9)
        assert np.array_equal(got[t], row)


def test_what_stands_before_is_no_step() -> None:
    """A stage that the steps read alone, written between them, is computed before the first one."""
    x = te.placeholder((7, 5), name="x")
    h = te.state((7, 5), init=0.0, name="h")
    g = te.compute((7, 5), lambda t, j: h[t - 1, j] * 0.5, name="g")
    before = te.compute((7, 5), lambda t, j: x[t, j] + 1.0, name="before")
    out = te.scan(h, te.compute((7, 5), lambda t, j: g[t, j] + before[t, j]))
    assert sorted(s.name for s in te.dag([x, out]).stages if s.scan) == ["g", "h"]
    both([x, out])


@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (0, 2)])
def test_several_axes(axis: tuple[int, ...]) -> None:
    a = te.placeholder((3, 4, 5), name="a")
    one, two = axis

    def moved(i: tuple[Any, ...], **by: int) -> tuple[Any, ...]:
        return tuple(x + by.get(f"d{n}", 0) for n, x in enumerate(i))

    def value(y: Any, i: Any, j: Any, k: Any) -> Any:
        at = (i, j, k)
        earlier = y[moved(at, **{f"d{one}": -1, f"d{two}": 1})]
        return te.minimum(te.maximum(earlier + y[moved(at, **{f"d{two}": -1})] + a[at], -9.0), 9.0)

    y = te.scan((3, 4, 5), lambda y, i, j, k: value(y, i, j, k), init=1.0, axis=axis, name="y")
    both([a, y])
    both([a, te.compute((5,), lambda k: y[2, 3, k], name="last")])


def test_gauss_seidel_is_the_loop() -> None:
    a = te.placeholder((6, 6), name="a")
    y = te.scan(
        (2, 4, 4),
        lambda y, t, i, j: y[t, i - 1, j] + y[t, i, j - 1] - y[t - 1, i + 1, j] - y[t - 1, i, j + 1],
        init=lambda t, i, j: a[i + 1, j + 1], axis=(0, 1, 2), name="y",
    )  # fmt: skip
    (x,), (got,) = both([a, y])
    grid = x.copy()
    for t in range(2):
        for i in range(1, 5):
            for j in range(1, 5):
                grid[i, j] = grid[i - 1, j] + grid[i, j - 1] - grid[i + 1, j] - grid[i, j + 1]
        assert np.array_equal(got[t], grid[1:5, 1:5])


def test_the_step_is_bounded_by_a_reduction_axis() -> None:
    low, b = te.placeholder((6, 6), name="low"), te.placeholder((6,), name="b")
    x, j = te.state((6,), init=0.0, name="x"), te.reduce_axis(6, name="j")
    s = te.compute((6,), lambda i: te.sum(te.select(j < i, low[i, j] * x[j], 0.0), axis=j), name="s")
    out = te.scan(x, te.compute((6,), lambda i: b[i] - s[i]))
    (m, v), (got,) = both([low, b, out])
    assert np.array_equal(got, np.linalg.solve(np.tril(m, -1) + np.eye(6), v).round().astype("f"))


CUMULATIVE: dict[str, Callable[..., Any]] = {
    "cumsum": np.cumsum, "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate,
}  # fmt: skip


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative(name: str, axis: int, reverse: bool) -> None:
    x = te.placeholder((4, 6), name="x")
    (v,), (got,) = both([x, getattr(te, name)(x, axis=axis, reverse=reverse)])
    turn = (lambda a: np.flip(a, axis)) if reverse else (lambda a: a)
    assert np.array_equal(got, turn(CUMULATIVE[name](turn(v), axis=axis)))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("reverse", [False, True])
def test_exclusive(name: str, reverse: bool) -> None:
    x = te.placeholder((5, 3), "int8", name="x")
    (v,), (got,) = both([x, getattr(te, name)(x, exclusive=True, reverse=reverse, dtype="int64")])
    turn = (lambda a: np.flip(a, 0)) if reverse else (lambda a: a)
    whole = CUMULATIVE[name](turn(v).astype("int64"), axis=0)
    first = np.full((1, 3), name == "cumprod", "int64")
    assert got.dtype == np.int64 and np.array_equal(got, turn(np.concatenate([first, whole[:-1]])))


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("block", [1, 3, 4, 12, 20])
@pytest.mark.parametrize("reverse", [False, True])
def test_blocks(name: str, block: int, reverse: bool) -> None:
    x = te.placeholder((2, 12), name="x")
    (v,), (got,) = both([x, getattr(te, name)(x, axis=1, reverse=reverse, block=block)])
    turn = (lambda a: np.flip(a, 1)) if reverse else (lambda a: a)
    assert np.array_equal(got, turn(CUMULATIVE[name](turn(v), axis=1)))


def test_exclusive_blocks() -> None:
    x = te.placeholder((11,), name="x")
    (v,), (got,) = both([x, te.cumsum(x, exclusive=True, block=4)])
    assert np.array_equal(got, np.cumsum(v) - v)
    (v,), (got,) = both([x, te.cumsum(x, exclusive=True, block=4, reverse=True)])
    assert np.array_equal(got, np.flip(np.cumsum(np.flip(v))) - v)


def test_the_carry_of_blocks_matters() -> None:
    """A mutant: blocks that begin anew are not what is asked for."""
    x = te.placeholder((12,), name="x")
    dag = te.dag([x, te.cumsum(x, block=4)])
    data = inputs(dag)
    blocks = np.cumsum(data[0].reshape(3, 4), axis=1).reshape(-1)
    assert not np.array_equal(te.evaluate(dag, data)[0], blocks)


def test_nan_stays_the_largest() -> None:
    x = te.placeholder((4,), name="x")
    (got,) = te.evaluate(te.dag([x, te.cummax(x)]), [np.array([1, np.nan, 3, 2], "f")])
    assert got[0] == 1 and np.isnan(got[1:]).all()


def test_dtypes_are_found() -> None:
    x = te.placeholder((5,), "float64", name="x")
    y = te.scan((5,), lambda y, t: y[t - 1] * 0.5 + x[t], init=0.0)
    assert y.dtype == "float64"
    n = te.placeholder((5,), "int32", name="n")
    assert te.scan((5,), lambda y, t: y[t - 1] + n[t], init=0).dtype == "int32"


def test_bounds_grow_along_the_steps() -> None:
    x = te.placeholder((64,), name="x")
    data = [np.random.default_rng(0).standard_normal(64).astype("f")]
    found = evaluate_with_bounds(te.dag([x, te.cumsum(x)]), data)
    exact = np.cumsum(data[0].astype("f8"))
    assert (np.abs(found.values[0] - exact) <= found.bounds[0] + 1e-6).all()
    assert found.bounds[0][0] < found.bounds[0][10] < found.bounds[0][-1] < 1e-3
    whole = evaluate_with_bounds(te.dag([x, te.cumsum(x)]), [np.arange(64, dtype="f")])
    assert not whole.bounds[0].any(), "small whole numbers are exact"


# --- refused ----------------------------------------------------------------------------------


def _scan(value: Callable[..., Any], **more: Any) -> None:
    b = te.placeholder((7, 5), name="b")
    te.dag(
        [b, te.scan((7, 5), lambda y, t, i: value(y, t, i) + b[t, i], **{"init": 0.0, "name": "y", **more})]
    )


LATE = "it reads .* where it makes .*, and that is not proved to be made before in the order of the scan, "
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "the same step": (lambda: _scan(lambda y, t, i: y[t, i]), "^stage y: " + LATE + "t from first to last"),
    "the next step": (
        lambda: _scan(lambda y, t, i: te.select(t < 6, y[te.minimum(t + 1, 6), i], 0.0)),
        "^stage y: " + LATE,
    ),
    "the other direction": (
        lambda: _scan(lambda y, t, i: y[te.maximum(t - 1, 0), i], reverse=True),
        "^stage y: " + LATE + "t from last to first",
    ),
    "a place that is read": (
        lambda: _scan(lambda y, t, i: y[te.cast(te.cast(t, "float32"), "int32"), i]),
        "^stage y: " + LATE,
    ),
    "no init": (
        lambda: _scan(lambda y, t, i: y[t - 1, i], init=None),
        r"y\[7, 5\] float32: y\[t - 1, i\] is read before the first step; say what stands there with init=",
    ),
    "init of another dtype": (
        lambda: _scan(lambda y, t, i: y[t - 1, i], init=lambda t, i: te.const(1, "int32"), dtype="float32"),
        "init gives 1 of dtype int32; use te.cast",
    ),
    "an axis that is not there": (
        lambda: _scan(lambda y, t, i: y[t - 1, i], axis=2),
        "axis=2 is outside the 2 dimensions",
    ),
    "an axis twice": (lambda: _scan(lambda y, t, i: y[t - 1, i], axis=(0, -2)), "an axis stands twice"),
    "no axis": (lambda: _scan(lambda y, t, i: y[t - 1, i], axis="t"), "axis='t' is no axis"),
    "a number of values": (
        lambda: te.scan([(3,), (3,)], lambda a, b, t: a[t - 1] + b[t - 1], init=0.0),
        "1 values for 2 states",
    ),
    "unlike shapes": (
        lambda: te.scan([(3,), (4,)], lambda a, b, t: (a[t - 1], b[t - 1]), init=0.0),
        "make each with te.state",
    ),
    "a later step": (
        lambda: te.scan((3,), lambda y, t: y[t + 1] + 1.0, init=0.0, name="y"),
        r"y\[t \+ 1\] is of a later step, as the scan goes from the first .* other way, with reverse=True",
    ),
    "a later step of a scan backwards": (
        lambda: te.scan((3,), lambda y, t: y[t - 1] + 1.0, init=0.0, reverse=True),
        r"is of a later step, as the scan goes from the last .* other way, without reverse=True",
    ),
    "a function without states": (
        lambda: te.scan((3, 2), lambda t, i: 1.0, init=0.0),
        "takes 1 axes after 1 states; give it one parameter for each state, then one for each dimension",
    ),
    "parameters of init": (
        lambda: te.scan((3, 2), lambda y, t, i: y[t - 1, i], init=lambda i: 0.0, name="y"),
        "stage y: the shape has 2 dimensions but init takes 1 axes",
    ),
    "parameters of a state's init": (
        lambda: te.state((3, 2), init=lambda i: 0.0, name="h"),
        "the shape has 2 dimensions but init takes 1 axes",
    ),
    "init is a tensor": (
        lambda: te.state((3,), init=te.placeholder((3,), name="s")),
        r"is neither a number nor a function of the indices; index it: init=lambda \*at: s",
    ),
    "no block": (lambda: te.cumsum(te.placeholder((3,)), block=0), "block=0 is no number of elements"),
    "cumsum of numbers": (lambda: te.cumsum(3), "te.cumsum takes a tensor, got 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(WorkloadError, match=message):
        make()


def test_a_read_that_is_not_proved_names_both_remedies() -> None:
    with pytest.raises(WorkloadError, match="condition of a te.select or in where= of a te.reduce_axis"):
        te.dag([te.scan((3,), lambda y, t: y[t] + 1.0, init=0.0)])


def test_states_are_stored_once_and_as_they_are() -> None:
    x = te.placeholder((4, 3), name="x")
    h = te.state((4, 3), init=0.0, name="h")
    v = te.compute((4, 3), lambda t, j: h[t - 1, j] + x[t, j])
    with pytest.raises(WorkloadError, match="is the state of a scan, and nothing is stored in it"):
        te.dag([x, v])
    with pytest.raises(WorkloadError, match="give them the same shape and dtype"):
        te.scan(h, te.compute((3, 4), lambda j, t: x[t, j]))
    with pytest.raises(WorkloadError, match="is no state; make it with te.state"):
        te.scan(x, v)
    with pytest.raises(WorkloadError, match="is no tensor of a te.compute"):
        te.scan(h, x)
    te.scan(h, v)
    with pytest.raises(WorkloadError, match="is stored already; make a state for each scan"):
        te.scan(h, v)


def test_a_step_has_the_axis_of_the_scan() -> None:
    x = te.placeholder((4, 3), name="x")
    h = te.state((4, 3), init=0.0, name="h")
    g = te.compute((3,), lambda j: h[2, j] + 1.0, name="g")
    out = te.scan(h, te.compute((4, 3), lambda t, j: g[j] + x[t, j]))
    with pytest.raises(
        WorkloadError, match="stage g: it is a step of the scan of .*; give it 4 points there"
    ):
        te.dag([x, out])


# --- documents --------------------------------------------------------------------------------


def _document() -> dict[str, Any]:
    w, x = te.placeholder((5, 5), name="w"), te.placeholder((7, 5), name="x")
    h, k = te.state((7, 5), init=0.0, name="h"), te.reduce_axis(5, name="k")
    g = te.compute((7, 5), lambda t, j: te.sum(w[j, k] * h[t - 1, k], axis=k), name="g")
    out = te.scan(h, te.compute((7, 5), lambda t, j: g[t, j] + x[t, j]))
    return te.dag([w, x, out]).to_json()


DOCUMENTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a step": (lambda d: d["stages"][0]["scan"][0].__setitem__(1, 2), "runs in steps of 2 over t; 1 and -1"),
    "another direction": (lambda d: [s["scan"][0].__setitem__(1, -1) for s in d["stages"]], LATE),
    "one direction": (lambda d: d["stages"][0]["scan"][0].__setitem__(1, -1), "its scan has extents"),
    "a reduction axis": (lambda d: d["stages"][0]["scan"][0].__setitem__(0, "k"), "the scan runs over 'k'"),
    "an axis that is not there": (lambda d: d["stages"][1]["scan"][0].__setitem__(0, "z"), "runs over 'z'"),
    "an axis twice": (lambda d: d["stages"][1]["scan"].append(["t", 1]), "an axis stands twice in its scan"),
    "no scan": (lambda d: d["stages"][0].pop("scan"), "stage g: it stands between stages of the scan of h"),
    "no order": (lambda d: [s.pop("scan") for s in d["stages"]], "h"),
    "other axes": (lambda d: d["stages"][0]["scan"].__setitem__(0, ["j", 1]), "its scan has extents"),
    "a word": (lambda d: d["stages"][0].__setitem__("scan", "t"), "malformed compute DAG"),
    "a nest": (lambda d: d["stages"][0].__setitem__("scan", [[["t"], 1]]), "malformed compute DAG"),
    "turned stages": (lambda d: d["stages"].reverse(), LATE),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_checked(name: str) -> None:
    change, message = DOCUMENTS[name]
    document = _document()
    ComputeDAG.from_json(document)
    change(document)
    with pytest.raises(ValueError, match=message):
        ComputeDAG.from_json(document)
