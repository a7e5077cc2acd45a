"""Trains a network of two layers by gradients that `te.gradient` derives, beside the same network of torch.

    python examples/training.py
    python examples/training.py --steps 500 --tune 5

The data are points of a spiral with three arms. Each layer is an operator of torch with kernels for its
result and its gradients. ``--tune``: seconds of tuning for each kernel; without it a schedule is chosen
untuned. Needs torch.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch

import autotune as at

te = at.te
POINTS, HIDDEN, CLASSES = 300, 64, 3


def loaded(tensors: list[te.Tensor], tune_s: float) -> at.Kernel:
    """A kernel on one thread, tuned if there is time for it."""
    if tune_s:
        at.tune(tensors, threads=1, budget_s=tune_s)
    kernel = at.load(tensors, threads=1, fallback=True)
    assert isinstance(kernel, at.Kernel)
    return kernel


def layer(m: int, n: int, k: int, relu: bool, tune_s: float) -> Callable[..., Any]:
    """An operator ``(x[m, k], w[k, n], b[n]) -> y[m, n]`` with gradients."""
    x, w, b = (te.placeholder(s, name=t) for s, t in (((m, k), "x"), ((k, n), "w"), ((n,), "b")))
    r = te.reduce_axis(k, "r")
    product = te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "product")

    def result(i: te.Expr, j: te.Expr) -> te.Expr:
        value = product[i, j] + b[j]
        return te.maximum(value, 0.0) if relu else value

    y = te.compute((m, n), result, "y")
    # The gradient reads y to know where the value was above 0.
    gradients = te.gradient(y, [x, w, b], te.placeholder((m, n), name="dy"), saved=[y])
    backward = [loaded([*te.inputs(g), g], tune_s) for g in gradients]
    return at.torch.op(loaded([x, w, b, y], tune_s), backward=backward)


def spiral(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in the plane, and the arm of each."""
    arm = torch.arange(POINTS) % CLASSES
    radius = torch.rand(POINTS, generator=generator)
    angle = radius * 4 + arm * (2 * math.pi / CLASSES) + 0.1 * torch.randn(POINTS, generator=generator)
    return torch.stack([radius * angle.sin(), radius * angle.cos()], 1), arm


def train(
    first: Callable[..., Any], second: Callable[..., Any], steps: int, generator: torch.Generator
) -> list[float]:
    """The losses of gradient descent."""
    points, arms = spiral(generator)
    shapes = (2, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
    weights = [(torch.randn(s, generator=generator) * s[0] ** -0.5).requires_grad_() for s in shapes]
    w1, b1, w2, b2 = weights
    step = torch.optim.SGD(weights, lr=0.5)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(second(first(points, w1, b1), w2, b2), arms)
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--tune", type=float, default=0, metavar="SECONDS")
    args = p.parse_args()
    ours = (
        layer(POINTS, HIDDEN, 2, True, args.tune),
        layer(POINTS, CLASSES, HIDDEN, False, args.tune),
    )
    theirs = (lambda x, w, b: torch.relu(x @ w + b)), (lambda x, w, b: x @ w + b)
    curves = [train(*net, args.steps, torch.Generator().manual_seed(0)) for net in (ours, theirs)]
    for i in range(0, args.steps, max(1, args.steps // 10)):
        print(f"step {i:4d}: loss {curves[0][i]:.4f}, torch's {curves[1][i]:.4f}")
    print(f"largest difference: {max(abs(a - b) for a, b in zip(*curves, strict=True)):.1e}")


if __name__ == "__main__":
    main()
