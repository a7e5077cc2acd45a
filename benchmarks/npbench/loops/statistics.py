"""Means, deviations and products of columns as loops."""

from __future__ import annotations

from math import sqrt


def covariance(data, mean, c, R):
    n = float(data.shape[0])
    for j in range(data.shape[1]):
        mean[j] = 0.0
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            mean[j] += data[i, j]
    for j in range(data.shape[1]):
        mean[j] /= n
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            c[i, j] = data[i, j] - mean[j]
    for i in range(data.shape[1]):
        for j in range(data.shape[1]):
            R[i, j] = 0.0
        for k in range(data.shape[0]):
            for j in range(i, data.shape[1]):
                R[i, j] += c[k, i] * c[k, j]
        for j in range(i, data.shape[1]):
            R[i, j] /= n - 1.0
    for i in range(data.shape[1]):
        for j in range(i):
            R[i, j] = R[j, i]


def correlation(data, mean, dev, c, R):
    n = float(data.shape[0])
    for j in range(data.shape[1]):
        mean[j] = 0.0
        dev[j] = 0.0
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            mean[j] += data[i, j]
    for j in range(data.shape[1]):
        mean[j] /= n
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            dev[j] += (data[i, j] - mean[j]) * (data[i, j] - mean[j])
    for j in range(data.shape[1]):
        dev[j] = sqrt(dev[j] / n)
        if dev[j] <= 0.1:
            dev[j] = 1.0
    for i in range(data.shape[0]):
        for j in range(data.shape[1]):
            c[i, j] = (data[i, j] - mean[j]) / (sqrt(n) * dev[j])
    for i in range(data.shape[1]):
        for j in range(data.shape[1]):
            R[i, j] = 0.0
        for k in range(data.shape[0]):
            for j in range(i + 1, data.shape[1]):
                R[i, j] += c[k, i] * c[k, j]
        R[i, i] = 1.0
    for i in range(data.shape[1]):
        for j in range(i):
            R[i, j] = R[j, i]
