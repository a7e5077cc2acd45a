"""Factorisations of matrices, and systems of equations: steps that read what earlier ones stored."""

from __future__ import annotations

import numpy as np

from autotune import te
from benchmarks.npbench.loops import solvers as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given, part


def _positive(n, r):
    """A symmetric matrix that is well conditioned."""
    b = r.random((n, n))
    return b @ b.T / n + np.eye(n)


def _cholesky_stages(A, n, t):
    """A column of the lower factor a step, kept as a row: what a step does for all rows lies side by side."""
    L = te.state((n, n), t, axis=0, name="L")
    s = te.compute((n, n), lambda c, i: part(0, c, lambda k: L[k, i] * L[k, c]), "s")
    d = te.compute((n,), lambda c: te.sqrt(A[c, c] - s[c, c]), "d")
    L = te.scan(L, te.compute((n, n), lambda c, i: (A[i, c] - s[c, i]) / d[c], "L"))
    return te.compute((n, n), lambda i, j: te.select(j <= i, L[j, i], A[i, j]), "R")


def _cholesky(t, p):
    (A,) = given(t, A=(p.N, p.N))
    return {"cholesky": [A, _cholesky_stages(A, p.N, t)]}


def _cholesky_reference(a, p):
    A = a.A
    for i in range(p.N):
        for j in range(i):
            A[i, j] = (A[i, j] - A[i, :j] @ A[j, :j]) / A[j, j]
        A[i, i] = np.sqrt(A[i, i] - A[i, :i] @ A[i, :i])
    return (A,)


CHOLESKY = Program(
    "cholesky",
    sizes({"N": 100}, {"N": 300}, {"N": 1}, {"N": 13}),
    lambda p, r: {"A": _positive(p.N, r), "R": unset(p.N, p.N)},
    ("A",),
    _cholesky_reference,
    _cholesky,
    lambda k, a, p: (k.cholesky(a.A, out=a.R),),
    loops.cholesky,
    uses="scan of stages",
)

CHOLESKY2 = Program(
    "cholesky2",
    sizes({"N": 1000}, {"N": 2200}, {"N": 1}, {"N": 13}),
    lambda p, r: {"A": _positive(p.N, r), "R": unset(p.N, p.N)},
    ("A",),
    lambda a, p: (np.linalg.cholesky(a.A) + np.triu(a.A, 1),),
    _cholesky,
    lambda k, a, p: (k.cholesky(a.A, out=a.R),),
    loops.cholesky,
    uses="scan of stages",
)


def _lu_stages(A, n, t):
    """Row c of U and column c of L a step, both along memory."""
    U = te.state((n, n), t, axis=0, name="U")
    L = te.state((n, n), t, axis=0, name="L")
    su = te.compute((n, n), lambda c, j: part(0, c, lambda k: L[k, c] * U[k, j]), "su")
    sl = te.compute((n, n), lambda c, i: part(0, c, lambda k: L[k, i] * U[k, c]), "sl")
    row = te.compute((n, n), lambda c, j: A[c, j] - su[c, j], "U")
    column = te.compute((n, n), lambda c, i: (A[i, c] - sl[c, i]) / row[c, c], "L")
    U, L = te.scan([U, L], [row, column])
    return te.compute((n, n), lambda i, j: te.select(j < i, L[j, i], U[i, j]), "R")


def _lu(t, p):
    (A,) = given(t, A=(p.N, p.N))
    return {"lu": [A, _lu_stages(A, p.N, t)]}


def _lu_reference(a, p):
    A = a.A
    for i in range(p.N):
        for j in range(i):
            A[i, j] = (A[i, j] - A[i, :j] @ A[:j, j]) / A[j, j]
        for j in range(i, p.N):
            A[i, j] -= A[i, :i] @ A[:i, j]
    return (A,)


LU = Program(
    "lu",
    sizes({"N": 60}, {"N": 220}, {"N": 1}, {"N": 13}),
    lambda p, r: {"A": _positive(p.N, r), "R": unset(p.N, p.N)},
    ("A",),
    _lu_reference,
    _lu,
    lambda k, a, p: (k.lu(a.A, out=a.R),),
    loops.lu,
    uses="scan of stages",
)


def _ludcmp(t, p):
    n = p.N
    A, b = given(t, A=(n, n), b=(n,))
    R = _lu_stages(A, n, t)
    y = te.state((n,), t, name="y")
    before = te.compute((n,), lambda i: part(0, i, lambda j: R[i, j] * y[j]), "before")
    y = te.scan(y, te.compute((n,), lambda i: b[i] - before[i], "y"))
    x = te.state((n,), t, name="x", reverse=True)
    after = te.compute((n,), lambda i: part(i + 1, n, lambda j: R[i, j] * x[j]), "after")
    x = te.scan(x, te.compute((n,), lambda i: (y[i] - after[i]) / R[i, i], "x"))
    return {"ludcmp": [A, b, R, x, y]}


def _ludcmp_reference(a, p):
    (A,) = _lu_reference(a, p)
    x, y = np.zeros_like(a.b), np.zeros_like(a.b)
    for i in range(p.N):
        y[i] = a.b[i] - A[i, :i] @ y[:i]
    for i in range(p.N - 1, -1, -1):
        x[i] = (y[i] - A[i, i + 1 :] @ x[i + 1 :]) / A[i, i]
    return A, x, y


LUDCMP = Program(
    "ludcmp",
    sizes({"N": 60}, {"N": 220}, {"N": 1}, {"N": 13}),
    lambda p, r: {
        "A": _positive(p.N, r), "b": r.random(p.N), "x": unset(p.N), "y": unset(p.N), "R": unset(p.N, p.N)
    },
    ("A", "x", "y"),
    _ludcmp_reference,
    _ludcmp,
    lambda k, a, p: k.ludcmp(a.A, a.b, out=(a.R, a.x, a.y)),
    loops.ludcmp,
    uses="scan of stages",
)  # fmt: skip


def _trisolv(t, p):
    n = p.N
    L, b = given(t, L=(n, n), b=(n,))
    x = te.state((n,), t, name="x")
    s = te.compute((n,), lambda i: part(0, i, lambda j: L[i, j] * x[j]), "s")
    return {"trisolv": [L, b, te.scan(x, te.compute((n,), lambda i: (b[i] - s[i]) / L[i, i], "x"))]}


def _trisolv_reference(a, p):
    x = np.zeros_like(a.b)
    for i in range(p.N):
        x[i] = (a.b[i] - a.L[i, :i] @ x[:i]) / a.L[i, i]
    return (x,)


TRISOLV = Program(
    "trisolv",
    sizes({"N": 2000}, {"N": 5000}, {"N": 1}, {"N": 17}),
    lambda p, r: {"L": r.random((p.N, p.N)) / p.N + np.eye(p.N), "b": r.random(p.N), "x": unset(p.N)},
    ("x",),
    _trisolv_reference,
    _trisolv,
    lambda k, a, p: (k.trisolv(a.L, a.b, out=a.x),),
    loops.trisolv,
    uses="scan of stages, reduce_axis((0, i))",
)


def _durbin(t, p):
    n = p.N
    (r,) = given(t, r=(n,))
    y = te.state((n, n), t, init=0.0, axis=0, name="y")
    alpha, beta = te.state((n,), t, init=0.0, name="alpha"), te.state((n,), t, init=1.0, name="beta")
    s = te.compute((n,), lambda k: part(0, k, lambda i: r[k - 1 - i] * y[k - 1, i]), "s")
    b = te.compute((n,), lambda k: beta[k - 1] * (1.0 - alpha[k - 1] * alpha[k - 1]), "beta")
    a = te.compute((n,), lambda k: -(r[k] + s[k]) / b[k], "alpha")

    def element(k, i):
        """What stands behind element k is not read."""
        return te.select(i < k, y[k - 1, i] + a[k] * y[k - 1, k - 1 - i], a[k])

    alpha, beta, y = te.scan([alpha, beta, y], [a, b, te.compute((n, n), element, "y")])
    return {"durbin": [r, te.compute((n,), lambda i: y[n - 1, i], "out")]}


def _durbin_reference(a, p):
    r = a.r
    y = np.empty_like(r)
    alpha, beta, y[0] = -r[0], r.dtype.type(1), -r[0]
    for k in range(1, p.N):
        beta *= 1 - alpha * alpha
        alpha = -(r[k] + r[:k][::-1] @ y[:k]) / beta
        y[:k] += alpha * y[:k][::-1]
        y[k] = alpha
    return (y,)


DURBIN = Program(
    "durbin",
    sizes({"N": 1000}, {"N": 6000}, {"N": 1}, {"N": 17}),
    lambda p, r: {"r": 0.5 * r.random(p.N) / (1 + np.arange(p.N)), "y": unset(p.N), "z": unset(p.N)},
    ("y",),
    _durbin_reference,
    _durbin,
    lambda k, a, p: (k.durbin(a.r, out=a.y),),
    loops.durbin,
    uses="scan of stages",
)


def _gramschmidt(t, p):
    m, n = p.M, p.N
    (A,) = given(t, A=(m, n))
    rest = te.state((n, m, n), t, init=lambda k, i, j: A[i, j], axis=0, name="rest")
    squares, i_r = te.reduce_axis(m, "i_q"), te.reduce_axis(m, "i_r")
    norm = te.compute(
        (n,), lambda k: te.sum(rest[k - 1, squares, k] * rest[k - 1, squares, k], axis=squares), "norm"
    )
    q = te.compute((n, m), lambda k, i: rest[k - 1, i, k] / te.sqrt(norm[k]), "q")
    r = te.compute((n, n), lambda k, j: te.sum(q[k, i_r] * rest[k - 1, i_r, j], axis=i_r), "r")
    te.scan(rest, te.compute((n, m, n), lambda k, i, j: rest[k - 1, i, j] - q[k, i] * r[k, j], "rest"))
    Q = te.compute((m, n), lambda i, k: q[k, i], "Q")
    upper = lambda k, j: te.select(k < j, r[k, j], te.select(te.equal(k, j), te.sqrt(norm[k]), 0.0))  # noqa: E731
    return {"gramschmidt": [A, Q, te.compute((n, n), upper, "R")]}


def _gramschmidt_reference(a, p):
    A, Q, R = a.A, np.zeros_like(a.A), np.zeros((p.N, p.N), a.A.dtype)
    for k in range(p.N):
        R[k, k] = np.sqrt(A[:, k] @ A[:, k])
        Q[:, k] = A[:, k] / R[k, k]
        for j in range(k + 1, p.N):
            R[k, j] = Q[:, k] @ A[:, j]
            A[:, j] -= Q[:, k] * R[k, j]
    return Q, R


GRAMSCHMIDT = Program(
    "gramschmidt",
    sizes({"M": 70, "N": 60}, {"M": 220, "N": 180}, {"M": 2, "N": 1}, {"M": 17, "N": 13}),
    lambda p, r: {"A": r.random((p.M, p.N)) + np.eye(p.M, p.N), "Q": unset(p.M, p.N), "R": unset(p.N, p.N)},
    ("Q", "R"),
    _gramschmidt_reference,
    _gramschmidt,
    lambda k, a, p: k.gramschmidt(a.A, out=(a.Q, a.R)),
    loops.gramschmidt,
    uses="scan of stages",
)

PROGRAMS = (CHOLESKY, CHOLESKY2, DURBIN, GRAMSCHMIDT, LU, LUDCMP, TRISOLV)
