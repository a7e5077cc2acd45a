"""Functions of floating point, and conditions on it, mean on every backend what they mean to numpy, within
the bounds that `te` states: special values, and random bits."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from backends import blank, results
from grid_cases import need_cxx, program
from grid_cases import sampled as sampled_on_grid
from helpers import execute, host, interpret

from autotune.codegen.simt import cuda, emulator, nvrtc
from autotune.measure.check import Checker
from autotune.measure.inputs import judged
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Expr, show
from schedules.expr_json import from_json, to_json
from schedules.functions import FUNCTIONS
from schedules.ir.nest import initial
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

# {name: (expression of x and y, its meaning by numpy)}.
Meaning = tuple[Callable[[Expr, Expr], Expr], Callable[..., np.ndarray]]


def row(name: str, arity: int) -> Meaning:
    """What a row of the table says."""
    return lambda *of: getattr(te, name)(*of[:arity]), lambda *of: FUNCTIONS[name].of(*of[:arity])


CASES: dict[str, Meaning] = {
    **{name: row(name, r.arity) for name, r in FUNCTIONS.items()},
    "square": (lambda x, y: x**2, lambda x, y: x**2),
    "cube": (lambda x, y: te.pow(x, 3), lambda x, y: x**3),
    "inverse": (lambda x, y: x**-1.0, lambda x, y: 1 / x),
    "base": (lambda x, y: 2.5**y, lambda x, y: np.power(2.5, y)),
    "rsqrt": (lambda x, y: te.rsqrt(x), lambda x, y: 1 / np.sqrt(x)),
    "clip": (lambda x, y: te.clip(x, -1.5, y), lambda x, y: np.clip(x, -1.5, y)),
    "isnan": (lambda x, y: te.isnan(x), lambda x, y: np.isnan(x)),
    "isfinite": (lambda x, y: te.isfinite(x), lambda x, y: np.isfinite(x)),
}
# Largest error, in ulp, of those for which it is not 2.
MOST_ULP = {"tanh": 3, "sigmoid": 4, "erf": 8, "asinh": 3, "acosh": 3, "atanh": 3}
MOST_ULP |= (
    {"asin": 1.25, "acos": 1.25}
    | dict.fromkeys(("log2", "log10", "cbrt"), 1)
    | dict.fromkeys(("fmod", "trunc", "tf32"), 0)
)
# Of C's libraries, where theirs is larger.
MOST_ULP_OF_C = {"log10": 2, "cbrt": 4, "sinh": 3, "cosh": 3, "log2": 2}


def special(dtype: str) -> np.ndarray:
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, info.tiny, info.eps, 0.5, 1, 1.5, 2, 2.5, 3, 17, 88.7, 104, 709.8]
    sizes += [50000, 2.0**23 + 0.5, 2.0**24 + 2, 1e9, 1e22, 3e38, info.max, math.inf]
    return np.array([*sizes, *(-v for v in sizes), math.nan], dtype)


def data(dtype: str, n: int) -> list[np.ndarray]:
    """All pairs of special values, numbers of ordinary size, and random bits, in all ``n`` numbers."""
    rng = np.random.default_rng(0)
    x, y = (v.ravel() for v in np.meshgrid(special(dtype), special(dtype)))
    rest = n - len(x)
    kind = np.dtype(f"u{np.dtype(dtype).itemsize}")
    out = []
    for each in (x, y):
        bits = rng.integers(0, np.iinfo(kind).max, rest // 2, kind, endpoint=True).view(dtype)
        ordinary = (rng.standard_normal(rest - len(bits)) * 10).astype(dtype)
        out.append(np.concatenate([each, bits, ordinary]))
    return out


def dag_of(dtype: str, n: int) -> ComputeDAG:
    """All cases, of one element each."""
    x, y = te.placeholder((n,), dtype, "x"), te.placeholder((n,), dtype, "y")
    body = [f for f, _ in CASES.values()]
    return te.dag([x, y, *te.compute((n,), lambda i: tuple(f(x[i], y[i]) for f in body), list(CASES))])


def in_vectors(dag: ComputeDAG, lanes: int) -> Trace:
    s = Schedule(dag, host())
    _, inner = s.split(s.loops(dag.outputs[0])[0], (None, lanes), "shift")
    s.vectorize(inner)
    return s.trace


class Right:
    """Numpy's results in a wider dtype. Outputs may be `MOST_ULP` from them, or 2; infinities, NaN and zeros
    must be the same. Which zero is the larger is open."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays, dtype = arrays, arrays[0].dtype
        wide = np.float64 if dtype == np.float32 else np.longdouble
        self.cases = []
        with np.errstate(all="ignore"):
            for _, f in CASES.values():
                exact = f(*(a.astype(wide) for a in arrays))
                want = exact if exact.dtype == bool else exact.astype(dtype)
                steps = 0 if exact.dtype == bool else np.spacing(np.abs(want)).astype(wide)
                self.cases.append((exact, want, steps))

    def check(self, outputs: Sequence[np.ndarray], what: str, since: int = 0) -> None:
        """Raise AssertionError unless outputs are right, for the numbers from ``since`` on."""
        looser = MOST_ULP_OF_C if what == "the emulator" else {}
        for name, got, case in zip(CASES, outputs, self.cases, strict=True):
            exact, want, step = (x if np.ndim(x) == 0 else x[since:] for x in case)
            same = (got == want) | ((got != got) & (want != want))
            if got.dtype != bool:
                with np.errstate(all="ignore"):
                    same |= np.abs(got - exact) <= looser.get(name, MOST_ULP.get(name, 2)) * step
                same &= (np.signbit(got) == np.signbit(want)) | (got != 0) | (name == "clip")
            bad = np.flatnonzero(~same)
            if len(bad):
                at = [a[since:][bad[0]] for a in self.arrays]
                raise AssertionError(
                    f"{name} by {what}: {len(bad)} wrong, first of {at}: {got[bad[0]]}, not {want[bad[0]]}"
                )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_function_of_special_values_and_random_bits(dtype: str) -> None:
    arrays = data(dtype, 100_003)
    right, n = Right(arrays), len(arrays[0])
    dag = dag_of(dtype, n)
    for what, trace in (("scalars", Trace(())), ("vectors", in_vectors(dag, 16))):
        for at, got in execute(dag, trace, host(), arrays).items():
            right.check(got, f"{what}, arrays at {at}")
    few = [a[-2000:] for a in arrays]
    small = dag_of(dtype, 2000)
    right.check(interpret(lower(initial(small)), small, few), "the interpreter", n - 2000)
    need_cxx()
    p = program(dag, next(sampled_on_grid(dag, 1))[1])
    outputs = blank(dag)
    assert emulator.run(emulator.build(p), p, [*arrays, *outputs]) is None
    right.check(outputs, "the emulator")
    if nvrtc.available():
        nvrtc.compile_cubin(cuda.source(p), "sm_80")


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_random_bits_by_the_interpreter(dtype: str) -> None:
    arrays = data(dtype, 100_003)
    dag = dag_of(dtype, 100_003)
    Right(arrays).check(interpret(lower(initial(dag)), dag, arrays), "the interpreter")


def uncertain(n: int) -> ComputeDAG:
    """All cases of arguments that are rounded before."""
    x, y = te.placeholder((n,), "float32", "x"), te.placeholder((n,), "float32", "y")
    z = te.compute((n,), lambda i: x[i] * y[i] + x[i], "z")
    body = [f for f, _ in CASES.values()]
    return te.dag([x, y, *te.compute((n,), lambda i: tuple(f(z[i], y[i]) for f in body), list(CASES))])


@pytest.mark.slow
@pytest.mark.parametrize("ordinary", [True, False])
def test_every_backend_lies_inside_the_bound(ordinary: bool) -> None:
    """OpenCL too, whose functions may be less accurate. What is far outside of it is found."""
    rng = np.random.default_rng(0)
    n = 801 if ordinary else 2501
    arrays = [rng.uniform(0.1, 4, n).astype("float32") for _ in "xy"] if ordinary else data("float32", n)
    dag = uncertain(n) if ordinary else dag_of("float32", n)
    right = judged(dag, arrays)
    checker = Checker(dag.outputs, right.reference, right.bounds)
    for what, outputs in results(dag, arrays):
        if what != "the reference":
            reason = checker.check(outputs, 0).reason
            assert not reason, f"{what}: {reason}"
    if ordinary:
        for n, (name, x) in enumerate(zip(CASES, right.reference, strict=True)):
            wrong = [v.copy() for v in right.reference]
            wrong[n] = ~x if x.dtype == bool else x + (np.abs(x) * np.float32(1e-3) + np.float32(1e-5))
            assert name in checker.check(wrong, 0).reason


def test_halves_are_rounded_to_even_and_stored_floats_by_way_of_float32() -> None:
    data = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.375], "float32")
    x = te.placeholder((7,), "float16", "x")
    outs = te.compute((7,), lambda i: (te.round(x[i]), te.ceil(x[i]), te.cast(te.sin(x[i]), "float16")), "y")
    dag = te.dag([x, *outs])
    assert [t.dtype for t in outs] == ["float32", "float32", "float16"]
    half = data.astype("float16")
    want = [np.round(data), np.ceil(data), np.sin(half.astype("float64")).astype("float16")]
    for what, got in results(dag, [half], devices=False):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=what)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b), err_msg=what)


# --- what is written --------------------------------------------------------------------------


def value(f: Callable[..., Expr], *dtypes: str) -> Expr:
    xs = [te.placeholder((4,), d, c) for d, c in zip(dtypes, "xyz", strict=False)]
    return te.compute((4,), lambda i: f(*(x[i] for x in xs))).op.values[0]  # type: ignore[no-any-return]


SHOWN: list[tuple[Callable[..., Expr], tuple[str, ...], str]] = [
    (lambda x: x**2, ("float32",), "x[i] * x[i]"),
    (lambda x: x**0.5, ("float32",), "pow(x[i], 0.5)"),
    (lambda x: 2**x, ("float32",), "pow(2.0, x[i])"),
    (lambda x: x**0, ("float64",), "1.0"),
    (lambda x: x**5, ("int64",), "x[i] * x[i] * (x[i] * x[i]) * x[i]"),
    (lambda x: x**2, ("float16",), "float32(x[i]) * float32(x[i])"),
    (lambda x: te.rsqrt(x), ("float32",), "1.0 / sqrt(x[i])"),
    (lambda x: te.isfinite(x), ("float32",), "abs(x[i]) < inf"),
    (lambda x: te.isnan(x), ("int32",), "False"),
    (lambda x: ~x & 7 | 1 << x, ("int32",), "(x[i] ^ -1) & 7 | 1 << x[i]"),
    (lambda x: (x | 1) & (x + 1 << 2) ^ 3, ("int32",), "(x[i] | 1) & x[i] + 1 << 2 ^ 3"),
    (lambda x, y: te.cast(~(x & (y > 0)) ^ x, "int8"), ("bool", "int8"), ""),
    (lambda x: x << 0 | 0, ("int32",), "x[i]"),
]


@pytest.mark.parametrize("f, dtypes, text", SHOWN)
def test_expressions_are_shown_and_kept(f: Callable[..., Expr], dtypes: tuple[str, ...], text: str) -> None:
    e = value(f, *dtypes)
    assert show(e) == text or not text
    plain = from_json(to_json(e))
    assert from_json(to_json(plain)) == plain and show(plain) == show(e)


def test_places_of_axes_are_arithmetic() -> None:
    x = te.placeholder((16,), "float32", "x")
    y = te.compute((8,), lambda i: x[i << 1] + x[i >> 1] + x[i & 3] + x[~i + 15], "y")
    assert show(y.op.values[0]) == "x[i * 2] + x[i // 2] + x[i % 4] + x[-1 - i + 15]"
    a = np.arange(16, dtype="float32")
    i = np.arange(8)
    for what, got in results(te.dag([x, y]), [a], devices=False):
        np.testing.assert_array_equal(got[0], a[i << 1] + a[i >> 1] + a[i & 3] + a[~i + 15], err_msg=what)


REFUSED: list[tuple[Callable[..., Expr], tuple[str, ...], str]] = [
    (lambda x: te.sin(x), ("int32",), "te.sin needs a floating-point expression, got dtype int32; use"),
    (lambda x: te.left_shift(x, 1), ("float32",), "te.left_shift: operator '<<' needs integers, got float32"),
    (lambda x: x & 1.0, ("float64",), "operator '&' needs integers, got float64; cast first"),
    (lambda x: ~x, ("float32",), "needs integers"),
    (lambda x, y: x << y, ("int32", "int64"), "different dtypes, int32 and int64; convert one with te.cast"),
    (lambda x, y: te.pow(x, y), ("float32", "float64"), "te.pow: operands have different dtypes"),
    (lambda x, y: x**y, ("int32", "int32"), "a power of int32 needs a literal exponent from 0 to 64; cast"),
    (lambda x: x**-1, ("int8",), "a power of int32 needs a literal exponent from 0 to 64; cast first"),
    (lambda x: x**65, ("int64",), "a power of int64 needs a literal exponent from 0 to 64"),
]


@pytest.mark.parametrize("f, dtypes, message", REFUSED)
def test_other_operands_are_refused(f: Callable[..., Expr], dtypes: tuple[str, ...], message: str) -> None:
    with pytest.raises(WorkloadError) as err:
        value(f, *dtypes)
    assert message in str(err.value)


def test_bits_of_axes_that_are_no_arithmetic_are_refused() -> None:
    x = te.placeholder((16,), "float32", "x")
    for f in (lambda i: x[i ^ 1], lambda i: x[i & 5], lambda i: x[1 << i], lambda i: x[i << -1]):
        with pytest.raises(WorkloadError, match="of an axis: only literals may shift it"):
            te.compute((4,), f)


def test_json_of_other_functions_is_refused() -> None:
    call = to_json(te.pow(te.const(2.0, "float32"), te.const(0.5, "float32")))
    assert call[:2] == ["call", "pow"] and to_json(from_json(call)) == call
    for bad in (["call", "pow", call[2]], ["call", "sin", call[2], call[2]], ["call", "gamma", call[2]]):
        with pytest.raises(ValueError, match="arguments, not|unknown function"):
            from_json(bad)


def test_type_checkers_and_editors_see_the_functions_of_the_table() -> None:
    tree = ast.parse(inspect.getsource(te))
    seen = {
        n.target.id: ast.unparse(n.annotation)
        for n in ast.walk(tree)
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    kinds = {1: "OneInput", 2: "TwoInputs"}
    assert seen == {row.name: kinds[row.arity] for row in FUNCTIONS.values() if row.doc}
