"""Stencils, sweeps and filters as loops."""

from __future__ import annotations

from math import exp


def jacobi_1d(TSTEPS, A, B):
    for t in range(1, TSTEPS):
        for i in range(1, A.shape[0] - 1):
            B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1])
        for i in range(1, A.shape[0] - 1):
            A[i] = 0.33333 * (B[i - 1] + B[i] + B[i + 1])


def jacobi_2d(TSTEPS, A, B):
    for t in range(1, TSTEPS):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                B[i, j] = 0.2 * (A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j])
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                A[i, j] = 0.2 * (B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j])


def heat_3d(TSTEPS, A, B):
    for t in range(1, TSTEPS):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                for k in range(1, A.shape[2] - 1):
                    B[i, j, k] = (
                        0.125 * (A[i + 1, j, k] - 2.0 * A[i, j, k] + A[i - 1, j, k])
                        + 0.125 * (A[i, j + 1, k] - 2.0 * A[i, j, k] + A[i, j - 1, k])
                        + 0.125 * (A[i, j, k + 1] - 2.0 * A[i, j, k] + A[i, j, k - 1])
                        + A[i, j, k]
                    )
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                for k in range(1, A.shape[2] - 1):
                    A[i, j, k] = (
                        0.125 * (B[i + 1, j, k] - 2.0 * B[i, j, k] + B[i - 1, j, k])
                        + 0.125 * (B[i, j + 1, k] - 2.0 * B[i, j, k] + B[i, j - 1, k])
                        + 0.125 * (B[i, j, k + 1] - 2.0 * B[i, j, k] + B[i, j, k - 1])
                        + B[i, j, k]
                    )


def fdtd_2d(TMAX, ex, ey, hz, fict):
    for t in range(TMAX):
        for j in range(ey.shape[1]):
            ey[0, j] = fict[t]
        for i in range(1, ey.shape[0]):
            for j in range(ey.shape[1]):
                ey[i, j] -= 0.5 * (hz[i, j] - hz[i - 1, j])
        for i in range(ex.shape[0]):
            for j in range(1, ex.shape[1]):
                ex[i, j] -= 0.5 * (hz[i, j] - hz[i, j - 1])
        for i in range(hz.shape[0] - 1):
            for j in range(hz.shape[1] - 1):
                hz[i, j] -= 0.7 * (ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j])


def seidel_2d(TSTEPS, A):
    for t in range(TSTEPS - 1):
        for i in range(1, A.shape[0] - 1):
            for j in range(1, A.shape[1] - 1):
                A[i, j] = (
                    A[i - 1, j - 1] + A[i - 1, j] + A[i - 1, j + 1] + A[i, j] + A[i, j + 1]
                    + A[i + 1, j - 1] + A[i + 1, j] + A[i + 1, j + 1] + A[i, j - 1]
                ) / 9.0  # fmt: skip


def adi(TSTEPS, u, v, p, q):
    n = u.shape[0]
    a = -(2.0 / TSTEPS * n * n) / 2.0
    b = 1.0 + 1.0 / TSTEPS * n * n
    d = -(1.0 / TSTEPS * n * n) / 2.0
    for t in range(TSTEPS):
        for i in range(1, n - 1):
            v[0, i] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = 1.0
            for j in range(1, n - 1):
                p[i, j] = -a / (a * p[i, j - 1] + b)
                q[i, j] = (
                    -d * u[j, i - 1] + (1.0 + 2.0 * d) * u[j, i] - d * u[j, i + 1] - a * q[i, j - 1]
                ) / (a * p[i, j - 1] + b)
            v[n - 1, i] = 1.0
            for j in range(n - 2, 0, -1):
                v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
        for i in range(1, n - 1):
            u[i, 0] = 1.0
            p[i, 0] = 0.0
            q[i, 0] = 1.0
            for j in range(1, n - 1):
                p[i, j] = -d / (d * p[i, j - 1] + b)
                q[i, j] = (
                    -a * v[i - 1, j] + (1.0 + 2.0 * a) * v[i, j] - a * v[i + 1, j] - d * q[i, j - 1]
                ) / (d * p[i, j - 1] + b)
            u[i, n - 1] = 1.0
            for j in range(n - 2, 0, -1):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]


def deriche(alpha, x, y1, y2, out):
    w = x.shape[0]
    h = x.shape[1]
    k = (1.0 - exp(-alpha)) * (1.0 - exp(-alpha)) / (1.0 + alpha * exp(-alpha) - exp(2.0 * alpha))
    a2 = k * exp(-alpha) * (alpha - 1.0)
    a3 = k * exp(-alpha) * (alpha + 1.0)
    a4 = -k * exp(-2.0 * alpha)
    b1 = 2.0 ** (-alpha)
    b2 = -exp(-2.0 * alpha)
    for i in range(w):
        y1[i, 0] = k * x[i, 0]
        y1[i, 1] = k * x[i, 1] + a2 * x[i, 0] + b1 * y1[i, 0]
        for j in range(2, h):
            y1[i, j] = k * x[i, j] + a2 * x[i, j - 1] + b1 * y1[i, j - 1] + b2 * y1[i, j - 2]
        y2[i, h - 1] = 0.0
        y2[i, h - 2] = a3 * x[i, h - 1]
        for j in range(h - 3, -1, -1):
            y2[i, j] = a3 * x[i, j + 1] + a4 * x[i, j + 2] + b1 * y2[i, j + 1] + b2 * y2[i, j + 2]
        for j in range(h):
            out[i, j] = y1[i, j] + y2[i, j]
    for j in range(h):
        y1[0, j] = k * out[0, j]
        y1[1, j] = k * out[1, j] + a2 * out[0, j] + b1 * y1[0, j]
        y2[w - 1, j] = 0.0
        y2[w - 2, j] = a3 * out[w - 1, j]
    for i in range(2, w):
        for j in range(h):
            y1[i, j] = k * out[i, j] + a2 * out[i - 1, j] + b1 * y1[i - 1, j] + b2 * y1[i - 2, j]
    for i in range(w - 3, -1, -1):
        for j in range(h):
            y2[i, j] = a3 * out[i + 1, j] + a4 * out[i + 2, j] + b1 * y2[i + 1, j] + b2 * y2[i + 2, j]
    for i in range(w):
        for j in range(h):
            out[i, j] = y1[i, j] + y2[i, j]
