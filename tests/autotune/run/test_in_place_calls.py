"""Calls whose output is an input, or lies in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import imported

import autotune as at
from autotune.errors import ArgumentError

te = at.te
N = 37


def ahead(n: int = N, schedule: str = "vectors", **build: Any) -> at.Kernel:
    """y[i] = x[i] + x[i + 1]: each element is read before it is overwritten."""
    x = te.placeholder((n,), "float64", "x")
    s = at.Schedule([x, te.compute((n,), lambda i: x[i] + x[te.minimum(i + 1, n - 1)], "y")])
    if schedule == "vectors":
        s.vectorize(s.split("y_i", 8)[1])
    elif schedule == "shifted":
        s.vectorize(s.split("y_i", 8, tail="shift")[1])
    return at.build(s, threads=1, **build)


def behind(**build: Any) -> at.Kernel:
    x = te.placeholder((N,), "float64", "x")
    y = te.compute((N,), lambda i: x[i] + x[te.maximum(i - 1, 0)], "y")
    return at.build(at.Schedule([x, y]), threads=1, **build)


def numbers() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(N)


@pytest.mark.parametrize("schedule", ["plain", "vectors", "shifted"])
def test_an_input_as_output(schedule: str) -> None:
    k, x = ahead(schedule=schedule), numbers()
    want = k(x)
    for _ in range(2):
        y = x.copy()
        assert k(y, out=y) is y and np.array_equal(y, want)
    assert np.array_equal(k(x), want)


def test_a_second_call_is_checked_in_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    k, x = ahead(in_place={"y": "x"}), numbers()
    want = k(x)
    monkeypatch.setattr(at.Kernel, "_of_others", None)
    assert np.array_equal(k(x, out=np.empty(N)), want)  # the code is good for arrays of their own
    assert np.array_equal(k(x, out=x), want)


def test_an_output_in_the_middle_of_an_input() -> None:
    """The border stays as it is."""
    n, m = 9, 14
    x = te.placeholder((n + 2, m + 2), "float32", "x")
    y = te.compute((n, m), lambda i, j: 0.5 * (x[i + 1, j + 1] + x[i + 2, j + 1]) + x[i + 1, j + 2], "y")
    s = at.Schedule(te.with_strides(te.dag([x, y]), {"y": (m + 2, 1)}))
    s.vectorize(s.split("y_j", 4)[1])
    k = at.build(s, threads=1)
    a = np.random.default_rng(0).standard_normal((n + 2, m + 2)).astype("float32")
    want = a.copy()
    want[1:-1, 1:-1] = k(a)
    k(a, out=a[1:-1, 1:-1])
    assert np.array_equal(a, want)


def test_what_lies_elsewhere_is_refused() -> None:
    """Code for one place is not used for another: two elements later, x[i] is overwritten too soon."""
    k, memory = ahead(), np.zeros(N + 8)
    k(memory[:N], out=memory[:N])
    with pytest.raises(
        ArgumentError, match=r"output 'y' shares memory with input 'x': y\[.*\] is written before x"
    ):
        k(memory[:N], out=memory[2 : N + 2])


MESSAGE = (
    r"output 'y' shares memory with input 'x': y\[y_i\] is written before x\[max\(y_i - 1, 0\)\] is read in "
    r"a later iteration of loop y_i, and both may be one element; give it memory of its own, .*"
    r"at.repeat\(kernel, times, swap"
)


def test_the_pair_of_accesses_is_named() -> None:
    k, x = behind(), numbers()
    for _ in range(2):
        with pytest.raises(ArgumentError, match=MESSAGE):
            k(x, out=x)
    with pytest.raises(ArgumentError, match=MESSAGE):
        behind(in_place={"y": "x"})


def test_code_for_few_places_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.run import in_place

    monkeypatch.setattr(in_place, "MOST_PLACES", 2)
    k, memory = ahead(5), np.arange(20.0)
    for first in (3, 2, 1, 0, 1):
        a = memory.copy()
        x, y = a[3:8], a[first : first + 5]
        want = k(x)
        assert np.array_equal(k(x, out=y), want)
        assert len(k._in_place) <= 2


def test_two_outputs_in_two_inputs() -> None:
    a, b = (te.placeholder((N,), "float64", n) for n in "ab")
    s = at.Schedule(
        [a, b, te.compute((N,), lambda i: a[i] * 2.0, "c"), te.compute((N,), lambda i: b[i] + 1.0, "d")]
    )
    k, x, y = at.build(s, threads=1), numbers(), numbers() + 1
    want = k(x, y)
    for first, second in ((x.copy(), y.copy()), (x.copy(), y.copy())):
        got = k(first, second, out=(first, second))
        assert all(map(np.array_equal, got, want))
    first, second = x.copy(), y.copy()
    assert all(map(np.array_equal, k(first, second, out=[first, second]), want))
    with pytest.raises(
        ArgumentError, match=r"output 'c' shares memory with input 'b': c\[c_i\] is written before b"
    ):
        k(x, y, out=(y, x))
    with pytest.raises(
        ArgumentError, match="output 'd' shares memory with output 'c'; give it memory of its own"
    ):
        k(x, y, out=(x, x))


def test_an_array_given_twice() -> None:
    a, b = (te.placeholder((N,), "float64", n) for n in "ab")
    k = at.build(at.Schedule([a, b, te.compute((N,), lambda i: a[i] * 2.0 + b[i], "c")]), threads=1)
    x = numbers()
    want = k(x, x)
    for _ in range(2):
        y = x.copy()
        assert np.array_equal(k(y, y, out=y), want)


def test_tensors() -> None:
    torch = imported("torch")
    k, x = ahead(), numbers()
    want = k(x)
    for _ in range(2):
        t = torch.from_numpy(x.copy())
        version = t._version
        assert k(t, out=t) is t and np.array_equal(t.numpy(), want) and t._version > version


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"z": "x"}, "in_place has 'z', which is no output; it is {output: input}, of y"),
        ({"y": "z"}, "in_place has 'z', which is no input; it is {output: input}, of x"),
        (True, "in_place is True; give {output: input}, as in in_place={'y': 'x'}"),
        ([("y", "x")], "give {output: input}, as in in_place={'y': 'x'}"),
    ],
)
def test_names_that_are_none(pairs: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ahead(in_place=pairs)


def test_arrays_that_lie_otherwise() -> None:
    x = te.placeholder((N,), "float64", "x")
    s = at.Schedule([x, te.compute((N - 1,), lambda i: x[i], "y")])
    with pytest.raises(
        ArgumentError, match=r"which are float64\[36\] and float64\[37\]; give two that lie alike"
    ):
        at.build(s, threads=1, in_place={"y": "x"})


@pytest.mark.slow
def test_the_fastest_record_that_allows_it(tmp_path: Path) -> None:
    x = te.placeholder((64, 33), "float32", "x")
    program = [x, te.compute((64, 33), lambda i, j: x[i, j] + x[te.minimum(i + 1, 63), j], "y")]
    db = tmp_path / "log.db"
    with pytest.raises(at.KernelNotFound):
        at.load(program, db=db, threads=1, in_place={"y": "x"})
    with pytest.warns(UserWarning, match="no tuned schedule allows it that outputs are inputs"):
        k = at.load(program, db=db, threads=1, in_place={"y": "x"}, fallback=True)
    a = np.random.default_rng(0).standard_normal((64, 33)).astype("float32")
    want = k(a)
    at.tune(program, db=db, threads=1, trials=8, seed=1, progress=None)
    tuned = at.load(program, db=db, threads=1, in_place={"y": "x"})
    assert tuned.record is not None and np.array_equal(tuned(a, out=a), want)


def rows_ahead(n: int = 64, m: int = 33) -> list[Any]:
    x = te.placeholder((n, m), "float32", "x")
    return [x, te.compute((n, m), lambda i, j: x[i, j] + x[te.minimum(i + 1, n - 1), j], "y")]


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_a_search_for_it_finds_what_allows_it(tmp_path: Path, two_cpus: None, before: bool) -> None:
    """Iterations of a parallel loop have no order, and are what is fastest, or all that a log has."""
    from autotune.run.in_place import refusal
    from kernels_db.store import Log

    program, db, asked = rows_ahead(), tmp_path / "log.db", {"y": "x"}
    if before:
        at.tune(program, db=db, threads=2, trials=6, seed=3, progress=None)
    found = at.tune(program, db=db, threads=2, trials=6, seed=1, progress=None, in_place=asked)
    assert found.best is not None and found.error is None
    with Log(db) as log:
        records = list(log.records())
    allowed = [r for r in records if refusal(found.workload, found.target, r.trace, asked) is None]
    assert allowed and (before or len(allowed) == len(records))
    assert found.best.record_id in {r.uid for r in allowed}
    k = at.load(program, db=db, threads=2, in_place=asked)
    a = np.random.default_rng(0).standard_normal((64, 33)).astype("float32")
    want = k(a.copy())
    assert np.array_equal(k(a, out=a), want)


@pytest.mark.slow
def test_a_first_pick_for_it(tmp_path: Path, two_cpus: None) -> None:
    program, db, asked = rows_ahead(), tmp_path / "log.db", {"y": "x"}
    found = at.tune(program, db=db, threads=2, trials=0, progress=None, in_place=asked)
    assert found.best is not None
    at.load(program, db=db, threads=2, in_place=asked)
    other = tmp_path / "other.db"
    with pytest.warns(UserWarning, match="no tuned schedule allows it"):
        k = at.load(program, db=other, threads=2, in_place=asked, fallback=True)
    a = np.random.default_rng(0).standard_normal((64, 33)).astype("float32")
    want = k(a.copy())
    assert np.array_equal(k(a, out=a), want)


@pytest.mark.slow
def test_a_search_for_what_no_schedule_allows(tmp_path: Path) -> None:
    x = te.placeholder((N,), "float64", "x")
    y = te.compute((N,), lambda i: x[i] + x[te.maximum(i - 1, 0)] + x[te.minimum(i + 1, N - 1)], "y")
    found = at.tune([x, y], db=tmp_path / "log.db", threads=1, budget_s=6, progress=None, in_place={"y": "x"})
    assert found.best is None and found.measured == 0
    assert found.error is not None and "is written before" in found.error
    assert "no schedule that was looked at allows in_place={'y': 'x'}" in found.error


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"in_place": {"z": "x"}}, ArgumentError, "in_place has 'z', which is no output"),
        ({"in_place": "y=x"}, at.SettingsError, r"in_place is 'y=x'; it must be \{output: input\}, of names"),
        ({"in_place": {"y": "x"}, "target": "cuda-emulator"}, ArgumentError, "arrays that are apart"),
        ({"in_place": {"y": "x"}, "constant_weights": ["x"]}, ArgumentError, "'x' is known ahead"),
    ],
)
def test_what_a_search_cannot_be_asked(tmp_path: Path, more: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        at.tune(rows_ahead(4, 5), db=tmp_path / "log.db", trials=1, progress=None, **{"threads": 1, **more})


@pytest.mark.parametrize("call", [at.tune, at.load])
def test_sizes_that_vary_are_refused(tmp_path: Path, call: Any) -> None:
    more = {"progress": None, "trials": 1} if call is at.tune else {}
    with pytest.raises(ArgumentError, match="in_place is of one size"):
        call("softmax", m=at.dim(1, 9, open=False), n=4, db=tmp_path / "log.db", in_place={"y": "x"}, **more)
