"""Programs of complex numbers, which are pairs in a last axis: what numpy's ``view`` makes of them."""

from __future__ import annotations

import math

import numpy as np

from autotune import te
from benchmarks.npbench.loops import applications as more_loops
from benchmarks.npbench.loops import complex_numbers as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given


def joined(x):
    """Pairs as numpy's complex numbers."""
    return x.view("complex64" if x.dtype == np.float32 else "complex128")[..., 0]


def pairs(x):
    """numpy's complex numbers as pairs."""
    real = "float32" if x.dtype == np.complex64 else "float64"
    return np.ascontiguousarray(x).view(real).reshape(*x.shape, 2)


def paired(re, im, name):
    """Two tensors as one of pairs."""
    return te.compute((*re.shape, 2), lambda *i: te.select(te.equal(i[-1], 0), re[i[:-1]], im[i[:-1]]), name)


def times(a, b):
    """The product of two pairs."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _plane(p, r):
    return {
        "X": np.linspace(p.xmin, p.xmax, p.XN), "Y": np.linspace(p.ymin, p.ymax, p.YN),
        "Z": unset(p.YN, p.XN, 2), "N": np.full((p.YN, p.XN), -1),
    }  # fmt: skip


def _mandelbrot(t, p, next_point, finish):
    shape = (p.maxiter, p.YN, p.XN)
    X, Y = given(t, X=(p.XN,), Y=(p.YN,))

    def step(x, y, n, s, i, j):
        a, b = x[s - 1, i, j], y[s - 1, i, j]
        return next_point(a, b, n[s - 1, i, j], a * a - b * b + X[j], 2.0 * a * b + Y[i], te.cast(s, "int64"))

    x, y, n = te.scan([shape] * 3, step, init=[0.0, 0.0, 0], name=["x", "y", "n"], dtype=[t, t, "int64"])
    last = p.maxiter - 1

    def part(i, j, c):
        return te.select(finish(n[last, i, j]), te.select(te.equal(c, 0), x[last, i, j], y[last, i, j]), 0.0)

    Z = te.compute((p.YN, p.XN, 2), part, "Z")
    return {"points": [X, Y, Z, te.compute((p.YN, p.XN), lambda i, j: n[last, i, j], "N")]}


def _mandelbrot_run(k, a, p):
    return k.points(a.X, a.Y, out=(a.Z, a.N))


def _mandelbrot1(t, p):
    def point(a, b, n, a1, b1, number):
        near = a * a + b * b < p.horizon**2
        found = te.select(te.equal(number, p.maxiter - 1), te.cast(0, "int64"), number)
        return te.select(near, a1, a), te.select(near, b1, b), te.select(near, found, n)

    return _mandelbrot(t, p, point, lambda n: n >= 0)


def _mandelbrot1_reference(a, p):
    C = a.X + a.Y[:, None] * a.X.dtype.type(1) * np.complex64(1j)
    N, Z = np.zeros(C.shape, "int64"), np.zeros(C.shape, C.dtype)
    for n in range(p.maxiter):
        near = np.abs(Z) < p.horizon
        N[near] = n
        Z[near] = Z[near] ** 2 + C[near]
    N[N == p.maxiter - 1] = 0
    return pairs(Z), N


_VIEW = {"xmin": -1.75, "xmax": 0.25, "ymin": -1.0, "ymax": 1.0, "horizon": 2.0}
MANDELBROT1 = Program(
    "mandelbrot1",
    sizes(
        {"XN": 125, "YN": 125, "maxiter": 60, **_VIEW}, {"XN": 250, "YN": 250, "maxiter": 150, **_VIEW},
        {"XN": 1, "YN": 2, "maxiter": 2, **_VIEW}, {"XN": 17, "YN": 13, "maxiter": 9, **_VIEW},
    ),
    _plane,
    ("Z", "N"),
    _mandelbrot1_reference,
    _mandelbrot1,
    _mandelbrot_run,
    more_loops.mandelbrot1,
    uses="complex numbers as pairs, scan",
    rtol=1e-6,
    rtol32=2e-2,
)  # fmt: skip


def _mandelbrot2(t, p):
    def point(a, b, n, a1, b1, number):
        out = te.select(a1 * a1 + b1 * b1 > p.horizon**2, number + 1, 0)
        active = te.equal(n, 0)
        return te.select(active, a1, a), te.select(active, b1, b), te.select(active, out, n)

    return _mandelbrot(t, p, point, lambda n: n > 0)


def _mandelbrot2_reference(a, p):
    C = (a.X + a.Y[:, None] * a.X.dtype.type(1) * np.complex64(1j)).reshape(-1)
    left, found = np.arange(C.size), np.zeros(C.size, C.dtype)
    Z, N = np.zeros(C.size, C.dtype), np.zeros(C.size, "int64")
    for t in range(p.maxiter):
        if not left.size:
            break
        Z = Z * Z + C
        out = np.abs(Z) > p.horizon
        N[left[out]], found[left[out]] = t + 1, Z[out]
        Z, C, left = Z[~out], C[~out], left[~out]
    return pairs(found.reshape(p.YN, p.XN)), N.reshape(p.YN, p.XN)


_VIEW2 = {"xmin": -2.0, "xmax": 0.5, "ymin": -1.25, "ymax": 1.25, "horizon": 2.0}
MANDELBROT2 = Program(
    "mandelbrot2",
    sizes(
        {"XN": 200, "YN": 200, "maxiter": 40, **_VIEW2}, {"XN": 500, "YN": 500, "maxiter": 80, **_VIEW2},
        {"XN": 1, "YN": 2, "maxiter": 2, **_VIEW2}, {"XN": 17, "YN": 13, "maxiter": 9, **_VIEW2},
    ),
    _plane,
    ("Z", "N"),
    lambda a, p: _mandelbrot2_reference(a, p),
    _mandelbrot2,
    _mandelbrot_run,
    more_loops.mandelbrot2,
    uses="complex numbers as pairs, scan",
    rtol=1e-6,
    rtol32=2e-2,
)  # fmt: skip


def _fft_stage(t, p, s):
    """Stage ``s``: from re and im of N numbers to the same; the first reads pairs and the last makes them."""
    R, N = p.R, p.R**p.K
    before, after = R**s, N // R ** (s + 1)
    if s:
        parts = given(t, re=(N,), im=(N,))
        number = lambda i: (parts[0][i], parts[1][i])  # noqa: E731
    else:
        parts = given(t, x=(N, 2))
        number = lambda i: (parts[0][i, 0], parts[0][i, 1])  # noqa: E731

    def turn(r, c, u):
        angle = te.cast(c * (r * before + u), t) * (-2.0 * math.pi / (before * R))
        return te.cos(angle), te.sin(angle)

    w = te.compute((R, R, before), turn, ("w_re", "w_im"))

    def value(i):
        r, u, v = i // (N // R), i // after % before, i % after
        found = [times(number((u * R + c) * after + v), (w[0][r, c, u], w[1][r, c, u])) for c in range(R)]
        return sum((f[0] for f in found[1:]), found[0][0]), sum((f[1] for f in found[1:]), found[0][1])

    new = te.compute((N,), value, ("new_re", "new_im"))
    return [*parts, *new] if s < p.K - 1 else [*parts, paired(*new, "y")]


def _fft(t, p):
    return {f"stage{s}": _fft_stage(t, p, s) for s in range(p.K)}


def _fft_run(k, a, p):
    now, new = (a.x,), (a.re, a.im)
    spare = (a.re1, a.im1)
    for s in range(p.K - 1):
        getattr(k, f"stage{s}")(*now, out=new)
        now, new, spare = new, spare, new
    getattr(k, f"stage{p.K - 1}")(*now, out=a.y)
    return (a.y,)


def _fft_reference(a, p):
    R, K, N = p.R, p.K, p.R**p.K
    y = joined(a.x).copy()
    rows, columns = np.mgrid[0:R, 0:R]
    butterfly = np.exp(-2j * np.pi * rows * columns / R).astype(y.dtype)
    ii, jj = np.mgrid[0:R, 0:N]
    for s in range(K):
        before, after = R**s, R ** (K - s - 1)
        moved = y.reshape(before, R, after).transpose(1, 0, 2)
        twiddles = np.exp(-2j * np.pi * ii[:, :before] * jj[:, :before] / (before * R)).astype(y.dtype)
        twisted = (moved * np.repeat(twiddles[:, :, None], after, axis=2)).reshape(R, N // R)
        y = (butterfly @ twisted).reshape(N)
    return (pairs(y),)


STOCKHAM_FFT = Program(
    "stockham_fft",
    sizes({"R": 2, "K": 15}, {"R": 2, "K": 18}, {"R": 2, "K": 1}, {"R": 3, "K": 3}),
    lambda p, r: {
        "x": r.random((p.R**p.K, 2)), "y": unset(p.R**p.K, 2), "tmp": unset(p.R**p.K, 2),
        **{n: unset(p.R**p.K) for n in ("re", "im", "re1", "im1")},
    },
    ("y",),
    _fft_reference,
    _fft,
    _fft_run,
    more_loops.stockham_fft,
    uses="complex numbers as pairs",
)  # fmt: skip


def _scattering(t, p):
    near = te.placeholder((p.NA, p.NB), "int32", "near")
    dH, G, D = given(
        t,
        dH=(p.NA, p.NB, p.N3D, p.Norb, p.Norb, 2),
        G=(p.Nkz, p.NE, p.NA, p.Norb, p.Norb, 2),
        D=(p.Nqz, p.Nw, p.NA, p.NB, p.N3D, p.N3D, 2),
    )
    no = p.Norb

    def both(x, *at):
        return x[*at, 0], x[*at, 1]

    def part(c):
        z = te.reduce_axis(no, "z")

        def term(k, e, a, b, i, m, n):
            return times(both(G, k, e, near[a, b], m, z), both(dH, a, b, i, z, n))[c]

        shape = (p.Nkz, p.NE, p.NA, p.NB, p.N3D, no, no)
        return te.compute(
            shape, lambda k, e, a, b, i, m, n: te.sum(term(k, e, a, b, i, m, n), axis=z), f"hg{c}"
        )

    hg = part(0), part(1)
    hd = te.compute(
        (p.Nqz, p.Nw, p.NA, p.NB, p.N3D, p.N3D, no, no),
        lambda q, w, a, b, i, j, m, n: times(both(dH, a, b, j, m, n), both(D, q, w, a, b, i, j)),
        ("hd0", "hd1"),
    )

    def total(c):
        q, i, j, b, z = (
            te.reduce_axis(n, s) for n, s in zip((p.Nqz, p.N3D, p.N3D, p.NB, no), "qijbz", strict=True)
        )

        def over(k, e, a, m, n):
            w = te.reduce_axis((0, te.minimum(p.Nw, e + 1)), "w")
            x = hg[0][k, e - w, a, b, i, m, z], hg[1][k, e - w, a, b, i, m, z]
            y = hd[0][q, w, a, b, i, j, z, n], hd[1][q, w, a, b, i, j, z, n]
            return te.sum(times(x, y)[c], axis=(q, w, i, j, b, z))

        return te.compute((p.Nkz, p.NE, p.NA, no, no), over, f"S{c}")

    return {"scattering": [near, dH, G, D, paired(total(0), total(1), "S")]}


def _scattering_reference(a, p):
    dH, G, D = joined(a.dH), joined(a.G), joined(a.D)
    S = np.zeros(G.shape, G.dtype)
    for k in range(p.Nkz):
        for e in range(p.NE):
            for q in range(p.Nqz):
                for w in range(min(p.Nw, e + 1)):
                    for i in range(p.N3D):
                        for j in range(p.N3D):
                            for s in range(p.NA):
                                for b in range(p.NB):
                                    left = G[k, e - w, a.near[s, b]] @ dH[s, b, i]
                                    S[k, e, s] += left @ (dH[s, b, j] * D[q, w, s, b, i, j])
    return (pairs(S),)


def _atoms(p, r):
    no = p.Norb
    return {
        "near": ((np.arange(p.NA)[:, None] + np.arange(p.NB) - p.NB // 2) % p.NA).astype("int32"),
        "dH": r.random((p.NA, p.NB, p.N3D, no, no, 2)), "G": r.random((p.Nkz, p.NE, p.NA, no, no, 2)),
        "D": r.random((p.Nqz, p.Nw, p.NA, p.NB, p.N3D, p.N3D, 2)), "S": unset(p.Nkz, p.NE, p.NA, no, no, 2),
        "hg": unset(no, no, 2), "hd": unset(no, no, 2),
    }  # fmt: skip


SCATTERING = Program(
    "scattering_self_energies",
    sizes(
        {"Nkz": 2, "NE": 4, "Nqz": 2, "Nw": 2, "N3D": 2, "NA": 6, "NB": 2, "Norb": 3},
        {"Nkz": 3, "NE": 5, "Nqz": 3, "Nw": 2, "N3D": 2, "NA": 10, "NB": 3, "Norb": 4},
        {"Nkz": 1, "NE": 1, "Nqz": 1, "Nw": 2, "N3D": 1, "NA": 2, "NB": 1, "Norb": 1},
        {"Nkz": 2, "NE": 3, "Nqz": 1, "Nw": 2, "N3D": 3, "NA": 5, "NB": 3, "Norb": 3},
    ),
    _atoms,
    ("S",),
    _scattering_reference,
    _scattering,
    lambda k, a, p: (k.scattering(a.near, a.dH, a.G, a.D, out=a.S),),
    more_loops.scattering_self_energies,
    uses="complex numbers as pairs, reduce_axis((0, i))",
)


def _contour(t, p):
    """What stands around the solver, which is numpy's: the matrix of a point, and what its solution adds."""
    r, m, s = p.NR, p.NM, p.slabs + 1
    H, f = given(t, H=(s, r, r, 2), f=(s, 2))

    def part(c):
        n = te.reduce_axis(s, "n")
        return te.compute(
            (r, r),
            lambda i, j: te.sum(times((f[n, 0], f[n, 1]), (H[n, i, j, 0], H[n, i, j, 1]))[c], axis=n),
            f"T{c}",
        )

    P0, P1, X, z = given(t, P0=(r, m, 2), P1=(r, m, 2), X=(r, m, 2), z=(3,))

    def added(i, j, c):
        a, b = z[2] * X[i, j, 0], z[2] * X[i, j, 1]
        re, im = times((z[0], z[1]), (a, b))
        first = te.equal(c, 0)
        return P0[i, j, c] + te.select(first, a, b), P1[i, j, c] + te.select(first, re, im)

    new = te.compute((r, m, 2), added, ("Q0", "Q1"))
    return {"matrix": [H, f, paired(part(0), part(1), "T")], "add": [P0, P1, X, z, *new]}


def _contour_run(k, a, p):
    now, new = (a.P0, a.P1), (a.Q0, a.Q1)
    Y = joined(a.B)
    for z in joined(a.z):
        powers = pairs(np.array([z ** (p.slabs / 2 - n) for n in range(p.slabs + 1)], Y.dtype))
        X = pairs(np.linalg.solve(joined(k.matrix(a.H, powers, out=a.T)), Y))
        sign = -1.0 if abs(z) < 1.0 else 1.0
        k.add(*now, X, np.array([z.real, z.imag, sign], a.B.dtype), out=new)
        now, new = new, now
    return now


def _contour_reference(a, p):
    H, Y = joined(a.H), joined(a.B)
    P0, P1 = np.zeros(Y.shape, Y.dtype), np.zeros(Y.shape, Y.dtype)
    for z in joined(a.z):
        T = sum(z ** (p.slabs / 2 - n) * H[n] for n in range(p.slabs + 1))
        X = np.linalg.inv(T) if p.NR == p.NM else np.linalg.solve(T, Y)
        X = -X if abs(z) < 1.0 else X
        P0 += X
        P1 += z * X
    return pairs(P0), pairs(P1)


CONTOUR_INTEGRAL = Program(
    "contour_integral",
    sizes(
        {"NR": 50, "NM": 150, "slabs": 2, "points": 32}, {"NR": 200, "NM": 400, "slabs": 2, "points": 32},
        {"NR": 1, "NM": 2, "slabs": 2, "points": 1}, {"NR": 5, "NM": 7, "slabs": 2, "points": 3},
    ),
    lambda p, r: {
        "H": r.random((p.slabs + 1, p.NR, p.NR, 2)) + 2 * np.eye(p.NR)[None, :, :, None],
        "z": r.random((p.points, 2)), "B": r.random((p.NR, p.NM, 2)), "T": unset(p.NR, p.NR, 2),
        "X": unset(p.NR, p.NM, 2), **{n: np.zeros((p.NR, p.NM, 2)) for n in ("P0", "P1", "Q0", "Q1")},
    },
    ("P0", "P1"),
    _contour_reference,
    _contour,
    _contour_run,
    loops.contour_integral,
    uses="complex numbers as pairs; numpy's solver",
    rtol=1e-8,
)  # fmt: skip

PROGRAMS = (CONTOUR_INTEGRAL, MANDELBROT1, MANDELBROT2, SCATTERING, STOCKHAM_FFT)
