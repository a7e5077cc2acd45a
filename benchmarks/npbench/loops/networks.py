"""Layers of networks as loops. The last axis lies side by side."""

from __future__ import annotations

from math import exp, sqrt


def conv2d_bias(x, w, b, y):
    for n in range(y.shape[0]):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                for c in range(y.shape[3]):
                    y[n, i, j, c] = b[c]
                for u in range(w.shape[0]):
                    for v in range(w.shape[1]):
                        for d in range(w.shape[2]):
                            for c in range(y.shape[3]):
                                y[n, i, j, c] += x[n, i + u, j + v, d] * w[u, v, d, c]


def softmax(x, y):
    for n in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(x.shape[2]):
                top = x[n, h, i, 0]
                for j in range(x.shape[3]):
                    top = max(top, x[n, h, i, j])
                s = x[n, h, i, 0] - x[n, h, i, 0]
                for j in range(x.shape[3]):
                    y[n, h, i, j] = exp(x[n, h, i, j] - top)
                    s += y[n, h, i, j]
                for j in range(x.shape[3]):
                    y[n, h, i, j] /= s


def mlp(x, w1, b1, w2, b2, w3, b3, h1, h2, y):
    for n in range(x.shape[0]):
        for j in range(w1.shape[1]):
            h1[n, j] = b1[j]
        for k in range(w1.shape[0]):
            for j in range(w1.shape[1]):
                h1[n, j] += x[n, k] * w1[k, j]
        for j in range(w1.shape[1]):
            h1[n, j] = max(h1[n, j], 0.0)
        for j in range(w2.shape[1]):
            h2[n, j] = b2[j]
    for k in range(w2.shape[0]):
        for n in range(x.shape[0]):
            for j in range(w2.shape[1]):
                h2[n, j] += h1[n, k] * w2[k, j]
    for n in range(x.shape[0]):
        for j in range(w2.shape[1]):
            h2[n, j] = max(h2[n, j], 0.0)
        for j in range(w3.shape[1]):
            y[n, j] = b3[j]
    for k in range(w3.shape[0]):
        for n in range(x.shape[0]):
            for j in range(w3.shape[1]):
                y[n, j] += h2[n, k] * w3[k, j]
    for n in range(x.shape[0]):
        top = y[n, 0]
        for j in range(w3.shape[1]):
            top = max(top, y[n, j])
        s = y[n, 0] - y[n, 0]
        for j in range(w3.shape[1]):
            y[n, j] = exp(y[n, j] - top)
            s += y[n, j]
        for j in range(w3.shape[1]):
            y[n, j] /= s


def lenet(x, c1, b1, c2, b2, f1, g1, f2, g2, f3, g3, y1, p1, y2, p2, h1, h2, y):
    for n in range(x.shape[0]):
        for i in range(y1.shape[1]):
            for j in range(y1.shape[2]):
                for c in range(6):
                    y1[n, i, j, c] = b1[c]
                for u in range(5):
                    for v in range(5):
                        for c in range(6):
                            y1[n, i, j, c] += x[n, i + u, j + v, 0] * c1[u, v, 0, c]
        for i in range(p1.shape[1]):
            for j in range(p1.shape[2]):
                for c in range(6):
                    a = max(y1[n, 2 * i, 2 * j, c], y1[n, 2 * i, 2 * j + 1, c])
                    b = max(y1[n, 2 * i + 1, 2 * j, c], y1[n, 2 * i + 1, 2 * j + 1, c])
                    p1[n, i, j, c] = max(max(a, b), 0.0)
        for i in range(y2.shape[1]):
            for j in range(y2.shape[2]):
                for c in range(16):
                    y2[n, i, j, c] = b2[c]
                for u in range(5):
                    for v in range(5):
                        for d in range(6):
                            for c in range(16):
                                y2[n, i, j, c] += p1[n, i + u, j + v, d] * c2[u, v, d, c]
        for i in range(p2.shape[1]):
            for j in range(p2.shape[2]):
                for c in range(16):
                    a = max(y2[n, 2 * i, 2 * j, c], y2[n, 2 * i, 2 * j + 1, c])
                    b = max(y2[n, 2 * i + 1, 2 * j, c], y2[n, 2 * i + 1, 2 * j + 1, c])
                    p2[n, i, j, c] = max(max(a, b), 0.0)
        for j in range(f1.shape[1]):
            h1[n, j] = g1[j]
        for i in range(p2.shape[1]):
            for v in range(p2.shape[2]):
                for c in range(16):
                    for j in range(f1.shape[1]):
                        h1[n, j] += p2[n, i, v, c] * f1[(i * p2.shape[2] + v) * 16 + c, j]
        for j in range(f1.shape[1]):
            h1[n, j] = max(h1[n, j], 0.0)
        for j in range(f2.shape[1]):
            h2[n, j] = g2[j]
        for k in range(f2.shape[0]):
            for j in range(f2.shape[1]):
                h2[n, j] += h1[n, k] * f2[k, j]
        for j in range(f2.shape[1]):
            h2[n, j] = max(h2[n, j], 0.0)
        for j in range(f3.shape[1]):
            y[n, j] = g3[j]
        for k in range(f3.shape[0]):
            for j in range(f3.shape[1]):
                y[n, j] += h2[n, k] * f3[k, j]


def resnet(x, w1, w2, w3, q, h, y, mean, dev):
    eps = 1e-5
    for n in range(x.shape[0]):
        for i in range(q.shape[1]):
            for j in range(q.shape[2]):
                for c in range(q.shape[3]):
                    q[n, i, j, c] = 0.0
        for i in range(x.shape[1]):
            for j in range(x.shape[2]):
                for d in range(x.shape[3]):
                    for c in range(q.shape[3]):
                        q[n, i + 1, j + 1, c] += x[n, i, j, d] * w1[0, 0, d, c]
    for i in range(q.shape[1]):
        for j in range(q.shape[2]):
            for c in range(q.shape[3]):
                mean[c] = 0.0
                dev[c] = 0.0
            for n in range(x.shape[0]):
                for c in range(q.shape[3]):
                    mean[c] += q[n, i, j, c] / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(q.shape[3]):
                    dev[c] += (q[n, i, j, c] - mean[c]) * (q[n, i, j, c] - mean[c]) / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(q.shape[3]):
                    q[n, i, j, c] = max((q[n, i, j, c] - mean[c]) / sqrt(sqrt(dev[c]) + eps), 0.0)
    for n in range(x.shape[0]):
        for i in range(h.shape[1]):
            for j in range(h.shape[2]):
                for c in range(h.shape[3]):
                    h[n, i, j, c] = 0.0
                for u in range(3):
                    for v in range(3):
                        for d in range(q.shape[3]):
                            for c in range(h.shape[3]):
                                h[n, i, j, c] += q[n, i + u, j + v, d] * w2[u, v, d, c]
    for i in range(h.shape[1]):
        for j in range(h.shape[2]):
            for c in range(h.shape[3]):
                mean[c] = 0.0
                dev[c] = 0.0
            for n in range(x.shape[0]):
                for c in range(h.shape[3]):
                    mean[c] += h[n, i, j, c] / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(h.shape[3]):
                    dev[c] += (h[n, i, j, c] - mean[c]) * (h[n, i, j, c] - mean[c]) / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(h.shape[3]):
                    h[n, i, j, c] = max((h[n, i, j, c] - mean[c]) / sqrt(sqrt(dev[c]) + eps), 0.0)
    for n in range(x.shape[0]):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                for c in range(y.shape[3]):
                    y[n, i, j, c] = 0.0
                for d in range(h.shape[3]):
                    for c in range(y.shape[3]):
                        y[n, i, j, c] += h[n, i, j, d] * w3[0, 0, d, c]
    for i in range(y.shape[1]):
        for j in range(y.shape[2]):
            for c in range(y.shape[3]):
                mean[c] = 0.0
                dev[c] = 0.0
            for n in range(x.shape[0]):
                for c in range(y.shape[3]):
                    mean[c] += y[n, i, j, c] / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(y.shape[3]):
                    dev[c] += (y[n, i, j, c] - mean[c]) * (y[n, i, j, c] - mean[c]) / x.shape[0]
            for n in range(x.shape[0]):
                for c in range(y.shape[3]):
                    y[n, i, j, c] = max(
                        (y[n, i, j, c] - mean[c]) / sqrt(sqrt(dev[c]) + eps) + x[n, i, j, c], 0.0
                    )
