"""Draw shapes at random: a suite for `dataset.py`, most of the operators ordered worst so far.

    python benchmarks/draw.py --seed 1 --without ops.toml,training.toml,drawn.toml > benchmarks/drawn_more.toml

Sizes are such as networks have, powers of two and round numbers more often than others; each task has between
`FLOPS` operations and fewer than `MOST_BYTES`, so that fifty candidates take some seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from autotune import suites
from schedules import ops
from schedules.dag import ComputeDAG
from schedules.dtypes import ITEMSIZE
from schedules.errors import AutotuneError
from schedules.model import Workload

FLOPS = (2e5, 8e8)
MOST_BYTES = 200 << 20
Shape = dict[str, Any]


class Draw:
    """Sizes at random."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def of(self, *options: int) -> int:
        return int(self._rng.choice(options))

    def size(self, low: int, high: int) -> int:
        """Log-uniform: half of the time 2 or 3 times a power of two, else any multiple of 1, 4 or 8."""
        n = low * (high / low) ** self._rng.random()
        if self._rng.random() < 0.5:
            power = 2 ** round(np.log2(n))
            return int(np.clip(self.of(power, power, 3 * power // 2), low, high))
        unit = self.of(1, 4, 8)
        return int(np.clip(round(n / unit) * unit, low, high))

    def channels(self, low: int = 8) -> int:
        return self.of(*(c for c in (3, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512) if c >= low))

    def order(self, n: int) -> list[int]:
        return [int(i) for i in self._rng.permutation(n)]


def rows(d: Draw) -> Shape:
    return {"m": d.size(8, 8192), "n": d.size(64, 8192)}


def product(d: Draw) -> Shape:
    return {"m": d.size(16, 1536), "n": d.size(16, 2048), "k": d.size(16, 2048)}


def skinny(d: Draw) -> Shape:
    few = d.of(1, 1, 1, 2, 4, 8, 16, 24, 32)
    return {"m": few, "n": d.size(256, 8192), "k": d.size(256, 8192)}


def pointwise(d: Draw) -> Shape:
    side = d.of(7, 14, 28, 56, 112)
    size = {"h": side, "w": side, "ci": d.channels(), "co": d.channels(), "kh": 1, "kw": 1}
    return size | {"stride": d.of(1, 1, 1, 2)}


def plane(d: Draw) -> Shape:
    side, k = d.of(7, 14, 28, 56, 112), d.of(3, 3, 3, 5, 7)
    size = {"h": side, "w": side, "ci": d.channels(3), "co": d.channels(), "kh": k, "kw": k}
    size |= {"stride": d.of(1, 1, 2), "padding": k // 2}
    return size | {"dilation": d.of(1, 1, 1, 1, 2), "groups": d.of(1, 1, 1, 4)}


def depthwise(d: Draw) -> Shape:
    side, k = d.of(7, 14, 28, 56, 112), d.of(3, 3, 5, 7)
    size = {"h": side, "w": side, "c": d.channels(16), "kh": k, "kw": k}
    return size | {"stride": d.of(1, 1, 2), "padding": k // 2}


def transposed(d: Draw) -> Shape:
    side, k = d.of(4, 7, 8, 14, 16, 28, 32), d.of(2, 3, 4, 4, 4, 5)
    size = {"h": side, "w": side, "ci": d.channels(16), "co": d.channels(3), "kh": k, "kw": k}
    return size | {"stride": d.of(1, 2, 2, 2), "padding": d.of(0, 1) if k > 2 else 0}


def volume(d: Draw) -> Shape:
    side, k = d.of(7, 14, 28, 56), d.of(1, 1, 3)
    size = {"d": d.of(4, 8, 16, 32), "h": side, "w": side, "ci": d.channels(), "co": d.channels()}
    return size | {"kd": k, "kh": k, "kw": k, "stride": d.of(1, 1, 1, 2), "padding": k // 2}


def line(d: Draw) -> Shape:
    k = d.of(1, 3, 3, 5, 9)
    size = {"l": d.size(64, 4096), "ci": d.channels(), "co": d.channels(), "k": k}
    return size | {"stride": d.of(1, 1, 2), "padding": k // 2}


def capsule(d: Draw) -> Shape:
    side = d.of(4, 8, 14, 16)
    size = {"h": side, "w": side, "ci": d.of(8, 16, 32, 48), "co": d.of(8, 16, 32, 48), "kh": 3, "kw": 3}
    return size | {"capsule": 4, "stride": d.of(1, 2), "padding": d.of(0, 1)}


def permuted(d: Draw) -> Shape:
    n = d.of(2, 2, 3, 4)
    order = d.order(n)
    while order == sorted(order):
        order = d.order(n)
    most = {2: 5000, 3: 400, 4: 96}[n]
    return {"shape": [d.size(4, most) for _ in range(n)], "axes": order}


def heads(d: Draw) -> Shape:
    return {"seq": d.size(32, 1024), "heads": d.of(1, 4, 8, 12, 16), "dim": d.of(32, 64, 80, 128)}


def batch(d: Draw) -> Shape:
    return {"b": d.of(4, 8, 12, 16, 32), "m": d.size(8, 512), "n": d.size(8, 512), "k": d.size(16, 512)}


DRAWN: tuple[tuple[str, dict[str, Any], Callable[[Draw], Shape], int], ...] = (
    ("softmax", {}, rows, 40),
    ("conv3d", {}, volume, 55),
    ("conv2d_transpose", {}, transposed, 50),
    ("matmul", {}, skinny, 55),
    ("permute", {}, permuted, 45),
    ("conv2d", {}, pointwise, 50),
    ("depthwise_conv2d", {}, depthwise, 35),
    ("conv2d", {}, plane, 40),
    ("conv2d", {"layout": "NCHW"}, plane, 15),
    ("matmul", {}, product, 35),
    ("matmul", {"transpose_b": 1}, product, 15),
    ("batch_matmul", {}, batch, 20),
    ("conv1d", {}, line, 20),
    ("capsule_conv2d", {}, capsule, 10),
    ("layer_norm", {}, rows, 12),
    ("rms_norm", {}, rows, 6),
    ("attention", {}, heads, 8),
    ("transpose_batch_matmul_softmax", {}, heads, 8),
)


def nbytes(dag: ComputeDAG) -> int:
    return sum(int(np.prod(t.shape)) * ITEMSIZE[t.dtype] for t in dag.params)


def drawn(op: str, fixed: dict[str, Any], shape: Callable[[Draw], Shape], d: Draw) -> tuple[Shape, Workload]:
    """A shape of the wanted size, and its workload."""
    while True:
        found = shape(d)
        try:
            given = found | {k: v for k, v in fixed.items() if k != "layout"}
            w = ops.workload(op, given, layout=fixed.get("layout"))
        except AutotuneError:  # groups that do not divide channels, windows beyond the edge
            continue
        small = op in ("permute", "softmax", "layer_norm", "rms_norm")
        if (small or FLOPS[0] <= w.flops) and w.flops <= FLOPS[1] and 1 << 14 <= nbytes(w.dag) <= MOST_BYTES:
            return found, w


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--without", default="", help="suites, none of whose tasks is drawn")
    args = p.parse_args()
    d = Draw(args.seed)
    seen = {t.workload.digest for name in filter(None, args.without.split(",")) for t in suites.read(name)}
    print(f"# Shapes drawn at random by draw.py, seed {args.seed}. Read by `benchmarks/dataset.py`.")
    for number, (op, fixed, shape, count) in enumerate(DRAWN):
        found: list[Shape] = []
        while len(found) < count:
            params, w = drawn(op, fixed, shape, d)
            if w.digest not in seen:
                seen.add(w.digest)
                found.append(params)
        fields = list(found[0])
        print(f'\n[[group]]\nsuite = "{op}"\nname = "{op}_{number}"\nop = "{op}"')
        print(f"fields = {json.dumps(fields)}")
        if fixed:
            print(f"fixed = {{ {', '.join(f'{k} = {json.dumps(v)}' for k, v in fixed.items())} }}")
        print("shapes = [")
        for each in found:
            print(f"    {json.dumps([each[f] for f in fields])},")
        print("]")


if __name__ == "__main__":
    main()
