"""Kernels that run again and again in one native call: the results of a loop that calls them."""

from __future__ import annotations

import pickle
import signal
import threading
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import imported

import autotune as at
from autotune.errors import ArgumentError

te = at.te
N = 21


def made(*tensors: Any, vec: bool = False) -> at.Kernel:
    s = at.Schedule(list(tensors))
    if vec:
        s.vectorize(s.split(s.loops(tensors[-1].name)[-1], 8)[1])
    return at.build(s, threads=1)


@cache
def blur(a: str = "a", b: str = "b", n: int = N, vec: bool = False, reach: int = 1) -> at.Kernel:
    """b[i] = (a[i - reach] + a[i] + a[i + 1]) / 3, ends held."""
    x = te.placeholder((n,), "float64", a)

    def value(i: Any) -> Any:
        return (x[te.maximum(i - reach, 0)] + x[i] + x[te.minimum(i + 1, n - 1)]) / 3.0

    return made(x, te.compute((n,), value, b), vec=vec)


@cache
def wave() -> at.Kernel:
    """next = 2 now - before + c (neighbours of now)."""
    u, p = (te.placeholder((N,), "float64", n) for n in ("now", "before"))
    c = te.placeholder((), "float64", "c")

    def value(i: Any) -> Any:
        return 2.0 * u[i] - p[i] + c[()] * (u[te.maximum(i - 1, 0)] - u[te.minimum(i + 1, N - 1)])

    return made(u, p, c, te.compute((N,), value, "next"))


@cache
def field() -> tuple[at.Kernel, at.Kernel]:
    """e += h[i] - h[i - 1]; then h += e[i + 1] - e[i], of the new e. Both may run in place."""
    e, h = (te.placeholder((N,), "float64", n) for n in ("e", "h"))
    first = made(e, h, te.compute((N,), lambda i: e[i] + 0.25 * (h[i] - h[te.maximum(i - 1, 0)]), "e1"))
    e1 = te.placeholder((N,), "float64", "e1")
    second = made(
        h, e1, te.compute((N,), lambda i: h[i] + 0.5 * (e1[te.minimum(i + 1, N - 1)] - e1[i]), "h1")
    )
    return first, second


def numbers(seed: int = 0, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n)


STEPS = st.integers(1, 12)


@given(
    times=STEPS,
    vec=st.booleans(),
    reach=st.sampled_from((0, 1)),
    out=st.sampled_from(("new", "own", "input")),
)
@settings(max_examples=60)
def test_one_kernel(times: int, vec: bool, reach: int, out: str) -> None:
    """With ``reach`` 0 the kernel may run in place, and one array is enough."""
    k = blur(vec=vec, reach=reach)
    x = numbers()
    want = x
    for _ in range(times):
        want = k(want)
    given_ = x.copy()
    to = {"new": None, "own": np.full(N, np.nan), "input": given_}[out]
    got = at.repeat(k, times, swap=[("b", "a")])(given_, out=to)
    assert np.array_equal(got, want) and (to is None or got is to)
    assert out == "input" or np.array_equal(given_, x)


@given(times=STEPS, out=st.sampled_from(("new", "own", "now", "before")))
@settings(max_examples=60)
def test_a_step_that_reads_the_results_of_two(times: int, out: str) -> None:
    k, now, before = wave(), numbers(1), numbers(2)
    u, p = now, before
    for _ in range(times):
        u, p = k(u, p, 0.3), u
    a, b = now.copy(), before.copy()
    to = {"new": None, "own": np.full(N, np.nan), "now": a, "before": b}[out]
    step = at.repeat(k, swap=[("next", "now"), ("now", "before")])
    assert np.array_equal(step(a, b, 0.3, times=times, out=to), u)
    assert out in ("now", "before") or (np.array_equal(a, now) and np.array_equal(b, before))


@given(times=STEPS, shared=st.booleans())
@settings(max_examples=40)
def test_kernels_in_order(times: int, shared: bool) -> None:
    first, second = field()
    e, h = numbers(3), numbers(4)
    a, b = e, h
    for _ in range(times):
        a = first(a, b)
        b = second(b, a)
    step = at.repeat(field(), times, swap=[("e1", "e"), ("h1", "h")])
    x, y = e.copy(), h.copy()
    got = step(x, y, out=(x, y)) if shared else step(e=x, h=y)
    assert isinstance(got, tuple) and np.array_equal(got[0], a) and np.array_equal(got[1], b)


@given(times=STEPS)
@settings(max_examples=20)
def test_a_name_is_an_array(times: int) -> None:
    """Two half steps: the second writes what the first reads in the next step."""
    k1, k2 = blur("a", "b"), blur("b", "a", reach=2)
    x = numbers()
    a = x
    for _ in range(times):
        b = k1(a)
        a = k2(b)
    got = at.repeat([k1, k2], times)(x)
    assert np.array_equal(got[0], b) and np.array_equal(got[1], a)
    y = x.copy()
    at.repeat([k1, k2], times)(y, out=[np.empty(N), y])
    assert np.array_equal(y, a)


def test_many_steps_are_few_native_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.run import repeat as module

    calls = []
    run = module.repeat_program

    def counted(*args: Any) -> int:
        calls.append(args)
        return run(*args)

    monkeypatch.setattr(module, "repeat_program", counted)
    monkeypatch.setattr(module, "SLICE_NS", 10**15)
    at.repeat(blur(), 1000, swap=[("b", "a")])(numbers())
    assert len(calls) == 1
    monkeypatch.setattr(module, "SLICE_NS", 0)  # a look at signals after each of the first steps
    want = at.repeat(blur(), 9, swap=[("b", "a")])(numbers())
    assert len(calls) == 10
    x = numbers()
    for _ in range(9):
        x = blur()(x)
    assert np.array_equal(x, want)


def test_an_interrupt_ends_a_call() -> None:
    class Late(Exception):
        pass

    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Late):
            at.repeat(blur(), 10**12, swap=[("b", "a")])(numbers())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_calls_from_two_threads_are_independent() -> None:
    step = at.repeat(blur(), 500, swap=[("b", "a")])
    want = [step(numbers(n)) for n in range(4)]
    got: dict[int, np.ndarray] = {}
    threads = [threading.Thread(target=lambda n=n: got.__setitem__(n, step(numbers(n)))) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(got[n], want[n]) for n in range(4))


def test_a_call_on_the_same_arrays_finds_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    u, p, out = numbers(1), numbers(2), np.empty(N)
    steps = at.repeat(wave(), swap=(("next", "now"), ("now", "before")))
    made_tables, table = [], type(steps)._table
    monkeypatch.setattr(
        type(steps), "_table", lambda self, *args: made_tables.append(args[-1]) or table(self, *args)
    )
    calls = [(4, u, 0.0), (4, u, 0.0), (4, u, -0.0), (5, u, -0.0), (5, u.copy(), 0.5), (5, u[::1], 0.5)]
    for count, now, c in calls:
        for _ in range(2):
            u += 1.0  # the same arrays, other numbers
            want = at.repeat(wave(), count, (("next", "now"), ("now", "before")))(now.copy(), p, c)
            made_tables.clear()
            assert steps(now, p, c, times=count, out=out) is out
            np.testing.assert_array_equal(out, want)
        assert made_tables == []
    assert len(steps._idle) == 1


def test_a_number_is_told_from_another_of_the_same_value() -> None:
    x, c = te.placeholder((3,), "float64", "x"), te.placeholder((), "float64", "c")
    steps = at.repeat(made(x, c, te.compute((3,), lambda i: x[i] * c[()], "y")), 1)
    ones, out = np.ones(3), np.empty(3)
    assert not np.signbit(steps(ones, 0.0, out=out)).any()
    assert np.signbit(steps(ones, -0.0, out=out)).all()


def test_results_are_not_held() -> None:
    steps = at.repeat(blur(), times=3, swap=[("b", "a")])
    x, out = numbers(), np.empty(N)
    gone = [weakref.ref(x), weakref.ref(out), weakref.ref(steps(x))]
    steps(x, out=out)
    del x, out
    assert [r() for r in gone] == [None] * 3


@pytest.mark.slow
def test_threads_of_a_kernel_are_used(two_cpus: None) -> None:
    x = te.placeholder((64, 33), "float32", "x")
    y = te.compute((64, 33), lambda i, j: x[te.maximum(i - 1, 0), j] * 0.5 + x[i, te.minimum(j + 1, 32)], "y")
    s = at.Schedule([x, y])
    s.parallel("y_i")
    k = at.build(s, threads=2)
    a = np.random.default_rng(0).standard_normal((64, 33)).astype("float32")
    want = a
    for _ in range(7):
        want = k(want)
    assert np.array_equal(at.repeat(k, 7, swap=[(y, x)])(a), want)


def test_pickled() -> None:
    step = pickle.loads(pickle.dumps(at.repeat(blur(), 5, swap=[("b", "a")])))
    assert np.array_equal(step(numbers()), at.repeat(blur(), 5, swap=[("b", "a")])(numbers()))


def test_tensors() -> None:
    torch = imported("torch")
    x = torch.from_numpy(numbers())
    step = at.repeat(wave(), 4, swap=[("next", "now"), ("now", "before")])
    want = step(numbers(), numbers(), 0.5)
    got = step(x, x, torch.tensor(0.5, dtype=torch.float64))
    assert isinstance(got, torch.Tensor) and np.array_equal(got.numpy(), want)
    out = torch.empty(N, dtype=torch.float64)
    version = out._version
    assert step(x, x, 0.5, out=out) is out and np.array_equal(out.numpy(), want) and out._version > version
    with pytest.raises(ArgumentError, match="input 'now' requires a gradient, which would be lost"):
        step(x.clone().requires_grad_(), x, 0.5)


def _one_room(steps: Any, chains: Any) -> Any:
    return [k.code for k in steps._kernels], {c[0] for c in chains}


def _no_copies(steps: Any, arrays: Any, results: Any, count: int) -> Any:
    return list(arrays)


@pytest.mark.parametrize(("name", "changed"), [("_in_place", _one_room), ("_kept", _no_copies)])
def test_an_array_that_is_overwritten_too_soon_is_caught(
    name: str, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at.Repeated, name, changed)
    x, want = numbers(), numbers()
    for _ in range(3):
        want = blur()(want)
    assert not np.array_equal(at.repeat(blur(), 3, swap=[("b", "a")])(x, out=x), want)


WRONG = {
    "no times": (
        lambda: at.repeat(blur(), swap=[("b", "a")])(numbers()),
        "not said how many times; give times=",
    ),
    "zero": (lambda: at.repeat(blur(), 0), "times is 0; give an integer of at least 1"),
    "half": (lambda: at.repeat(blur(), 2.5), "times is 2.5; give an integer"),  # type: ignore[arg-type]
    "none": (lambda: at.repeat([], 3), "there are no kernels to repeat"),
    "no kernel": (lambda: at.repeat(print, 3), "not a builtin_function_or_method"),  # type: ignore[arg-type]
    "list": (lambda: at.repeat([3], 3), "not a int"),  # type: ignore[list-item]
    "name": (lambda: at.repeat(blur(), 3, swap=[("c", "a")]), "swap has 'c', which no kernel has"),
    "turned": (
        lambda: at.repeat(blur(), 3, swap=[("a", "b")]),
        r"'b' is no input of a step; give \(what a step writes, .*\); turn them round",
    ),
    "one pair": (
        lambda: at.repeat(blur(), 3, swap=("b", "a")),
        r"swap is \('b', 'a'\); give a list of pairs",
    ),  # type: ignore[arg-type]
    "a dict": (lambda: at.repeat(blur(), 3, swap={"b": "a"}), "give a list of pairs"),  # type: ignore[arg-type]
    "shapes": (
        lambda: at.repeat(wave(), 3, swap=[("next", "c")]),
        r"one is float64\[21\] and the other float64\[\]",
    ),
    "input": (
        lambda: at.repeat(wave(), 3, swap=[("now", "before")]),
        "nothing writes it; begin with an output",
    ),
    "twice": (
        lambda: at.repeat(wave(), 3, swap=[("next", "now"), ("next", "before")]),
        "'next' becomes two inputs in swap",
    ),
    "from two": (
        lambda: at.repeat(wave(), 3, swap=[("next", "now"), ("before", "now")]),
        "'now' is made of two in swap",
    ),
    "outputs": (lambda: at.repeat([blur(), blur()], 3), "two kernels write 'b' in a step; rename"),
    "differ": (lambda: at.repeat([blur(), blur("b", "c", 5)], 3), "kernels share arrays by name"),
    "count": (lambda: at.repeat(blur(), 3)(numbers(), numbers()), "a step takes a, and 2 arrays were given"),
    "unknown": (lambda: at.repeat(blur(), 3)(q=numbers()), "there is no input 'q'"),
    "both": (lambda: at.repeat(blur(), 3)(numbers(), a=numbers()), "given by its place and by its name"),
    "missing": (lambda: at.repeat(wave(), 3)(numbers()), "before, c not given"),
    "shape": (lambda: at.repeat(blur(), 3)(numbers(n=4)), r"input 'a' has shape \(4,\)"),
    "out": (lambda: at.repeat(blur(), 3)(numbers(), out=()), r"out must be 1 arrays \(b\), got 0"),
    "the same": (
        lambda: at.repeat(blur(), 3)(numbers()),
        "each of 3 steps would do the same: it reads 'a' and writes 'b'; say what becomes what, as in swap=",
    ),
    "a chain": (
        lambda: at.repeat([blur(), blur("b", "c")])(numbers(), times=2),
        "reads 'a' and writes 'b', 'c'",
    ),
    "outs": (
        lambda: at.repeat(field(), 3)(numbers(), numbers(), out=(OUT, OUT)),
        "output 'h1' shares memory with output 'e1'",
    ),
}
OUT = np.empty(N)


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_kernel_of_many_sizes_is_refused() -> None:
    n = at.dim(1, 8)
    x = te.placeholder((n,), "float64", "x")
    k = at.build(at.Schedule([x, te.compute((n,), lambda i: x[i] * 0.5, "y")]), threads=1)
    with pytest.raises(ArgumentError, match="repeat takes kernels of one size for the CPU"):
        at.repeat(k, 3, swap=[("y", "x")])
    assert at.repeat(k.at(n0=3), 2, swap=[("y", "x")])(np.full(3, 4.0)).tolist() == [1.0, 1.0, 1.0]  # type: ignore[attr-defined]
