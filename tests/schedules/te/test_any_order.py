"""Reducers of users' own that depend on order are refused, with the values; right ones are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import WorkloadError

N = 7
INF = te.inf
Q = te.reduce_axis(N, "q")
A, B, C = (te.placeholder((4, N), "float64", n) for n in "ABC")
F, K = te.placeholder((4, N), "float32", "F"), te.placeholder((4, N), "int32", "K")
B1 = te.const(1, "float64")
ZERO = te.const(0, "float64")


def use(identity: Any, combine: Callable[..., Any], values: Callable[[Any], Any], name: str = "own") -> Any:
    return te.compute((4,), lambda i: te.reducer(identity, combine, name)(values(i), axis=Q))


def rescaled(x: Any, y: Any) -> Any:
    top = te.maximum(x[0], y[0])
    return top, x[1] * te.exp(x[0] - top) + y[1] * te.exp(y[0] - top)


def welford(x: Any, y: Any) -> Any:
    n, far = x[0] + y[0], y[1] - x[1]
    some = te.maximum(n, 1.0)
    return n, x[1] + far * y[0] / some, x[2] + y[2] + far * far * x[0] * y[0] / some


def guarded_welford(x: Any, y: Any) -> Any:
    n, far = x[0] + y[0], y[1] - x[1]
    mean = te.select(n > 0.0, (x[1] * x[0] + y[1] * y[0]) / n, 0.0)
    return n, mean, te.select(n > 0.0, x[2] + y[2] + far * far * x[0] * y[0] / n, 0.0)


def first_largest(x: Any, y: Any) -> Any:
    wins = te.any(x[1] > y[1], te.all(te.equal(x[1], y[1]), x[0] < y[0]))
    return te.select(wins, x[0], y[0]), te.select(wins, x[1], y[1])


def top_two(x: Any, y: Any) -> Any:
    return te.maximum(x[0], y[0]), te.maximum(te.minimum(x[0], y[0]), te.maximum(x[1], y[1]))


def low_two(x: Any, y: Any) -> Any:
    return te.minimum(x[0], y[0]), te.minimum(te.maximum(x[0], y[0]), te.minimum(x[1], y[1]))


LOWEST = lambda i, v: (te.max_value(i), -INF)  # noqa: E731
ONE32 = te.const(1, "float32")

RIGHT: dict[str, tuple[Any, Callable[..., Any], Callable[[Any], Any]]] = {
    "largest, of equals the first": (LOWEST, first_largest, lambda i: (te.cast(Q, "int32"), A[i, Q])),
    "largest, of equals any": (
        LOWEST,
        lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])),
        lambda i: (te.cast(Q, "int32"), A[i, Q]),
    ),
    "the same of parts": (LOWEST, first_largest, lambda i: (K[i, Q], A[i, Q])),
    "sums of exponentials": ((-1e30, 0), rescaled, lambda i: (F[i, Q], ONE32)),
    "the same from -inf": ((-INF, 0), rescaled, lambda i: (F[i, Q], ONE32)),
    "the same under a mask": ((-INF, 0), rescaled, lambda i: (te.select(K[i, Q] > 2, F[i, Q], -INF), ONE32)),
    "log of a sum of exponentials": (
        (-INF,),
        lambda x, y: (te.maximum(x[0], y[0]) + te.log1p(te.exp(-te.abs(x[0] - y[0]))),),
        lambda i: F[i, Q],
    ),
    "moments": ((0, 0, 0), welford, lambda i: (B1, A[i, Q], ZERO)),
    "moments of parts": ((0, 0, 0), guarded_welford, lambda i: (A[i, Q], B[i, Q], C[i, Q])),
    "moments under a mask": (
        (0, 0, 0),
        guarded_welford,
        lambda i: (te.cast(K[i, Q] > 2, "float64"), A[i, Q], ZERO),
    ),
    "the two largest": ((-INF, -INF), top_two, lambda i: (A[i, Q], te.const(-INF, "float64"))),
    "the two largest of parts": ((-INF, -INF), top_two, lambda i: (A[i, Q], B[i, Q])),
    "the two least of parts": ((INF, INF), low_two, lambda i: (A[i, Q], B[i, Q])),
    "complex product": (
        (1, 0),
        lambda x, y: (x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]),
        lambda i: (A[i, Q], B[i, Q]),
    ),
    "largest size": ((0,), lambda x, y: (te.maximum(te.abs(x[0]), te.abs(y[0])),), lambda i: A[i, Q]),
    "bits": ((0,), lambda x, y: (x[0] ^ y[0],), lambda i: K[i, Q]),
    "a constant is counted": ((0,), lambda x, y: (x[0] + y[0],), lambda i: B1),
    "length": ((0,), lambda x, y: (te.sqrt(x[0] * x[0] + y[0] * y[0]),), lambda i: F[i, Q]),
}
WRONG: dict[str, tuple[Any, Callable[..., Any], Callable[[Any], Any]]] = {
    "recurrence": (
        (1, 0),
        lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]),
        lambda i: (A[i, Q], B[i, Q]),
    ),
    "difference": ((0,), lambda x, y: (x[0] - y[0],), lambda i: A[i, Q]),
    "counts what it meets": ((0,), lambda x, y: (x[0] + 1,), lambda i: K[i, Q]),
    "adds up squares": ((0,), lambda x, y: (x[0] + y[0] * y[0],), lambda i: F[i, Q]),
    "identity is added": ((1,), lambda x, y: (x[0] + y[0],), lambda i: A[i, Q]),
    "mean of two": ((0,), lambda x, y: ((x[0] + y[0]) / 2.0,), lambda i: A[i, Q]),
    "the last": ((0,), lambda x, y: (y[0],), lambda i: K[i, Q]),
    "product of matrices": (
        (1, 0, 0, 1),
        lambda x, y: tuple(x[2 * i] * y[j] + x[2 * i + 1] * y[2 + j] for i in (0, 1) for j in (0, 1)),
        lambda i: (A[i, Q], B[i, Q], C[i, Q], A[i, Q] + 1.0),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_reducers_are_taken(name: str) -> None:
    use(*RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_reducers_that_depend_on_order_are_refused(name: str) -> None:
    with pytest.raises(WorkloadError, match=r"te.own depends on order: a = .*b = .*c = .* give .* but"):
        use(*WRONG[name])


def test_the_values_that_are_shown_are_a_case() -> None:
    with pytest.raises(WorkloadError, match=r"a = 1, b = 3, c = 4 give -8, but a joined with b and c 6\."):
        use(*WRONG["difference"])


@settings(max_examples=60)
@given(p=st.integers(-2, 2), q=st.integers(-2, 2), r=st.integers(-2, 2), dtype=st.sampled_from(["f", "i"]))
def test_what_is_taken_is_the_same_in_any_order(p: int, q: int, r: int, dtype: str) -> None:
    """Of ``p x + q y + r x y`` from 0: taken just where all orders and groupings of numbers agree."""

    def f(x: Any, y: Any) -> Any:
        return p * x + q * y + r * x * y

    def total(*xs: int) -> int:
        out = 0
        for x in xs:
            out = f(out, x)
        return out

    right = all(
        len({total(*o) for o in itertools.permutations(xs)}) == 1
        and f(total(xs[0]), total(*xs[1:])) == f(total(*xs[:2]), total(xs[2])) == total(*xs)
        for xs in itertools.product(range(1, 4), repeat=3)
    )
    values = (lambda i: F[i, Q]) if dtype == "f" else (lambda i: K[i, Q])
    if right:
        use((0,), lambda x, y: (f(x[0], y[0]),), values)
    else:
        with pytest.raises(WorkloadError, match="depends on order"):
            use((0,), lambda x, y: (f(x[0], y[0]),), values)


def test_reductions_of_the_language_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*_: object) -> None:
        raise AssertionError("tried")

    monkeypatch.setattr("schedules.te.language.check_any_order", tried)
    for reduction in (te.sum, te.prod, te.max, te.min):
        te.compute((4,), lambda i, r=reduction: r(A[i, Q], axis=Q))
