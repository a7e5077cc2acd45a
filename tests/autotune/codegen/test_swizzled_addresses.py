"""Addresses in swizzled shared memory: where elements lie, in code as in the counts of conflicts; and what is
built of copies in the background."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from background_products import LARGE, Tiles, staged_product
from needs import missing

from autotune.codegen.simt import cuda, nvrtc, swizzle
from autotune.codegen.simt.expr import CExpressions
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Var
from schedules.ir import Buffer, Seq
from schedules.ir.grid import GridKernel
from schedules.ir.strides import SWIZZLES, nbytes, swizzle_bits, swizzle_period, swizzled
from schedules.ir.warps import watch
from schedules.passes.simt import lower_simt


def rows(n: int, columns: int, dtype: str, width: int) -> Buffer:
    return Buffer("s", (Const(n), Const(columns)), dtype, "shared", swizzle=width)


@pytest.mark.parametrize("width", SWIZZLES)
@pytest.mark.parametrize("chunks", [2, 4, 8, 16, 24, 32, 64])
def test_chunks_stay_in_their_rows_and_neighbouring_rows_differ(width: int, chunks: int) -> None:
    """8 rows of a matrix of 8 × 16 bytes, as ldmatrix reads them, are in different banks."""
    if 16 * chunks % width:
        return
    b = rows(64, 4 * chunks, "float32", width)
    places = [swizzled(at, b) for at in range(0, nbytes(b), 16)]
    assert sorted(places) == list(range(0, nbytes(b), 16))
    assert all(p // width == at // width for p, at in zip(places, range(0, nbytes(b), 16), strict=True))
    banks = {swizzled((row * chunks + 1) * 16, b) // 16 % 8 for row in range(8)}
    assert len(banks) == 8 if width == min(128, 16 * chunks) else len(banks) >= width // 16
    assert swizzled(swizzle_period(b) + 80, b) == swizzle_period(b) + swizzled(80, b)


SPANS = {"k": (0, 2), "y": (0, 3), "t": (0, 31), "u": (0, 3), "v": (0, 7)}
PLACES: dict[str, tuple[Expr, Expr]] = {  # (row, column) of 64 × 64 elements of 2 bytes
    "rows of threads, unrolled chunks": (Var("t"), Var("u") * 8),
    "rows and chunks of both": (Var("y") * 16 + Var("u") * 4 + Var("t") // 8, Var("t") % 8 * 8),
    "unrolled rows": (Var("u") * 16 + Var("t") % 16, Var("t") // 16 * 8 + Var("y") * 16),
    "carries": (Var("t") + Var("u"), Var("u") * 8 + Var("v")),
    "carries of threads": (Var("t") % 4 + Var("y") + Var("u") * 4, Var("v") * 8),
    "carries of threads above a bit of both": (Var("t") % 4 + Var("y"), Var("t") // 16 * 8 + Var("v") * 8),
    "carries from the lower of two bits": (Const(0), Var("t") % 8 * 8 + Var("y") * 16 + Var("v") // 4 * 16),
    "an odd step": (Var("t") % 16 + Var("u") * 3, Var("v") * 8),
    "elements": (Var("t") % 8 + Var("u") * 8, Var("y") * 16 + Var("v")),
    "a number": (Var("t") % 8 + 40, Var("u") * 8 + 5),
    "what is not known": (Var("t") // (Var("u") + 1), Var("v") * 8),
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("width", SWIZZLES)
def test_the_parts_of_an_address_are_where_the_swizzle_puts_it(what: str, width: int) -> None:
    b = rows(64, 64, "float16", width)
    row, column = PLACES[what]
    at = Var("k") * 4096 + row * 64 + column
    bits, above = swizzle_bits(b)
    mask = bits // 2
    far, own, unrolled = swizzle.parts(at, mask, above, SPANS, {"u", "v"})

    def put(x: int) -> int:
        return x ^ (x >> above & mask)

    names = sorted(E.variables(at))
    for values in itertools.product(*(range(SPANS[n][1] + 1) for n in names)):
        env = dict(zip(names, values, strict=True))
        f, o, u = (int(E.evaluate(x, env)) for x in (far, own, unrolled))
        # as `CExpressions.swizzled` writes it
        found = f + (put(o) ^ (put(u) & mask)) + (u & ~mask)
        assert 2 * found == swizzled(2 * int(E.evaluate(at, env)), b)


def test_unrolled_loops_add_constants_to_one_address() -> None:
    x = CExpressions(GridKernel("", (), frozenset(), (1, 1, 1), (1, 1, 1), (), Seq(())), cuda.CUDA)
    b = rows(128, 64, "float16", 128)
    x.buffers["s"], x.ranges, x.unrolled = b, dict(SPANS), frozenset("u")
    text = x.flat("s", (Var("u") * 32 + Var("t"), Const(8)))
    assert text == "((v_u * 2048) + ((AT_SWIZZLE((v_t * 64), 3, 56) ^ 8) + 0))"
    text = x.flat("s", (Var("t"), Var("u") * 8 + 1))
    one = "((v_u * 8) + 1)"
    assert text == f"((AT_SWIZZLE((v_t * 64), 3, 56) ^ (AT_SWIZZLE({one}, 3, 56) & 56)) + (({one}) & ~56))"


@pytest.mark.parametrize("width", [0, 128])
def test_a_swizzle_takes_conflicts_away(width: int) -> None:
    """Lanes that read 8 rows of 128 bytes at the same column: without it, in one bank."""
    s = staged_product((16, 32, 32), 2, Tiles((1, 1), (8, 4), (1, 2), depth=32))
    for name in "AB":
        s.annotate(f"{name}_shared", "swizzle", width)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(-3, 4, t.shape).astype(t.dtype) for t in s.dag.inputs}
    arrays["C"] = np.full((16, 32), np.nan, "f4")
    (found,) = watch(lower_simt(s.nest), arrays)
    np.testing.assert_array_equal(arrays["C"], arrays["A"] @ arrays["B"])
    a, b = (next(x for x in found.buffers if x.name == f"{n}_shared") for n in "AB")
    assert a.written_bytes == 16 * 32 * 4 and b.cost == b.least
    read = next(x for x in found.buffers if x.name == "A")
    assert read.read_bytes == 16 * 32 * 4 and read.cost == read.least == 16 * 32 * 4 // 32
    copies, reads = 16 * 32 * 4 // 128, 16 * 32 * 4 // 8 // 4 * 2
    assert a.least == copies + reads and a.cost == (a.least if width else copies + 8 * reads)


def built(arch: str) -> nvrtc.Cubin:
    if not nvrtc.available():
        missing("nvrtc")
    return nvrtc.compile_cubin(
        cuda.source(lower_simt(staged_product((4096, 4096, 4096), 3, LARGE).nest)), arch
    )


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_a_large_tile_in_three_stages_stays_in_registers(arch: str) -> None:
    (facts,) = built(arch).facts.values()
    assert facts["spill_bytes"] == facts["stack_bytes"] == 0
    assert facts["shared_bytes"] == 3 * (128 * 16 + 16 * 128) * DTYPES["float32"].itemsize
