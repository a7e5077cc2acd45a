"""Instructions of warps as the emulator has them. Where elements lie is told here by the formulas of the PTX
ISA ("Matrix Fragments for mma", "ldmatrix"), element by element of a lane."""

from __future__ import annotations

import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from cuda_text import emulated, unanimous
from grid_cases import need_cxx

LANE = "const int lane = threadIdx.x, g = lane >> 2, t = lane % 4;\n"


@dataclass(frozen=True)
class Product:
    """An instruction: row and column of element ``i`` of a lane's registers of a and of b; of c they are
    those of all shapes. Types of elements in C, and of arrays."""

    k: int
    a: tuple[int, str, str]  # how many, row, column
    b: tuple[int, str, str]
    kind: str
    dtypes: tuple[str, str, str]  # of a, b, c
    sum_kind: str = "float"

    def body(self, name: str) -> str:
        (na, ra, ca), (nb, rb, cb) = self.a, self.b
        ka, kb = self.kind.split()[0], self.kind.split()[-1]
        return f"""{LANE}
  {ka} x[{na}]; {kb} y[{nb}]; {self.sum_kind} z[4];
  for (int i = 0; i < {na}; ++i) x[i] = a[({ra}) * {self.k} + ({ca})];
  for (int i = 0; i < {nb}; ++i) y[i] = b[({rb}) * 8 + ({cb})];
  for (int i = 0; i < 4; ++i) z[i] = c[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];
  {name}(z, x, y);
  for (int i = 0; i < 4; ++i) out[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = z[i];
"""


_A16 = (8, "0 <= i && i < 2 || 4 <= i && i < 6 ? g : g + 8", "t * 2 + (i & 1) + (i < 4 ? 0 : 8)")
_B16 = (4, "t * 2 + (i & 1) + (i < 2 ? 0 : 8)", "g")
_A8 = (16, "0 <= i && i < 4 || 8 <= i && i < 12 ? g : g + 8", "t * 4 + (i & 3) + (i < 8 ? 0 : 16)")
_B8 = (8, "t * 4 + (i & 3) + (i < 4 ? 0 : 16)", "g")
_TF32 = (4, "i == 0 || i == 2 ? g : g + 8", "i < 2 ? t : t + 4"), (2, "i == 0 ? t : t + 4", "g")
_BYTES = {"int8": "at_char", "uint8": "at_uchar"}
PRODUCTS = {
    "m16n8k16_float32_float16": Product(16, _A16, _B16, "at_bits16", ("float16", "float16", "float32")),
    "m16n8k16_float32_bfloat16": Product(16, _A16, _B16, "at_bits16", ("bfloat16", "bfloat16", "float32")),
    "m16n8k16_float16_float16": Product(
        16, _A16, _B16, "at_bits16", ("float16", "float16", "float16"), "at_bits16"
    ),
    "m16n8k8_float32_tf32": Product(8, *_TF32, "float", ("float32", "float32", "float32")),
    **{
        f"m16n8k32_int32_{x}_{y}": Product(32, _A8, _B8, f"{_BYTES[x]} {_BYTES[y]}", (x, y, "int32"), "int")
        for x in _BYTES
        for y in _BYTES
    },
}


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    low, high = (-128, 128) if dtype == "int8" else (0, 256) if dtype == "uint8" else (-8, 9)
    return rng.integers(low, high, shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.fast("m16n8k16_float32_float16")
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_each_kind(name: str) -> None:
    need_cxx()
    p, rng = PRODUCTS[name], np.random.default_rng(1)
    shapes = (16, p.k), (p.k, 8), (16, 8)
    a, b, c = (small(rng, s, d) for s, d in zip(shapes, p.dtypes, strict=True))
    wide = "int32" if p.dtypes[2] == "int32" else "float32"
    right = (c.astype(wide) + a.astype(wide) @ b.astype(wide)).astype(c.dtype)
    arrays = {"a": a, "b": b, "c": c, "out": np.empty_like(c)}
    assert not unanimous(emulated(p.body(f"at_mma_{name}"), arrays), right)


@pytest.mark.slow
def test_sums_of_float16_are_rounded_to_it() -> None:
    """Where one term is added, to that of float32 and then float16: subnormals, ties and overflow too."""
    need_cxx()
    p, rng = PRODUCTS["m16n8k16_float16_float16"], np.random.default_rng(2)
    a, b = np.zeros((16, 16), "float16"), np.zeros((16, 8), "float16")
    bits = rng.integers(0, 0x7C00, 24).astype("uint16").view("float16")
    a[:, 3], b[3] = bits[:16], bits[16:]
    c = rng.integers(0, 0x7C00, (16, 8)).astype("uint16").view("float16") * np.float16(-1)
    c[0, :4] = np.inf, np.nan, 65504, 2**-24
    a[15, 3], b[3, :2], c[15, :2] = 2**-11, 1, (1, 1 + 2**-10)  # between two numbers
    with np.errstate(over="ignore"):
        right = (a[:, 3:4].astype("f4") * b[3:4].astype("f4") + c.astype("f4")).astype("f2")
    arrays = {"a": a, "b": b, "c": c, "out": np.empty_like(c)}
    for order, ran in emulated(p.body("at_mma_m16n8k16_float16_float16"), arrays).items():
        np.testing.assert_array_equal(ran.out, right, err_msg=order)


LOAD = """
  AT_SHARED({kind}, s, {count});
  for (int i = lane; i < {count}; i += 32) s[i] = x[i];
  __syncthreads();
  {kind} words[{each}];
  for (int i = 0; i < {each}; ++i) words[i] = 0;
  {name}(words, s[(lane * 5 % 32) * {row}]);
  for (int i = 0; i < {each}; ++i) out[lane * {each} + i] = words[i];
"""


@pytest.mark.fast("4-True-float16")
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_are_loaded_by_rows_of_16_bytes(count: int, trans: bool, dtype: str) -> None:
    """Lane 8 m + i has the address of row i of matrix m: here a row that others do not expect."""
    need_cxx()
    kind = {"float16": "at_bits16", "int8": "at_char", "float32": "float"}[dtype]
    item = np.dtype(dtype).itemsize
    x = np.arange(32 * 16 // item).astype(dtype)
    rows = x.view("uint16").reshape(32, 8)[np.arange(32) * 5 % 32]
    each = 16 // item
    right = np.zeros(32 * each, dtype)
    words = right.view("uint16").reshape(32, 8)
    for lane in range(32):
        for m in range(count):
            matrix = rows[8 * m : 8 * m + 8]
            matrix = matrix.T if trans else matrix
            words[lane, 2 * m : 2 * m + 2] = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
    name = f"at_ldmatrix_x{count}{'_trans' if trans else ''}"
    body = LANE + LOAD.format(kind=kind, count=len(x), row=each, each=each, name=name)
    assert not unanimous(emulated(body, {"x": x, "out": np.empty_like(right)}), right)


# Kernels of two warps, and what is said in every order.
FAULTS = {
    "a lane is missing": (
        "if (lane != 5) at_ldmatrix_x4(w, s[0]);",
        r"an instruction of warps in block \d+ that not all threads reach .*: threads 0 to 4 wait at line "
        r"\d+ for the warp; thread 5 has ended; threads 6 to 31 wait",
    ),
    "lanes are at different ones": (
        "if (lane < 16) at_ldmatrix_x4(w, s[0]); else\n at_ldmatrix_x4_trans(w, s[0]);",
        r"warp \d of block \d+ parts: thread \d+ is at ldmatrix\S* of line \d+ .* others are at ldmatrix",
    ),
    "a lane waits for all": (
        "if (lane != 5) at_ldmatrix_x4(w, s[0]);\n __syncthreads();",
        r"an instruction of warps .*thread 5 waits at line \d+ for all",
    ),
    "a row in the middle": (
        "at_ldmatrix_x4(w, s[lane]);",
        r"the row at s\[\d+\] of ldmatrix does not begin at",
    ),
    "a row outside": ("at_ldmatrix_x4(w, s[8 * lane + 8]);", r"uses s\[263\] of 256"),
    "rows that another writes": ("s[lane] = 1;\n at_ldmatrix_x4(w, s[8 * lane]);", r"race on s\[\d+\]"),
    "rows that another copies": (
        "AT_COPY(16, s[8 * lane], x[8 * lane], true);\n at_ldmatrix_x4(w, s[8 * lane]);\n"
        " AT_SIGNAL();\n AT_AWAIT(0);",
        r"race on s\[\d+\]: thread \d+ of block \d+ reads what thread \d+ is copying",
    ),
    "unrounded numbers": (
        "float f[4] = {1.1f}, h[4] = {0}, d[4] = {1};\n at_mma_m16n8k8_float32_tf32(d, f, h);",
        "gives mma 1.10000002, which is no tf32: round it first",
    ),
}


@pytest.mark.fast("a lane is missing")
@pytest.mark.parametrize("what", FAULTS)
def test_what_a_warp_may_not_do(what: str) -> None:
    need_cxx()
    body, text = FAULTS[what]
    body = f"""{LANE}
  AT_SHARED(at_bits16, s, 256);
  if (threadIdx.y == 0)
    for (int i = 0; i < 8; ++i) s[8 * lane + i] = x[8 * lane + i];
  __syncthreads();
  unsigned w[4];
  if (threadIdx.y == 0) {{
 {body}
    out[lane] = w[0];
  }}
"""
    x = np.arange(256).astype("float16")
    for order, ran in emulated(body, {"x": x, "out": np.empty(32, "int32")}, (32, 2, 1)).items():
        assert ran.fault and re.search(text, ran.fault), f"{order}: {ran.fault}"


def test_rows_that_nobody_wrote_are_poison() -> None:
    """They may lie in columns that nobody stores. A result that they get into is NaN."""
    need_cxx()
    load = "unsigned w[4]; at_ldmatrix_x4(w, s[8 * lane]); out[lane] = w[0];"
    body = f"{LANE}\n AT_SHARED(at_bits16, s, 256);\n {load}"
    right = np.full(32, -1, "int32")
    assert not unanimous(emulated(body, {"out": np.empty(32, "int32")}), right)


def test_a_warp_has_32_threads() -> None:
    need_cxx()
    body = "unsigned w[4]; AT_SHARED(at_bits16, s, 256); at_ldmatrix_x4(w, s[0]); out[0] = w[0];"
    for ran in emulated(body, {"out": np.empty(1, "int32")}, (16, 1, 1)).values():
        assert ran.fault and "ldmatrix at line 2 of p0_kernel0 is done by 32 threads together" in ran.fault
