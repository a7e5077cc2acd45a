"""Products on the matrix units of GPUs: what sketches offer them, what candidates mean, and the estimate."""

from __future__ import annotations

import numpy as np
import pytest
from grid_cases import Case, need_cxx
from warp_products import Tiles, by_warps

from autotune import backends
from autotune.codegen.simt import cuda, emulator, nvrtc, sass
from autotune.search.evolutionary import EvolutionarySearch, model_features
from cost_model.analytic import AnalyticModel
from schedules import ops, te
from schedules.ir import Intrinsic, interp, walk
from schedules.ir.interp_grid import run_grid
from schedules.model import Workload
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive

A100, H100 = backends.parse("a100"), backends.parse("h100")
F16, BF16 = "mma_m16n8k16_float32_float16", "mma_m16n8k16_float32_bfloat16"
# Sizes that no tile divides: (operator, parameters, dtype, the instruction).
PRODUCTS: dict[str, tuple[str, dict[str, object], str | None, str]] = {
    "rows": ("matmul", {"m": 37, "n": 40, "k": 24}, "float16", F16),
    "odd": ("matmul", {"m": 21, "n": 19, "k": 33}, "float16", F16),
    "one step": ("matmul", {"m": 17, "n": 24, "k": 9}, "bfloat16", BF16),
    "a by columns": ("matmul", {"m": 40, "n": 24, "k": 50, "transpose_a": 1}, "bfloat16", BF16),
    "b by columns": ("matmul", {"m": 37, "n": 22, "k": 40, "transpose_b": 1}, "float16", F16),
    "both": ("matmul", {"m": 24, "n": 22, "k": 40, "transpose_a": 1, "transpose_b": 1}, "float16", F16),
    "batch": ("batch_matmul", {"b": 3, "m": 19, "n": 24, "k": 40}, "float16", F16),
    "bias": ("matmul_bias_relu", {"m": 70, "n": 130, "k": 72}, "float16", F16),
    "gelu": ("matmul_bias_gelu", {"m": 17, "n": 24, "k": 40}, "float16", F16),
    "int8": ("quantized_matmul", {"m": 17, "n": 24, "k": 72, "weight_zeros": 1}, None, "_uint8_int8"),
    "int8 by columns": (
        "quantized_matmul", {"m": 17, "n": 24, "k": 72, "transpose_b": 1}, None, "_uint8_int8"
    ),
    "parts": ("matmul", {"m": 24, "n": 33, "k": 1024}, "float16", "sum=parts"),
}  # fmt: skip


def workload(name: str) -> Workload:
    op, params, dtype, _ = PRODUCTS[name]
    return ops.workload(op, params, dtype)


def case(w: Workload) -> Case:
    rng = np.random.default_rng(3)
    data = tuple(rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs)
    return Case(w.dag, data, tuple(ops.reference(w, list(data))))


def candidates(w: Workload, way: str, count: int) -> list[Schedule]:
    """Valid ones of the first sketch with ``way`` in its name."""
    found, rng = derive(w.dag, A100), np.random.default_rng(5)
    number = next(n for n, x in enumerate(found.sketches) if way in x)
    rows = found.sample(number, 40 * count, rng)
    rows = rows[found.valid(number, rows)][:count]
    assert len(rows)
    return [Schedule.replay(w.dag, found.trace(number, row), A100) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_candidates_compute_the_operator(name: str) -> None:
    """The serial interpreter, that of grids, and the emulator in three orders of landing agree."""
    need_cxx()
    w = workload(name)
    c, found = case(w), candidates(w, PRODUCTS[name][3], 4)
    programs = [lower_simt(s.nest) for s in found]
    assert all(any(isinstance(x, Intrinsic) for k in p.kernels for x in walk(k.body)) for p in programs)
    obj = emulator.build(*programs)
    for n, p in enumerate(programs):
        for order in emulator.ORDERS:
            outputs = c.poisoned()
            fault = emulator.run(obj, p, [*c.inputs, *outputs], n, order=order)
            assert fault is None, fault
            c.check(outputs, f"candidate {n}, {order}")
    nest, program = found[0].nest, programs[0]
    for run in (lambda a: interp.run(nest, a), lambda a: run_grid(program, a)):
        outputs = c.poisoned()
        run(dict(zip([t.name for t in w.dag.params], [*c.inputs, *outputs], strict=True)))
        c.check(outputs, "interpreted")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "b by columns", "bias", "int8 by columns"])
def test_candidates_are_machine_code_without_spills(name: str) -> None:
    if not nvrtc.available():
        pytest.skip("needs NVRTC")
    w = workload(name)
    for s in candidates(w, PRODUCTS[name][3], 2):
        for arch in ("sm_80", "sm_86", "sm_90", "sm_120"):
            built = nvrtc.compile_cubin(cuda.source(lower_simt(s.nest)), arch)
            assert all(not f["spill_bytes"] and not f["stack_bytes"] for f in built.facts.values())
            counts = sass.counts(built.data)  # empty without the disassembler
            for wanted in ("IMMA" if "int8" in name else "HMMA", "LDSM"):
                assert not counts or any(wanted in x for x in counts.values()), (arch, counts)


def test_rows_lie_before_a_dimension_that_a_tile_has_once() -> None:
    """The last dimension is that of the batch."""
    a, b = te.placeholder((9, 16, 2), "float16", "a"), te.placeholder((16, 8, 2), "float16", "b")
    k = te.reduce_axis(16, "k")

    def product(i: te.Expr, j: te.Expr, t: te.Expr) -> te.Expr:
        return te.sum(te.cast(a[i, k, t], "float32") * te.cast(b[k, j, t], "float32"), axis=k)

    w = Workload(te.dag([a, b, te.compute((9, 8, 2), product, "c")]))
    (s,) = candidates(w, F16, 1)
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-3, 4, t.shape).astype(t.dtype) for t in w.dag.inputs)
    c = np.full((9, 8, 2), np.nan, "float32")
    run_grid(lower_simt(s.nest), {"a": x, "b": y, "c": c})
    np.testing.assert_array_equal(c, np.einsum("ikt,kjt->ijt", x, y, dtype="float32"))


def test_a_schedule_by_hand_means_the_product() -> None:
    w = ops.workload("matmul", {"m": 17, "n": 8, "k": 24}, "float16")
    s, c = by_warps(w.dag, Tiles(16, 16, 1, 1, 32, 2, 1)), case(w)
    (outputs,) = c.poisoned()
    interp.run(s.nest, dict(zip(["a", "b", "c_float16"], [*c.inputs, outputs], strict=True)))
    c.check([outputs], "by hand")


def test_who_has_matrix_units_is_offered_them() -> None:
    dag = workload("rows").dag
    offers = {x: derive(dag, backends.parse(x)).sketches for x in ("a100", "h100", "cuda-emulator")}
    assert all(any(F16 in x for x in offers[g]) for g in ("a100", "h100"))
    assert not any("mma" in x for x in offers["cuda-emulator"])
    floats = ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag
    assert not any("mma" in x for x in derive(floats, A100).sketches)


def test_most_of_an_instruction_has_to_be_work() -> None:
    for m, offered in ((1, False), (2, True), (4, True)):
        w = ops.workload("matmul", {"m": m, "n": 4096, "k": 64}, "float16")
        assert any("mma" in x for x in derive(w.dag, A100).sketches) == offered, m


def test_operands_that_lie_in_no_box_are_left() -> None:
    """Rows of one operand are windows, which overlap."""
    x, w = te.placeholder((70, 16), "float16", "x"), te.placeholder((16, 32), "float16", "w")
    k = te.reduce_axis(16, "k")
    y = te.compute((35, 32), lambda i, j: te.sum(x[2 * i, k] * w[k, j], axis=k), "y")
    assert not any("mma" in name for name in derive(te.dag([x, w, y]), A100).sketches)


def best(found: DerivedSpace) -> tuple[int, tuple[int, ...]]:
    """The sketch and the row that a search on the estimate alone tries first."""
    (first,) = EvolutionarySearch(found, AnalyticModel(model_features(found)), 0).ask(1)
    return first.sketch, first.row


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H100], ids=["a100", "h100"])
@pytest.mark.parametrize("b_by_columns", [0, 1])
def test_large_products_take_warps_of_64_by_64(target: object, b_by_columns: int) -> None:
    """As kernels written by hand: 8 warps, few bytes of shared memory for each instruction."""
    size = {"m": 4096, "n": 4096, "k": 4096, "transpose_b": b_by_columns}
    found = derive(ops.workload("matmul", size, "float16").dag, target)
    n, row = best(found)
    assert F16 in found.sketches[n]
    d = {k.removeprefix("c."): int(v) for k, v in zip(found.holes(n), row, strict=True)}
    assert (d["rows"] // d["down"], d["columns"] // d["across"], d["down"] * d["across"]) == (64, 64, 8)
    assert d["stages"] >= 3 and d["group"] > 1


def test_limits_leave_no_candidate_that_does_not_fit() -> None:
    """Fragments of 64 × 128 sums are more registers than a thread has; stages fill shared memory."""
    found = derive(ops.workload("matmul", {"m": 4096, "n": 4096, "k": 4096}, "float16").dag, A100)
    n = next(n for n, x in enumerate(found.sketches) if F16 in x)
    holes = [h.removeprefix("c.") for h in found.holes(n)]
    base = {"rows": 128, "down": 2, "columns": 256, "across": 4, "depth": 64, "group": 8, "stages": 3}

    def valid(**change: int) -> bool:
        return bool(found.valid(n, np.array([[(base | change)[h] for h in holes]]))[0])

    assert valid()
    assert not valid(across=2)  # 64 × 128
    assert not valid(stages=4)  # 192 KB
    assert valid(stages=5, depth=32)


@pytest.mark.slow
def test_what_is_rounded_to_tf32_is_done_by_matrix_units() -> None:
    """Never silently: float32 alone is offered none (above)."""
    need_cxx()
    a, b = te.placeholder((37, 24), "float32", "a"), te.placeholder((24, 40), "float32", "b")
    k = te.reduce_axis(24, "k")
    c = te.compute((37, 40), lambda i, j: te.sum(te.tf32(a[i, k]) * te.tf32(b[k, j]), axis=k), "c")
    dag, rng = te.dag([a, b, c]), np.random.default_rng(0)
    found = derive(dag, A100)
    number = next(n for n, x in enumerate(found.sketches) if "mma_m16n8k8_float32_tf32" in x)
    rows = found.sample(number, 40, rng)
    x, y = (rng.integers(-3, 4, t.shape).astype("float32") for t in dag.inputs)
    for row in rows[found.valid(number, rows)][:2]:
        p = lower_simt(Schedule.replay(dag, found.trace(number, row), A100).nest)
        for order in emulator.ORDERS:
            z = np.full((37, 40), np.nan, "float32")
            assert emulator.run(emulator.build(p), p, [x, y, z], 0, order=order) is None
            np.testing.assert_array_equal(z, x @ y)


@pytest.mark.slow
@pytest.mark.parametrize("p", [4, 13, 16, 30])
def test_a_window_read_backwards_is_offered_where_tiles_of_it_are_whole(p: int) -> None:
    """Whole tiles of ``p`` read rows that the window adds: a copy that is filled up to its own tiles may not
    have them. No candidate fails."""
    a, b = te.placeholder((p + 2, 32), "float16", "a"), te.placeholder((3, 32, 24), "float16", "b")
    s, r = te.reduce_axis(3, "s"), te.reduce_axis(32, "r")
    wide = lambda x: te.cast(x, "float32")  # noqa: E731
    y = te.compute((p, 24), lambda i, o: te.sum(wide(a[i + s, r]) * wide(b[2 - s, r, o]), axis=(s, r)), "y")
    w = Workload(te.dag([a, b, y]))
    found, rng = derive(w.dag, A100), np.random.default_rng(0)
    offered = [n for n, x in enumerate(found.sketches) if "mma" in x and "window" not in x]
    assert bool(offered) == (p == 16), found.sketches
    for n in offered:
        rows = found.sample(n, 60, rng)
        for row in rows[found.valid(n, rows)][:6]:
            lower_simt(Schedule.replay(w.dag, found.trace(n, row), A100).nest)
