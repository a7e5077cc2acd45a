"""Stencils in steps of time, sweeps that read what they have just written, and recursive filters."""

from __future__ import annotations

import numpy as np

import autotune as at
from autotune import te
from benchmarks.npbench.loops import stencils as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given


def _inner(x):
    """Without the border."""
    return x[(slice(1, -1),) * x.ndim]


def _inside(i, shape):
    return te.all(*(c for a, n in zip(i, shape, strict=True) for c in (a > 0, a < n - 1)))


def _two_steps(rank, value):
    """A step from A to B, and one back. Each array keeps its own border."""

    def kernels(t, p):
        shape = (p.N,) * rank

        def step(now, other, name):
            x, border = given(t, **{now: shape, other: shape})

            def point(*i):
                near = lambda *by: x[tuple(a + b for a, b in zip(i, by, strict=True))]  # noqa: E731
                return te.select(_inside(i, shape), value(near), border[i])

            return [x, border, te.compute(shape, point, name)]

        return {"to_b": step("A", "B", "B1"), "to_a": step("B1", "A", "A1")}

    return kernels


def _two_arrays(k, p):
    return {"steps": at.repeat([k.to_b, k.to_a], times=p.TSTEPS - 1, swap=[("A1", "A"), ("B1", "B")])}


def _two_arrays_run(k, a, p):
    k.steps(a.A, a.B, out=(a.B1, a.A1))
    return a.A1, a.B1


def _two_arrays_reference(step):
    def reference(a, p):
        for _ in range(1, p.TSTEPS):
            _inner(a.B)[...] = step(a.A)
            _inner(a.A)[...] = step(a.B)
        return a.A, a.B

    return reference


def _arrays(rank):
    def arrays(p, r):
        shape = (p.N,) * rank
        return {"A": r.random(shape), "B": r.random(shape), "A1": unset(*shape), "B1": unset(*shape)}

    return arrays


JACOBI_1D = Program(
    "jacobi_1d",
    sizes(
        {"TSTEPS": 800, "N": 3200},
        {"TSTEPS": 3000, "N": 12000},
        {"TSTEPS": 2, "N": 3},
        {"TSTEPS": 5, "N": 17},
    ),
    _arrays(1),
    ("A", "B"),
    _two_arrays_reference(lambda x: 0.33333 * (x[:-2] + x[1:-1] + x[2:])),
    _two_steps(1, lambda x: 0.33333 * (x(-1) + x(0) + x(1))),
    _two_arrays_run,
    loops.jacobi_1d,
    uses="repeat",
    repeats=_two_arrays,
)

JACOBI_2D = Program(
    "jacobi_2d",
    sizes({"TSTEPS": 50, "N": 150}, {"TSTEPS": 80, "N": 350}, {"TSTEPS": 2, "N": 3}, {"TSTEPS": 4, "N": 13}),
    _arrays(2),
    ("A", "B"),
    _two_arrays_reference(
        lambda x: 0.2 * (x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1] + x[:-2, 1:-1])
    ),
    _two_steps(2, lambda x: 0.2 * (x(0, 0) + x(0, -1) + x(0, 1) + x(1, 0) + x(-1, 0))),
    _two_arrays_run,
    loops.jacobi_2d,
    uses="repeat",
    repeats=_two_arrays,
)


def _heat(x):
    c = x(0, 0, 0)
    return (
        0.125 * (x(1, 0, 0) - 2.0 * c + x(-1, 0, 0))
        + 0.125 * (x(0, 1, 0) - 2.0 * c + x(0, -1, 0))
        + 0.125 * (x(0, 0, 1) - 2.0 * c + x(0, 0, -1))
        + c
    )


def _heat_reference(x):
    inner = slice(1, -1)

    def at(*by):
        return x[tuple(slice(1 + b, x.shape[0] - 1 + b) for b in by)]

    found = x[inner, inner, inner].copy()
    for axis in np.eye(3, dtype=int):
        found += 0.125 * (at(*axis) - 2.0 * at(0, 0, 0) + at(*-axis))
    return found


HEAT_3D = Program(
    "heat_3d",
    sizes({"TSTEPS": 25, "N": 25}, {"TSTEPS": 50, "N": 40}, {"TSTEPS": 2, "N": 3}, {"TSTEPS": 4, "N": 11}),
    _arrays(3),
    ("A", "B"),
    _two_arrays_reference(_heat_reference),
    _two_steps(3, _heat),
    _two_arrays_run,
    loops.heat_3d,
    uses="repeat",
    repeats=_two_arrays,
)


def _fdtd(t, p):
    ex, ey, hz, fict = given(t, ex=(p.NX, p.NY), ey=(p.NX, p.NY), hz=(p.NX, p.NY), fict=(p.TMAX,))
    now = te.placeholder((), "int32", "now")
    shape = (p.NX, p.NY)
    ey1 = te.compute(
        shape, lambda i, j: te.select(i > 0, ey[i, j] - 0.5 * (hz[i, j] - hz[i - 1, j]), fict[now[()]]), "ey1"
    )
    ex1 = te.compute(
        shape, lambda i, j: te.select(j > 0, ex[i, j] - 0.5 * (hz[i, j] - hz[i, j - 1]), ex[i, j]), "ex1"
    )

    def field(i, j):
        new = hz[i, j] - 0.7 * (ex1[i, j + 1] - ex1[i, j] + ey1[i + 1, j] - ey1[i, j])
        return te.select(te.all(i < p.NX - 1, j < p.NY - 1), new, hz[i, j])

    then = te.compute((), lambda: now[()] + 1, "then")
    return {"step": [ex, ey, hz, fict, now, ex1, ey1, te.compute(shape, field, "hz1"), then]}


def _fdtd_repeats(k, p):
    swap = [("ex1", "ex"), ("ey1", "ey"), ("hz1", "hz"), ("then", "now")]
    return {"steps": at.repeat(k.step, times=p.TMAX, swap=swap)}


def _fdtd_reference(a, p):
    ex, ey, hz = a.ex, a.ey, a.hz
    for t in range(p.TMAX):
        ey[0] = a.fict[t]
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])
    return ex, ey, hz


FDTD_2D = Program(
    "fdtd_2d",
    sizes(
        {"TMAX": 20, "NX": 200, "NY": 220}, {"TMAX": 60, "NX": 400, "NY": 450}, {"TMAX": 1, "NX": 2, "NY": 2},
        {"TMAX": 5, "NX": 13, "NY": 17},
    ),
    lambda p, r: {
        **{n: r.random((p.NX, p.NY)) for n in ("ex", "ey", "hz")}, "fict": r.random(p.TMAX),
        **{n: unset(p.NX, p.NY) for n in ("ex1", "ey1", "hz1")},
        "then": np.int32(0),
    },
    ("ex", "ey", "hz"),
    _fdtd_reference,
    _fdtd,
    lambda k, a, p: k.steps(a.ex, a.ey, a.hz, a.fict, 0, out=(a.ex1, a.ey1, a.hz1, a.then))[:3],
    loops.fdtd_2d,
    uses="repeat",
    repeats=_fdtd_repeats,
)  # fmt: skip


def _seidel(t, p):
    """The state is the inner points; before and beyond them stands the border. What each step waits for, the
    point to the left, comes last."""
    n, ninth = p.N - 2, 1.0 / 9.0
    (x,) = given(t, A=(p.N, p.N))

    def point(y, i, j):
        around = (
            y[i - 1, j - 1] + y[i - 1, j] + y[i - 1, j + 1] + x[i + 1, j + 1] + x[i + 1, j + 2]
            + x[i + 2, j] + x[i + 2, j + 1] + x[i + 2, j + 2]
        )  # fmt: skip
        return te.fma(y[i, j - 1], ninth, around * ninth)

    y = te.scan((n, n), point, init=lambda i, j: x[i + 1, j + 1], axis=(0, 1), name="inner", dtype=t)
    shape = (p.N, p.N)
    return {
        "sweep": [
            x,
            te.compute(shape, lambda i, j: te.select(_inside((i, j), shape), y[i - 1, j - 1], x[i, j]), "y"),
        ]
    }


def _seidel_reference(a, p):
    A = a.A
    for _ in range(p.TSTEPS - 1):
        for i in range(1, p.N - 1):
            above, below = A[i - 1], A[i + 1]
            A[i, 1:-1] += (
                above[:-2] + above[1:-1] + above[2:] + A[i, 2:] + below[:-2] + below[1:-1] + below[2:]
            )
            for j in range(1, p.N - 1):
                A[i, j] = (A[i, j] + A[i, j - 1]) / 9.0
    return (A,)


SEIDEL_2D = Program(
    "seidel_2d",
    sizes({"TSTEPS": 8, "N": 50}, {"TSTEPS": 15, "N": 100}, {"TSTEPS": 2, "N": 3}, {"TSTEPS": 3, "N": 13}),
    lambda p, r: {"A": r.random((p.N, p.N)), "B": unset(p.N, p.N)},
    ("A",),
    _seidel_reference,
    _seidel,
    lambda k, a, p: (k.sweeps(a.A, out=a.B),),
    loops.seidel_2d,
    uses="scan along two axes, repeat",
    repeats=lambda k, p: {"sweeps": at.repeat(k.sweep, times=p.TSTEPS - 1, swap=[("y", "A")])},
)


def _adi_numbers(p):
    """Coefficients of both half steps: beside the diagonal of the first, on it, beside it of the second."""
    square = p.N * p.N / p.TSTEPS
    return -square, 1.0 + square, -square / 2.0


def _solved(m, t, right, beside, on, name):
    """Tridiagonal systems along the first axis, one a column: eliminated forwards, solved backwards. Beyond
    both ends stands 1."""

    def forward(e, q, j, i):
        below = beside * e[j - 1, i] + on
        return -beside / below, (right(j, i) - beside * q[j - 1, i]) / below

    names = [f"{name}_p", f"{name}_q"]
    e, q = te.scan([(m, m), (m, m)], forward, init=[0.0, 1.0], axis=0, name=names, dtype=t)
    return te.scan(
        (m, m),
        lambda v, j, i: e[j, i] * v[j + 1, i] + q[j, i],
        init=1.0,
        axis=0,
        reverse=True,
        name=name,
        dtype=t,
    )


def _adi(t, p):
    n, m = p.N, p.N - 2
    a, b, d = _adi_numbers(p)
    (u,) = given(t, u=(n, n))
    v = _solved(
        m,
        t,
        lambda j, i: -d * u[j + 1, i] + (1.0 + 2.0 * d) * u[j + 1, i + 1] - d * u[j + 1, i + 2],
        a,
        b,
        "v",
    )

    def right(j, i):
        above, below = te.select(i > 0, v[i - 1, j], 1.0), te.select(i < m - 1, v[i + 1, j], 1.0)
        return -a * above + (1.0 + 2.0 * a) * v[i, j] - a * below

    w = _solved(m, t, right, d, b, "w")

    def point(i, j):
        row, column = te.all(i > 0, i < n - 1), te.all(j > 0, j < n - 1)
        return te.select(row, te.select(column, w[j - 1, i - 1], 1.0), u[i, j])

    return {"step": [u, te.compute((n, n), point, "u1")]}


def _adi_reference(a, p):
    u, n = a.u, p.N
    c1, b, c2 = _adi_numbers(p)
    v = np.ones_like(u)

    def solve(right, beside):
        e, q = np.zeros_like(right), np.ones_like(right)
        for j in range(1, n - 1):
            below = beside * e[j - 1] + b
            e[j], q[j] = -beside / below, (right[j] - beside * q[j - 1]) / below
        x = np.ones_like(right)
        for j in range(n - 2, 0, -1):
            x[j] = e[j] * x[j + 1] + q[j]
        return x

    for _ in range(p.TSTEPS):
        v[:, 1:-1] = solve(-c2 * u[:, :-2] + (1.0 + 2.0 * c2) * u[:, 1:-1] - c2 * u[:, 2:], c1)
        right = -c1 * v[:-2] + (1.0 + 2.0 * c1) * v[1:-1] - c1 * v[2:]
        u[1:-1] = solve(right.T.copy(), c2).T
    return (u,)


ADI = Program(
    "adi",
    sizes({"TSTEPS": 5, "N": 100}, {"TSTEPS": 20, "N": 200}, {"TSTEPS": 1, "N": 3}, {"TSTEPS": 3, "N": 13}),
    lambda p, r: {
        "u": r.random((p.N, p.N)), "u1": unset(p.N, p.N),
        **{n: unset(p.N, p.N) for n in ("v", "p", "q")},
    },
    ("u",),
    _adi_reference,
    _adi,
    lambda k, a, p: (k.steps(a.u, out=a.u1),),
    loops.adi,
    uses="scan, repeat",
    repeats=lambda k, p: {"steps": at.repeat(k.step, times=p.TSTEPS, swap=[("u1", "u")])},
    rtol=1e-8,
)  # fmt: skip


def _deriche(t, p):
    w, h = p.W, p.H
    alpha, x = given(t, alpha=(), x=(w, h))

    def numbers():
        al = alpha[()]
        e = te.exp(-al)
        k = (1.0 - e) * (1.0 - e) / (1.0 + al * e - te.exp(2.0 * al))
        return k, k * e * (al - 1.0), k * e * (al + 1.0), -k * (e * e), te.exp2(-al), -(e * e)

    k, a2, a3, a4, b1, b2 = (c[()] for c in te.compute((), numbers, ("c0", "c1", "c2", "c3", "c4", "c5")))

    def filtered(x, axis, name):
        """Both filters along an axis, added up."""

        def moved(at, by):
            return tuple(a + by if d == axis else a for d, a in enumerate(at))

        def near(at, by):
            there = moved(at, by)
            return te.select(te.all(there[axis] >= 0, there[axis] < x.shape[axis]), x[there], 0.0)

        def carried(y, at, by, new):
            """The last step comes last: the next one waits for it."""
            return te.fma(b1, y[moved(at, by)], te.fma(b2, y[moved(at, 2 * by)], new))

        y1 = te.scan(
            (w, h),
            lambda y, i, j: carried(y, (i, j), -1, k * x[i, j] + a2 * near((i, j), -1)),
            init=0.0, axis=axis, name=f"{name}_1", dtype=t,
        )  # fmt: skip
        y2 = te.scan(
            (w, h),
            lambda y, i, j: carried(y, (i, j), 1, a3 * near((i, j), 1) + a4 * near((i, j), 2)),
            init=0.0, axis=axis, reverse=True, name=f"{name}_2", dtype=t,
        )  # fmt: skip
        return te.compute((w, h), lambda i, j: y1[i, j] + y2[i, j], name)

    return {"deriche": [alpha, x, filtered(filtered(x, 1, "rows"), 0, "out")]}


def _deriche_reference(a, p):
    al = a.alpha
    e = np.exp(-al)
    k = (1.0 - e) * (1.0 - e) / (1.0 + al * e - np.exp(2.0 * al))
    a2, a3, a4, b1, b2 = (
        k * e * (al - 1.0),
        k * e * (al + 1.0),
        -k * np.exp(-2.0 * al),
        2.0**-al,
        -np.exp(-2.0 * al),
    )

    def filtered(x):
        y1, y2 = np.zeros_like(x), np.zeros_like(x)
        y1[0] = k * x[0]
        y1[1] = k * x[1] + a2 * x[0] + b1 * y1[0]
        for i in range(2, len(x)):
            y1[i] = k * x[i] + a2 * x[i - 1] + b1 * y1[i - 1] + b2 * y1[i - 2]
        y2[-2] = a3 * x[-1]
        for i in range(len(x) - 3, -1, -1):
            y2[i] = a3 * x[i + 1] + a4 * x[i + 2] + b1 * y2[i + 1] + b2 * y2[i + 2]
        return y1 + y2

    return (filtered(filtered(a.x.T).T),)


DERICHE = Program(
    "deriche",
    sizes({"W": 400, "H": 200}, {"W": 1500, "H": 1000}, {"W": 2, "H": 3}, {"W": 13, "H": 17}),
    lambda p, r: {
        "alpha": 0.25,
        "x": r.random((p.W, p.H)),
        **{n: unset(p.W, p.H) for n in ("y1", "y2", "out")},
    },
    ("out",),
    _deriche_reference,
    _deriche,
    lambda k, a, p: (k.deriche(a.alpha, a.x, out=a.out),),
    loops.deriche,
    uses="scan",
)

PROGRAMS = (ADI, DERICHE, FDTD_2D, HEAT_3D, JACOBI_1D, JACOBI_2D, SEIDEL_2D)
