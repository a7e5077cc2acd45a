"""Weather and fluids as loops."""

from __future__ import annotations


def hdiff(x, coeff, out, lap, flx, fly):
    for i in range(lap.shape[0]):
        for j in range(lap.shape[1]):
            for k in range(lap.shape[2]):
                lap[i, j, k] = 4.0 * x[i + 1, j + 1, k] - (
                    x[i + 2, j + 1, k] + x[i, j + 1, k] + x[i + 1, j + 2, k] + x[i + 1, j, k]
                )
    for i in range(flx.shape[0]):
        for j in range(flx.shape[1]):
            for k in range(flx.shape[2]):
                r = lap[i + 1, j + 1, k] - lap[i, j + 1, k]
                flx[i, j, k] = 0.0 if r * (x[i + 2, j + 2, k] - x[i + 1, j + 2, k]) > 0.0 else r
    for i in range(fly.shape[0]):
        for j in range(fly.shape[1]):
            for k in range(fly.shape[2]):
                r = lap[i + 1, j + 1, k] - lap[i + 1, j, k]
                fly[i, j, k] = 0.0 if r * (x[i + 2, j + 2, k] - x[i + 2, j + 1, k]) > 0.0 else r
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[i, j, k] = x[i + 2, j + 2, k] - coeff[i, j, k] * (
                    flx[i + 1, j, k] - flx[i, j, k] + fly[i, j + 1, k] - fly[i, j, k]
                )


def vadv(utens_stage, u_stage, wcon, u_pos, utens, dtr, ccol, dcol):
    last = u_stage.shape[2] - 1
    for i in range(u_stage.shape[0]):
        for j in range(u_stage.shape[1]):
            g = 0.25 * (wcon[i + 1, j, 1] + wcon[i, j, 1])
            ccol[i, j, 0] = 0.5 * g
            d = dtr * u_pos[i, j, 0] + utens[i, j, 0] + utens_stage[i, j, 0]
            d -= 0.5 * g * (u_stage[i, j, 1] - u_stage[i, j, 0])
            f = 1.0 / (dtr - ccol[i, j, 0])
            ccol[i, j, 0] *= f
            dcol[i, j, 0] = d * f
            for k in range(1, last):
                a = -0.25 * (wcon[i + 1, j, k] + wcon[i, j, k]) * 0.5
                c = 0.25 * (wcon[i + 1, j, k + 1] + wcon[i, j, k + 1]) * 0.5
                d = dtr * u_pos[i, j, k] + utens[i, j, k] + utens_stage[i, j, k]
                d += -a * (u_stage[i, j, k - 1] - u_stage[i, j, k]) - c * (
                    u_stage[i, j, k + 1] - u_stage[i, j, k]
                )
                f = 1.0 / (dtr - a - c - ccol[i, j, k - 1] * a)
                ccol[i, j, k] = c * f
                dcol[i, j, k] = (d - dcol[i, j, k - 1] * a) * f
            a = -0.25 * (wcon[i + 1, j, last] + wcon[i, j, last]) * 0.5
            d = dtr * u_pos[i, j, last] + utens[i, j, last] + utens_stage[i, j, last]
            d -= a * (u_stage[i, j, last - 1] - u_stage[i, j, last])
            f = 1.0 / (dtr - a - ccol[i, j, last - 1] * a)
            s = (d - dcol[i, j, last - 1] * a) * f
            utens_stage[i, j, last] = dtr * (s - u_pos[i, j, last])
            for k in range(last - 1, -1, -1):
                s = dcol[i, j, k] - ccol[i, j, k] * s
                utens_stage[i, j, k] = dtr * (s - u_pos[i, j, k])


def cavity_flow(u, v, p, un, vn, pn, b, nt, nit, dt, dx, dy, rho, nu):
    h = u.shape[0]
    w = u.shape[1]
    for t in range(nt):
        for i in range(h):
            for j in range(w):
                un[i, j] = u[i, j]
                vn[i, j] = v[i, j]
        for i in range(1, h - 1):
            for j in range(1, w - 1):
                ux = (u[i, j + 1] - u[i, j - 1]) / (2.0 * dx)
                uy = (u[i + 1, j] - u[i - 1, j]) / (2.0 * dy)
                vx = (v[i, j + 1] - v[i, j - 1]) / (2.0 * dx)
                vy = (v[i + 1, j] - v[i - 1, j]) / (2.0 * dy)
                b[i, j] = rho * ((ux + vy) / dt - ux * ux - 2.0 * uy * vx - vy * vy)
        for s in range(nit):
            for i in range(h):
                for j in range(w):
                    pn[i, j] = p[i, j]
            for i in range(1, h - 1):
                for j in range(1, w - 1):
                    p[i, j] = (
                        (pn[i, j + 1] + pn[i, j - 1]) * (dy * dy) + (pn[i + 1, j] + pn[i - 1, j]) * (dx * dx)
                    ) / (2.0 * (dx * dx + dy * dy)) - dx * dx * dy * dy / (2.0 * (dx * dx + dy * dy)) * b[
                        i, j
                    ]
            for i in range(h):
                p[i, w - 1] = p[i, w - 2]
            for j in range(w):
                p[0, j] = p[1, j]
            for i in range(h):
                p[i, 0] = p[i, 1]
            for j in range(w):
                p[h - 1, j] = 0.0
        for i in range(1, h - 1):
            for j in range(1, w - 1):
                u[i, j] = (
                    un[i, j]
                    - un[i, j] * (dt / dx) * (un[i, j] - un[i, j - 1])
                    - vn[i, j] * (dt / dy) * (un[i, j] - un[i - 1, j])
                    - dt / (2.0 * rho * dx) * (p[i, j + 1] - p[i, j - 1])
                    + nu * (dt / (dx * dx) * (un[i, j + 1] - 2.0 * un[i, j] + un[i, j - 1])
                            + dt / (dy * dy) * (un[i + 1, j] - 2.0 * un[i, j] + un[i - 1, j]))
                )  # fmt: skip
                v[i, j] = (
                    vn[i, j]
                    - un[i, j] * (dt / dx) * (vn[i, j] - vn[i, j - 1])
                    - vn[i, j] * (dt / dy) * (vn[i, j] - vn[i - 1, j])
                    - dt / (2.0 * rho * dy) * (p[i + 1, j] - p[i - 1, j])
                    + nu * (dt / (dx * dx) * (vn[i, j + 1] - 2.0 * vn[i, j] + vn[i, j - 1])
                            + dt / (dy * dy) * (vn[i + 1, j] - 2.0 * vn[i, j] + vn[i - 1, j]))
                )  # fmt: skip
        for j in range(w):
            u[0, j] = 0.0
            v[0, j] = 0.0
            v[h - 1, j] = 0.0
        for i in range(h):
            u[i, 0] = 0.0
            u[i, w - 1] = 0.0
            v[i, 0] = 0.0
            v[i, w - 1] = 0.0
        for j in range(w):
            u[h - 1, j] = 1.0


def channel_flow(u, v, p, un, vn, pn, b, steps, nit, dt, dx, dy, rho, nu, F):
    h = u.shape[0]
    w = u.shape[1]
    change = 1.0
    steps[0] = 0
    while change > 0.001:
        before = 0.0
        for i in range(h):
            for j in range(w):
                un[i, j] = u[i, j]
                vn[i, j] = v[i, j]
                before += u[i, j]
        for i in range(1, h - 1):
            for j in range(w):
                r = 0 if j == w - 1 else j + 1
                q = w - 1 if j == 0 else j - 1
                ux = (u[i, r] - u[i, q]) / (2.0 * dx)
                uy = (u[i + 1, j] - u[i - 1, j]) / (2.0 * dy)
                vx = (v[i, r] - v[i, q]) / (2.0 * dx)
                vy = (v[i + 1, j] - v[i - 1, j]) / (2.0 * dy)
                b[i, j] = rho * ((ux + vy) / dt - ux * ux - 2.0 * uy * vx - vy * vy)
        for s in range(nit):
            for i in range(h):
                for j in range(w):
                    pn[i, j] = p[i, j]
            for i in range(1, h - 1):
                for j in range(w):
                    r = 0 if j == w - 1 else j + 1
                    q = w - 1 if j == 0 else j - 1
                    p[i, j] = (
                        (pn[i, r] + pn[i, q]) * (dy * dy) + (pn[i + 1, j] + pn[i - 1, j]) * (dx * dx)
                    ) / (2.0 * (dx * dx + dy * dy)) - dx * dx * dy * dy / (2.0 * (dx * dx + dy * dy)) * b[
                        i, j
                    ]
            for j in range(w):
                p[h - 1, j] = p[h - 2, j]
                p[0, j] = p[1, j]
        after = 0.0
        for i in range(1, h - 1):
            for j in range(w):
                r = 0 if j == w - 1 else j + 1
                q = w - 1 if j == 0 else j - 1
                u[i, j] = (
                    un[i, j]
                    - un[i, j] * (dt / dx) * (un[i, j] - un[i, q])
                    - vn[i, j] * (dt / dy) * (un[i, j] - un[i - 1, j])
                    - dt / (2.0 * rho * dx) * (p[i, r] - p[i, q])
                    + nu * (dt / (dx * dx) * (un[i, r] - 2.0 * un[i, j] + un[i, q])
                            + dt / (dy * dy) * (un[i + 1, j] - 2.0 * un[i, j] + un[i - 1, j]))
                    + F * dt
                )  # fmt: skip
                v[i, j] = (
                    vn[i, j]
                    - un[i, j] * (dt / dx) * (vn[i, j] - vn[i, q])
                    - vn[i, j] * (dt / dy) * (vn[i, j] - vn[i - 1, j])
                    - dt / (2.0 * rho * dy) * (p[i + 1, j] - p[i - 1, j])
                    + nu * (dt / (dx * dx) * (vn[i, r] - 2.0 * vn[i, j] + vn[i, q])
                            + dt / (dy * dy) * (vn[i + 1, j] - 2.0 * vn[i, j] + vn[i - 1, j]))
                )  # fmt: skip
                after += u[i, j]
        for j in range(w):
            u[0, j] = 0.0
            u[h - 1, j] = 0.0
            v[0, j] = 0.0
            v[h - 1, j] = 0.0
        change = (after - before) / after
        steps[0] += 1
