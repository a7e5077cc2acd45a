"""Factorisations and triangular systems as loops."""

from __future__ import annotations

from math import sqrt


def cholesky(A):
    for i in range(A.shape[0]):
        for j in range(i):
            s = A[i, j]
            for k in range(j):
                s -= A[i, k] * A[j, k]
            A[i, j] = s / A[j, j]
        s = A[i, i]
        for k in range(i):
            s -= A[i, k] * A[i, k]
        A[i, i] = sqrt(s)


def lu(A):
    for i in range(A.shape[0]):
        for j in range(i):
            s = A[i, j]
            for k in range(j):
                s -= A[i, k] * A[k, j]
            A[i, j] = s / A[j, j]
        for j in range(i, A.shape[0]):
            s = A[i, j]
            for k in range(i):
                s -= A[i, k] * A[k, j]
            A[i, j] = s


def ludcmp(A, b, x, y):
    for i in range(A.shape[0]):
        for j in range(i):
            s = A[i, j]
            for k in range(j):
                s -= A[i, k] * A[k, j]
            A[i, j] = s / A[j, j]
        for j in range(i, A.shape[0]):
            s = A[i, j]
            for k in range(i):
                s -= A[i, k] * A[k, j]
            A[i, j] = s
    for i in range(A.shape[0]):
        s = b[i]
        for j in range(i):
            s -= A[i, j] * y[j]
        y[i] = s
    for i in range(A.shape[0] - 1, -1, -1):
        s = y[i]
        for j in range(i + 1, A.shape[0]):
            s -= A[i, j] * x[j]
        x[i] = s / A[i, i]


def trisolv(L, b, x):
    for i in range(L.shape[0]):
        s = b[i]
        for j in range(i):
            s -= L[i, j] * x[j]
        x[i] = s / L[i, i]


def durbin(r, y, z):
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        s = r[k]
        for i in range(k):
            s += r[k - 1 - i] * y[i]
        alpha = -s / beta
        for i in range(k):
            z[i] = y[i] + alpha * y[k - 1 - i]
        for i in range(k):
            y[i] = z[i]
        y[k] = alpha


def gramschmidt(A, Q, R):
    for k in range(A.shape[1]):
        for j in range(A.shape[1]):
            R[k, j] = 0.0
    for k in range(A.shape[1]):
        s = 0.0
        for i in range(A.shape[0]):
            s += A[i, k] * A[i, k]
        R[k, k] = sqrt(s)
        for i in range(A.shape[0]):
            Q[i, k] = A[i, k] / R[k, k]
        for i in range(A.shape[0]):
            for j in range(k + 1, A.shape[1]):
                R[k, j] += Q[i, k] * A[i, j]
        for i in range(A.shape[0]):
            for j in range(k + 1, A.shape[1]):
                A[i, j] -= Q[i, k] * R[k, j]
