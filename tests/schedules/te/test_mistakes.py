"""What is said of mistakes: the thing, the reason and the remedy. What has one meaning is done."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules import te
from schedules.dtypes import DTYPES, NUMBERS, computed, is_float
from schedules.errors import WorkloadError
from schedules.expr import numpys
from schedules.functions import FUNCTIONS

X, Q = te.placeholder((4, 4), "float64", "X"), te.reduce_axis(4, "q")
F, K, U = (te.placeholder((4,), t, n) for t, n in (("float32", "F"), ("int32", "K"), ("uint8", "U")))
A = te.placeholder((), "float32", "a")
WHOLE_BODY = "te.sum over q must be the whole body of a te.compute: give it a stage of its own"
NO_ARRAY = r"tensor X\[4, 4\] float64 is no array .* te.compute"


def total(i: Any) -> Any:
    return te.sum(X[i, Q], axis=Q)


def below(i: Any) -> Any:
    return te.sum(X[i, Q], axis=te.reduce_axis(i, "r"))


def value(fn: Callable[[Any], Any]) -> np.ndarray:
    """A stage's values where its inputs are -2, -1, 0, 1 (of uint8: 254, 255, 0, 1)."""
    y = te.compute((4,), fn, "y")
    read = te.inputs([y])
    return te.evaluate(te.dag([*read, y]), [np.arange(-2, 2).astype(t.dtype) for t in read])[0]


IN_A_STAGE: list[tuple[Callable[[Any], Any], str]] = [
    (lambda i: np.arctan2(F[i], 1.0), "stage y: arctan2 of an expression; .*: take te.atan2$"),
    (lambda i: np.clip(F[i], 0.0, 1.0), "stage y: clip of an expression; .*: take te.clip$"),
    (lambda i: np.heaviside(F[i], 1.0), "stage y: heaviside of an expression; .*: take te.exp, te.maximum"),
    (lambda i: np.add.reduce(F[i]), "stage y: add of an expression"),
    (lambda i: F[i].exp(), "stage y: exp of an expression; .*: take te.exp$"),
    (lambda i: F[i].astype("int32"), "stage y: astype of an expression; .*: take te.cast$"),
    (lambda i: A * F[i], r"tensor a\[\] float32 is no array .*: its one element is a\[\(\)\]"),
    (lambda i: X[i + 1], r"has 2 dimensions but is indexed with 1: \[i \+ 1\]; give one index for each"),
    (lambda i: F[i] + te.cast(F[i], "float64"), r"different dtypes, float32 .*te.cast\(x, 'float64'\)"),
    (lambda i: F[i] + K[i], r"different dtypes, float32 and int32; .*te.cast\(x, 'float32'\)"),
    (lambda i: K[i] * F[i], r"different dtypes, int32 and float32; .*te.cast\(x, 'float32'\)"),
    (lambda i: math.sin(F[i]), "stage y: .*real number.*: take te.exp, te.maximum"),
    (lambda i: int(F[i]), "stage y: .*real number.*: take te.exp, te.maximum, te.cast"),
    (lambda i: F[i] * np.ones(4), r"stage y: an array of shape \(4,\) .*: make it an input and index it$"),
    (lambda i: np.ones(4) * F[i], r"stage y: an array of shape \(4,\) .*: make it an input and index it$"),
    (
        lambda i: te.const(F[i], "int32"),
        r"te.const makes a literal of a number, got F\[i\]; use te.cast",
    ),
    (lambda i: F[i] ** "2", "stage y: '2' .* cannot be part of an expression"),
    (lambda i: F[i] ** total(i), f"^stage y: {WHOLE_BODY} and read that stage's result$"),
    (lambda i: np.exp(total(i)), WHOLE_BODY),
    (lambda i: abs(total(i)), WHOLE_BODY),
    (lambda i: total(i) ** 2, WHOLE_BODY),
    (lambda i: te.sqrt(total(i)), f"^{WHOLE_BODY}[^;]*$"),
    (lambda i: te.abs(total(i)), f"^{WHOLE_BODY}[^;]*$"),
    (lambda i: te.maximum(total(i), 0.0), f"^{WHOLE_BODY} and read that stage's result$"),
    (lambda i: te.const(1.5, "float64") * total(i), f"^stage y: {WHOLE_BODY} and read that stage's result$"),
    (lambda i: te.sum(total(i), axis=Q), f"^{WHOLE_BODY} and read that stage's result$"),
    (lambda i: round(F[i], 2), r"te.round\(x \* 100.0\) / 100.0"),
    (lambda i: i + K[i], r"index and int32; convert one with te.cast\(x, 'int32'\)"),
    (lambda i: K[i] + i, r"int32 and index; convert one with te.cast\(x, 'int32'\)"),
    (lambda i: te.select(F[i] > 0.0, 2**40, 0) + K[i], "out of the range of int32"),
    (below, "'q' is a reduction axis and has no meaning here"),
]


@pytest.mark.parametrize(("fn", "said"), IN_A_STAGE)
def test_a_mistake_in_a_stage(fn: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        te.compute((4,), fn, "y")


ANYWHERE: list[tuple[Callable[[], Any], str]] = [
    (lambda: np.sum(X), NO_ARRAY + r", as in te.sum\(X\[i, k\], axis=k\)$"),
    (lambda: np.mean(X), NO_ARRAY),
    (lambda: np.exp(X), "te.exp takes its elements in a te.compute, as in X"),
    (lambda: np.arctan2(X, 1.0), "te.atan2 takes its elements in a te.compute, as in X"),
    (lambda: np.concatenate([X, X]), NO_ARRAY),
    (lambda: np.ones(4) * X, NO_ARRAY),
    (lambda: abs(X), NO_ARRAY),
    (lambda: te.sum(X, axis=Q), r"te.sum reduces elements, .* as in te.sum\(X\[i, q\], axis=q\)"),
    (lambda: te.max(X, axis=(Q, te.reduce_axis(4, "p"))), r"as in te.max\(X\[q, p\], axis=\(q, p\)\)"),
    (lambda: te.sum(X), r"as in te.sum\(X\[i, j\], axis=...\)"),
    (lambda: te.cast(F[0], X), r"te.cast takes elements, and tensor X"),
    (lambda: te.sum(1, axis=Q), "got 1; use te.const"),
    (lambda: te.placeholder((4,), "ushort", "z"), r"'ushort' is not one of .* \(did you mean 'uint16'\?\)"),
    (lambda: te.placeholder((4,), np.longdouble, "z"), "; float64 has all its values$"),
    (lambda: te.cast(F[0], "uint64"), r"; int64 has its values below 2\*\*63, and x.view\('int64'\) "),
    (lambda: te.placeholder((4,), "complex128", "z"), "; keep real and imaginary parts in a tensor each"),
    (lambda: te.placeholder((4,), np.complex64, "z"), "; keep real and imaginary parts in a tensor each"),
    (lambda: te.reduce_axis((5, 1), "q"), "reduce_axis q: it has no points from 5 to below 1$"),
    (lambda: te.reduce_axis((1, 2, 3), "q"), r"reduce_axis q: \(1, 2, 3\) is not \(first, end\)$"),
    (lambda: te.reduce_axis(K[0]), r"reduce_axis: the end K\[0\] depends on data, .* te.select$"),
]


@pytest.mark.parametrize(("fn", "said"), ANYWHERE)
def test_a_mistake_anywhere(fn: Callable[[], Any], said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        fn()


def test_a_mistake_of_another_kind_in_a_stage_is_told_as_python_does() -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'nope'"):
        te.compute((4,), lambda i: F[i] + (3).nope, "y")  # type: ignore[attr-defined]


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"te has no 'arctan2' \(did you mean 'atan2'\?\); it has"):
        te.arctan2  # noqa: B018
    with pytest.raises(AttributeError, match="te has no 'gamma'; it has .*abs, .*tanh, .*with_strides$"):
        te.gamma  # noqa: B018


def test_names_of_other_libraries_lead_to_names_of_te() -> None:
    assert set(te.__all__) >= numpys.SAME | set(numpys.ELSEWHERE.values()) | numpys.REDUCTIONS
    assert not set(te.__all__) & set(numpys.ELSEWHERE)
    assert all(isinstance(getattr(np, name), np.ufunc) for name in numpys.OPERATORS)
    functions = ({f.name for f in FUNCTIONS.values()} - {"tf32"}) | {"where", "clip", "sum", "select"}
    assert functions <= numpys.SAME


UFUNCS = [f for f in vars(np).values() if isinstance(f, np.ufunc) and f.nout == 1 and f.signature is None]


@pytest.mark.parametrize("ufunc", {f.__name__: f for f in UFUNCS}.values(), ids=lambda f: f.__name__)
def test_every_function_of_numpy_is_an_operator_or_refused(ufunc: np.ufunc) -> None:
    """Of elements and of tensors, beside numbers on either side."""
    name = ufunc.__name__
    rest = [2.0] * (ufunc.nin - 1)
    if name in ("equal", "not_equal"):
        assert ufunc(F[0], *rest) == ufunc(X, *rest) == (name == "not_equal")
        return
    with pytest.raises(WorkloadError, match="is no array that can be computed with"):
        ufunc(X, *rest)
    if name not in numpys.OPERATORS:
        told = f"te.{numpys.word(name)}$" if numpys.word(name) else "te.exp, te.maximum, te.cast and so on$"
        with pytest.raises(WorkloadError, match=f"{name} of an expression; .*: take {told}"):
            te.compute((4,), lambda i: ufunc(F[i], *rest))
        return
    for x, two in ((F, 2.0), (K, np.int32(2))):
        for both in ((0, two), (two, 0)):
            forward, _ = numpys.OPERATORS[name]

            def apply(f: Callable[..., Any], both: Any = both, x: Any = x) -> Any:
                try:
                    return f(*(x[0] if v == 0 else v for v in both))
                except TypeError as err:
                    return str(err)

            assert apply(ufunc) == apply(getattr(operator, f"__{forward}__"))


@pytest.mark.parametrize("name", [n for n in dir(math) if callable(getattr(math, n)) and n[0] != "_"])
def test_every_function_of_math_works_or_is_refused(name: str) -> None:
    """floor and ceil are protocols of numbers."""
    fn = getattr(math, name)

    def of(i: Any) -> Any:
        try:
            return fn(F[i])
        except TypeError as err:
            if "takes" in str(err) or "expected" in str(err):
                return fn(F[i], F[i])
            raise

    if name in ("floor", "ceil"):
        want = getattr(np, name)(np.arange(-2, 2) * 0.75)
        assert np.array_equal(value(lambda i: fn(F[i] * 0.75)), want)
        return
    with pytest.raises(WorkloadError, match="^stage y: "):
        te.compute((4,), of, "y")


OF_ELEMENTS = [n for n in te.__all__ if hasattr(getattr(te, n), "__wrapped__")]


def test_functions_of_elements_are_known_as_such() -> None:
    assert {*numpys.SAME, "cast", "const", "max_value"} <= {*OF_ELEMENTS, *numpys.REDUCTIONS}


@pytest.mark.parametrize("name", [*OF_ELEMENTS, *sorted(numpys.REDUCTIONS)])
def test_every_function_says_one_thing_of_tensors_and_of_reductions(name: str) -> None:
    fn = getattr(te, name)
    params = inspect.signature(fn).parameters.values()
    count = sum(p.default is p.empty for p in params) if len(params) > 1 else 1
    first = F[0] > 0.0 if name in ("select", "where") else F[0]
    tensor = (X, r"tensor X.* is a tensor; .*X\[i, j\]")
    for at in range(count):
        for wrong, said in (tensor, (total(0), f"^{WHOLE_BODY} and read .* result$")):
            args = [first, *[F[0]] * (count - 1)]
            args[at] = wrong
            with pytest.raises(WorkloadError, match=said):
                fn(*args)


def test_a_tensor_is_no_arrays_equal() -> None:
    assert X in [np.ones(3), X]
    assert X != np.ones(3)


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (lambda i: abs(F[i]), [2.0, 1.0, 0.0, 1.0]),
        (lambda i: abs(K[i]), [2, 1, 0, 1]),
        (lambda i: abs(U[i]), [254, 255, 0, 1]),
        (lambda i: +F[i], [-2.0, -1.0, 0.0, 1.0]),
        (lambda i: round(F[i] / 4.0 + 1.0), [0.0, 1.0, 1.0, 1.0]),
        (lambda i: round(K[i]), [-2, -1, 0, 1]),
        (lambda i: F[abs(i - 2)], [0.0, -1.0, -2.0, -1.0]),
    ],
)
def test_what_python_has_for_numbers(fn: Callable[[Any], Any], want: list[float]) -> None:
    assert value(fn).tolist() == want


@given(
    dtype=st.sampled_from(NUMBERS),
    picks=st.lists(st.integers(-100, 100), min_size=3, max_size=3),
    op=st.sampled_from([lambda a, b: a + b, lambda a, b: a * b, te.minimum]),
    first=st.booleans(),
)
def test_literals_that_are_chosen_have_the_dtype_that_they_meet(
    dtype: str, picks: list[int], op: Callable[[Any, Any], Any], first: bool
) -> None:
    """As one literal would: ``te.select(cond, 1, 0) + x`` as ``1 + x`` or ``0 + x``."""
    a, b, c = picks
    if dtype == "uint8":
        a, b, c = abs(a), abs(b), abs(c)
    x, wide = te.placeholder((4,), dtype, "x"), computed(dtype)

    def chosen(i: Any) -> Any:
        return te.select(F[i] > 0.0, te.select(K[i] > 0, a, b), c)

    def joined(i: Any) -> Any:
        return op(chosen(i), x[i]) if first else op(x[i], chosen(i))

    def each(i: Any) -> Any:
        one = lambda n: op(te.const(n, wide), x[i]) if first else op(x[i], te.const(n, wide))  # noqa: E731
        return te.select(F[i] > 0.0, te.select(K[i] > 0, one(a), one(b)), one(c))

    got, want = te.compute((4,), joined, "y"), te.compute((4,), each, "y")
    assert got.dtype == want.dtype and got.dtype in (dtype, computed(dtype))
    assert is_float(got.dtype) == is_float(dtype)
    arrays = {
        t: np.array([-1, 1, 2, 3]).astype(DTYPES[t.dtype].numpy)
        for t in {*te.inputs([got]), *te.inputs([want])}
    }
    results = []
    for y in (got, want):
        read = te.inputs([y])
        results.append(te.evaluate(te.dag([*read, y]), [arrays[t] for t in read])[0])
    assert np.array_equal(*results)


def test_what_takes_programs_says_how_tensors_become_one() -> None:
    y = te.compute((4,), lambda i: F[i] + 1.0, "y")
    for call, who in (
        (lambda: te.with_strides([F, y], {"y": (2,)}), "te.with_strides"),  # type: ignore[arg-type]
        (lambda: te.evaluate([F, y], [np.zeros(4, "float32")]), "te.evaluate"),  # type: ignore[arg-type]
    ):
        with pytest.raises(WorkloadError, match=rf"{who} takes a program, not a list; give it te.dag\("):
            call()
