"""Kernels that are the plain loops: what that may cost, in words."""

from __future__ import annotations

from autotune import backends
from autotune.run.kernel import Kernel
from schedules.model import Target, Workload
from schedules.ops import compulsory_bytes

# FLOP/s and bytes/s of a good kernel on a thread of a CPU, about.
GOOD_FLOPS, GOOD_BYTES = 5e10, 2e10


def factor(workload: Workload, target: Target) -> float:
    """How many times as long as a tuned kernel the plain loops may take, as far as their work tells.

    Example: of a product of one row, 1x1024x32000, which reads 131 MB: 20."""
    moved = compulsory_bytes(workload.dag)
    good_s = max(workload.flops / (GOOD_FLOPS * target.threads), moved / GOOD_BYTES)
    plain_s = max(workload.flops, moved) / backends.of(target).measuring.plain_rate
    return max(plain_s / good_s, 1.0) if good_s else 1.0


def said(kernel: Kernel, why: str) -> str:
    """That a kernel is the plain loops, what it may cost, and ``why`` it is."""
    times = factor(kernel.workload, kernel.target)
    cost = f", which may take up to {times:.0f} times as long as a tuned kernel" if times >= 2 else ""
    return f"runs as plain loops{cost}: {why}"
