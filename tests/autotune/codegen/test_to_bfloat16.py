"""Sums that are never subnormal are rounded to bfloat16 by the instruction for it; all others as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from space_cases import target

import autotune
from autotune.backends.building.from_trace import emit_module
from autotune.codegen.llvm.compile import assembly, host_arch
from autotune.codegen.llvm.to_bfloat16 import holds
from schedules import expr as E
from schedules import te
from schedules.expr import Const, Load
from schedules.instructions import INSTRUCTIONS
from schedules.model import Target
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG

DOT = INSTRUCTIONS["vdpbf16ps"]
LIMITS = target(1, 64).limits
DESCRIBED = Target(
    "cpu", "sapphirerapids", "x86_64-linux-gnu",
    ("amx-bf16", "amx-tile", "avx512bf16", "avx512bw", "avx512f", "avx512vl", "avx512vnni"), 1, LIMITS,
)  # fmt: skip


def rounded(epilogue: Callable[[te.Expr], te.Expr] | None, m: int = 4, n: int = 32, k: int = 4) -> ComputeDAG:
    """What is made of sums of products, rounded to bfloat16. None: the sums themselves."""
    a, b = te.placeholder((m, k), "bfloat16", "a"), te.placeholder((k, n), "bfloat16", "b")
    r = te.reduce_axis(k, "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    if epilogue is None:
        return te.dag([a, b, c])
    return te.dag([a, b, te.compute((m, n), lambda i, j: te.cast(epilogue(c[i, j]), "bfloat16"), "y")])


def by_instruction(dag: ComputeDAG, machine: Target, name: str = DOT.name) -> Schedule:
    """A sketch by an instruction, whatever its tiles."""
    space = derive(dag, machine)
    k = next(k for k, x in enumerate(space.sketches) if f"with={name}" in x)
    return Schedule.replay(dag, space.trace(k, space.sample(k, 1, np.random.default_rng(0))[0]), machine)


def rounds(s: Schedule, machine: Target) -> bool:
    return "vcvtne" in assembly(emit_module(s.dag, s.trace, machine).text, machine)


@pytest.mark.parametrize(
    "epilogue, by",
    [
        (lambda c: c, True),
        (lambda c: te.maximum(c, 0.0), True),
        (lambda c: te.minimum(te.maximum(c, 0.0), 6.0), True),
        (lambda c: te.maximum(c, 1e-40), False),
        (lambda c: c + 1.0, False),  # sums of other floats may be subnormal
        (lambda c: c * 0.5, False),
    ],
)
def test_what_is_never_subnormal_is_rounded_by_the_instruction(
    epilogue: Callable[[te.Expr], te.Expr], by: bool
) -> None:
    assert rounds(by_instruction(rounded(epilogue), DESCRIBED), DESCRIBED) is by


def test_tiles_of_sums_are_rounded_so_too() -> None:
    dag = rounded(lambda c: c, 16, 16, 32)
    assert rounds(by_instruction(dag, DESCRIBED, "tdpbf16ps"), DESCRIBED)


def test_sums_of_multiply_adds_are_not() -> None:
    """They may be subnormal. So may those of a machine that runs the loops of the instruction."""
    space = derive(dag := rounded(lambda c: c), DESCRIBED)
    k = next(k for k, x in enumerate(space.sketches) if "with" not in x)
    s = Schedule.replay(dag, space.trace(k, space.sample(k, 1, np.random.default_rng(0))[0]), DESCRIBED)
    assert not rounds(s, DESCRIBED)
    tiles = by_instruction(rounded(lambda c: c, 16, 16, 32), DESCRIBED, "tdpbf16ps")
    without = replace(DESCRIBED, features=tuple(f for f in DESCRIBED.features if not f.startswith("amx")))
    assert not rounds(tiles, without)


def test_a_machine_without_the_instruction_rounds_by_integers() -> None:
    without = replace(DESCRIBED, features=tuple(f for f in DESCRIBED.features if f != "avx512bf16"))
    tiles = by_instruction(rounded(lambda c: c, 16, 16, 32), DESCRIBED, "tdpbf16ps")
    assert not rounds(tiles, without)


def test_elements_of_known_buffers_and_numbers_hold() -> None:
    x, y = Load("x", (), "float32"), Load("y", (), "float32")
    assert holds(x, {"x"}) and not holds(y, {"x"})
    assert holds(E.maximum(x, Const(0.0, "float32")), {"x"}) and not holds(E.maximum(x, y), {"x"})
    assert holds(Const(2.0**-126, "float32"), ()) and not holds(Const(2.0**-127, "float32"), ())
    assert not holds(x + x, {"x"}) and not holds(x * Const(0.5, "float32"), {"x"})


@pytest.mark.parametrize("name", ["vdpbf16ps", "tdpbf16ps"])
def test_numbers_are_those_of_the_other_way(name: str) -> None:
    """Ties, NaN, infinity, the largest, and products that are subnormal before they are added."""
    here = replace(target(1, 64), features=host_arch()[1])
    ins = INSTRUCTIONS[name]
    if not ins.runs_on(here.features) or "avx512bf16" not in here.features:
        pytest.skip("this CPU has no such instruction")
    m, n, k = (4, 32, 4) if name == DOT.name else (16, 16, 32)
    dag = rounded(lambda c: c, m, n, k)
    s = by_instruction(dag, here, name)
    assert rounds(s, here)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (k, n)))
    a[0, :3] = np.nan, 3e38, 1.0
    a[1], b[:, 0] = 0, 0
    a[1, :2], b[:2, 1] = 1.0, (256.0, 1.0)  # 257: a tie
    a[2], a[2, 0] = 0, 2.0**-100
    b[0, 2], b[0, 3] = 2.0**-30, 3e38
    got = autotune.build(s, here)(a, b)
    sums = rounded(None, m, n, k)
    want = autotune.build(by_instruction(sums, here, name), here)(a, b).astype(ml_dtypes.bfloat16)
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))
    assert got[1, 1] == 256 and np.isnan(got[0].astype(np.float32)).all() and got[2, 2] == 0
