"""Products of matrices and vectors as loops. Rows are walked along memory."""

from __future__ import annotations


def gemm(alpha, beta, C, A, B):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            C[i, j] *= beta
        for k in range(A.shape[1]):
            for j in range(C.shape[1]):
                C[i, j] += alpha * A[i, k] * B[k, j]


def k2mm(alpha, beta, A, B, C, D, T):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            T[i, j] = 0.0
        for k in range(A.shape[1]):
            for j in range(B.shape[1]):
                T[i, j] += alpha * A[i, k] * B[k, j]
    for i in range(A.shape[0]):
        for j in range(C.shape[1]):
            D[i, j] *= beta
        for k in range(B.shape[1]):
            for j in range(C.shape[1]):
                D[i, j] += T[i, k] * C[k, j]


def k3mm(A, B, C, D, S, T, R):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            S[i, j] = 0.0
        for k in range(A.shape[1]):
            for j in range(B.shape[1]):
                S[i, j] += A[i, k] * B[k, j]
    for i in range(A.shape[0]):
        for j in range(C.shape[1]):
            T[i, j] = 0.0
        for k in range(B.shape[1]):
            for j in range(C.shape[1]):
                T[i, j] += S[i, k] * C[k, j]
    for i in range(A.shape[0]):
        for j in range(D.shape[1]):
            R[i, j] = 0.0
        for k in range(C.shape[1]):
            for j in range(D.shape[1]):
                R[i, j] += T[i, k] * D[k, j]


def atax(A, x, y):
    for j in range(A.shape[1]):
        y[j] = 0.0
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * x[j]
        for j in range(A.shape[1]):
            y[j] += A[i, j] * s


def bicg(A, p, r, s, q):
    for j in range(A.shape[1]):
        s[j] = 0.0
    for i in range(A.shape[0]):
        t = 0.0
        for j in range(A.shape[1]):
            s[j] += r[i] * A[i, j]
            t += A[i, j] * p[j]
        q[i] = t


def doitgen(A, C4, row):
    for r in range(A.shape[0]):
        for q in range(A.shape[1]):
            for p in range(A.shape[2]):
                row[p] = 0.0
            for s in range(A.shape[2]):
                for p in range(A.shape[2]):
                    row[p] += A[r, q, s] * C4[s, p]
            for p in range(A.shape[2]):
                A[r, q, p] = row[p]


def gemver(alpha, beta, A, u1, v1, u2, v2, w, x, y, z):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] += u1[i] * v1[j] + u2[i] * v2[j]
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            x[j] += beta * A[i, j] * y[i]
    for j in range(A.shape[1]):
        x[j] += z[j]
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * x[j]
        w[i] += alpha * s


def gesummv(alpha, beta, A, B, x, y):
    for i in range(A.shape[0]):
        s = 0.0
        t = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * x[j]
            t += B[i, j] * x[j]
        y[i] = alpha * s + beta * t


def mvt(x1, x2, y1, y2, A):
    for i in range(A.shape[0]):
        s = 0.0
        for j in range(A.shape[1]):
            s += A[i, j] * y1[j]
        x1[i] += s
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            x2[j] += y2[i] * A[i, j]


def symm(alpha, beta, C, A, B, row):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            C[i, j] *= beta
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            row[j] = 0.0
        for k in range(i):
            for j in range(C.shape[1]):
                C[k, j] += alpha * B[i, j] * A[i, k]
                row[j] += B[k, j] * A[i, k]
        for j in range(C.shape[1]):
            C[i, j] += alpha * B[i, j] * A[i, i] + alpha * row[j]


def syrk(alpha, beta, C, A):
    for i in range(C.shape[0]):
        for j in range(i + 1):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * A[j, k]
            C[i, j] = beta * C[i, j] + alpha * s


def syr2k(alpha, beta, C, A, B):
    for i in range(C.shape[0]):
        for j in range(i + 1):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[j, k] * B[i, k] + B[j, k] * A[i, k]
            C[i, j] = beta * C[i, j] + alpha * s


def trmm(alpha, A, B):
    for i in range(B.shape[0]):
        for k in range(i + 1, B.shape[0]):
            for j in range(B.shape[1]):
                B[i, j] += A[k, i] * B[k, j]
        for j in range(B.shape[1]):
            B[i, j] *= alpha
