"""Sizes that a call tells, in indices and values of an expression: what they mean, what is proved of them,
and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_cases import close, interpreted

from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Expr, Var
from schedules.ir.interp import run
from schedules.model import Trace, Workload
from schedules.open_program import lower_parts, parts_of
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.dims import dim
from schedules.te.infeasible import impossible
from schedules.te.marks import is_marked, marked, unmarked
from schedules.te.open_sizes import at
from schedules.te.structure import structure

LEAST, MOST = 2, 9
Value = Callable[[Any, te.Tensor, Expr, Expr], Expr]


def size(least: int = LEAST, most: int = MOST, name: str = "m") -> Any:
    return dim(least, most, name, open=True)


def tensors(value: Value, m: Any, name: str = "x") -> list[te.Tensor]:
    x = te.placeholder((m, 4), name=name)
    return [x, te.compute((m, 4), lambda i, j: value(m, x, i, j), "y")]


def number(m: Any) -> Expr:
    return te.cast(m, "float32")


# {word: (what it is in te, what it is in numpy, of an array a of n rows)}.
WORDS: dict[str, tuple[Value, Callable[[Any, int], Any]]] = {
    "last row": (lambda m, x, i, j: x[m - 1, j], lambda a, n: np.repeat(a[-1:], n, 0)),
    "from the end": (lambda m, x, i, j: x[m - 1 - i, j], lambda a, n: a[::-1]),
    "share": (lambda m, x, i, j: x[i, j] * (1.0 / number(m)), lambda a, n: a * np.float32(1 / n)),
    "count": (
        lambda m, x, i, j: te.cast(x[i, j], "float64") + te.cast(2 * m + 1, "float64"),
        lambda a, n: a + (2.0 * n + 1),
    ),
    "place": (
        lambda m, x, i, j: te.cast(x[i, j], "int32") + te.cast(m - i, "int32"),
        lambda a, n: a + (n - np.arange(n))[:, None],
    ),
    "mask": (
        lambda m, x, i, j: te.select(2 * i < m, x[i, j], 0.0),
        lambda a, n: np.where(2 * np.arange(n)[:, None] < n, a, 0),
    ),
    "guarded": (
        lambda m, x, i, j: te.select(i + 1 < m, x[i + 1, j], 5.0),
        lambda a, n: np.concatenate([a[1:], np.full((1, 4), 5, "float32")]),
    ),
    "held": (
        lambda m, x, i, j: x[te.minimum(2 * i, m - 1), j],
        lambda a, n: a[np.minimum(2 * np.arange(n), n - 1)],
    ),
    "rolled": (lambda m, x, i, j: x[(i + 1) % m, j], lambda a, n: np.roll(a, -1, 0)),
    "half": (lambda m, x, i, j: x[m // 2, j], lambda a, n: np.repeat(a[n // 2 : n // 2 + 1], n, 0)),
    "integers": (
        lambda m, x, i, j: te.cast(te.cast(m, "int64") // 2 + te.cast(i, "int64"), "float32") + x[i, j],
        lambda a, n: (n // 2 + np.arange(n))[:, None] + a,
    ),
    "bytes": (
        lambda m, x, i, j: te.select(x[i, j] > 0.0, te.cast(m, "int8"), te.const(0, "int8")),
        lambda a, n: np.where(a > 0, n, 0),
    ),
    "stored floats": (
        lambda m, x, i, j: te.cast(x[i, j] + te.cast(te.cast(m, "bfloat16"), "float32"), "float32"),
        lambda a, n: a + n,
    ),
}


def made(word: str, m: Any) -> ComputeDAG:
    return te.dag(tensors(WORDS[word][0], m))


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_what_numpy_does_at_every_size(word: str) -> None:
    dag = made(word, size())
    func = lower_parts(parts_of(dag, Trace()), dag.open.sizes)
    for n in range(LEAST, MOST + 1):
        a = np.random.default_rng(n).integers(-4, 5, (n, 4)).astype("float32")
        right = WORDS[word][1](a, n)
        assert np.array_equal(te.evaluate(dag, [a])[0], right), n
        for program in (Schedule(dag).nest, func):
            y = np.zeros((n, 4), dag.tensors["y"].dtype)
            run(program, {"x": a, "y": y}, sizes={"m": n})
            assert np.array_equal(y, right), n


@pytest.mark.parametrize("word", WORDS)
def test_the_dag_of_one_size_is_the_one_that_is_written_with_the_number(word: str) -> None:
    dag = made(word, size())
    for n in (LEAST, 5, MOST):
        assert at(dag, {"m": n}) == made(word, n)
    assert dag.largest == made(word, MOST)


@pytest.mark.parametrize("word", WORDS)
def test_json_reads_back_and_names_say_nothing(word: str) -> None:
    dag = made(word, size())
    assert ComputeDAG.from_json(json.loads(json.dumps(dag.to_json()))) == dag
    one, other = Workload(dag), Workload(made(word, size(name="rows")))
    assert one.digest == other.digest != Workload(made(word, size(most=MOST + 1))).digest
    assert Workload.from_json(one.json, names=one.names).dag == dag
    assert structure(dag).key == structure(made(word, 64)).key


@pytest.mark.parametrize("word", WORDS)
def test_a_marked_dag_has_the_same_values(word: str) -> None:
    dag = made(word, size())
    both = marked(dag)
    assert is_marked(both) and marked(both) is both and both.to_json() == dag.to_json()
    assert unmarked(both) == dag and at(both, {"m": 5}) == at(dag, {"m": 5}) and both.largest == dag.largest


def test_a_dimension_that_is_not_open_takes_the_same_words() -> None:
    for word, (value, right) in WORDS.items():
        m, a = dim(LEAST, MOST, "m"), np.ones((5, 4), "float32")
        dag = te.dag(tensors(value, m), {m: 5})
        assert np.array_equal(te.evaluate(dag, [a])[0], right(a, 5)), word


def test_a_size_may_have_the_name_of_an_axis() -> None:
    m = size(name="i")
    dag = te.dag(tensors(lambda m, x, i, j: x[m - 1 - i, j], m))
    a = np.arange(12, dtype="float32").reshape(3, 4)
    assert np.array_equal(te.evaluate(dag, [a])[0], a[::-1])
    got, want = interpreted(Schedule(dag).nest, dag, {"i": 3})
    assert close(got, want, True)


def test_two_sizes_stand_in_one_value() -> None:
    m, k = size(), size(name="k", most=6)
    x, y = te.placeholder((m, 3), name="x"), te.placeholder((k, 3), name="y")

    def value(i: Expr, j: Expr) -> Expr:
        return te.select(i < k, y[te.minimum(i, k - 1), j], x[m - 1, j]) * te.cast(m - k, "float32")

    dag = te.dag([x, y, te.compute((m, 3), value, "z")])
    for sizes in ({"m": 2, "k": 6}, {"m": 9, "k": 2}, {"m": 5, "k": 5}):
        got, want = interpreted(lower_parts(parts_of(dag, Trace()), dag.open.sizes), dag, sizes)
        assert close(got, want, True), sizes


def test_what_has_an_extent_of_one_value_is_a_number() -> None:
    assert te.dag(tensors(WORDS["share"][0], size(5, 5))) == te.dag(tensors(WORDS["share"][0], 5))


# -- what is refused -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Value, str]] = {
    "beyond the end": (lambda m, x, i, j: x[m, j], "is 9, outside"),
    "before the beginning": (
        lambda m, x, i, j: x[m - 3, j],
        r"index 0 of x\[m - 3, j\] cannot be proved below m, and at least 0, at every size",
    ),
    "the largest row": (lambda m, x, i, j: x[8, j], r"index 0 of x\[8, j\] cannot be proved below m"),
    "a guard of the largest size": (
        lambda m, x, i, j: te.select(i < 8, x[te.minimum(i + 1, 8), j], 0.0),
        "cannot be proved below m",
    ),
    "one column too many at some size": (lambda m, x, i, j: x[i, te.maximum(6 - m, 0)], "cannot be proved"),
    "a division by 0": (lambda m, x, i, j: x[i // (m - 2), j], r"i // \(m - 2\) may divide by 0 at some"),
    "a rest of 0": (
        lambda m, x, i, j: x[i, j] * te.cast(te.cast(i, "int64") % te.cast(m - 2, "int64"), "float32"),
        "may divide by 0 at some size",
    ),
    "64 bits": (
        lambda m, x, i, j: x[i, j] * number(i * 2**40 * 2**22 // m),
        "may leave 64 bits",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_at_some_size_is_refused(case: str) -> None:
    value, said = REFUSED[case]
    with pytest.raises(WorkloadError, match=said):
        te.dag(tensors(value, size()))


def test_a_size_in_a_value_that_no_input_tells_is_refused() -> None:
    x, k = te.placeholder((4,), name="x"), size(name="k")
    with pytest.raises(WorkloadError, match="value of y depends on the open size k=2..9, and no extent"):
        te.dag([x, te.compute((4,), lambda j: x[j] * number(k), "y")])


def test_an_int_is_no_float() -> None:
    m = size()
    x = te.placeholder((m, 4), name="x")
    with pytest.raises(WorkloadError, match=r"convert one with te.cast\(x, 'float32'\)"):
        te.compute((m, 4), lambda i, j: x[i, j] * m, "y")


def mutants() -> list[tuple[Any, str]]:
    """Values of a file that are none, in the place of ``1 / m``."""
    return [
        (["cast", "float32", ["hole", "k.size"]], "'k.size' is no size that a call tells"),
        (["cast", "float32", ["hole", "m"]], "'m' is no size that a call tells"),
        (["cast", "float32", ["hole", "i"]], "'i' is no size that a call tells"),
        (["cast", "float32", ["var", "m.size"]], "axis 'm.size' is not an axis of this stage"),
        (["hole", "m.size"], "is index, and its output y is float32"),
        (["load", "x", "float32", ["hole", "m.size"], 0], "is 9, outside"),
        (["cast", "float32", ["//", 1, ["-", ["hole", "m.size"], 2]]], "may divide by 0 at some size"),
        (["cast", "float32", ["<<", ["hole", "m.size"], 2]], "'<<' is not defined for index"),
        (["cast", "float32", ["hole", 3]], "malformed"),
    ]


@pytest.mark.parametrize("k", range(len(mutants())))
def test_a_file_with_a_wrong_size_is_refused_at_the_door(k: int) -> None:
    wrong, said = mutants()[k]
    v = made("share", size()).to_json()
    v["stages"][0]["values"] = [wrong]
    with pytest.raises(ValueError, match=said):
        ComputeDAG.from_json(v)


def test_a_size_in_a_file_without_open_sizes_is_refused() -> None:
    v = made("share", size()).to_json()
    del v["open"]
    with pytest.raises(ValueError, match="'m.size' is no size that a call tells"):
        ComputeDAG.from_json(v)


def test_a_reducer_knows_no_sizes() -> None:
    m = size()
    x, r = te.placeholder((m, 4), name="x"), te.reduce_axis(m, "r")
    v = te.dag([x, te.compute((4,), lambda j: te.sum(x[r, j], axis=r), "y")]).to_json()
    v["stages"][0]["reducer"]["combine"] = [["cast", "float32", ["hole", "m.size"]]]
    with pytest.raises(ValueError, match="is no size that a call tells"):
        ComputeDAG.from_json(v)


def test_a_product_with_a_size_is_proved_at_more_sizes_than_are_tried() -> None:
    m = size(1, 5000)
    x = te.placeholder((3 * m,), name="x")
    assert te.dag([x, te.compute((m, 3), lambda i, j: x[j * m + i], "y")]).open is not None
    for wrong in (lambda i, j: x[j * m + i + 1], lambda i, j: x[te.minimum(j * m + i + 1, 5000 + i)]):
        with pytest.raises(WorkloadError, match=r"outside|cannot be proved below 3 \* m"):
            te.dag([x, te.compute((m, 3), wrong, "y")])


RANGE = st.tuples(st.integers(-3, 3), st.integers(0, 4)).map(lambda r: (r[0], r[0] + r[1]))
ROW = st.tuples(*(st.integers(-3, 3) for _ in range(3)), st.integers(-12, 12))


@given(RANGE, RANGE, st.lists(ROW, min_size=1, max_size=3))
def test_no_product_is_found_impossible_that_is_not(a: Any, b: Any, rows: Any) -> None:
    """``rows``: coefficients of x * m, x and m, and a constant; their sum is at least 0."""
    x, m = Var("x"), Var("m.size")
    conds = [E.compare("<=", 0, x * m * p + x * q + m * r + c) for p, q, r, c in rows]
    if impossible(conds, {"x": a, "m.size": b}):
        for u in range(a[0], a[1] + 1):
            for v in range(b[0], b[1] + 1):
                assert any(u * v * p + u * q + v * r + c < 0 for p, q, r, c in rows), (u, v)


# -- random expressions ----------------------------------------------------------------------------

ATOMS = st.sampled_from(["i", "j", "m", 0, 1, 2, 3])


def grown(children: Any) -> Any:
    return st.tuples(st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "select"]), children, children)


INDICES = st.recursive(ATOMS, grown, max_leaves=6)


def index(t: Any, env: dict[str, Any]) -> Any:
    """A random index over i, j and m: an expression, or a number where ``env`` has numbers."""
    if not isinstance(t, tuple):
        return env[t] if isinstance(t, str) else t
    op, a, b = t[0], index(t[1], env), index(t[2], env)
    whole = not isinstance(a, Expr) and not isinstance(b, Expr)
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//" | "%":
            b = max(b, 1) if not isinstance(b, Expr) else te.maximum(b, 1)
            return a // b if op == "//" else a % b
        case "min":
            return min(a, b) if whole else te.minimum(a, b)
        case "max":
            return max(a, b) if whole else te.maximum(a, b)
    return (a if a < b else b) if whole else te.select(as_condition(a, b), a, b)


def as_condition(a: Any, b: Any) -> Expr:
    return a < b if isinstance(a, Expr) else b > a


@settings(max_examples=25)
@given(INDICES, INDICES, st.booleans())
def test_random_indices_are_right_or_refused(where: Any, factor: Any, held: bool) -> None:
    """Where the proofs take an index it is inside at every size, and what it reads is right; where they do
    not, an index that is held inside is taken."""

    def value(m: Any, x: te.Tensor, i: Expr, j: Expr) -> Expr:
        env = {"i": i, "j": j, "m": m}
        row = index(where, env)
        row = te.maximum(te.minimum(row, m - 1), 0) if held else row
        return x[row, j] * te.cast(index(factor, env), "float32")

    try:
        dag = te.dag(tensors(value, size(1, 5)))
    except WorkloadError as err:
        assert not held and ("outside" in str(err) or "cannot be proved" in str(err)), err
        return
    func = lower_parts(parts_of(dag, Trace()), dag.open.sizes) if dag.open else None
    assert func is not None
    for n in (1, 2, 3, 5):
        a = np.arange(4.0 * n, dtype="float32").reshape(n, 4)
        want = np.empty_like(a)
        for i, j in np.ndindex(n, 4):
            env = {"i": i, "j": j, "m": n}
            row = index(where, env)
            row = max(min(row, n - 1), 0) if held else row
            assert 0 <= row < n
            want[i, j] = a[row, j] * np.float32(index(factor, env))
        assert np.array_equal(te.evaluate(dag, [a])[0], want)
        y = np.zeros_like(a)
        run(func, {"x": a, "y": y}, sizes={"m": n})
        assert np.array_equal(y, want)
