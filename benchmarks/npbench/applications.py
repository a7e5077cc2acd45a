"""Programs of other fields: distances, histograms, checksums, graphs, particles, sparse matrices."""

from __future__ import annotations

import numpy as np

import autotune as at
from autotune import te
from benchmarks.npbench.loops import applications as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given


def _arc_distance(t, p):
    t1, p1, t2, p2 = (te.placeholder((p.N,), t, s) for s in ("t1", "p1", "t2", "p2"))

    def chord(i):
        a, b = te.sin((t2[i] - t1[i]) / 2.0), te.sin((p2[i] - p1[i]) / 2.0)
        return a * a + te.cos(t1[i]) * te.cos(t2[i]) * (b * b)

    s = te.compute((p.N,), chord, "s")
    return {
        "distance": [
            t1,
            p1,
            t2,
            p2,
            te.compute((p.N,), lambda i: 2.0 * te.atan2(te.sqrt(s[i]), te.sqrt(1.0 - s[i])), "out"),
        ]
    }


def _arc_reference(a, p):
    s = np.sin((a.t2 - a.t1) / 2) ** 2 + np.cos(a.t1) * np.cos(a.t2) * np.sin((a.p2 - a.p1) / 2) ** 2
    return (2 * np.arctan2(np.sqrt(s), np.sqrt(1 - s)),)


ARC_DISTANCE = Program(
    "arc_distance",
    sizes({"N": 100000}, {"N": 1000000}, {"N": 1}, {"N": 1003}),
    lambda p, r: {**{n: r.random(p.N) for n in ("t1", "p1", "t2", "p2")}, "out": unset(p.N)},
    ("out",),
    _arc_reference,
    _arc_distance,
    lambda k, a, p: (k.distance(a.t1, a.p1, a.t2, a.p2, out=a.out),),
    loops.arc_distance,
)


def _rings(p, r):
    return {
        "data": r.random(p.N),
        "radius": r.random(p.N),
        "out": unset(p.npt),
        "count": np.zeros(p.npt, "int64"),
    }


def _azimint_hist(t, p):
    data, radius, n, m = (
        *given(t, data=(p.N,), radius=(p.N,)),
        te.reduce_axis(p.N, "n"),
        te.reduce_axis(p.N, "m"),
    )
    hi = te.compute((), lambda: te.max(radius[n], axis=n), "hi")
    lo = te.compute((), lambda: te.min(radius[m], axis=m), "lo")

    def place(n):
        i = te.cast((radius[n] - lo[()]) / (hi[()] - lo[()]) * float(p.npt), "int32")
        return te.minimum(i, p.npt - 1)

    bins = te.compute((p.N,), place, "bins")
    s = te.histogram(bins, p.npt, weights=data, name="s")
    c = te.histogram(bins, p.npt, name="c")
    return {"histogram": [data, radius, te.compute((p.npt,), lambda i: s[i] / te.cast(c[i], t), "out")]}


AZIMINT_HIST = Program(
    "azimint_hist",
    sizes({"N": 400000, "npt": 1000}, {"N": 4000000, "npt": 1000}, {"N": 3, "npt": 1}, {"N": 1003, "npt": 7}),
    _rings,
    ("out",),
    lambda a, p: (np.histogram(a.radius, p.npt, weights=a.data)[0] / np.histogram(a.radius, p.npt)[0],),
    _azimint_hist,
    lambda k, a, p: (k.histogram(a.data, a.radius, out=a.out),),
    loops.azimint_hist,
    uses="histogram",
)


def _azimint_naive(t, p):
    data, radius, n, k = (
        *given(t, data=(p.N,), radius=(p.N,)),
        te.reduce_axis(p.N, "n"),
        te.reduce_axis(p.N, "k"),
    )
    top = te.compute((), lambda: te.max(radius[n], axis=n), "top")
    edge = te.compute((p.npt + 1,), lambda i: top[()] * te.cast(i, t) / float(p.npt), "edge")

    def terms(i):
        mine = te.all(edge[i] <= radius[k], radius[k] < edge[i + 1])
        return te.select(mine, data[k], 0.0), te.select(mine, te.const(1.0, t), 0.0)

    s, c = te.compute((p.npt,), lambda i: _sums(2)(terms(i), axis=k), ("s", "c"))
    return {"means": [data, radius, te.compute((p.npt,), lambda i: s[i] / c[i], "out")]}


def _azimint_naive_reference(a, p):
    top = a.radius.max()
    out = np.zeros(p.npt, a.data.dtype)
    for i in range(p.npt):
        ring = (top * i / p.npt <= a.radius) & (a.radius < top * (i + 1) / p.npt)
        out[i] = a.data[ring].mean()
    return (out,)


AZIMINT_NAIVE = Program(
    "azimint_naive",
    sizes({"N": 400000, "npt": 1000}, {"N": 4000000, "npt": 1000}, {"N": 3, "npt": 1}, {"N": 1003, "npt": 7}),
    _rings,
    ("out",),
    _azimint_naive_reference,
    _azimint_naive,
    lambda k, a, p: (k.means(a.data, a.radius, out=a.out),),
    loops.azimint_naive,
)


def _compute(t, p):
    n = (p.M, p.N)
    x, y, a, b, c = given("int64", x=n, y=n, a=(), b=(), c=())
    point = lambda i, j: te.minimum(te.maximum(x[i, j], 2), 10) * a[()] + y[i, j] * b[()] + c[()]  # noqa: E731
    return {"compute": [x, y, a, b, c, te.compute(n, point, "out")]}


COMPUTE = Program(
    "compute",
    sizes({"M": 2000, "N": 2000}, {"M": 5000, "N": 5000}, {"M": 1, "N": 2}, {"M": 13, "N": 17}),
    lambda p, r: {
        **{n: r.integers(0, 1000, (p.M, p.N)) for n in "xy"},
        "a": np.int64(4),
        "b": np.int64(3),
        "c": np.int64(9),
        "out": np.full((p.M, p.N), -1),
    },
    ("out",),
    lambda a, p: (np.clip(a.x, 2, 10) * a.a + a.y * a.b + a.c,),
    _compute,
    lambda k, a, p: (k.compute(a.x, a.y, a.a, a.b, a.c, out=a.out),),
    loops.compute,
)


def _crc16(t, p):
    data = te.placeholder((p.N,), "uint8", "data")
    crc = te.state((p.N,), "int32", init=0xFFFF, name="crc")
    bit = te.compute((p.N,), lambda n: crc[n - 1] ^ te.cast(data[n], "int32"), "c")
    for b in range(8):
        last = bit

        def step(n, x=last):
            half = te.right_shift(x[n], 1)
            return te.select(te.equal(x[n] & 1, 1), half ^ 0x8408, half)

        bit = te.compute((p.N,), step, "crc" if b == 7 else f"b{b}")
    crc = te.scan(crc, bit)

    def swapped():
        x = crc[p.N - 1] ^ 0xFFFF
        return (te.left_shift(x, 8) | te.right_shift(x, 8)) & 0xFFFF

    return {"crc16": [data, te.compute((), swapped, "out")]}


def _crc16_reference(a, p):
    crc = 0xFFFF
    for byte in a.data:
        crc ^= int(byte)
        for _ in range(8):
            crc = (crc >> 1) ^ 0x8408 if crc & 1 else crc >> 1
    crc = ~crc & 0xFFFF
    return (np.array([(crc << 8 | crc >> 8) & 0xFFFF], "int32"),)


CRC16 = Program(
    "crc16",
    sizes({"N": 1600}, {"N": 16000}, {"N": 1}, {"N": 17}),
    lambda p, r: {"data": r.integers(0, 256, p.N).astype("uint8"), "out": np.zeros(1, "int32")},
    ("out",),
    _crc16_reference,
    _crc16,
    lambda k, a, p: (k.crc16(a.data, out=a.out.reshape(())).reshape(1),),
    loops.crc16,
    uses="scan of stages",
)


def _floyd_warshall(t, p):
    x, k = te.placeholder((p.N, p.N), "int32", "path"), te.placeholder((), "int32", "k")
    point = lambda i, j: te.minimum(x[i, j], x[i, k[()]] + x[k[()], j])  # noqa: E731
    return {"step": [x, k, te.compute((p.N, p.N), point, "new"), te.compute((), lambda: k[()] + 1, "next")]}


def _floyd_reference(a, p):
    for k in range(p.N):
        a.path[:] = np.minimum(a.path, np.add.outer(a.path[:, k], a.path[k]))
    return (a.path,)


FLOYD_WARSHALL = Program(
    "floyd_warshall",
    sizes({"N": 200}, {"N": 400}, {"N": 1}, {"N": 17}),
    lambda p, r: {
        "path": np.where(r.random((p.N, p.N)) < 0.3, 999, r.integers(1, 8, (p.N, p.N))).astype("int32"),
        "spare": np.zeros((p.N, p.N), "int32"), "next": np.int32(0),
    },
    ("path",),
    _floyd_reference,
    _floyd_warshall,
    lambda k, a, p: (k.steps(a.path, 0, out=(a.spare, a.next))[0],),
    loops.floyd_warshall,
    uses="repeat",
    repeats=lambda k, p: {"steps": at.repeat(k.step, times=p.N, swap=[("new", "path"), ("next", "k")])},
    dtype="int32",
)  # fmt: skip


def _go_fast(t, p):
    a, k = *given(t, a=(p.N, p.N)), te.reduce_axis(p.N, "k")
    trace = te.compute((), lambda: te.sum(te.tanh(a[k, k]), axis=k), "trace")
    return {"go_fast": [a, te.compute((p.N, p.N), lambda i, j: a[i, j] + trace[()], "out")]}


def _go_fast_reference(a, p):
    trace = 0.0
    for i in range(p.N):
        trace += np.tanh(a.a[i, i])
    return (a.a + trace,)


GO_FAST = Program(
    "go_fast",
    sizes({"N": 2000}, {"N": 6000}, {"N": 1}, {"N": 17}),
    lambda p, r: {"a": r.random((p.N, p.N)), "out": unset(p.N, p.N)},
    ("out",),
    _go_fast_reference,
    _go_fast,
    lambda k, a, p: (k.go_fast(a.a, out=a.out),),
    loops.go_fast,
)


def _sums(count):
    """Several sums over the same axes, done together."""
    return te.reducer((0.0,) * count, lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)), "sums")


def _nbody(t, p):
    """Coordinates are apart, so that bodies lie side by side."""
    n, half = p.N, p.dt / 2.0
    pos, vel, mass = given(t, pos=(n, 3), vel=(n, 3), mass=(n, 1))
    X, V, A = ([te.placeholder((n,), t, f"{s}{c}") for c in "xyz"] for s in ("p", "v", "a"))
    each = lambda value, name: [  # noqa: E731
        te.compute((n,), lambda i, c=c: value(c, i), f"{name}{'xyz'[c]}") for c in range(3)
    ]

    def pulled(x, name):
        """Accelerations, and of each body its potential in the field of the others."""
        j = te.reduce_axis(n, "j")

        def terms(i):
            apart = [y[j] - y[i] for y in x]
            d = sum((w * w for w in apart[1:]), start=apart[0] * apart[0])
            soft = d + p.softening**2
            over = p.G * mass[j, 0] / (soft * te.sqrt(soft))
            field = te.select(te.not_equal(i, j), mass[j, 0] / te.sqrt(d), 0.0)
            return (*(over * w for w in apart), field)

        names = (*(f"{name}{c}" for c in "xyz"), "field")
        return te.compute((n,), lambda i: _sums(4)(terms(i), axis=j), names)

    def energies(v, field):
        i, k = (te.reduce_axis(n, s) for s in ("i", "k"))
        squares = lambda i: v[0][i] * v[0][i] + v[1][i] * v[1][i] + v[2][i] * v[2][i]  # noqa: E731
        kinetic = te.compute((), lambda: te.sum(mass[i, 0] * squares(i), axis=i), "kinetic")
        potential = te.compute((), lambda: te.sum(mass[k, 0] * field[k], axis=k), "potential")
        ke = te.compute((), lambda: 0.5 * kinetic[()], "KE")
        return [ke, te.compute((), lambda: -0.5 * p.G * potential[()], "PE")]

    q = te.reduce_axis(n, "q")
    r = te.reduce_axis(n, "r")
    total = te.compute((), lambda: te.sum(mass[q, 0], axis=q), "total")
    drift = te.compute((3,), lambda c: te.sum(mass[r, 0] * vel[r, c], axis=r), "drift")
    pos0 = each(lambda c, i: pos[i, c], "p")
    vel0 = each(lambda c, i: vel[i, c] - drift[c] / total[()], "v")
    *acc0, field0 = pulled(pos0, "a")
    begin = [pos, vel, mass, *pos0, *vel0, *acc0, *energies(vel0, field0)]
    kicked = each(lambda c, i: V[c][i] + A[c][i] * half, "kicked")
    pos1 = each(lambda c, i: X[c][i] + kicked[c][i] * p.dt, "new_p")
    *acc1, field1 = pulled(pos1, "new_a")
    vel1 = each(lambda c, i: kicked[c][i] + acc1[c][i] * half, "new_v")
    KE, PE = given(t, all_KE=(p.Nt + 1,), all_PE=(p.Nt + 1,))
    now = te.placeholder((), "int32", "now")
    stored = [
        te.compute(
            x.shape,
            lambda k, e=e, x=x: te.select(te.equal(te.cast(k, "int32"), now[()]), e[()], x[k]),
            f"new_{x.name}",
        )
        for e, x in zip(energies(vel1, field1), (KE, PE), strict=True)
    ]
    then = te.compute((), lambda: now[()] + 1, "then")
    step = [*X, *V, *A, mass, KE, PE, now, *pos1, *vel1, *acc1, *stored, then]
    return {"begin": begin, "step": step}


def _nbody_repeats(k, p):
    state = [f"{s}{c}" for s in "pva" for c in "xyz"] + ["all_KE", "all_PE"]
    swap = [*((f"new_{s}", s) for s in state), ("then", "now")]
    return {"steps": at.repeat(k.step, times=p.Nt, swap=swap)}


def _nbody_run(k, a, p):
    first = lambda x: x[:1].reshape(())  # noqa: E731
    k.begin(a.pos, a.vel, a.mass, out=(*a.state, first(a.KE), first(a.PE)))
    k.steps(*a.state, a.mass, a.KE, a.PE, a.now, out=(*a.new_state, a.KE, a.PE, a.then))
    return a.KE, a.PE


def _nbody_reference(a, p):
    def apart(pos):
        return [pos[:, c] - pos[:, c : c + 1] for c in range(3)]

    def pulled(pos):
        d = apart(pos)
        over = (d[0] ** 2 + d[1] ** 2 + d[2] ** 2 + p.softening**2) ** -1.5
        return np.hstack([p.G * (x * over) @ a.mass for x in d])

    def energies(pos, vel):
        d = apart(pos)
        r = np.sqrt(d[0] ** 2 + d[1] ** 2 + d[2] ** 2)
        r[r > 0] = 1.0 / r[r > 0]
        return 0.5 * np.sum(a.mass * vel**2), -p.G * np.sum(np.triu((a.mass * a.mass.T) * r, 1))

    pos, vel = a.pos, a.vel - np.mean(a.mass * a.vel, axis=0) / np.mean(a.mass)
    acc = pulled(pos)
    a.KE[0], a.PE[0] = energies(pos, vel)
    for t in range(p.Nt):
        vel = vel + acc * (p.dt / 2.0)
        pos = pos + vel * p.dt
        acc = pulled(pos)
        vel = vel + acc * (p.dt / 2.0)
        a.KE[t + 1], a.PE[t + 1] = energies(pos, vel)
    return a.KE, a.PE


_BODIES = {"softening": 0.1, "G": 1.0}
NBODY = Program(
    "nbody",
    sizes(
        {"N": 25, "Nt": 40, "dt": 0.05, **_BODIES},
        {"N": 50, "Nt": 250, "dt": 0.02, **_BODIES},
        {"N": 2, "Nt": 1, "dt": 0.01, **_BODIES},
        {"N": 7, "Nt": 3, "dt": 0.01, **_BODIES},
    ),
    lambda p, r: {
        "mass": np.full((p.N, 1), 20.0 / p.N),
        **{n: r.random((p.N, 3)) for n in ("pos", "vel")},
        "acc": unset(p.N, 3),
        **{n: unset(9, p.N) for n in ("state", "new_state")},
        "now": np.int32(1),
        "then": np.int32(0),
        "KE": unset(p.Nt + 1),
        "PE": unset(p.Nt + 1),
    },
    ("KE", "PE"),
    _nbody_reference,
    _nbody,
    _nbody_run,
    loops.nbody,
    uses="repeat",
    repeats=_nbody_repeats,
    rtol=1e-7,
)


def _nussinov(t, p):
    """Row i of the table is row N - 1 - i of the state, so that steps run forwards."""
    n = p.N
    seq = te.placeholder((n,), "int32", "seq")
    T = te.state((n, n), "int32", init=0, axis=(0, 1), name="T")
    place = lambda i: n - 1 - i  # noqa: E731  (of a row, in either direction)

    def split(r, j):
        k = te.reduce_axis((place(r) + 1, j), "k")
        return te.max(T[r, k] + T[place(k + 1), j], axis=k)

    best = te.compute((n, n), split, "best")

    def cell(r, j):
        paired = te.all(place(r) < j - 1, te.equal(seq[place(r)] + seq[j], 3))
        near = te.maximum(te.maximum(T[r, j - 1], T[r - 1, j]), T[r - 1, j - 1] + te.cast(paired, "int32"))
        return te.select(j > place(r), te.maximum(near, te.maximum(best[r, j], 0)), 0)

    T = te.scan(T, te.compute((n, n), cell, "T"))
    return {"nussinov": [seq, te.compute((n, n), lambda i, j: T[place(i), j], "table")]}


def _nussinov_reference(a, p):
    n, seq, T = p.N, a.seq, np.zeros((p.N, p.N), "int32")
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            T[i, j] = T[i, j - 1]
            if i + 1 < n:
                pair = int(i < j - 1 and seq[i] + seq[j] == 3)
                T[i, j] = max(T[i, j], T[i + 1, j], T[i + 1, j - 1] + pair)
            for k in range(i + 1, j):
                T[i, j] = max(T[i, j], T[i, k] + T[k + 1, j])
    return (T,)


NUSSINOV = Program(
    "nussinov",
    sizes({"N": 40}, {"N": 90}, {"N": 2}, {"N": 13}),
    lambda p, r: {"seq": r.integers(0, 4, p.N).astype("int32"), "table": np.full((p.N, p.N), -1, "int32")},
    ("table",),
    _nussinov_reference,
    _nussinov,
    lambda k, a, p: (k.nussinov(a.seq, out=a.table),),
    loops.nussinov,
    uses="scan along two axes",
    dtype="int32",
)

MOST = 12  # numbers of a row of a sparse matrix, at most


def _spmv(t, p):
    row, col = te.placeholder((p.M + 1,), "int32", "row"), te.placeholder((p.nnz,), "int32", "col")
    val, x, k = *given(t, val=(p.nnz,), x=(p.N,)), te.reduce_axis(MOST, "k")

    def term(i):
        at = row[i] + te.cast(k, "int32")
        return te.select(at < row[i + 1], val[at] * x[col[at]], 0.0)

    return {"spmv": [row, col, val, x, te.compute((p.M,), lambda i: te.sum(term(i), axis=k), "y")]}


def _sparse(p, r):
    """Rows of up to `MOST` numbers, in places drawn by chance."""
    size = np.minimum(np.bincount(r.integers(0, p.M, p.nnz), minlength=p.M), MOST)
    size[np.argmin(size)] += p.nnz - size.sum() if p.nnz - size.sum() <= MOST else 0
    row = np.concatenate(([0], np.cumsum(size))).astype("int32")
    return {
        "row": row,
        "col": r.integers(0, p.N, p.nnz).astype("int32"),
        "val": r.random(p.nnz),
        "x": r.random(p.N),
        "y": unset(p.M),
    }


def _spmv_reference(a, p):
    y = np.empty(p.M, a.val.dtype)
    for i in range(p.M):
        mine = slice(a.row[i], a.row[i + 1])
        y[i] = a.val[mine] @ a.x[a.col[mine]]
    return (y,)


SPMV = Program(
    "spmv",
    sizes(
        {"M": 4096, "N": 4096, "nnz": 8192}, {"M": 32768, "N": 32768, "nnz": 65536},
        {"M": 1, "N": 2, "nnz": 1}, {"M": 13, "N": 17, "nnz": 31},
    ),
    _sparse,
    ("y",),
    _spmv_reference,
    _spmv,
    lambda k, a, p: (k.spmv(a.row, a.col, a.val, a.x, out=a.y),),
    loops.spmv,
)  # fmt: skip

PROGRAMS = (
    ARC_DISTANCE, AZIMINT_HIST, AZIMINT_NAIVE, COMPUTE, CRC16, FLOYD_WARSHALL, GO_FAST, NBODY, NUSSINOV, SPMV
)  # fmt: skip
