"""Random inputs for a DAG, and which of them tell right kernels from wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from autotune.targets import usable_cpus
from schedules.dag import ComputeDAG
from schedules.dtypes import HALF
from schedules.errors import WorkloadError

PIECE = 1 << 21  # elements that a thread draws at a time
MOST_NAN = 0.1  # of an output: what is NaN is right wherever a kernel has NaN, too
TURNED: tuple[Callable[[np.ndarray], np.ndarray], ...] = (lambda x: x, np.abs, lambda x: 1 + np.abs(x))


def random_inputs(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Standard-normal floats, or integers from -8 to 7, for every input of a DAG."""
    rng = np.random.default_rng(seed)
    return [
        _normal(t.shape, t.dtype, rng)
        if t.dtype.startswith("float")
        else rng.integers(-8, 8, t.shape, np.dtype(t.dtype))
        for t in dag.inputs
    ]


def _normal(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Drawn by as many threads as there are CPUs where that takes long, the same by however many."""
    size = prod(shape)
    if size <= PIECE:
        return rng.standard_normal(shape, _drawn(dtype)).astype(dtype, copy=False)
    out = np.empty(size, dtype)
    starts = range(0, size, PIECE)

    def draw(start: int, own: np.random.Generator) -> None:
        part = out[start : start + PIECE]
        part[:] = own.standard_normal(part.size, _drawn(dtype))

    with ThreadPoolExecutor(usable_cpus()) as pool:
        list(pool.map(draw, starts, rng.spawn(len(starts))))
    return out.reshape(shape)


def telling_inputs(dag: ComputeDAG, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs as `random_inputs` draws them, and the right outputs for them. Where these are no numbers, as of
    roots and logarithms, inputs are positive, or above 1.

    Raises `WorkloadError` where an output is NaN everywhere for each of these.
    """
    from schedules.evaluate import evaluate

    drawn = random_inputs(dag, seed)
    least = 1.0
    chosen: tuple[list[np.ndarray], list[np.ndarray]] | None = None
    for turned in TURNED:
        inputs = [turned(x).astype(x.dtype, copy=False) if x.dtype.kind == "f" else x for x in drawn]
        outputs = evaluate(dag, inputs)
        share = max((float(np.isnan(x).mean()) for x in outputs if x.dtype.kind == "f"), default=0.0)
        if share < least:
            chosen, least = (inputs, outputs), share
        if least <= MOST_NAN:
            break
    if chosen is None:
        raise WorkloadError(
            f"an output of {', '.join(dag.outputs)} is NaN everywhere, for random inputs, positive ones and "
            "those above 1: no kernel of it could be checked"
        )
    return chosen


def _drawn(dtype: str) -> np.dtype[Any]:
    """What numpy draws floats of ``dtype`` as: there are no generators of float16."""
    return np.dtype("float32" if dtype == HALF else dtype)
