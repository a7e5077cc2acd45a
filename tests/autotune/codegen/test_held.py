"""Tiles of sums: they stay in registers over loops, and are right wherever they are held."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from dot_products import product, tiled
from helpers import check_compiled, execute, host

from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import TILES, assembly, compile_module
from autotune.codegen.llvm.intrinsic import has
from schedules import te
from schedules.dtypes import DTYPES
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

PRODUCTS = tuple(name for name, x in INSTRUCTIONS.items() if x.registers is not None and x.start is not None)
# A described target, for what is compiled only.
DESCRIBED = Target(
    "cpu", "sapphirerapids", "x86_64-unknown-linux-gnu",
    ("amx-bf16", "amx-int8", "amx-tile", "avx2", "avx512bf16", "avx512bw", "avx512f", "avx512vnni", "f16c",
     "fma"),
    limits=(("vector_bytes", 64), ("vector_registers", 32)),
)  # fmt: skip


def need(ins: Instruction) -> Target:
    here = host()
    if not has(ins, here.features):
        pytest.skip(f"this CPU has no {', '.join(ins.features)}")
    return here


def whole(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Integers up to their ends; whole floats whose sums are exact."""
    rng = np.random.default_rng(seed)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    out = []
    for t in dag.inputs:
        x = rng.integers(*ends.get(t.dtype, (-8, 9)), t.shape)
        if t.dtype in ends:  # extremes too
            low, high = ends[t.dtype]
            x = np.where(rng.random(t.shape) < 0.3, rng.choice([low, high - 1], t.shape), x)
        out.append(x.astype(DTYPES[t.dtype].numpy))
    return out


def assembly_of(dag: ComputeDAG, s: Schedule, target: Target) -> list[str]:
    return assembly(emit_module(dag, s.trace, target).text, target).splitlines()


def count(lines: list[str]) -> dict[str, int]:
    """Instructions on tiles in the body of the kernel."""
    out: dict[str, int] = {}
    for line in lines:
        found = re.match(r"\s+(tile\w+|tdp\w+|ldtilecfg)\b", line)
        if found:
            out[found[1]] = out.get(found[1], 0) + 1
    return out


# -- what is compiled, on any host ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_tiles_of_sums_stay_in_registers(name: str) -> None:
    """2 by 2 tiles: 4 loads and 4 products a step, no spill, and the state is released at the end."""
    ins = INSTRUCTIONS[name]
    dag = product(ins, 64, 64, 32 * ins.iterations["t"])
    lines = assembly_of(dag, tiled(dag, ins, 2, 2), DESCRIBED)
    assert count(lines) == {
        "ldtilecfg": 1, "tilezero": 4, "tileloadd": 4, name: 4, "tilestored": 4, "tilerelease": 1
    }  # fmt: skip
    at = [n for n, line in enumerate(lines) if name in line]
    loop = lines[at[0] : at[-1]]
    assert not any("(%rsp)" in line and "mm" in line for line in loop)


def test_sums_that_vectors_started_are_loaded_once() -> None:
    ins = INSTRUCTIONS["tdpbusd"]
    dag = product(ins, 64, 64, 32 * 4)
    found = count(assembly_of(dag, tiled(dag, ins, 2, 2, start=False), DESCRIBED))
    assert "tilezero" not in found and found["tileloadd"] == 8 and found["tilestored"] == 4


def test_a_sum_in_parts_is_loaded_and_stored_once_a_part() -> None:
    ins = INSTRUCTIONS["tdpbf16ps"]
    dag = product(ins, 64, 64, 4 * 32)
    found = count(assembly_of(dag, tiled(dag, ins, 1, 1, blocks=2), DESCRIBED))
    assert found["tdpbf16ps"] == 1 and found["tileloadd"] == 3 and found["tilestored"] == 2


def test_more_tiles_than_registers_are_not_held_together() -> None:
    """3 by 3 tiles of sums: LLVM is not asked to keep 9 tiles in 8 registers."""
    ins = INSTRUCTIONS["tdpbusd"]
    dag = product(ins, 48, 48, 2 * 64)
    found = count(assembly_of(dag, tiled(dag, ins, 3, 3), DESCRIBED))
    assert found["tdpbusd"] == 9 and found["tilestored"] == 18  # after zero, and after every product


def test_inputs_find_registers_beside_what_is_held() -> None:
    """1 by 6 tiles are held, 1 by 7 are not: a product needs two more."""
    ins = INSTRUCTIONS["tdpbusd"]
    for columns, stored in ((6, 6), (7, 14)):
        dag = product(ins, 16, 16 * columns, 2 * 64)
        found = count(assembly_of(dag, tiled(dag, ins, 1, columns), DESCRIBED))
        assert found["tdpbusd"] == columns and found["tilestored"] == stored
        assert found["tileloadd"] == 1 + columns + (0 if stored == columns else columns)


def test_arguments_that_tiles_are_stored_to_are_asked_for() -> None:
    ins = INSTRUCTIONS["tdpbusd"]
    dag = product(ins, 32, 32, 128)
    asked = [x for x in assembly_of(dag, tiled(dag, ins, 1, 1), DESCRIBED) if "prefetch" in x]
    assert len(asked) == 16
    local = assembly_of(dag, tiled(dag, ins, 1, 1, local=True), DESCRIBED)
    assert not any("prefetch" in x for x in local)


def test_an_object_says_that_it_uses_tiles() -> None:
    ins = INSTRUCTIONS["tdpbusd"]
    dag = product(ins, 32, 32, 128)
    s = tiled(dag, ins, 1, 1)
    assert TILES in compile_module(emit_module(dag, s.trace, DESCRIBED).text, DESCRIBED)
    without = replace(DESCRIBED, features=tuple(f for f in DESCRIBED.features if not f.startswith("amx")))
    code = emit_module(dag, s.trace, without).text
    assert TILES not in compile_module(code, without) and "amx" not in code


# -- what runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "columns", "how"),
    [
        *((name, 2, 2, {}) for name in PRODUCTS),
        ("tdpbf16ps", 1, 1, {"local": True}),
        ("tdpbusd", 1, 3, {"start": False}),
        ("tdpbssd", 2, 2, {"local": True, "start": False}),
        ("tdpbf16ps", 2, 2, {"blocks": 2}),
        ("tdpbuud", 1, 2, {"blocks": 2, "start": False}),
        ("tdpbsud", 3, 3, {}),
    ],
    ids=str,
)
def test_products_of_tiles_are_right(name: str, rows: int, columns: int, how: dict[str, bool]) -> None:
    ins = INSTRUCTIONS[name]
    here = need(ins)
    dag = product(ins, 16 * rows * 2, 16 * columns, 16 * ins.iterations["t"] * 4)
    inputs = whole(dag)
    check_compiled(dag, tiled(dag, ins, rows, columns, **how).trace, here, inputs, evaluate(dag, inputs))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpbssd"])
def test_tails_are_loops_and_threads_have_tiles_of_their_own(name: str, threads: int) -> None:
    ins = INSTRUCTIONS[name]
    here = replace(need(ins), threads=threads)
    dag = product(ins, 16 * 5, 64, 16 * ins.iterations["t"] * 2)
    s = tiled(dag, ins, 2, 2, partition=True)
    if threads > 1:
        s.parallel(s.loops("c")[0])
    inputs = whole(dag)
    check_compiled(dag, s.trace, here, inputs, evaluate(dag, inputs))


@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpbusd"])
def test_without_the_instruction_the_loops_run(name: str) -> None:
    ins = INSTRUCTIONS[name]
    here = host()
    without = replace(here, features=tuple(f for f in here.features if not f.startswith("amx")))
    dag = product(ins, 32, 32, 16 * ins.iterations["t"] * 2)
    inputs = whole(dag)
    check_compiled(dag, tiled(dag, ins, 2, 2).trace, without, inputs, evaluate(dag, inputs))


def test_two_products_in_one_kernel() -> None:
    """c and d are held over loops of their own, and the second reads what the first stored."""
    ins = INSTRUCTIONS["tdpbusd"]
    here = need(ins)
    a = te.placeholder((16, 16, 4), "uint8", "a")
    b = te.placeholder((16, 16, 4), "int8", "b")
    q, t = te.reduce_axis(16, "q"), te.reduce_axis(4, "t")
    c = te.compute((16, 16), lambda i, j: te.sum(a[i, q, t] * b[q, j, t], axis=(q, t)), "c")
    p, u = te.reduce_axis(16, "p"), te.reduce_axis(4, "u")
    d = te.compute((16, 16), lambda i, j: te.sum(a[i, p, u] * b[p, j, u], axis=(p, u)), "d")
    e = te.compute((16, 16), lambda i, j: c[i, j] - d[j, i], "e")
    dag = te.dag([a, b, e])
    s = Schedule(dag, here)
    for stage in "cd":
        init = s.decompose_reduction(stage, s.loops(stage)[0])
        s.tensorize(s.loops(init)[0], INSTRUCTIONS["tilezero_int32"])
        s.tensorize(s.loops(stage)[0], ins)
    inputs = whole(dag)
    check_compiled(dag, s.trace, here, inputs, evaluate(dag, inputs))


# -- what the processor does, by the manual ------------------------------------------------------------------


def sums(name: str, a: list[float], b: list[float]) -> float:
    """One element of as many products as there are terms for, the others 0."""
    ins = INSTRUCTIONS[name]
    here = need(ins)
    dtypes = {t.name: DTYPES[t.dtype].numpy for t in ins.operands}
    deep = 16 * ins.iterations["t"]
    k = -(-len(a) // deep) * deep
    dag = product(ins, 16, 16, k)
    x, y = np.zeros((16, k)), np.zeros((k, 16))
    x[3, : len(a)], y[: len(b), 5] = a, b
    arrays = [x.astype(dtypes["a"]), y.astype(dtypes["b"])]
    got = {out[0][3, 5].item() for out in execute(dag, tiled(dag, ins, 1, 1).trace, here, arrays).values()}
    assert len(got) == 1
    return float(got.pop())


@pytest.mark.parametrize(
    ("name", "a", "b", "sum_"),
    [
        ("tdpbusd", 255, 127, 129540), ("tdpbusd", 255, -128, -130560), ("tdpbssd", -128, -128, 65536),
        ("tdpbssd", -128, 127, -65024), ("tdpbsud", -128, 255, -130560), ("tdpbuud", 255, 255, 260100),
    ],
)  # fmt: skip
def test_signs_and_ends_of_integers(name: str, a: int, b: int, sum_: int) -> None:
    assert sums(name, [a] * 4, [b] * 4) == sum_


def test_sums_of_integers_wrap() -> None:
    assert sums("tdpbssd", [-128] * 1024, [-128] * 1024) == 16777216
    assert sums("tdpbssd", [100] * 131072, [127] * 131072) == 1664614400
    most = -(-(2**31) // (255 * 127 * 64)) * 64
    assert sums("tdpbusd", [255] * most, [127] * most) == most * 255 * 127 - 2**32


def test_tdpbf16ps_adds_even_and_odd_terms_apart_and_takes_denormals_to_be_zero() -> None:
    big, one = 2.0**24, 1.0
    assert sums("tdpbf16ps", [big, one, one, one], [one] * 4) == big + 2  # (big + 1) is rounded, + (1 + 1)
    assert sums("tdpbf16ps", [2.0**-130, 0], [2.0**100, 0]) == 0
    assert sums("tdpbf16ps", [1.0] * 1024, [1.0] * 1024) == 1024


# -- the state of tiles --------------------------------------------------------------------------------------

IN_USE = """
define i64 @in_use() nounwind {
  %pair = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 1)
  %low = extractvalue { i32, i32 } %pair, 0
  %wide = zext i32 %low to i64
  ret i64 %wide
}
"""


def test_the_state_of_tiles_is_released() -> None:
    """XGETBV with 1 tells which components are not in their initial state; 17 and 18 are those of tiles."""
    import ctypes

    from autotune.codegen.llvm.compile import link, load_object

    ins = INSTRUCTIONS["tdpbusd"]
    here = need(ins)
    at, keep = link(compile_module(IN_USE, here), ("in_use",), {})
    in_use = ctypes.CFUNCTYPE(ctypes.c_int64)(at["in_use"])
    dag = product(ins, 32, 32, 128)
    text = emit_module(dag, tiled(dag, ins, 2, 2).trace, here).text
    inputs = whole(dag)
    arrays = [*inputs, np.zeros((32, 32), np.int32)]
    loaded = load_object(compile_module(text, here))
    loaded.run([x.ctypes.data for x in arrays])
    assert (arrays[2] == evaluate(dag, inputs)[0]).all()
    assert not in_use() >> 17 & 3 and keep
