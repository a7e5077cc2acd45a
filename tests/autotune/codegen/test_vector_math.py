"""Vector math against float64 / long double references: dense grids, special values, no library calls."""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable, Collection

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest

from autotune.codegen.llvm import vector_turns
from autotune.codegen.llvm.vector_math import FUNCTIONS, expand
from schedules.errors import WorkloadError
from schedules.functions import FUNCTIONS as ROWS

Array = npt.NDArray[np.floating]
LANES = (1, 5, 8, 16, 48)  # with AVX-512 the last two have instructions of their own
HOST = frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)
LLVM_TYPE = {"float32": "float", "float64": "double"}
LIMITS = {
    "float32": {"exp": 2.4e-7, "log": 2.4e-7, "tanh": 5e-7, "erf": 5e-7, "sigmoid": 5e-7}
    | {"sin": 8e-8, "cos": 8e-8, "tan": 8e-8, "pow": 8e-8, "log1p": 2.4e-7, "expm1": 1.5e-7}
    | {"exp2": 1.5e-7, "atan2": 2.4e-7}
    | dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "hypot"), 2e-7)
    | dict.fromkeys(("asinh", "acosh", "atanh"), 3.3e-7)
    | dict.fromkeys(("log2", "log10", "cbrt"), 1.1e-7),
    "float64": {"exp": 1e-15, "log": 1e-15, "tanh": 3e-15, "erf": 1e-14, "sigmoid": 3e-15}
    | {"sin": 2e-16, "cos": 2e-16, "tan": 3.5e-16, "pow": 2.2e-16, "log1p": 4e-16, "expm1": 2.6e-16}
    | {"exp2": 2.6e-16, "atan2": 4e-16}
    | dict.fromkeys(("asin", "acos", "atan", "sinh", "cosh", "hypot"), 4e-16)
    | dict.fromkeys(("asinh", "acosh", "atanh"), 6e-16)
    | dict.fromkeys(("log2", "log10", "cbrt"), 2e-16),
}


def _wide(x: Array) -> Array:
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def reference(fn: str, *xs: Array) -> Array:
    """In a wider dtype; exact functions in their own."""
    return ROWS[fn].of(*(map(_wide, xs) if fn in LIMITS["float32"] else xs))


@pytest.fixture(scope="module")
def jit() -> llvm.LLJIT:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(_machine(llvm.get_process_triple(), host=True))


def _machine(triple: str, host: bool = False, cpu: str = "", features: str = "") -> llvm.TargetMachine:
    if host:
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="default")


def _loop(fn: str, dtype: str, lanes: int, features: Collection[str] = HOST) -> str:
    """`void loop(ptr in..., ptr out, i64 vectors)`, dense arrays of `lanes` elements a step."""
    expansion = expand(fn, dtype, lanes, ("%x", "%y")[: ROWS[fn].arity], "v", features)
    element = LLVM_TYPE[dtype]
    vector = element if lanes == 1 else f"<{lanes} x {element}>"
    takes = ", ".join(f"{vector} {n}" for n in ("%x", "%y")[: ROWS[fn].arity])
    size = 4 if dtype == "float32" else 8
    ins = range(ROWS[fn].arity)
    loads = "\n".join(
        f"  %from{i} = getelementptr i8, ptr %in{i}, i64 %at\n"
        f"  %x{i} = load {vector}, ptr %from{i}, align {size}"
        for i in ins
    )
    return "\n".join(
        (
            *expansion.declares,
            f"define private {vector} @function({takes}) alwaysinline nounwind {{",
            *expansion.lines,
            f"ret {vector} {expansion.result}\n}}",
            f"""
define void @loop({", ".join(f"ptr %in{i}" for i in ins)}, ptr %out, i64 %n) {{
entry:
  br label %body
body:
  %i = phi i64 [0, %entry], [%next, %body]
  %at = mul i64 %i, {lanes * size}
{loads}
  %to = getelementptr i8, ptr %out, i64 %at
  %y = call {vector} @function({", ".join(f"{vector} %x{i}" for i in ins)})
  store {vector} %y, ptr %to, align {size}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %body, label %done
done:
  ret void
}}""",
        )
    )


@functools.cache
def _compiled(jit: llvm.LLJIT, fn: str, dtype: str, lanes: int) -> tuple[Callable[..., None], object]:
    """The loop of a function, and the library that holds it."""
    builder = llvm.JITLibraryBuilder().add_ir(_loop(fn, dtype, lanes)).export_symbol("loop")
    library = builder.add_current_process().link(jit, f"{fn}_{dtype}_{lanes}")
    pointers = [ctypes.c_void_p] * (ROWS[fn].arity + 1)
    return ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64)(library["loop"]), library


def _run(jit: llvm.LLJIT, fn: str, lanes: int, *xs: Array) -> Array:
    dtype, size = xs[0].dtype, xs[0].size
    vectors = -(-size // lanes)
    padded = np.zeros((len(xs), vectors * lanes), dtype)
    padded[:, :size] = xs
    out = np.full_like(padded[0], -7.0)
    call, _ = _compiled(jit, fn, str(dtype), lanes)
    call(*(x.ctypes.data for x in padded), out.ctypes.data, vectors)
    return out[:size]


def _grid(fn: str, dtype: str) -> Array:
    """Dense points where the function moves, logarithmic ones everywhere else, down to the denormals."""
    info = np.finfo(dtype)
    wide = {"exp": 750.0, "exp2": 1080.0, "sigmoid": 760.0, "sinh": 750.0, "cosh": 750.0}
    bound = wide.get(fn, 30.0) if dtype == "float64" else 110.0
    low, high = math.log10(float(info.smallest_subnormal)), math.log10(float(info.max)) - 1e-6
    with np.errstate(all="ignore"):
        tiny = (10.0 ** np.linspace(low, high, 6001)).astype(dtype)
        near = np.linspace(-6.0, 6.0, 20011)
        around_one = 1.0 + np.linspace(-1e-3, 1e-3, 2001)
        wide = np.linspace(-bound, bound, 20011)
        quarters = np.arange(-9001, 9001) * np.longdouble(math.pi / 4)
    return np.concatenate([tiny, -tiny, *(x.astype(dtype) for x in (near, around_one, wide, quarters))])


def _arguments(fn: str, dtype: str) -> list[Array]:
    """The grid; of two arguments, each with others of it, and powers that are neither 0 nor infinite."""
    x = _grid(fn, dtype)
    if ROWS[fn].arity == 1:
        return [x]
    rng = np.random.default_rng(0)
    most = np.log2(np.finfo(dtype).max)
    with np.errstate(all="ignore"):
        fitting = rng.uniform(-1.1, 1.1, x.size) * most / np.log2(np.abs(x.astype(np.float64)))
    y = np.concatenate([rng.permutation(x), fitting.astype(dtype), np.round(fitting).astype(dtype)])
    return [np.tile(x, 3), y]


@pytest.mark.fast("*-float32-16", "*-float64-5")
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_accuracy_over_dense_grid(jit: llvm.LLJIT, fn: str, dtype: str, lanes: int) -> None:
    xs = _arguments(fn, dtype)
    got = _run(jit, fn, lanes, *xs)
    with np.errstate(all="ignore"):
        expected = reference(fn, *xs)
        rounded = expected.astype(dtype)
        if fn not in LIMITS[dtype]:
            np.testing.assert_array_equal(got, rounded)
            return
        error = np.abs(got.astype(expected.dtype) - expected)
        # Below the normal range a result has fixed spacing: allow one step of it.
        allowed = LIMITS[dtype][fn] * np.abs(expected) + np.finfo(dtype).smallest_subnormal
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    worst = int(np.argmax(np.where(finite, error - allowed, -np.inf)))
    assert error[worst] <= allowed[worst], (
        f"{fn}({', '.join(repr(x[worst]) for x in xs)}) = {got[worst]!r}, not {expected[worst]!r}"
    )


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", [fn for fn in FUNCTIONS if ROWS[fn].arity == 1])
def test_special_values(jit: llvm.LLJIT, fn: str, dtype: str, lanes: int) -> None:
    inf, nan, big = math.inf, math.nan, float(np.finfo(dtype).max)
    x = np.array([inf, -inf, nan, 0.0, -0.0, -1.0, big, -big], dtype)
    whole: list[float | None] = [inf, -inf, nan, 0.0, -0.0, -1.0, big, -big]
    expectations: dict[str, list[float | None]] = {
        "exp": [inf, 0.0, nan, 1.0, 1.0, None, inf, 0.0],
        "log": [inf, nan, nan, -inf, -inf, nan, None, nan],
        "sqrt": [inf, nan, nan, 0.0, -0.0, nan, None, nan],
        "tanh": [1.0, -1.0, nan, 0.0, -0.0, None, 1.0, -1.0],
        "erf": [1.0, -1.0, nan, 0.0, -0.0, None, 1.0, -1.0],
        "sigmoid": [1.0, 0.0, nan, 0.5, 0.5, None, 1.0, 0.0],
        "abs": [inf, inf, nan, 0.0, 0.0, 1.0, big, big],
        "sin": [nan, nan, nan, 0.0, -0.0, None, None, None],
        "cos": [nan, nan, nan, 1.0, 1.0, None, None, None],
        "tan": [nan, nan, nan, 0.0, -0.0, None, None, None],
        "log1p": [inf, nan, nan, 0.0, -0.0, -inf, None, nan],
        "expm1": [inf, -1.0, nan, 0.0, -0.0, None, inf, -1.0],
        "exp2": [inf, 0.0, nan, 1.0, 1.0, 0.5, inf, 0.0],
        "floor": whole, "ceil": whole, "round": whole, "trunc": whole,
        "tf32": [inf, -inf, nan, 0.0, -0.0, -1.0, None, None],
        "asin": [nan, nan, nan, 0.0, -0.0, None, nan, nan],
        "acos": [nan, nan, nan, None, None, None, nan, nan],
        "atan": [None, None, nan, 0.0, -0.0, None, None, None],
        "sinh": [inf, -inf, nan, 0.0, -0.0, None, inf, -inf],
        "cosh": [inf, inf, nan, 1.0, 1.0, None, inf, inf],
        "asinh": [inf, -inf, nan, 0.0, -0.0, None, None, None],
        "acosh": [inf, nan, nan, nan, nan, nan, None, nan],
        "atanh": [nan, nan, nan, 0.0, -0.0, -inf, nan, nan],
        "log2": [inf, nan, nan, -inf, -inf, nan, None, nan],
        "log10": [inf, nan, nan, -inf, -inf, nan, None, nan],
        "cbrt": [inf, -inf, nan, 0.0, -0.0, -1.0, None, None],
    }
    got = _run(jit, fn, lanes, x)
    for value, result, want in zip(x.tolist(), got.tolist(), expectations[fn], strict=True):
        if want is None:
            continue
        same = math.isnan(result) if math.isnan(want) else result == want
        assert same, f"{fn}({value}) = {result}, expected {want}"
        if want == 0.0:
            assert math.copysign(1.0, result) == math.copysign(1.0, want), f"sign of {fn}({value})"


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_special_values(jit: llvm.LLJIT, dtype: str, lanes: int) -> None:
    info = np.finfo(dtype)
    values = [0, 1, 2, 3, 0.5, 2.5, 1e9, 2.0**24 + 2, math.inf, info.tiny, info.smallest_subnormal, info.max]
    some = np.array([*values, *(-v for v in values), math.nan], dtype)
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(some, some))
    with np.errstate(all="ignore"):
        expected = reference("pow", x, y).astype(dtype)
    got = _run(jit, "pow", lanes, x, y)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[got == 0]))
    np.testing.assert_allclose(got, expected, rtol=info.eps, atol=info.smallest_subnormal)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_powers_are_whole(jit: llvm.LLJIT, dtype: str) -> None:
    info = np.finfo(dtype)
    n = np.arange(info.minexp - info.nmant, info.maxexp)
    np.testing.assert_array_equal(_run(jit, "log2", 8, np.exp2(n.astype(np.float64)).astype(dtype)), n)
    n = np.arange(11 if dtype == "float32" else 23)  # which floats have
    np.testing.assert_array_equal(_run(jit, "log10", 8, (10.0**n).astype(dtype)), n)
    cubes = np.arange(-100, 101).astype(dtype)
    np.testing.assert_array_equal(_run(jit, "cbrt", 8, cubes**3), cubes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_quotients_of_any_size(jit: llvm.LLJIT, dtype: str, lanes: int) -> None:
    info = np.finfo(dtype)
    values = [0, 1, 3, 0.1, 2.0**26 - 1, 2.0**26 + 1, 1e30, math.inf, info.tiny, info.smallest_subnormal]
    values += [3 * info.smallest_subnormal, info.max, info.max / 3]
    some = np.array([*values, *(-v for v in values), math.nan], dtype)
    rng = np.random.default_rng(0)
    kind = np.dtype(f"u{some.itemsize}")
    bits = rng.integers(0, np.iinfo(kind).max, (2, 5000), kind, endpoint=True).view(dtype)
    x, y = (np.append(v.ravel(), w) for v, w in zip(np.meshgrid(some, some), bits, strict=True))
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    got = _run(jit, "fmod", lanes, x, y)
    np.testing.assert_array_equal(got, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_arguments_are_reduced_by_all_of_pi(
    jit: llvm.LLJIT, dtype: str, lanes: int
) -> None:
    """What is left of them depends on the thousandth bit of 2/pi."""
    rng = np.random.default_rng(0)
    exponents = rng.integers(10, np.finfo(dtype).maxexp, 4000)
    x = np.ldexp(rng.uniform(-1, 1, 4000).astype(dtype), exponents.astype(np.int32))
    # the numbers that come nearest to a multiple of pi/2, and to the end of the vector path
    nearest = [6381956970095103 * 2.0**797] if dtype == "float64" else [16367173 * 2.0**72]
    end = np.array(vector_turns.NEAR, dtype)
    x = np.concatenate([x, nearest, [np.nextafter(end, 0), end, np.nextafter(end, 1e9)]]).astype(dtype)
    for fn in ("sin", "cos", "tan"):
        expected = reference(fn, x).astype(dtype)
        np.testing.assert_allclose(_run(jit, fn, lanes, x), expected, rtol=np.finfo(dtype).eps * 1.5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounded_functions_stay_in_their_range(jit: llvm.LLJIT, dtype: str) -> None:
    x = np.linspace(-12, 12, 200_003).astype(dtype)
    for fn in ("tanh", "erf", "sin"):
        got = _run(jit, fn, 8, x)
        assert np.all(np.abs(got) <= 1.0), fn
        np.testing.assert_array_equal(got, -_run(jit, fn, 8, -x))
    sigmoid = _run(jit, "sigmoid", 8, x)
    assert np.all((sigmoid >= 0.0) & (sigmoid <= 1.0))


@pytest.mark.parametrize("lanes", [8, 16])
def test_exp_underflows_gradually_and_overflows_at_the_limit(jit: llvm.LLJIT, lanes: int) -> None:
    x = np.array([-103.0, -103.9, -103.98, -150.0, 88.72283, 88.72284, 89.5], np.float32)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    got = _run(jit, "exp", lanes, x)
    np.testing.assert_allclose(got, expected, rtol=2.4e-7, atol=1.5e-45)
    assert got[0] > 0.0 and np.isinf(got[5]) and np.isfinite(got[4])


@pytest.mark.parametrize("lanes", [8, 16, 32])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_every_magnitude(jit: llvm.LLJIT, dtype: str, lanes: int) -> None:
    # the argument reduction has nothing left of arguments far outside: the result is exact all the same
    info = np.finfo(dtype)
    powers = np.exp2(np.arange(10, info.maxexp)).astype(dtype)
    mantissas = np.random.default_rng(1).uniform(1, 2, (40, 1)).astype(dtype)
    x = (powers * mantissas).ravel()
    np.testing.assert_array_equal(_run(jit, "exp", lanes, x), np.full_like(x, np.inf))
    np.testing.assert_array_equal(_run(jit, "exp", lanes, -x), np.zeros_like(x))
    small = np.concatenate([x**-1, -(x**-1), [info.tiny, -info.smallest_subnormal]]).astype(dtype)
    np.testing.assert_allclose(_run(jit, "exp", lanes, small), 1 + small, rtol=2e-6)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", ["exp", "sigmoid", "sin", "tan"])
def test_neighbours_in_a_vector_change_nothing(jit: llvm.LLJIT, fn: str, dtype: str, lanes: int) -> None:
    # one lane whose result is not normal sends the whole vector the long way
    x = np.random.default_rng(0).uniform(-80, 80, lanes * 4000).astype(dtype)
    mixed = x.copy()
    mixed[3::lanes] = np.resize(
        np.array([-1e4, np.nan, np.inf, -np.inf, 1e4, 720.0, -740.0, 1e6, -3e30], dtype), 4000
    )
    alone, together = _run(jit, fn, lanes, x), _run(jit, fn, lanes, mixed)
    keep = np.arange(x.size) % lanes != 3
    np.testing.assert_array_equal(together[keep], alone[keep])
    with np.errstate(all="ignore"):
        expected = reference(fn, mixed[~keep]).astype(dtype)
    np.testing.assert_allclose(together[~keep], expected, rtol=1e-6, atol=float(np.finfo(dtype).tiny))


TARGETS = {
    "x86-64-v2": ("x86_64-unknown-linux-gnu", "x86-64-v2", ""),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ""),
}


@pytest.mark.fast("float32-16-x86-64-v3", "float64-5-x86-64-v4", "float64-1-aarch64")
@pytest.mark.parametrize("lanes, target", [(n, t) for t in TARGETS for n in (1, 5, 16)] + [(48, "x86-64-v4")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_library_calls(dtype: str, lanes: int, target: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, features = TARGETS[target]
    machine = _machine(triple, cpu=cpu, features=features)
    for fn in FUNCTIONS:
        own = {"avx512f"} if cpu == "x86-64-v4" else ()
        module = llvm.parse_assembly(_loop(fn, dtype, lanes, own))
        module.triple = triple
        module.verify()
        calls = _calls(machine.emit_assembly(module))
        assert not calls, f"{fn} calls {calls}"


def _calls(assembly: str) -> set[str]:
    """Everything called or tail-called by name or through a register, local labels aside."""
    return set(re.findall(r"^\s+(?:callq?|blr?|jmpq?|b)\s+([A-Za-z_*]\S*)\s*$", assembly, re.MULTILINE))


def test_the_call_detector_sees_a_library_call() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = (
        "declare <8 x float> @llvm.exp.v8f32(<8 x float>)\n"
        "define <8 x float> @f(<8 x float> %x) {\n"
        "  %y = call <8 x float> @llvm.exp.v8f32(<8 x float> %x)\n  ret <8 x float> %y\n}\n"
    )
    module = llvm.parse_assembly(text)
    assembly = _machine("x86_64-unknown-linux-gnu", cpu="x86-64-v3").emit_assembly(module)
    assert _calls(assembly) == {"expf@PLT"}


def test_an_expansion_has_names_of_its_own() -> None:
    other = expand("tanh", "float32", 8, ["%y"], "t7.")
    assert other.result.startswith("%t7.") and not any("%v" in line for line in other.lines)


def test_unknown_requests_are_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="gamma"):
        expand("gamma", "float32", 8, ["%x"], "v")
    with pytest.raises(WorkloadError, match="int32"):
        expand("exp", "int32", 8, ["%x"], "v")
    with pytest.raises(WorkloadError, match="0 lanes"):
        expand("exp", "float32", 0, ["%x"], "v")
