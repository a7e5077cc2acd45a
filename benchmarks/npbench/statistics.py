"""Correlation and covariance of columns."""

from __future__ import annotations

import math

import numpy as np

from autotune import te
from benchmarks.npbench.loops import statistics as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given

SIZES = sizes({"M": 500, "N": 600}, {"M": 1400, "N": 1800}, {"M": 1, "N": 2}, {"M": 13, "N": 17})


def _mean(data, n):
    k = te.reduce_axis(n, "k_mean")
    total = te.compute((data.shape[1],), lambda j: te.sum(data[k, j], axis=k), "total")
    return te.compute((data.shape[1],), lambda j: total[j] / float(n), "mean")


def _squares(c):
    """Products of the columns with each other."""
    k, m = te.reduce_axis(c.shape[0], "k"), c.shape[1]
    return te.compute((m, m), lambda i, j: te.sum(c[k, i] * c[k, j], axis=k), "squares")


def _covariance(t, p):
    (data,) = given(t, data=(p.N, p.M))
    mean = _mean(data, p.N)
    s = _squares(te.compute((p.N, p.M), lambda i, j: data[i, j] - mean[j], "c"))
    return {"covariance": [data, te.compute((p.M, p.M), lambda i, j: s[i, j] / (p.N - 1.0), "R")]}


def _covariance_arrays(p, r):
    return {"data": r.random((p.N, p.M)), "mean": unset(p.M), "c": unset(p.N, p.M), "R": unset(p.M, p.M)}


def _covariance_reference(a, p):
    c = a.data - a.data.mean(axis=0)
    R = np.zeros((p.M, p.M), c.dtype)
    for i in range(p.M):
        R[i:, i] = R[i, i:] = c[:, i] @ c[:, i:] / (p.N - 1.0)
    return (R,)


COVARIANCE = Program(
    "covariance",
    SIZES,
    _covariance_arrays,
    ("R",),
    _covariance_reference,
    _covariance,
    lambda k, a, p: (k.covariance(a.data, out=a.R),),
    loops.covariance,
)

COVARIANCE2 = Program(
    "covariance2",
    SIZES,
    _covariance_arrays,
    ("R",),
    lambda a, p: (np.cov(a.data.T).reshape(p.M, p.M),),
    _covariance,
    lambda k, a, p: (k.covariance(a.data, out=a.R),),
    loops.covariance,
)


def _correlation(t, p):
    (data,) = given(t, data=(p.N, p.M))
    mean, k, root = _mean(data, p.N), te.reduce_axis(p.N, "k_dev"), math.sqrt(p.N)
    spread = te.compute(
        (p.M,), lambda j: te.sum((data[k, j] - mean[j]) * (data[k, j] - mean[j]), axis=k), "spread"
    )
    dev = te.compute((p.M,), lambda j: te.sqrt(spread[j] / float(p.N)), "dev")
    used = te.compute((p.M,), lambda j: te.select(dev[j] <= 0.1, 1.0, dev[j]), "used")
    s = _squares(te.compute((p.N, p.M), lambda i, j: (data[i, j] - mean[j]) / (root * used[j]), "c"))
    R = te.compute((p.M, p.M), lambda i, j: te.select(te.equal(i, j), 1.0, s[i, j]), "R")
    return {"correlation": [data, R]}


def _correlation_reference(a, p):
    dev = a.data.std(axis=0)
    dev[dev <= 0.1] = 1.0
    c = (a.data - a.data.mean(axis=0)) / (np.sqrt(a.data.dtype.type(p.N)) * dev)
    R = np.eye(p.M, dtype=c.dtype)
    for i in range(p.M - 1):
        R[i + 1 :, i] = R[i, i + 1 :] = c[:, i] @ c[:, i + 1 :]
    return (R,)


CORRELATION = Program(
    "correlation",
    SIZES,
    lambda p, r: {**_covariance_arrays(p, r), "data": 3.0 * r.random((p.N, p.M)), "dev": unset(p.M)},
    ("R",),
    _correlation_reference,
    _correlation,
    lambda k, a, p: (k.correlation(a.data, out=a.R),),
    loops.correlation,
)

PROGRAMS = (CORRELATION, COVARIANCE, COVARIANCE2)
