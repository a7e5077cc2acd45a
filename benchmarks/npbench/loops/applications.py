"""Programs of other fields as loops. Complex numbers are pairs in a last axis."""

from __future__ import annotations

from math import atan2, cos, sin, sqrt, tanh


def arc_distance(t1, p1, t2, p2, out):
    for i in range(out.shape[0]):
        a = sin((t2[i] - t1[i]) / 2.0)
        b = sin((p2[i] - p1[i]) / 2.0)
        s = a * a + cos(t1[i]) * cos(t2[i]) * (b * b)
        out[i] = 2.0 * atan2(sqrt(s), sqrt(1.0 - s))


def azimint_hist(data, radius, out, count):
    n = out.shape[0]
    lo = radius[0]
    hi = radius[0]
    for k in range(radius.shape[0]):
        lo = min(lo, radius[k])
        hi = max(hi, radius[k])
    for i in range(n):
        out[i] = 0.0
        count[i] = 0
    for k in range(radius.shape[0]):
        i = int((radius[k] - lo) / (hi - lo) * n)
        i = min(i, n - 1)
        out[i] += data[k]
        count[i] += 1
    for i in range(n):
        out[i] /= count[i]


def azimint_naive(data, radius, out):
    top = radius[0]
    for k in range(radius.shape[0]):
        top = max(top, radius[k])
    for i in range(out.shape[0]):
        low = top * i / out.shape[0]
        high = top * (i + 1) / out.shape[0]
        s = 0.0
        c = 0.0
        for k in range(radius.shape[0]):
            if low <= radius[k] and radius[k] < high:
                s += data[k]
                c += 1.0
        out[i] = s / c


def compute(x, y, a, b, c, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = min(max(x[i, j], 2), 10) * a + y[i, j] * b + c


def crc16(data, out):
    crc = 0xFFFF
    for i in range(data.shape[0]):
        crc = crc ^ int(data[i])
        for b in range(8):
            if crc & 1 == 1:
                crc = (crc >> 1) ^ 0x8408
            else:
                crc = crc >> 1
    crc = crc ^ 0xFFFF
    out[0] = ((crc << 8) | (crc >> 8)) & 0xFFFF


def floyd_warshall(path):
    for k in range(path.shape[0]):
        for i in range(path.shape[0]):
            for j in range(path.shape[0]):
                path[i, j] = min(path[i, j], path[i, k] + path[k, j])


def go_fast(a, out):
    trace = 0.0
    for i in range(a.shape[0]):
        trace += tanh(a[i, i])
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j] + trace


def mandelbrot1(X, Y, maxiter, horizon, Z, N):
    for i in range(Y.shape[0]):
        for j in range(X.shape[0]):
            x = 0.0
            y = 0.0
            n = 0
            for t in range(maxiter):
                if x * x + y * y >= horizon * horizon:
                    break
                n = t
                r = x * x - y * y + X[j]
                y = 2.0 * x * y + Y[i]
                x = r
            if n == maxiter - 1:
                n = 0
            Z[i, j, 0] = x
            Z[i, j, 1] = y
            N[i, j] = n


def mandelbrot2(X, Y, maxiter, horizon, Z, N):
    for i in range(Y.shape[0]):
        for j in range(X.shape[0]):
            x = 0.0
            y = 0.0
            Z[i, j, 0] = 0.0
            Z[i, j, 1] = 0.0
            N[i, j] = 0
            for t in range(maxiter):
                r = x * x - y * y + X[j]
                y = 2.0 * x * y + Y[i]
                x = r
                if x * x + y * y > horizon * horizon:
                    Z[i, j, 0] = x
                    Z[i, j, 1] = y
                    N[i, j] = t + 1
                    break


def nbody(mass, pos, vel, acc, KE, PE, Nt, dt, G, softening):
    n = mass.shape[0]
    total = 0.0
    for i in range(n):
        total += mass[i, 0]
    for c in range(3):
        s = 0.0
        for i in range(n):
            s += mass[i, 0] * vel[i, c]
        for i in range(n):
            vel[i, c] -= s / total
    for t in range(Nt + 1):
        if t > 0:
            for i in range(n):
                for c in range(3):
                    vel[i, c] += acc[i, c] * dt / 2.0
                    pos[i, c] += vel[i, c] * dt
        for i in range(n):
            ax = 0.0
            ay = 0.0
            az = 0.0
            for j in range(n):
                dx = pos[j, 0] - pos[i, 0]
                dy = pos[j, 1] - pos[i, 1]
                dz = pos[j, 2] - pos[i, 2]
                d = dx * dx + dy * dy + dz * dz + softening * softening
                f = G * mass[j, 0] / (d * sqrt(d))
                ax += f * dx
                ay += f * dy
                az += f * dz
            acc[i, 0] = ax
            acc[i, 1] = ay
            acc[i, 2] = az
        if t > 0:
            for i in range(n):
                for c in range(3):
                    vel[i, c] += acc[i, c] * dt / 2.0
        k = 0.0
        e = 0.0
        for i in range(n):
            for c in range(3):
                k += mass[i, 0] * vel[i, c] * vel[i, c]
            for j in range(i + 1, n):
                dx = pos[j, 0] - pos[i, 0]
                dy = pos[j, 1] - pos[i, 1]
                dz = pos[j, 2] - pos[i, 2]
                e -= mass[i, 0] * mass[j, 0] / sqrt(dx * dx + dy * dy + dz * dz)
        KE[t] = 0.5 * k
        PE[t] = G * e


def nussinov(seq, table):
    n = seq.shape[0]
    for i in range(n):
        for j in range(n):
            table[i, j] = 0
    for i in range(n - 1, -1, -1):
        for j in range(i + 1, n):
            t = table[i, j - 1]
            if i + 1 < n:
                t = max(t, table[i + 1, j])
                pair = 1 if i < j - 1 and seq[i] + seq[j] == 3 else 0
                t = max(t, table[i + 1, j - 1] + pair)
            for k in range(i + 1, j):
                t = max(t, table[i, k] + table[k + 1, j])
            table[i, j] = t


def spmv(row, col, val, x, y):
    for i in range(y.shape[0]):
        s = 0.0
        for k in range(row[i], row[i + 1]):
            s += val[k] * x[col[k]]
        y[i] = s


def scattering_self_energies(near, dH, G, D, S, hg, hd):
    no = dH.shape[3]
    for k in range(G.shape[0]):
        for e in range(G.shape[1]):
            for a in range(near.shape[0]):
                for m in range(no):
                    for n in range(no):
                        S[k, e, a, m, n, 0] = 0.0
                        S[k, e, a, m, n, 1] = 0.0
    for k in range(G.shape[0]):
        for e in range(G.shape[1]):
            for q in range(D.shape[0]):
                for w in range(min(D.shape[1], e + 1)):
                    for i in range(D.shape[4]):
                        for j in range(D.shape[5]):
                            for a in range(near.shape[0]):
                                for b in range(near.shape[1]):
                                    c = near[a, b]
                                    for m in range(no):
                                        for n in range(no):
                                            r = 0.0
                                            s = 0.0
                                            for z in range(no):
                                                gr = G[k, e - w, c, m, z, 0]
                                                gi = G[k, e - w, c, m, z, 1]
                                                r += gr * dH[a, b, i, z, n, 0] - gi * dH[a, b, i, z, n, 1]
                                                s += gr * dH[a, b, i, z, n, 1] + gi * dH[a, b, i, z, n, 0]
                                            hg[m, n, 0] = r
                                            hg[m, n, 1] = s
                                            dr = D[q, w, a, b, i, j, 0]
                                            di = D[q, w, a, b, i, j, 1]
                                            hd[m, n, 0] = (
                                                dH[a, b, j, m, n, 0] * dr - dH[a, b, j, m, n, 1] * di
                                            )
                                            hd[m, n, 1] = (
                                                dH[a, b, j, m, n, 0] * di + dH[a, b, j, m, n, 1] * dr
                                            )
                                    for m in range(no):
                                        for n in range(no):
                                            r = 0.0
                                            s = 0.0
                                            for z in range(no):
                                                r += hg[m, z, 0] * hd[z, n, 0] - hg[m, z, 1] * hd[z, n, 1]
                                                s += hg[m, z, 0] * hd[z, n, 1] + hg[m, z, 1] * hd[z, n, 0]
                                            S[k, e, a, m, n, 0] += r
                                            S[k, e, a, m, n, 1] += s


def stockham_fft(x, y, tmp, R, K):
    N = x.shape[0]
    for i in range(N):
        y[i, 0] = x[i, 0]
        y[i, 1] = x[i, 1]
    before = 1
    after = N // R
    for s in range(K):
        for i in range(N):
            tmp[i, 0] = y[i, 0]
            tmp[i, 1] = y[i, 1]
        for u in range(before):
            for r in range(R):
                for v in range(after):
                    y[(r * before + u) * after + v, 0] = 0.0
                    y[(r * before + u) * after + v, 1] = 0.0
            for c in range(R):
                angle = -2.0 * 3.141592653589793 * c * u / (before * R)
                wr = cos(angle)
                wi = sin(angle)
                for r in range(R):
                    turn = -2.0 * 3.141592653589793 * r * c / R
                    fr = cos(turn) * wr - sin(turn) * wi
                    fi = cos(turn) * wi + sin(turn) * wr
                    for v in range(after):
                        a = tmp[(u * R + c) * after + v, 0]
                        b = tmp[(u * R + c) * after + v, 1]
                        y[(r * before + u) * after + v, 0] += a * fr - b * fi
                        y[(r * before + u) * after + v, 1] += a * fi + b * fr
        before = before * R
        after = after // R
