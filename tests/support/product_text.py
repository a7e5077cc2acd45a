"""A product of float16 by matrix units, written by hand: copied in three stages, swizzled, in tiles that
divide nothing; and mistakes in it."""

from __future__ import annotations

import numpy as np

# c[M, N] (float32) = a[M, K] b[K, N]: 2 warps of 16 x 32 in a tile of 32 x 32, K in steps of 16.
M, N, K = 40, 56, 72
BLOCK, GRID = (32, 2, 1), (2, 2, 1)
BODY = """
  const int M = 40, N = 56, K = 72, STAGES = 3, STEPS = 5;
  AT_SHARED(at_bits16, as, 3 * 32 * 16);
  AT_SHARED(at_bits16, bs, 3 * 16 * 32);
  const int lane = threadIdx.x, warp = threadIdx.y, t = warp * 32 + lane;
  const int row = blockIdx.y * 32, col = blockIdx.x * 32;
  float sum[4][4] = {{0}};
  auto a_at = [](int s, int r, int chunk) { return s * 512 + r * 16 + 8 * (chunk ^ r / 4 % 2); };
  auto b_at = [](int s, int r, int chunk) { return s * 512 + r * 32 + 8 * (chunk ^ r / 2 % 4); };
  auto fetch = [&](int s, int k) {
    const int r = t / 2, c = t % 2, q = t / 4, d = t % 4;
    AT_COPY(16, as[a_at(s, r, c)], a[(row + r) * K + k + 8 * c], row + r < M && k + 8 * c < K);
    AT_COPY(16, bs[b_at(s, q, d)], b[(k + q) * N + col + 8 * d], k + q < K && col + 8 * d < N);
  };
  for (int s = 0; s < STAGES - 1; ++s) {
    fetch(s, s * 16);
    AT_SIGNAL(); /* prologue */
  }
  for (int k = 0; k < STEPS; ++k) {
    const int s = k % STAGES;
    AT_AWAIT(STAGES - 2);
    __syncthreads();
    if (k + STAGES - 1 < STEPS) fetch((k + STAGES - 1) % STAGES, (k + STAGES - 1) * 16);
    AT_SIGNAL(); /* loop */
    unsigned x[4], y[2][4];
    at_ldmatrix_x4(x, as[a_at(s, warp * 16 + lane % 16, lane / 16)]);
    for (int j = 0; j < 2; ++j) at_ldmatrix_x4_trans(y[j], bs[b_at(s, lane % 16, 2 * j + lane / 16)]);
    for (int j = 0; j < 4; ++j) at_mma_m16n8k16_float32_float16(sum[j], x, &y[j / 2][j % 2 * 2]);
  }
  for (int j = 0; j < 4; ++j)
    for (int e = 0; e < 4; ++e) {
      const int r = row + warp * 16 + lane / 4 + e / 2 * 8, q = col + 8 * j + lane % 4 * 2 + e % 2;
      if (r < M && q < N) out[r * N + q] = sum[j][e];
    }
"""
# {a mistake: (what is written, what then stands there)}
MISTAKES = {
    "the first groups are not signalled": ("AT_SIGNAL(); /* prologue */", ""),
    "a group of the loop is not signalled": ("AT_SIGNAL(); /* loop */", ""),
    "nobody waits": ("AT_AWAIT(STAGES - 2);", ""),
    "a wait for one group less": ("AT_AWAIT(STAGES - 2);", "AT_AWAIT(STAGES - 1);"),
    "only one warp waits": ("AT_AWAIT(STAGES - 2);", "if (warp) AT_AWAIT(STAGES - 2);"),
    "a wait behind its barrier": (
        "AT_AWAIT(STAGES - 2);\n    __syncthreads();",
        "__syncthreads();\n    AT_AWAIT(STAGES - 2);",
    ),
    "no barrier": ("__syncthreads();", ""),
    "a barrier of one warp": ("__syncthreads();", "if (warp) __syncthreads();"),
    "a barrier that is left out at the end": ("__syncthreads();", "if (k + 1 < STEPS) __syncthreads();"),
    "the rows of a are swizzled where they are read alone": (
        "AT_COPY(16, as[a_at(s, r, c)]",
        "AT_COPY(16, as[s * 512 + r * 16 + 8 * c]",
    ),
    "another swizzle of b where it is copied": (
        "AT_COPY(16, bs[b_at(s, q, d)]",
        "AT_COPY(16, bs[s * 512 + q * 32 + 8 * (d ^ q % 4)]",
    ),
    "the stage that is read is copied to": ("fetch((k + STAGES - 1) % STAGES", "fetch(k % STAGES"),
    "a stage too early": ("const int s = k % STAGES;", "const int s = (k + 1) % STAGES;"),
    "one stage less in memory": ("(k + STAGES - 1) % STAGES,", "(k + STAGES - 1) % (STAGES - 1),"),
    "rows outside of a are read": ("row + r < M && k", "k"),
    "columns outside of a are read": (" && k + 8 * c < K", ""),
    "rows outside of b are read": ("k + q < K && ", ""),
    "columns outside of b are read": (" && col + 8 * d < N", ""),
    "copies go on behind the end": ("if (k + STAGES - 1 < STEPS) fetch", "fetch"),
    "rows outside are written": ("if (r < M && q < N)", "if (q < N)"),
    "b is loaded as it lies": ("at_ldmatrix_x4_trans", "at_ldmatrix_x4"),
    "the rows of a in another order": (
        "warp * 16 + lane % 16, lane / 16",
        "warp * 16 + lane / 16 * 8 + lane % 8, lane / 8 % 2",
    ),
    "registers of b in another order": ("&y[j / 2][j % 2 * 2]", "&y[j / 2][j % 2]"),
    "one warp leaves out a product": (
        "for (int j = 0; j < 4; ++j) at_mma",
        "for (int j = warp; j < 4; ++j) at_mma",
    ),
    "some lanes leave out a product": (
        "for (int j = 0; j < 4; ++j) at_mma",
        "for (int j = lane / 31; j < 4; ++j) at_mma",
    ),
    "copies of half a row": ("AT_COPY(16, as", "AT_COPY(8, as"),
    "a copy to where another copies": ("a_at(s, r, c)]", "a_at(s, r, 0)]"),
    "a copy to a place that is no multiple": (
        "AT_COPY(16, as[a_at(s, r, c)]",
        "AT_COPY(16, as[a_at(s, r, c) + 1]",
    ),
    "sums that begin with what was there": ("float sum[4][4] = {{0}}", "float sum[4][4]"),
}
# What a mistake that costs time alone is: the same places everywhere, with conflicts of banks.
EQUAL = {"no swizzle at all": ("(chunk ^ r / 4 % 2)", "chunk")}


def product_case() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(a, b and where the product goes, the product)."""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, s).astype("float16") for s in ((M, K), (K, N)))
    right = a.astype("float32") @ b.astype("float32")
    return {"a": a, "b": b, "out": np.empty((M, N), "float32")}, right
