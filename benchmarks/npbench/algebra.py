"""Products of matrices and vectors, of whole matrices and of triangles."""

from __future__ import annotations

import numpy as np

from autotune import te
from benchmarks.npbench.loops import algebra as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given, part, product


def _scaled(s, c, alpha, beta, name):
    return te.compute(c.shape, lambda i, j: alpha[()] * s[i, j] + beta[()] * c[i, j], name)


def _gemm(t, p):
    alpha, beta, C, A, B = given(t, alpha=(), beta=(), C=(p.NI, p.NJ), A=(p.NI, p.NK), B=(p.NK, p.NJ))
    return {"gemm": [alpha, beta, C, A, B, _scaled(product(A, B, "AB"), C, alpha, beta, "R")]}


GEMM = Program(
    "gemm",
    sizes(
        {"NI": 1000, "NJ": 1100, "NK": 1200}, {"NI": 2500, "NJ": 2750, "NK": 3000},
        {"NI": 1, "NJ": 2, "NK": 3}, {"NI": 13, "NJ": 17, "NK": 11},
    ),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "C": r.random((p.NI, p.NJ)), "A": r.random((p.NI, p.NK)),
        "B": r.random((p.NK, p.NJ)), "R": unset(p.NI, p.NJ),
    },
    ("C",),
    lambda a, p: (a.alpha * a.A @ a.B + a.beta * a.C,),
    _gemm,
    lambda k, a, p: (k.gemm(a.alpha, a.beta, a.C, a.A, a.B, out=a.R),),
    loops.gemm,
)  # fmt: skip


def _k2mm(t, p):
    alpha, beta, A, B, C, D = given(
        t, alpha=(), beta=(), A=(p.NI, p.NK), B=(p.NK, p.NJ), C=(p.NJ, p.NL), D=(p.NI, p.NL)
    )
    first = product(A, B, "AB")
    return {"k2mm": [alpha, beta, A, B, C, D, _scaled(product(first, C, "ABC"), D, alpha, beta, "R")]}


K2MM = Program(
    "k2mm",
    sizes(
        {"NI": 800, "NJ": 850, "NK": 900, "NL": 950}, {"NI": 2000, "NJ": 2250, "NK": 2500, "NL": 2750},
        {"NI": 2, "NJ": 1, "NK": 3, "NL": 2}, {"NI": 13, "NJ": 7, "NK": 11, "NL": 17},
    ),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "A": r.random((p.NI, p.NK)), "B": r.random((p.NK, p.NJ)),
        "C": r.random((p.NJ, p.NL)), "D": r.random((p.NI, p.NL)), "T": unset(p.NI, p.NJ),
        "R": unset(p.NI, p.NL),
    },
    ("D",),
    lambda a, p: (a.alpha * a.A @ a.B @ a.C + a.beta * a.D,),
    _k2mm,
    lambda k, a, p: (k.k2mm(a.alpha, a.beta, a.A, a.B, a.C, a.D, out=a.R),),
    loops.k2mm,
)  # fmt: skip


def _k3mm(t, p):
    A, B, C, D = given(t, A=(p.NI, p.NK), B=(p.NK, p.NJ), C=(p.NJ, p.NM), D=(p.NM, p.NL))
    return {"k3mm": [A, B, C, D, product(product(product(A, B, "AB"), C, "ABC"), D, "R")]}


K3MM = Program(
    "k3mm",
    sizes(
        {"NI": 800, "NJ": 850, "NK": 900, "NL": 950, "NM": 1000},
        {"NI": 2000, "NJ": 2200, "NK": 2400, "NL": 2600, "NM": 2800},
        {"NI": 2, "NJ": 1, "NK": 3, "NL": 2, "NM": 1}, {"NI": 13, "NJ": 7, "NK": 11, "NL": 17, "NM": 5},
    ),
    lambda p, r: {
        "A": r.random((p.NI, p.NK)), "B": r.random((p.NK, p.NJ)), "C": r.random((p.NJ, p.NM)),
        "D": r.random((p.NM, p.NL)), "S": unset(p.NI, p.NJ), "T": unset(p.NI, p.NM),
        "R": unset(p.NI, p.NL),
    },
    ("R",),
    lambda a, p: (a.A @ a.B @ a.C @ a.D,),
    _k3mm,
    lambda k, a, p: (k.k3mm(a.A, a.B, a.C, a.D, out=a.R),),
    loops.k3mm,
)  # fmt: skip


def _times(A, x, name):
    k = te.reduce_axis(A.shape[1], f"k_{name}")
    return te.compute((A.shape[0],), lambda i: te.sum(A[i, k] * x[k], axis=k), name)


def _transposed_times(A, x, name):
    k = te.reduce_axis(A.shape[0], f"k_{name}")
    return te.compute((A.shape[1],), lambda j: te.sum(A[k, j] * x[k], axis=k), name)


def _atax(t, p):
    A, x = given(t, A=(p.M, p.N), x=(p.N,))
    return {"atax": [A, x, _transposed_times(A, _times(A, x, "Ax"), "y")]}


ATAX = Program(
    "atax",
    sizes({"M": 4000, "N": 5000}, {"M": 10000, "N": 12500}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {"A": r.random((p.M, p.N)), "x": r.random(p.N), "y": unset(p.N)},
    ("y",),
    lambda a, p: ((a.A @ a.x) @ a.A,),
    _atax,
    lambda k, a, p: (k.atax(a.A, a.x, out=a.y),),
    loops.atax,
)


def _bicg(t, p):
    A, q, r = given(t, A=(p.N, p.M), p=(p.M,), r=(p.N,))
    return {"bicg": [A, q, r, _transposed_times(A, r, "s"), _times(A, q, "q")]}


BICG = Program(
    "bicg",
    sizes({"M": 4000, "N": 5000}, {"M": 10000, "N": 12500}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        "A": r.random((p.N, p.M)), "p": r.random(p.M), "r": r.random(p.N), "s": unset(p.M), "q": unset(p.N)
    },
    ("s", "q"),
    lambda a, p: (a.r @ a.A, a.A @ a.p),
    _bicg,
    lambda k, a, p: k.bicg(a.A, a.p, a.r, out=(a.s, a.q)),
    loops.bicg,
)  # fmt: skip


def _doitgen(t, p):
    A, C4, s = *given(t, A=(p.NR, p.NQ, p.NP), C4=(p.NP, p.NP)), te.reduce_axis(p.NP, "s")
    R = te.compute(A.shape, lambda r, q, c: te.sum(A[r, q, s] * C4[s, c], axis=s), "R")
    return {"doitgen": [A, C4, R]}


DOITGEN = Program(
    "doitgen",
    sizes(
        {"NR": 60, "NQ": 60, "NP": 128}, {"NR": 110, "NQ": 125, "NP": 256},
        {"NR": 1, "NQ": 2, "NP": 1}, {"NR": 3, "NQ": 5, "NP": 13},
    ),
    lambda p, r: {
        "A": r.random((p.NR, p.NQ, p.NP)), "C4": r.random((p.NP, p.NP)), "row": unset(p.NP),
        "R": unset(p.NR, p.NQ, p.NP),
    },
    ("A",),
    lambda a, p: ((a.A.reshape(-1, p.NP) @ a.C4).reshape(a.A.shape),),
    _doitgen,
    lambda k, a, p: (k.doitgen(a.A, a.C4, out=a.R),),
    loops.doitgen,
)  # fmt: skip


def _gemver(t, p):
    n = p.N
    alpha, beta, A = given(t, alpha=(), beta=(), A=(n, n))
    u1, v1, u2, v2, w, x, y, z = (
        te.placeholder((n,), t, s) for s in ("u1", "v1", "u2", "v2", "w", "x", "y", "z")
    )
    B = te.compute((n, n), lambda i, j: A[i, j] + (u1[i] * v1[j] + u2[i] * v2[j]), "B")
    yB = _transposed_times(B, y, "yB")
    x1 = te.compute((n,), lambda j: x[j] + beta[()] * yB[j] + z[j], "x1")
    Bx = _times(B, x1, "Bx")
    w1 = te.compute((n,), lambda i: w[i] + alpha[()] * Bx[i], "w1")
    return {"gemver": [alpha, beta, A, u1, v1, u2, v2, w, x, y, z, B, x1, w1]}


def _gemver_reference(a, p):
    A = a.A + np.outer(a.u1, a.v1) + np.outer(a.u2, a.v2)
    x = a.x + a.beta * (a.y @ A) + a.z
    return A, x, a.w + a.alpha * (A @ x)


GEMVER = Program(
    "gemver",
    sizes({"N": 1000}, {"N": 3000}, {"N": 1}, {"N": 17}),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "A": r.random((p.N, p.N)),
        **{n: r.random(p.N) for n in ("u1", "v1", "u2", "v2", "w", "x", "y", "z")},
        "B": unset(p.N, p.N), "x1": unset(p.N), "w1": unset(p.N),
    },
    ("A", "x", "w"),
    _gemver_reference,
    _gemver,
    lambda k, a, p: k.gemver(
        a.alpha, a.beta, a.A, a.u1, a.v1, a.u2, a.v2, a.w, a.x, a.y, a.z, out=(a.B, a.x1, a.w1)
    ),
    loops.gemver,
)  # fmt: skip


def _gesummv(t, p):
    alpha, beta, A, B, x = given(t, alpha=(), beta=(), A=(p.N, p.N), B=(p.N, p.N), x=(p.N,))
    s, q = _times(A, x, "Ax"), _times(B, x, "Bx")
    return {
        "gesummv": [
            alpha,
            beta,
            A,
            B,
            x,
            te.compute((p.N,), lambda i: alpha[()] * s[i] + beta[()] * q[i], "y"),
        ]
    }


GESUMMV = Program(
    "gesummv",
    sizes({"N": 2000}, {"N": 4000}, {"N": 1}, {"N": 17}),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "A": r.random((p.N, p.N)), "B": r.random((p.N, p.N)), "x": r.random(p.N),
        "y": unset(p.N),
    },
    ("y",),
    lambda a, p: (a.alpha * (a.A @ a.x) + a.beta * (a.B @ a.x),),
    _gesummv,
    lambda k, a, p: (k.gesummv(a.alpha, a.beta, a.A, a.B, a.x, out=a.y),),
    loops.gesummv,
)  # fmt: skip


def _mvt(t, p):
    x1, x2, y1, y2, A = given(t, x1=(p.N,), x2=(p.N,), y1=(p.N,), y2=(p.N,), A=(p.N, p.N))
    s, q = _times(A, y1, "s"), _transposed_times(A, y2, "q")
    r1 = te.compute((p.N,), lambda i: x1[i] + s[i], "r1")
    return {"mvt": [x1, x2, y1, y2, A, r1, te.compute((p.N,), lambda i: x2[i] + q[i], "r2")]}


MVT = Program(
    "mvt",
    sizes({"N": 5500}, {"N": 11000}, {"N": 1}, {"N": 17}),
    lambda p, r: {
        **{n: r.random(p.N) for n in ("x1", "x2", "y1", "y2")}, "A": r.random((p.N, p.N)),
        "r1": unset(p.N), "r2": unset(p.N),
    },
    ("x1", "x2"),
    lambda a, p: (a.x1 + a.A @ a.y1, a.x2 + a.y2 @ a.A),
    _mvt,
    lambda k, a, p: k.mvt(a.x1, a.x2, a.y1, a.y2, a.A, out=(a.r1, a.r2)),
    loops.mvt,
)  # fmt: skip


def _symm(t, p):
    alpha, beta, C, A, B = given(t, alpha=(), beta=(), C=(p.M, p.N), A=(p.M, p.M), B=(p.M, p.N))
    both = te.compute((p.M, p.M), lambda i, k: te.select(k <= i, A[i, k], A[k, i]), "both")
    return {"symm": [alpha, beta, C, A, B, _scaled(product(both, B, "AB"), C, alpha, beta, "R")]}


def _symm_reference(a, p):
    both = np.tril(a.A) + np.tril(a.A, -1).T
    return (a.beta * a.C + a.alpha * (both @ a.B),)


SYMM = Program(
    "symm",
    sizes({"M": 40, "N": 50}, {"M": 120, "N": 150}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "C": r.random((p.M, p.N)), "A": np.tril(r.random((p.M, p.M))),
        "B": r.random((p.M, p.N)), "row": unset(p.N), "R": unset(p.M, p.N),
    },
    ("C",),
    _symm_reference,
    _symm,
    lambda k, a, p: (k.symm(a.alpha, a.beta, a.C, a.A, a.B, out=a.R),),
    loops.symm,
)  # fmt: skip


def _lower(s, C, alpha, beta):
    """C whose lower triangle is updated."""
    return te.compute(
        C.shape, lambda i, j: te.select(j <= i, beta[()] * C[i, j] + alpha[()] * s[i, j], C[i, j]), "R"
    )


def _syrk(t, p):
    alpha, beta, C, A = given(t, alpha=(), beta=(), C=(p.N, p.N), A=(p.N, p.M))
    k = te.reduce_axis(p.M, "k")
    s = te.compute((p.N, p.N), lambda i, j: te.sum(A[i, k] * A[j, k], axis=k), "s")
    return {"syrk": [alpha, beta, C, A, _lower(s, C, alpha, beta)]}


SYRK = Program(
    "syrk",
    sizes({"M": 50, "N": 70}, {"M": 150, "N": 200}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "C": r.random((p.N, p.N)), "A": r.random((p.N, p.M)), "R": unset(p.N, p.N)
    },
    ("C",),
    lambda a, p: (np.tril(a.alpha * (a.A @ a.A.T) + a.beta * a.C) + np.triu(a.C, 1),),
    _syrk,
    lambda k, a, p: (k.syrk(a.alpha, a.beta, a.C, a.A, out=a.R),),
    loops.syrk,
)  # fmt: skip


def _syr2k(t, p):
    alpha, beta, C, A, B = given(t, alpha=(), beta=(), C=(p.N, p.N), A=(p.N, p.M), B=(p.N, p.M))
    k = te.reduce_axis(p.M, "k")
    AB = te.compute((p.N, p.N), lambda i, j: te.sum(A[i, k] * B[j, k], axis=k), "AB")
    s = te.compute((p.N, p.N), lambda i, j: AB[i, j] + AB[j, i], "s")
    return {"syr2k": [alpha, beta, C, A, B, _lower(s, C, alpha, beta)]}


SYR2K = Program(
    "syr2k",
    sizes({"M": 35, "N": 50}, {"M": 110, "N": 140}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        "alpha": 1.5, "beta": 1.2, "C": r.random((p.N, p.N)), "A": r.random((p.N, p.M)),
        "B": r.random((p.N, p.M)), "R": unset(p.N, p.N),
    },
    ("C",),
    lambda a, p: (
        np.tril(a.alpha * (a.A @ a.B.T + a.B @ a.A.T) + a.beta * a.C) + np.triu(a.C, 1),
    ),
    _syr2k,
    lambda k, a, p: (k.syr2k(a.alpha, a.beta, a.C, a.A, a.B, out=a.R),),
    loops.syr2k,
)  # fmt: skip


def _trmm(t, p):
    alpha, A, B = given(t, alpha=(), A=(p.M, p.M), B=(p.M, p.N))
    s = te.compute(B.shape, lambda i, j: part(i + 1, p.M, lambda k: A[k, i] * B[k, j]), "s")
    return {"trmm": [alpha, A, B, te.compute(B.shape, lambda i, j: alpha[()] * (B[i, j] + s[i, j]), "R")]}


TRMM = Program(
    "trmm",
    sizes({"M": 65, "N": 80}, {"M": 200, "N": 250}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        "alpha": 1.5, "A": r.random((p.M, p.M)), "B": r.random((p.M, p.N)), "R": unset(p.M, p.N)
    },
    ("B",),
    lambda a, p: (a.alpha * (a.B + np.tril(a.A, -1).T @ a.B),),
    _trmm,
    lambda k, a, p: (k.trmm(a.alpha, a.A, a.B, out=a.R),),
    loops.trmm,
    uses="reduce_axis((i, n))",
)  # fmt: skip

PROGRAMS = (GEMM, K2MM, K3MM, ATAX, BICG, DOITGEN, GEMVER, GESUMMV, MVT, SYMM, SYRK, SYR2K, TRMM)
