"""Weather and fluids: diffusion, advection, and flow in a cavity and in a channel."""

from __future__ import annotations

import numpy as np

import autotune as at
from autotune import te
from benchmarks.npbench.loops import fluids as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given


def _hdiff(t, p):
    x, coeff = given(t, x=(p.I + 4, p.J + 4, p.K), coeff=(p.I, p.J, p.K))
    lap = te.compute(
        (p.I + 2, p.J + 2, p.K),
        lambda i, j, k: (
            4.0 * x[i + 1, j + 1, k]
            - (x[i + 2, j + 1, k] + x[i, j + 1, k] + x[i + 1, j + 2, k] + x[i + 1, j, k])
        ),
        "lap",
    )

    # flx[i] lies between the points i - 1 and i of the field, fly[j] between j - 1 and j
    def shifted(di, dj, name):
        def value(i, j, k):
            r = lap[i + 1, j + 1, k] - lap[i + 1 - di, j + 1 - dj, k]
            slope = x[i + 2, j + 2, k] - x[i + 2 - di, j + 2 - dj, k]
            return te.select(r * slope > 0.0, 0.0, r)

        return te.compute((p.I + di, p.J + dj, p.K), value, name)

    flx, fly = shifted(1, 0, "flx"), shifted(0, 1, "fly")
    out = te.compute(
        (p.I, p.J, p.K),
        lambda i, j, k: (
            x[i + 2, j + 2, k]
            - coeff[i, j, k] * (flx[i + 1, j, k] - flx[i, j, k] + fly[i, j + 1, k] - fly[i, j, k])
        ),
        "out",
    )
    return {"hdiff": [x, coeff, out]}


def _hdiff_reference(a, p):
    x = a.x
    lap = 4.0 * x[1:-1, 1:-1] - (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2])
    r = lap[1:, 1:-1] - lap[:-1, 1:-1]
    flx = np.where(r * (x[2:-1, 2:-2] - x[1:-2, 2:-2]) > 0, 0, r)
    r = lap[1:-1, 1:] - lap[1:-1, :-1]
    fly = np.where(r * (x[2:-2, 2:-1] - x[2:-2, 1:-2]) > 0, 0, r)
    return (x[2:-2, 2:-2] - a.coeff * (flx[1:] - flx[:-1] + fly[:, 1:] - fly[:, :-1]),)


HDIFF = Program(
    "hdiff",
    sizes(
        {"I": 64, "J": 64, "K": 60},
        {"I": 128, "J": 128, "K": 160},
        {"I": 1, "J": 1, "K": 1},
        {"I": 5, "J": 7, "K": 13},
    ),
    lambda p, r: {
        "x": r.random((p.I + 4, p.J + 4, p.K)),
        "coeff": r.random((p.I, p.J, p.K)),
        "out": unset(p.I, p.J, p.K),
        "lap": unset(p.I + 2, p.J + 2, p.K),
        "flx": unset(p.I + 1, p.J, p.K),
        "fly": unset(p.I, p.J + 1, p.K),
    },
    ("out",),
    _hdiff_reference,
    _hdiff,
    lambda k, a, p: (k.hdiff(a.x, a.coeff, out=a.out),),
    loops.hdiff,
)


def _vadv(t, p):
    n = (p.I, p.J, p.K)
    old, us, wcon, up, ut, dtr = given(
        t, utens_stage=n, u_stage=n, wcon=(p.I + 1, *n[1:]), u_pos=n, utens=n, dtr=()
    )

    def across(i, j, k):
        """How fast air moves through the face below level k."""
        return 0.125 * (wcon[i + 1, j, k] + wcon[i, j, k])

    def forward(cc, dd, i, j, k):
        first, last = te.equal(k, 0), te.equal(k, p.K - 1)
        a = te.select(first, 0.0, -across(i, j, k))
        c = te.select(last, 0.0, across(i, j, k + 1))
        below = te.select(first, 0.0, -a * (us[i, j, k - 1] - us[i, j, k]))
        above = te.select(last, 0.0, -c * (us[i, j, k + 1] - us[i, j, k]))
        right = dtr[()] * up[i, j, k] + ut[i, j, k] + old[i, j, k] + below + above
        f = 1.0 / (dtr[()] - a - c - cc[i, j, k - 1] * a)
        return c * f, (right - dd[i, j, k - 1] * a) * f

    cc, dd = te.scan([n, n], forward, init=[0.0, 0.0], axis=2, name=["ccol", "dcol"], dtype=t)
    s = te.scan(
        n,
        lambda s, i, j, k: dd[i, j, k] - cc[i, j, k] * s[i, j, k + 1],
        init=0.0,
        axis=2,
        reverse=True,
        name="s",
        dtype=t,
    )
    new = te.compute(n, lambda i, j, k: dtr[()] * (s[i, j, k] - up[i, j, k]), "R")
    return {"vadv": [old, us, wcon, up, ut, dtr, new]}


def _vadv_reference(a, p):
    K, dtr, us = p.K, a.dtr, a.u_stage
    across = 0.125 * (a.wcon[1:] + a.wcon[:-1])
    cc, dd = np.empty_like(us), np.empty_like(us)
    out = np.empty_like(us)
    for k in range(K):
        d = dtr * a.u_pos[:, :, k] + a.utens[:, :, k] + a.utens_stage[:, :, k]
        below = dtr
        if k > 0:
            d = d + across[:, :, k] * (us[:, :, k - 1] - us[:, :, k])
            below = below + across[:, :, k] + cc[:, :, k - 1] * across[:, :, k]
            d = d + dd[:, :, k - 1] * across[:, :, k]
        if k < K - 1:
            d = d - across[:, :, k + 1] * (us[:, :, k + 1] - us[:, :, k])
            below = below - across[:, :, k + 1]
            cc[:, :, k] = across[:, :, k + 1] / below
        dd[:, :, k] = d / below
    s = dd[:, :, K - 1]
    out[:, :, K - 1] = dtr * (s - a.u_pos[:, :, K - 1])
    for k in range(K - 2, -1, -1):
        s = dd[:, :, k] - cc[:, :, k] * s
        out[:, :, k] = dtr * (s - a.u_pos[:, :, k])
    return (out,)


VADV = Program(
    "vadv",
    sizes(
        {"I": 60, "J": 60, "K": 40}, {"I": 112, "J": 112, "K": 80}, {"I": 1, "J": 2, "K": 2},
        {"I": 5, "J": 7, "K": 13},
    ),
    lambda p, r: {
        **{n: r.random((p.I, p.J, p.K)) for n in ("utens_stage", "u_stage", "u_pos", "utens")},
        "wcon": r.random((p.I + 1, p.J, p.K)), "dtr": 3.0 / 20.0 + 1.0,
        **{n: unset(p.I, p.J, p.K) for n in ("ccol", "dcol", "R")},
    },
    ("utens_stage",),
    _vadv_reference,
    _vadv,
    lambda k, a, p: (k.vadv(a.utens_stage, a.u_stage, a.wcon, a.u_pos, a.utens, a.dtr, out=a.R),),
    loops.vadv,
    uses="scan",
    rtol=1e-8,
)  # fmt: skip


def _numbers(p):
    """Distances of the grid and the step of time."""
    return 2.0 / (p.nx - 1), 2.0 / (p.ny - 1), 0.1 / ((p.nx - 1) * (p.ny - 1))


class _Grid:
    """Formulas of both flows at a point: x+ is to the right, y+ is below. ``right`` and ``left`` say where
    neighbours of a column are."""

    def __init__(self, p, left, right):
        self.dx, self.dy, self.dt = _numbers(p)
        self.p, self.left, self.right = p, left, right

    def source(self, u, v, i, j):
        by_x, by_y, (a, b) = 0.5 / self.dx, 0.5 / self.dy, (self.left(j), self.right(j))
        ux, uy = (u(i, b) - u(i, a)) * by_x, (u(i + 1, j) - u(i - 1, j)) * by_y
        vx, vy = (v(i, b) - v(i, a)) * by_x, (v(i + 1, j) - v(i - 1, j)) * by_y
        return self.p.rho * ((ux + vy) * (1.0 / self.dt) - ux * ux - 2 * uy * vx - vy * vy)

    def pressure(self, q, b, i, j):
        dx2, dy2 = self.dx**2, self.dy**2
        around = (q(i, self.right(j)) + q(i, self.left(j))) * dy2 + (q(i + 1, j) + q(i - 1, j)) * dx2
        return around * (1 / (2 * (dx2 + dy2))) - dx2 * dy2 / (2 * (dx2 + dy2)) * b(i, j)

    def moved(self, w, u, v, slope, i, j):
        """A velocity after the step; ``slope`` is that of the pressure."""
        dx, dy, dt, (a, b) = self.dx, self.dy, self.dt, (self.left(j), self.right(j))
        carried = u(i, j) * (dt / dx) * (w(i, j) - w(i, a)) + v(i, j) * (dt / dy) * (w(i, j) - w(i - 1, j))
        spread = dt / dx**2 * (w(i, b) - 2 * w(i, j) + w(i, a)) + dt / dy**2 * (
            w(i + 1, j) - 2 * w(i, j) + w(i - 1, j)
        )
        return w(i, j) - carried - slope + self.p.nu * spread

    def along_x(self, q, i, j):
        return self.dt / (2 * self.p.rho * self.dx) * (q(i, self.right(j)) - q(i, self.left(j)))

    def along_y(self, q, i, j):
        return self.dt / (2 * self.p.rho * self.dy) * (q(i + 1, j) - q(i - 1, j))


def _at(x):
    return lambda i, j: x[i, j]


def _ring(x):
    """Columns in a ring: beside the last is the first."""
    last = x.shape[1] - 1
    return lambda i, j: te.select(j < 0, x[i, last], te.select(j > last, x[i, 0], x[i, j]))


def _flow_kernels(t, p, of, columns, edge_p, edge_u, force):
    """Source, pressure and velocities of a step: full arrays, of which ``columns(j)`` and the inner rows
    follow the formulas, and the edges have their own values. ``of`` says where elements of an array are."""
    grid = _Grid(p, lambda j: j - 1, lambda j: j + 1)
    n = (p.ny, p.nx)
    u, v, first, b, last = given(t, u=n, v=n, p=n, b=n, new_p=n)
    inside = lambda i, j: te.all(i > 0, i < p.ny - 1, *columns(j))  # noqa: E731
    source = te.compute(n, lambda i, j: te.select(inside(i, j), grid.source(of(u), of(v), i, j), 0.0), "b")
    q = first
    for k in range(p.nit):
        inner = lambda i, j, q=q: grid.pressure(of(q), of(b), i, j)  # noqa: E731
        name = f"p{k + 1}" if k < p.nit - 1 else "new_p"
        q = te.compute(n, lambda i, j, inner=inner: edge_p(inner, i, j), name)
    u1 = te.compute(
        n,
        lambda i, j: te.select(
            inside(i, j),
            grid.moved(of(u), of(u), of(v), grid.along_x(of(last), i, j), i, j) + force,
            edge_u(i, j),
        ),
        "u1",
    )
    v1 = te.compute(
        n,
        lambda i, j: te.select(
            inside(i, j), grid.moved(of(v), of(u), of(v), grid.along_y(of(last), i, j), i, j), 0.0
        ),
        "v1",
    )
    return {"source": [u, v, source], "pressures": [first, b, q], "velocities": [u, v, last, u1, v1]}


def _cavity(t, p):

    def edge(inner, i, j):
        """The inner point next to one of an edge; the last row is 0, and corners follow the rows."""
        row = te.maximum(i, 1)
        found = te.select(te.equal(j, p.nx - 1), inner(row, p.nx - 2), inner(row, j))
        return te.select(i < p.ny - 1, te.select(te.equal(j, 0), inner(row, 1), found), 0.0)

    lid = lambda i, j: te.select(te.equal(i, p.ny - 1), te.const(1.0, t), 0.0)  # noqa: E731
    return _flow_kernels(t, p, _at, lambda j: (j > 0, j < p.nx - 1), edge, lid, 0.0)


def _cavity_repeats(k, p):
    swap = [("u1", "u"), ("v1", "v"), ("new_p", "p")]
    return {"steps": at.repeat([k.source, k.pressures, k.velocities], times=p.nt, swap=swap)}


def _cavity_run(k, a, p):
    _, q, u, v = k.steps(a.u, a.v, a.p, out=(a.b, a.pn, a.un, a.vn))
    return u, v, q


def _shifts(x):
    """An array as a function of offsets from its inner points."""
    return lambda i, j: x[1 + i : x.shape[0] - 1 + i, 1 + j : x.shape[1] - 1 + j]


def _cavity_reference(a, p):
    u, v, q = a.u, a.v, a.p
    grid = _Grid(p, lambda j: j - 1, lambda j: j + 1)
    b = np.zeros_like(u)
    for _ in range(p.nt):
        b[1:-1, 1:-1] = grid.source(_shifts(u), _shifts(v), 0, 0)
        for _ in range(p.nit):
            q[1:-1, 1:-1] = grid.pressure(_shifts(q.copy()), _shifts(b), 0, 0)
            q[:, -1] = q[:, -2]
            q[0] = q[1]
            q[:, 0] = q[:, 1]
            q[-1] = 0
        un, vn, qn = _shifts(u.copy()), _shifts(v.copy()), _shifts(q)
        u[1:-1, 1:-1] = grid.moved(un, un, vn, grid.along_x(qn, 0, 0), 0, 0)
        v[1:-1, 1:-1] = grid.moved(vn, un, vn, grid.along_y(qn, 0, 0), 0, 0)
        u[0], u[:, 0], u[:, -1], v[0], v[-1], v[:, 0], v[:, -1] = (0,) * 7
        u[-1] = 1
    return u, v, q


def _flow_arrays(p, r, start):
    dx, dy, dt = _numbers(p)
    n = (p.ny, p.nx)
    return {
        "u": np.zeros(n), "v": np.zeros(n), "p": np.full(n, start), "b": np.zeros(n),
        **{s: unset(*n) for s in ("un", "vn", "pn")}, "dx": dx, "dy": dy, "dt": dt,
    }  # fmt: skip


CAVITY_FLOW = Program(
    "cavity_flow",
    sizes(
        {"ny": 61, "nx": 61, "nt": 25, "nit": 5, "rho": 1.0, "nu": 0.1},
        {"ny": 121, "nx": 121, "nt": 50, "nit": 10, "rho": 1.0, "nu": 0.1},
        {"ny": 3, "nx": 4, "nt": 2, "nit": 1, "rho": 1.0, "nu": 0.1},
        {"ny": 13, "nx": 11, "nt": 5, "nit": 3, "rho": 1.0, "nu": 0.1},
    ),
    lambda p, r: _flow_arrays(p, r, 0.0),
    ("u", "v", "p"),
    _cavity_reference,
    _cavity,
    _cavity_run,
    loops.cavity_flow,
    uses="repeat",
    repeats=_cavity_repeats,
    rtol=1e-8,
)


def _channel(t, p):
    edge = lambda inner, i, j: inner(te.minimum(te.maximum(i, 1), p.ny - 2), j)  # noqa: E731
    found = _flow_kernels(t, p, _ring, lambda j: (), edge, lambda i, j: 0.0, p.F * _numbers(p)[2])
    (x,) = given(t, x=(p.ny, p.nx))
    i, j = te.reduce_axis(p.ny, "i"), te.reduce_axis(p.nx, "j")
    return {**found, "total": [x, te.compute((), lambda: te.sum(x[i, j], axis=(i, j)), "sum")]}


def _channel_run(k, a, p):
    now, new = (a.u, a.v, a.p), (a.un, a.vn, a.pn)
    steps, change, before = 0, 1.0, 0.0
    while change > 0.001:
        k.source(*now[:2], out=a.b)
        k.pressures(now[2], a.b, out=new[2])
        k.velocities(*now[:2], new[2], out=new[:2])
        now, new = new, now
        after = float(k.total(now[0]))
        change, before, steps = (after - before) / after, after, steps + 1
    return *now, np.array([steps])


def _channel_reference(a, p):
    u, v, q = a.u, a.v, a.p
    grid = _Grid(p, lambda j: j - 1, lambda j: j + 1)
    steps, change = 0, 1.0

    def wrapped(x):
        """With the column beyond each end, which is that of the other end."""
        return _shifts(np.concatenate((x[:, -1:], x, x[:, :1]), axis=1))

    while change > 0.001:
        b = grid.source(wrapped(u), wrapped(v), 0, 0)
        for _ in range(p.nit):
            q[1:-1] = grid.pressure(wrapped(q), lambda i, j, b=b: b, 0, 0)
            q[-1] = q[-2]
            q[0] = q[1]
        before, un, vn, qn = u.sum(), wrapped(u), wrapped(v), wrapped(q)
        u[1:-1] = grid.moved(un, un, vn, grid.along_x(qn, 0, 0), 0, 0) + p.F * grid.dt
        v[1:-1] = grid.moved(vn, un, vn, grid.along_y(qn, 0, 0), 0, 0)
        after = u.sum()
        change, steps = (after - before) / after, steps + 1
    return u, v, q, np.array([steps])


CHANNEL_FLOW = Program(
    "channel_flow",
    sizes(
        {"ny": 61, "nx": 61, "nit": 5, "rho": 1.0, "nu": 0.1, "F": 1.0},
        {"ny": 121, "nx": 121, "nit": 10, "rho": 1.0, "nu": 0.1, "F": 1.0},
        {"ny": 3, "nx": 3, "nit": 1, "rho": 1.0, "nu": 0.1, "F": 1.0},
        {"ny": 7, "nx": 5, "nit": 2, "rho": 1.0, "nu": 0.1, "F": 1.0},
    ),
    lambda p, r: {**_flow_arrays(p, r, 1.0), "steps": np.zeros(1, "int64")},
    ("u", "v", "p", "steps"),
    _channel_reference,
    _channel,
    _channel_run,
    loops.channel_flow,
    rtol=1e-7,
)

PROGRAMS = (CAVITY_FLOW, CHANNEL_FLOW, HDIFF, VADV)
