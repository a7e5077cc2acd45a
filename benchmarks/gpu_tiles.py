"""The step "tiles" of gpu.py: one product by hand (`examples.matrix_units`), one choice changed at a time. It
says what stages, tiles and the order of blocks are worth on this GPU, whatever a search found."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from gpu_steps import ROUNDS, Result, Skip, outcome, save, so_far

CHOICES: dict[str, list[dict[str, int]]] = {
    "stages": [{"stages": n} for n in (2, 3, 5)],
    "group": [{"group": n} for n in (1, 4, 16)],
    "depth": [{"depth": 16, "stages": 6}, {"depth": 64, "stages": 3}],
    "warps": [{"across": 4}, {"down": 4}, {"down": 4, "across": 1}],
    "warp": [
        {"rows": 32, "down": 4},
        {"columns": 32, "across": 4},
        {"rows": 32, "columns": 32, "down": 4, "across": 4},
    ],
}
SIZE, SMALL = 4096, 72
SMALLER = {"rows": 32, "columns": 16, "depth": 32, "stages": 3, "group": 2}  # what an emulator is fast with


def tiles(emulated: bool) -> Iterator[Any]:
    """The tiles that are timed."""
    from examples.matrix_units import Tiles

    base = Tiles(**SMALLER) if emulated else Tiles()
    yield base
    if emulated:
        yield replace(base, stages=2, across=1)
        return
    yield from (replace(base, **change) for changes in CHOICES.values() for change in changes)


def step(o: argparse.Namespace) -> Result:
    """Seconds by tiles, and what the compiler says of each kernel. Each result is checked."""
    if o.target in ("opencl", "cuda-emulator"):
        raise Skip(f"{o.target} has no instructions of matrix units")
    import numpy as np

    size = SMALL if o.emulated else SIZE
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (size, size)).astype(np.float16) for _ in range(2))
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)  # sums are exact
    done = [r for r in so_far(o.out, o.child).get("tiles", []) if "time_s" in r]
    for t in tiles(o.emulated):
        if any(r["tiles"] == asdict(t) for r in done):
            continue
        done.append({"tiles": asdict(t)} | timed(size, t, o.target, (a, b), expected))
        save(outcome(o.out, o.child), {"tiles": done})
    return {"tiles": done}


def timed(size: int, t: Any, target: str, inputs: tuple[Any, Any], expected: Any) -> Result:
    """What became of one choice of tiles."""
    import autotune as at
    from autotune.errors import AutotuneError
    from examples.matrix_units import product

    try:
        kernel = at.build(product(size, size, size, t), target=target)
        wrong = int((kernel(*inputs) != expected).sum())
        if wrong:
            return {"failed": f"{wrong} of {expected.size} elements are wrong"}
        seconds = kernel.time(*inputs, repeat=ROUNDS)
    except AutotuneError as err:
        return {"failed": str(err)[:500]}
    return {"time_s": seconds, "flop_per_s": 2 * size**3 / seconds, "shared_bytes": t.shared_bytes}
