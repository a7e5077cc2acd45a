"""Integrals along a contour as loops. Complex numbers are pairs in a last axis."""

from __future__ import annotations


def contour_integral(H, z, B, T, X, P0, P1):
    r = B.shape[0]
    m = B.shape[1]
    for p in range(z.shape[0]):
        zr = z[p, 0]
        zi = z[p, 1]
        d = zr * zr + zi * zi
        for i in range(r):
            for j in range(r):
                # z H0 + H1 + H2 / z
                a = H[2, i, j, 0]
                b = H[2, i, j, 1]
                T[i, j, 0] = zr * H[0, i, j, 0] - zi * H[0, i, j, 1] + H[1, i, j, 0] + (a * zr + b * zi) / d
                T[i, j, 1] = zr * H[0, i, j, 1] + zi * H[0, i, j, 0] + H[1, i, j, 1] + (b * zr - a * zi) / d
            for j in range(m):
                X[i, j, 0] = B[i, j, 0]
                X[i, j, 1] = B[i, j, 1]
        for k in range(r):
            best = k
            most = 0.0
            for i in range(k, r):
                s = T[i, k, 0] * T[i, k, 0] + T[i, k, 1] * T[i, k, 1]
                if s > most:
                    most = s
                    best = i
            if best != k:
                for j in range(k, r):
                    for c in range(2):
                        s = T[k, j, c]
                        T[k, j, c] = T[best, j, c]
                        T[best, j, c] = s
                for j in range(m):
                    for c in range(2):
                        s = X[k, j, c]
                        X[k, j, c] = X[best, j, c]
                        X[best, j, c] = s
            for i in range(k + 1, r):
                fr = (T[i, k, 0] * T[k, k, 0] + T[i, k, 1] * T[k, k, 1]) / most
                fi = (T[i, k, 1] * T[k, k, 0] - T[i, k, 0] * T[k, k, 1]) / most
                for j in range(k + 1, r):
                    T[i, j, 0] -= fr * T[k, j, 0] - fi * T[k, j, 1]
                    T[i, j, 1] -= fr * T[k, j, 1] + fi * T[k, j, 0]
                for j in range(m):
                    X[i, j, 0] -= fr * X[k, j, 0] - fi * X[k, j, 1]
                    X[i, j, 1] -= fr * X[k, j, 1] + fi * X[k, j, 0]
        for i in range(r - 1, -1, -1):
            for k in range(i + 1, r):
                fr = T[i, k, 0]
                fi = T[i, k, 1]
                for j in range(m):
                    X[i, j, 0] -= fr * X[k, j, 0] - fi * X[k, j, 1]
                    X[i, j, 1] -= fr * X[k, j, 1] + fi * X[k, j, 0]
            tr = T[i, i, 0]
            ti = T[i, i, 1]
            e = tr * tr + ti * ti
            for j in range(m):
                s = (X[i, j, 0] * tr + X[i, j, 1] * ti) / e
                X[i, j, 1] = (X[i, j, 1] * tr - X[i, j, 0] * ti) / e
                X[i, j, 0] = s
        sign = -1.0 if d < 1.0 else 1.0
        for i in range(r):
            for j in range(m):
                a = sign * X[i, j, 0]
                b = sign * X[i, j, 1]
                P0[i, j, 0] += a
                P0[i, j, 1] += b
                P1[i, j, 0] += zr * a - zi * b
                P1[i, j, 1] += zr * b + zi * a
