"""Layers of networks: convolutions with channels last, a perceptron, softmax."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from autotune import te
from benchmarks.npbench.loops import networks as loops
from benchmarks.npbench.program import Program, sizes, unset
from benchmarks.npbench.words import given


def _relu(x, name):
    return te.compute(x.shape, lambda *i: te.maximum(x[i], 0.0), name)


def _convolution(x, w, name):
    """Channels last, no padding."""
    u, v, d = (te.reduce_axis(n, f"{s}_{name}") for n, s in zip(w.shape[:3], "uvd", strict=True))
    n, h, wide, _ = x.shape
    shape = (n, h - w.shape[0] + 1, wide - w.shape[1] + 1, w.shape[3])
    return te.compute(
        shape, lambda n, i, j, c: te.sum(x[n, i + u, j + v, d] * w[u, v, d, c], axis=(u, v, d)), name
    )


def _convolved(x, w):
    """numpy's convolution: a position of the window at a time."""
    shape = (x.shape[0], x.shape[1] - w.shape[0] + 1, x.shape[2] - w.shape[1] + 1, w.shape[3])
    y = np.empty(shape, x.dtype)
    for i in range(shape[1]):
        for j in range(shape[2]):
            window = x[:, i : i + w.shape[0], j : j + w.shape[1], :, None]
            y[:, i, j, :] = np.sum(window * w[None], axis=(1, 2, 3))
    return y


def _conv2d_bias(t, p):
    x, w, b = given(t, x=(p.N, p.H, p.W, p.C_in), w=(p.K, p.K, p.C_in, p.C_out), b=(p.C_out,))
    s = _convolution(x, w, "s")
    return {"conv2d": [x, w, b, te.compute(s.shape, lambda n, i, j, c: s[n, i, j, c] + b[c], "y")]}


CONV2D = Program(
    "conv2d_bias",
    sizes(
        {"N": 8, "C_in": 3, "C_out": 16, "K": 2, "H": 32, "W": 32},
        {"N": 8, "C_in": 3, "C_out": 8, "K": 5, "H": 64, "W": 64},
        {"N": 1, "C_in": 1, "C_out": 1, "K": 1, "H": 2, "W": 1},
        {"N": 2, "C_in": 3, "C_out": 5, "K": 3, "H": 9, "W": 7},
    ),
    lambda p, r: {
        "x": r.random((p.N, p.H, p.W, p.C_in)), "w": r.random((p.K, p.K, p.C_in, p.C_out)),
        "b": r.random(p.C_out), "y": unset(p.N, p.H - p.K + 1, p.W - p.K + 1, p.C_out),
    },
    ("y",),
    lambda a, p: (_convolved(a.x, a.w) + a.b,),
    _conv2d_bias,
    lambda k, a, p: (k.conv2d(a.x, a.w, a.b, out=a.y),),
    loops.conv2d_bias,
    dtype="float32",
)  # fmt: skip


def _softmax_stages(x):
    """Over the last axis."""
    *outer, last = x.shape
    j, k = te.reduce_axis(last, "j"), te.reduce_axis(last, "k")
    top = te.compute(outer, lambda *i: te.max(x[*i, j], axis=j), "top")
    e = te.compute(x.shape, lambda *i: te.exp(x[i] - top[i[:-1]]), "e")
    s = te.compute(outer, lambda *i: te.sum(e[*i, k], axis=k), "s")
    return te.compute(x.shape, lambda *i: e[i] / s[i[:-1]], "y")


def _softmax(t, p):
    (x,) = given(t, x=(p.N, p.H, p.SM, p.SM))
    return {"softmax": [x, _softmax_stages(x)]}


def _softened(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


SOFTMAX = Program(
    "softmax",
    sizes(
        {"N": 16, "H": 16, "SM": 128}, {"N": 32, "H": 8, "SM": 256}, {"N": 1, "H": 2, "SM": 1},
        {"N": 3, "H": 5, "SM": 17},
    ),
    lambda p, r: {"x": r.random((p.N, p.H, p.SM, p.SM)), "y": unset(p.N, p.H, p.SM, p.SM)},
    ("y",),
    lambda a, p: (_softened(a.x),),
    _softmax,
    lambda k, a, p: (k.softmax(a.x, out=a.y),),
    loops.softmax,
    dtype="float32",
)  # fmt: skip


def _layer(x, w, b, name):
    k = te.reduce_axis(w.shape[0], f"k_{name}")
    s = te.compute((x.shape[0], w.shape[1]), lambda n, j: te.sum(x[n, k] * w[k, j], axis=k), f"{name}_sum")
    return te.compute(s.shape, lambda n, j: s[n, j] + b[j], name)


def _mlp(t, p):
    x, w1, b1, w2, b2, w3, b3 = given(
        t,
        x=(p.N, p.C_in),
        w1=(p.C_in, p.S0),
        b1=(p.S0,),
        w2=(p.S0, p.S1),
        b2=(p.S1,),
        w3=(p.S1, p.S2),
        b3=(p.S2,),
    )
    h1 = _relu(_layer(x, w1, b1, "l1"), "h1")
    h2 = _relu(_layer(h1, w2, b2, "l2"), "h2")
    return {"mlp": [x, w1, b1, w2, b2, w3, b3, _softmax_stages(_layer(h2, w3, b3, "l3"))]}


def _mlp_reference(a, p):
    h = np.maximum(a.x @ a.w1 + a.b1, 0)
    h = np.maximum(h @ a.w2 + a.b2, 0)
    return (_softened(h @ a.w3 + a.b3),)


MLP = Program(
    "mlp",
    sizes(
        {"C_in": 3, "N": 8, "S0": 30000, "S1": 2000, "S2": 2000},
        {"C_in": 3, "N": 8, "S0": 30000, "S1": 10000, "S2": 10000},
        {"C_in": 1, "N": 1, "S0": 2, "S1": 1, "S2": 2}, {"C_in": 3, "N": 5, "S0": 17, "S1": 13, "S2": 7},
    ),
    lambda p, r: {
        "x": r.random((p.N, p.C_in)), "w1": r.random((p.C_in, p.S0)), "b1": r.random(p.S0),
        "w2": r.random((p.S0, p.S1)) / p.S0, "b2": r.random(p.S1), "w3": r.random((p.S1, p.S2)) / p.S1,
        "b3": r.random(p.S2), "h1": unset(p.N, p.S0), "h2": unset(p.N, p.S1), "y": unset(p.N, p.S2),
    },
    ("y",),
    _mlp_reference,
    _mlp,
    lambda k, a, p: (k.mlp(a.x, a.w1, a.b1, a.w2, a.b2, a.w3, a.b3, out=a.y),),
    loops.mlp,
    dtype="float32",
)  # fmt: skip


def _pool(x, name):
    """The largest of two by two."""
    n, h, w, c = x.shape
    u, v = te.reduce_axis(2, f"u_{name}"), te.reduce_axis(2, f"v_{name}")
    return te.compute(
        (n, h // 2, w // 2, c), lambda n, i, j, c: te.max(x[n, 2 * i + u, 2 * j + v, c], axis=(u, v)), name
    )


def _lenet_shapes(p):
    h1, w1 = (p.H - 4) // 2, (p.W - 4) // 2
    h2, w2 = (h1 - 4) // 2, (w1 - 4) // 2
    return h1, w1, h2, w2


LENET_WEIGHTS = ("c1", "b1", "c2", "b2", "f1", "g1", "f2", "g2", "f3", "g3")


def _lenet(t, p):
    _, _, h2, w2 = _lenet_shapes(p)
    flat = 16 * h2 * w2
    x, c1, b1, c2, b2, f1, g1, f2, g2, f3, g3 = given(
        t,
        x=(p.N, p.H, p.W, 1),
        c1=(5, 5, 1, 6),
        b1=(6,),
        c2=(5, 5, 6, 16),
        b2=(16,),
        f1=(flat, 120),
        g1=(120,),
        f2=(120, 84),
        g2=(84,),
        f3=(84, 10),
        g3=(10,),
    )
    s1 = _convolution(x, c1, "s1")
    y1 = te.compute(s1.shape, lambda n, i, j, c: te.maximum(s1[n, i, j, c] + b1[c], 0.0), "y1")
    s2 = _convolution(_pool(y1, "p1"), c2, "s2")
    y2 = te.compute(s2.shape, lambda n, i, j, c: te.maximum(s2[n, i, j, c] + b2[c], 0.0), "y2")
    p2 = _pool(y2, "p2")
    row = te.compute((p.N, flat), lambda n, q: p2[n, q // (16 * w2), q // 16 % w2, q % 16], "row")
    h = _relu(_layer(row, f1, g1, "l1"), "h1")
    h = _relu(_layer(h, f2, g2, "l2"), "h2")
    return {"lenet": [x, c1, b1, c2, b2, f1, g1, f2, g2, f3, g3, _layer(h, f3, g3, "y")]}


def _lenet_arrays(p, r):
    h1, w1, h2, w2 = _lenet_shapes(p)
    flat = 16 * h2 * w2
    return {
        "x": r.random((p.N, p.H, p.W, 1)),
        "c1": r.random((5, 5, 1, 6)) / 5,
        "b1": r.random(6),
        "c2": r.random((5, 5, 6, 16)) / 12,
        "b2": r.random(16),
        "f1": r.random((flat, 120)) / flat,
        "g1": r.random(120),
        "f2": r.random((120, 84)) / 120,
        "g2": r.random(84),
        "f3": r.random((84, 10)) / 84,
        "g3": r.random(10),
        "y1": unset(p.N, p.H - 4, p.W - 4, 6),
        "p1": unset(p.N, h1, w1, 6),
        "y2": unset(p.N, h1 - 4, w1 - 4, 16),
        "p2": unset(p.N, h2, w2, 16),
        "h1": unset(p.N, 120),
        "h2": unset(p.N, 84),
        "y": unset(p.N, 10),
    }


def _pooled(x):
    h, w = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    return sliding_window_view(x[:, :h, :w], (2, 2), (1, 2))[:, ::2, ::2].max(axis=(-2, -1))


def _lenet_reference(a, p):
    h = _pooled(np.maximum(_convolved(a.x, a.c1) + a.b1, 0))
    h = _pooled(np.maximum(_convolved(h, a.c2) + a.b2, 0)).reshape(p.N, -1)
    h = np.maximum(h @ a.f1 + a.g1, 0)
    h = np.maximum(h @ a.f2 + a.g2, 0)
    return (h @ a.f3 + a.g3,)


LENET = Program(
    "lenet",
    sizes(
        {"N": 4, "H": 28, "W": 28}, {"N": 8, "H": 56, "W": 56}, {"N": 1, "H": 16, "W": 17},
        {"N": 2, "H": 19, "W": 21},
    ),
    _lenet_arrays,
    ("y",),
    _lenet_reference,
    _lenet,
    lambda k, a, p: (k.lenet(a.x, *(getattr(a, n) for n in LENET_WEIGHTS), out=a.y),),
    loops.lenet,
    dtype="float32",
)  # fmt: skip


def _normalised(x, name):
    """Over the batch, and divided by the root of the deviation, as the suite has it."""
    n, *rest = x.shape
    k, q = te.reduce_axis(n, f"k_{name}"), te.reduce_axis(n, f"q_{name}")
    total = te.compute(rest, lambda *i: te.sum(x[k, *i], axis=k), f"{name}_total")
    mean = te.compute(rest, lambda *i: total[i] / float(n), f"{name}_mean")
    spread = te.compute(
        rest, lambda *i: te.sum((x[q, *i] - mean[i]) * (x[q, *i] - mean[i]), axis=q), f"{name}_spread"
    )
    scale = te.compute(rest, lambda *i: te.sqrt(te.sqrt(spread[i] / float(n)) + 1e-5), f"{name}_scale")
    return lambda i: (x[i] - mean[i[1:]]) / scale[i[1:]]


def _resnet(t, p):
    x, w1, w2, w3 = given(
        t, x=(p.N, p.H, p.W, p.C1), w1=(1, 1, p.C1, p.C2), w2=(3, 3, p.C2, p.C2), w3=(1, 1, p.C2, p.C1)
    )
    s1 = _convolution(x, w1, "s1")

    def padded(n, i, j, c):
        inside = te.all(i >= 1, i <= p.H, j >= 1, j <= p.W)
        return te.select(inside, s1[n, i - 1, j - 1, c], 0.0)

    q = te.compute((p.N, p.H + 2, p.W + 2, p.C2), padded, "q")
    n1 = _normalised(q, "n1")
    s2 = _convolution(te.compute(q.shape, lambda *i: te.maximum(n1(i), 0.0), "r1"), w2, "s2")
    n2 = _normalised(s2, "n2")
    s3 = _convolution(te.compute(s2.shape, lambda *i: te.maximum(n2(i), 0.0), "r2"), w3, "s3")
    n3 = _normalised(s3, "n3")
    return {"resnet": [x, w1, w2, w3, te.compute(x.shape, lambda *i: te.maximum(n3(i) + x[i], 0.0), "y")]}


def _resnet_reference(a, p):
    def normal(x):
        return (x - x.mean(axis=0)) / np.sqrt(x.std(axis=0) + x.dtype.type(1e-5))

    h = np.zeros((p.N, p.H + 2, p.W + 2, p.C2), a.x.dtype)
    h[:, 1:-1, 1:-1] = _convolved(a.x, a.w1)
    h = _convolved(np.maximum(normal(h), 0), a.w2)
    h = _convolved(np.maximum(normal(h), 0), a.w3)
    return (np.maximum(normal(h) + a.x, 0),)


RESNET = Program(
    "resnet",
    sizes(
        {"N": 8, "W": 14, "H": 14, "C1": 32, "C2": 8}, {"N": 8, "W": 28, "H": 28, "C1": 64, "C2": 16},
        {"N": 1, "W": 2, "H": 1, "C1": 1, "C2": 1}, {"N": 3, "W": 5, "H": 7, "C1": 5, "C2": 3},
    ),
    lambda p, r: {
        "x": r.random((p.N, p.H, p.W, p.C1)), "w1": r.random((1, 1, p.C1, p.C2)),
        "w2": r.random((3, 3, p.C2, p.C2)), "w3": r.random((1, 1, p.C2, p.C1)),
        "q": unset(p.N, p.H + 2, p.W + 2, p.C2), "h": unset(p.N, p.H, p.W, p.C2),
        "y": unset(p.N, p.H, p.W, p.C1), "mean": unset(max(p.C1, p.C2)), "dev": unset(max(p.C1, p.C2)),
    },
    ("y",),
    _resnet_reference,
    _resnet,
    lambda k, a, p: (k.resnet(a.x, a.w1, a.w2, a.w3, out=a.y),),
    loops.resnet,
    dtype="float32",
    rtol=1e-8,
)  # fmt: skip

PROGRAMS = (CONV2D, LENET, MLP, RESNET, SOFTMAX)
