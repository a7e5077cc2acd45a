"""Code generation: bounds at inaccessible pages, special values, structure of the code of known targets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, execute, expected, host, inputs, same
from programs import conv2d, make, matmul, max_pool, permute

from autotune.backends.building.from_trace import build_object, emit_module
from autotune.codegen.llvm import emit
from autotune.codegen.llvm.compile import assembly
from autotune.errors import CompileError
from schedules import ops, te
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

# what the targets of the golden tests may use: nothing of this machine
X86 = ("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87", "avx", "avx2", "fma")
HASWELL = Target("cpu", "haswell", "x86_64-unknown-linux-gnu", tuple(sorted(X86)), 1, (("vector_bytes", 32),))
AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "evex512")
SKYLAKE = Target(
    "cpu",
    "skylake-avx512",
    "x86_64-unknown-linux-gnu",
    tuple(sorted((*X86, *AVX512))),
    1,
    (("vector_bytes", 64),),
)
ARM = Target("cpu", "cortex-a72", "aarch64-unknown-linux-gnu", ("neon",), 1, (("vector_bytes", 16),))


def tiled(s: Schedule, rows: int, columns: int, lanes: int) -> None:
    """A register tile of rows x columns, accumulated in place of C over all of k."""
    s.cache_write("C", "local")
    s.tile(["C_i", "C_j"], [rows, columns])
    s.reorder("C_i_0", "C_j_0", "C_k", "C_i_1", "C_j_1")
    s.reverse_compute_at("C_write", "C_j_0")
    s.decompose_reduction("C", "C_k")
    for inner, outer in (("C_j_1", "C_i_1"), ("C_j_1_init", "C_i_1_init"), ("C_write_ax1", "C_write_ax0")):
        v = s.split(inner, [None, lanes])
        s.unroll(outer)
        s.unroll(v[0])
        s.vectorize(v[1])
    s.partition("C_i_0")
    s.partition("C_j_0")


def kernel_of(dag: ComputeDAG, do: Callable[[Schedule], object], target: Target) -> str:
    s = Schedule(dag)
    do(s)
    return assembly(emit_module(dag, s.trace, target).text, target)


def loops(asm: str) -> list[list[str]]:
    """Instructions of the innermost loops: from a label to the branch back to it."""
    found: list[list[str]] = []
    lines = [x.split("#")[0].split("//")[0].strip() for x in asm.splitlines()]
    at = {x[:-1]: n for n, x in enumerate(lines) if re.fullmatch(r"\.LBB\d+_\d+:", x)}
    for n, x in enumerate(lines):
        m = re.match(r"(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s+(\.LBB\d+_\d+)$", x)
        if m and at.get(m[1], n) < n:
            body = lines[at[m[1]] + 1 : n]
            if not any(y.endswith(":") for y in body):
                found.append([y for y in body if y and not y.startswith(".")])
    return found


def hottest(asm: str, mnemonic: str) -> list[str]:
    return max(loops(asm), key=lambda b: sum(x.startswith(mnemonic) for x in b))


def test_a_6x16_matmul_keeps_12_accumulators_in_avx2_registers() -> None:
    asm = kernel_of(matmul(m=24, n=64, k=40), lambda s: tiled(s, 6, 16, 8), HASWELL)
    body = hottest(asm, "vfmadd")
    text = "\n".join(body)
    assert sum(x.startswith("vfmadd") for x in body) == 12, text
    assert all("ymm" in x for x in body if x.startswith("vfmadd")), text
    assert "%rsp" not in text and "%rbp" not in text, text
    assert not any(re.match(r"vmov[au]p[sd]\s+%ymm", x) and x.endswith(")") for x in body), text
    assert len(body) <= 26, text  # 12 multiply-adds, 6 broadcasts, 2 loads, and the loop


def test_a_tail_of_the_6x16_matmul_stays_out_of_its_middle() -> None:
    asm = kernel_of(matmul(m=25, n=70, k=40), lambda s: tiled(s, 6, 16, 8), HASWELL)
    assert any(
        sum(x.startswith("vfmadd") for x in b) == 12 and not any("%rsp" in x for x in b) for b in loops(asm)
    )


@pytest.mark.parametrize(("steps", "inside"), [(4, 0), (64, 2 * 64 - 12)])
def test_what_a_loop_leaves_alone_is_loaded_before_it_while_registers_last(steps: int, inside: int) -> None:
    """Of a tile whose reduction is written out, A's elements are the same for every block of columns."""

    def written_out(s: Schedule) -> None:
        tiled(s, 2, 8, 8)
        s.unroll("C_k")

    body = hottest(kernel_of(matmul(m=64, n=512, k=steps), written_out, HASWELL), "vfmadd")
    text = "\n".join(body)
    assert sum(x.startswith("vfmadd") for x in body) == 2 * steps, text
    assert "%rsp" not in text and "%rbp" not in text, text
    assert sum(x.startswith("vbroadcast") for x in body) == inside, text


def test_multiply_adds_take_turns_before_masked_stores() -> None:
    """A product written out whole whose last columns are masked: no accumulator has all of its chain beside
    its store, where each step waits for the one before."""
    sizes = {"ci": 16, "co": 128, "h": 16, "w": 16, "kh": 1, "kw": 1}
    target = replace(SKYLAKE, limits=(("vector_bytes", 64), ("vector_registers", 32)))
    space = derive(ops.workload("conv2d", sizes).dag, target)
    k = space.sketches.index("y.pack=root y.unroll=yes")
    of = {"y.vec": 48, "y.x1": 2, "y.x2": 4, "y.x1.mid": 4, "y.x2.mid": 2, "y.x3.mid": 1, "y.steps": 1}
    row = np.array([of.get(h, 0) for h in space.holes(k)])
    assert space.valid(k, row[None])[0]
    asm = assembly(emit_module(space.dag, space.trace(k, row), target).text, target)
    sums = [x.split(",")[-1] for x in asm.splitlines() if "vfmadd" in x and "zmm" in x]
    assert len(sums) >= 3 * 8 * 16
    assert sum(a == b for a, b in pairwise(sums)) < len(sums) // 10


def test_avx512_uses_its_registers() -> None:
    asm = kernel_of(matmul(m=16, n=64, k=40), lambda s: tiled(s, 8, 32, 16), SKYLAKE)
    body = hottest(asm, "vfmadd")
    text = "\n".join(body)
    assert sum(x.startswith("vfmadd") and "zmm" in x for x in body) == 16, text
    assert "%rsp" not in text, text


def test_arm_compiles() -> None:
    try:
        asm = kernel_of(matmul(m=8, n=16, k=10), lambda s: tiled(s, 4, 8, 4), ARM)
    except CompileError as err:
        if "no code generator" in str(err):
            pytest.skip(f"this llvmlite has no AArch64 back end: {err}")
        raise
    assert sum("fmla" in x for x in hottest(asm, "fmla")) == 8


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "erf", "sigmoid", "sqrt", "floor", "abs"])
@pytest.mark.parametrize("lanes", [None, 5])
def test_no_library_calls(fn: str, lanes: int | None) -> None:
    x = te.placeholder((17,), "float32", "X")
    dag = te.dag([x, te.compute((17,), lambda i: getattr(te, fn)(x[i]), "Y")])
    s = Schedule(dag)
    if lanes:
        s.vectorize(s.split("Y_i", [None, lanes])[1])
    asm = assembly(emit_module(dag, s.trace, HASWELL).text, HASWELL)
    assert not re.findall(r"call\w*\s+(?!\.?L?body)\w*(?:expf?|logf?|tanhf?|erff?|floorf?|sqrtf?|pow)\b", asm)
    data = [np.linspace(-3, 8, 17, dtype=np.float32)]
    (want,) = evaluate(dag, data)
    for (got,) in execute(dag, s.trace, host(), data).values():
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=1e-6, equal_nan=True)


SCHEDULES: dict[str, tuple[Callable[[], ComputeDAG], Callable[[Schedule], object]]] = {
    "tile with tails": (lambda: matmul(m=7, n=19, k=5), lambda s: tiled(s, 3, 8, 4)),
    "odd lanes": (matmul, lambda s: (s.reorder("C_k", "C_j"), s.vectorize("C_j"))),
    "lanes over the reduction": (lambda: matmul(k=13), lambda s: s.vectorize(s.split("C_k", [None, 4])[1])),
    "gather": (permute, lambda s: s.vectorize(s.split("Y_k", [None, 3])[1])),
    "scatter": (permute, lambda s: (s.reorder("Y_k", "Y_i"), s.vectorize(s.split("Y_i", [None, 4])[1]))),
    "border in lanes": (max_pool, lambda s: (s.reorder("Y_z", "Y_o", "Y_u", "Y_v"), s.vectorize("Y_v"))),
    "padding stage at a tile": (
        conv2d,
        lambda s: (s.tile(["Y_y", "Y_z"], [2, 3]), s.compute_at("P", "Y_z_0"), s.vectorize("P_ax2")),
    ),
    "packed": (
        lambda: matmul(n=9),
        lambda s: (
            s.cache_read("C", "B"),
            s.pack("B_global", [0, 4], [1, 0, 2]),
            s.vectorize("B_global_p2"),
            s.split("C_j", [None, 4]),
            s.reorder("C_k", "C_j_1"),
            s.vectorize("C_j_1"),
        ),
    ),
    "shifted tail": (
        lambda: make("chain"),
        lambda s: [s.vectorize(s.split(f"{b}_j", [None, 4], "shift")[1]) for b in "abcd"],
    ),
    "several parallel loops": (
        lambda: make("layer_norm"),
        lambda s: [s.parallel(f"{b}_i") for b in ("total", "mean", "dev", "Y")],
    ),
    "buffers of each thread": (
        lambda: make("normalize"),
        lambda s: (s.compute_at("total", "Y_i"), s.compute_at("e", "Y_i"), s.compute_at("top", "Y_i"),
                   s.parallel("Y_i")),
    ),
}  # fmt: skip


@pytest.mark.fast("64-2-*", "16384-1-*")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stack", [64, 16384])
def test_nothing_outside_arrays_is_touched(
    name: str, threads: int, stack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays and scratch end, or begin, at inaccessible pages; outputs start as NaN."""
    monkeypatch.setattr(emit, "STACK_BYTES", stack)
    program, do = SCHEDULES[name]
    dag = program()
    s = Schedule(dag)
    do(s)
    data = inputs(dag)
    check_compiled(dag, s.trace, host(threads), data, expected(dag, data))


SPECIAL = np.array([1.0, np.nan, -np.inf, -0.0, np.inf, 3.0, np.nan, 2.0, 0.0, -1.0], np.float32)


@pytest.mark.parametrize("lanes", [1, 3, 4])
@pytest.mark.parametrize("op", ["maximum", "minimum", "max", "min"])
def test_extremes_hand_nan_on(op: str, lanes: int) -> None:
    x, y = te.placeholder((10, 10), "float32", "X"), te.placeholder((10,), "float32", "Z")
    k = te.reduce_axis(10, "k")
    if op in ("max", "min"):
        out = te.compute((10,), lambda i: getattr(te, op)(x[i, k] + y[k], axis=k), "Y")
    else:
        out = te.compute((10,), lambda i: getattr(te, op)(x[i, 0], y[i]), "Y")
    dag = te.dag([x, y, out])
    s = Schedule(dag)
    if lanes > 1:
        s.vectorize(s.split("Y_k" if op in ("max", "min") else "Y_i", [None, lanes])[1])
    data = [np.stack([np.roll(SPECIAL, n) for n in range(10)]), SPECIAL[::-1].copy()]
    with np.errstate(invalid="ignore"):
        (want,) = evaluate(dag, data)
    for place, got in execute(dag, s.trace, host(), data).items():
        same(got, [want], place)
    same(expected(dag, data), [want], "interpreter")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("lanes", [None, 4])
def test_integers_wrap_and_divide_downwards(dtype: str, lanes: int | None) -> None:
    n = 13
    x, y = te.placeholder((n,), dtype, "X"), te.placeholder((n,), dtype, "Z")
    outs = [
        te.compute((n,), lambda i: x[i] * x[i] + y[i], "wrap"),
        te.compute((n,), lambda i: x[i] // y[i], "quotient"),
        te.compute((n,), lambda i: x[i] % y[i], "rest"),
        te.compute((n,), lambda i: x[i] // te.const(4, dtype) + x[i] % te.const(4, dtype), "power"),
        te.compute((n,), lambda i: x[i] // te.const(-3, dtype) - x[i] % te.const(-3, dtype), "negative"),
    ]
    dag = te.dag([x, y, *outs])
    s = Schedule(dag)
    if lanes:
        for b in s.blocks():
            s.vectorize(s.split(f"{b}_i", [None, lanes])[1])
    big = np.iinfo(dtype).max
    a = np.array([7, -7, 7, -7, 0, ~big, -big, 1, -1, 6, -6, 100, -100], dtype)
    b = np.array([2, 2, -2, -2, 5, -1, 3, big, big, 0, 3, 7, -7], dtype)
    with np.errstate(over="ignore", divide="ignore"):
        want = [a * a + b, a // b, a % b, a // 4 + a % 4, a // -3 - a % -3]
    for place, got in execute(dag, s.trace, host(), [a, b]).items():
        same(got, want, place)
    same(expected(dag, [a, b]), want, "interpreter")


def test_tensor_names_are_free() -> None:
    """No name of a tensor meets a name that the generator makes."""
    names = ["t", "args", "scratch", "ctx", "tid", "thread", "first", "v1", "c0", "s0", "in_t_i", "entry"]
    tensors = [te.placeholder((4,), "float32", n) for n in names]
    out = te.compute((4,), lambda i: sum((x[i] for x in tensors[1:]), tensors[0][i]), "kernel")
    dag = te.dag([*tensors, out])
    s = Schedule(dag)
    s.parallel("kernel_i")
    data = inputs(dag)
    check_compiled(dag, s.trace, host(2), data, expected(dag, data))


def test_lanes_that_share_an_element_accumulate_one_after_another() -> None:
    dag = matmul()
    s = Schedule(dag)
    s.vectorize(s.fuse("C_j", "C_k"))
    data = inputs(dag)
    check_compiled(dag, s.trace, host(), data, expected(dag, data))


def test_objects_are_reproducible() -> None:
    dag = matmul()
    s = Schedule(dag)
    tiled(s, 2, 4, 4)
    assert build_object(dag, s.trace, host()) == build_object(dag, s.trace, host())


def test_values_of_many_expanded_functions_have_names_of_their_own() -> None:
    """The tenth value of one and the first of another may not be one name."""
    x = te.placeholder((64,), "float64", "x")
    dag = te.dag([x, te.compute((64,), lambda i: te.exp(x[i]), "y")])
    s = Schedule(dag)
    s.unroll("y_i")
    build_object(dag, s.trace, host())


def test_a_guard_may_come_true_in_an_unrolled_iteration_around_a_parallel_loop() -> None:
    """Elements that are computed in two ways, by a condition on the unrolled loop; each part has vectors."""
    x = te.placeholder((4, 5, 2), "float32", "x")
    y = te.compute((6, 5, 2), lambda i, j, c: te.select(te.all(i >= 1, i < 5), x[i - 1, j, c], 0.0), "y")
    dag = te.dag([x, y])
    s = Schedule(dag)
    i, j, _ = s.loops("y")
    s.parallel(j)
    s.unroll(i)
    data = inputs(dag)
    check_compiled(dag, s.trace, host(2), data, expected(dag, data))


def test_scalars_are_chosen_by_a_vector_of_conditions() -> None:
    x = te.placeholder((16,), "int32", name="x")
    one, other = te.const(3, "int32"), te.const(5, "int32")
    dag = te.dag([x, te.compute((16,), lambda i: te.select(x[i] < 1, one, other), "y")])
    s = Schedule(dag)
    s.vectorize(s.loops("y")[0])
    data = inputs(dag)
    check_compiled(dag, s.trace, host(), data, expected(dag, data))


@pytest.mark.parametrize("tail", ["shift", "guard"])
@pytest.mark.parametrize(
    ("dtype", "other"),
    [("float32", 0.0), ("float32", -np.inf), ("float64", 1.5), ("int32", -7), ("int64", 3), ("float16", 0.0)],
)
def test_a_vector_or_a_constant_is_loaded_without_a_branch(dtype: str, other: float, tail: str) -> None:
    """Nothing before or after the array is touched: pages there are inaccessible."""
    x = te.placeholder((4, 19), dtype, "x")

    def row(i: te.Expr, j: te.Expr) -> te.Expr:
        return te.select(te.all(i >= 0, i < 4), x[i, j], te.const(other, dtype))

    y = te.compute((6, 19), lambda i, j: te.maximum(row(i - 3, j), row(i - 1, j)), "y")
    dag = te.dag([x, y])
    s = Schedule(dag)
    _, inner = s.split("y_j", (None, 8), tail)
    s.vectorize(inner)
    data = inputs(dag)
    check_compiled(dag, s.trace, host(), data, expected(dag, data))
    assert "ptr @constant." in emit_module(dag, s.trace, host()).text


def test_a_select_branches_only_where_a_side_reads_what_the_condition_does_not() -> None:
    """Of a leaky rectifier and of the place of an extreme all has been read."""
    x = te.placeholder((16,), name="x")
    for read, branches in ((lambda i: x[i], False), (lambda i: x[15 - i], True)):
        dag = te.dag([x, te.compute((16,), lambda i, f=read: te.select(x[i] > 0, f(i), x[i] * 0.5), "y")])
        assert ("phi float" in emit_module(dag, Schedule(dag).trace, host()).text) == branches
        data = inputs(dag)
        check_compiled(dag, Schedule(dag).trace, host(), data, expected(dag, data))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("lanes", [None, 4])
def test_casts_are_cut_off_at_the_ends_of_integers(dtype: str, source: str, lanes: int | None) -> None:
    """By kernels, the interpreter and the reference alike: else no such operator could be tuned."""
    values = [1.9, -1.9, 2e9, -2e9, 2.0**31, -(2.0**31), 3e9, -3e9, 2.0**63, -(2.0**63), 1e25, -1e25]
    data = [np.array([*values, np.inf, -np.inf, np.nan, 0.0], source)]
    a = te.placeholder((16,), source, name="A")
    dag = te.dag([a, te.compute((16,), lambda i: te.cast(a[i], dtype), "C")])
    s = Schedule(dag)
    if lanes:
        s.vectorize(s.split("C_i", (None, lanes))[1])
    info = np.iinfo(dtype)
    exact = [0 if x != x else min(max(x, info.min), info.max) for x in data[0].tolist()]
    want = [np.array([int(x) for x in exact], dtype)]
    same(evaluate(dag, data), want, "the reference")
    check_interpreted(s.nest, dag, data, want)
    check_compiled(dag, s.trace, host(), data, want)


def test_copies_of_an_unrolled_loop_do_not_use_up_the_stack() -> None:
    """Each has rows of its own; what is too much together goes to scratch memory."""
    n = 700
    a = te.placeholder((n, 4000), name="A")
    x = te.compute((n, 4000), lambda i, j: a[i, j] + 1.0, "X")
    dag = te.dag([a, te.compute((n, 4000), lambda i, j: x[i, j] - x[i, 3999 - j], "Y")])
    s = Schedule(dag)
    s.compute_at("X", "Y_i")
    s.unroll(s.split("Y_i", (2, None))[1])
    for name in ("X", "Y"):
        s.vectorize(s.split(s.loops(name)[-1], (None, 16))[1])
    text = emit_module(dag, s.trace, host()).text
    stack = [int(x) for x in re.findall(r"alloca \[(\d+) x float\]", text)]
    assert 4 * sum(stack) <= emit.MOST_STACK_BYTES and "getelementptr i8, ptr %scratch" in text
