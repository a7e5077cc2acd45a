"""Random reductions over domains that are no boxes: triangles, bands, and what several conditions leave."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from schedules import te
from schedules.te.compute_dag import ComputeDAG
from schedules.te.tensors import IterVar

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 21)
DTYPES = ("float32", "float64", "int32", "float32")


def random_domain(rng: Random) -> ComputeDAG:
    """One stage that reduces over one or two axes of affine ends, perhaps with maps before and after it."""
    rank, terms = rng.choice((1, 2, 2, 2, 3)), rng.choice((1, 1, 1, 2))
    shape = tuple(rng.choice(EXTENTS) for _ in range(rank))
    dtype, how = rng.choice(DTYPES), rng.choice(("sum", "sum", "sum", "max", "min"))
    inputs: list[Any] = []
    most = 64  # every input is this long along each dimension, so that loads are inside

    def made(*axes: IterVar) -> Any:
        reduced: list[IterVar] = []
        for n in range(terms):
            reduced.append(_axis(rng, [*axes, *reduced], f"k{n}"))
        value = _read(rng, inputs, dtype, [*axes, *reduced], most)
        if rng.random() < 0.7:
            value = value * _read(rng, inputs, dtype, [*axes, *reduced], most)
        return getattr(te, how)(value, axis=tuple(reduced))

    names = "ijl"[:rank]
    out = te.compute(shape, eval(f"lambda {', '.join(names)}: made({', '.join(names)})", {"made": made}), "y")
    outs = [out]
    if rng.random() < 0.3:
        twice = {"f": lambda *at: out[at] + out[at]}
        after = eval(f"lambda {', '.join(names)}: f({', '.join(names)})", twice)
        outs = [te.compute(shape, after, "z")] if rng.random() < 0.5 else [out, te.compute(shape, after, "z")]
    return te.dag([*inputs, *outs])


def _axis(rng: Random, before: list[IterVar], name: str) -> IterVar:
    """An axis with ends of those before it."""

    def end() -> Any:
        found: Any = rng.randint(-3, 9)
        for v in rng.sample(before, min(len(before), rng.choice((1, 1, 1, 2)))):
            found = found + v * rng.choice((1, 1, 1, 1, -1, 2))
        return found

    low = rng.choice((0, 0, 0, 1, None, None))
    lo = te.maximum(end(), 0) if low is None else low
    hi = te.minimum(end(), rng.choice(EXTENTS)) if rng.random() < 0.5 else te.minimum(end(), 21)
    if rng.random() < 0.15:
        lo, hi = 0, rng.choice(EXTENTS)
    elif rng.random() < 0.15:
        a = end() % 1 + rng.choice(before) - rng.randint(0, 2)
        lo, hi = te.maximum(a, 0), te.minimum(a + rng.randint(1, 5), 21)
    where = None
    if rng.random() < 0.3:
        where = rng.choice((lambda k: k <= end(), lambda k: end() <= k + 2, lambda k: end() < 6))
    try:
        return te.reduce_axis((lo, hi), name, where=where)
    except te_error() as err:
        if "no points" not in str(err):
            raise
        return te.reduce_axis(3, name)


def te_error() -> type[Exception]:
    from schedules.errors import WorkloadError

    return WorkloadError


def _read(rng: Random, inputs: list[Any], dtype: str, axes: list[IterVar], most: int) -> Any:
    """An element of a new input that some axes say, so that it is inside."""
    picked = rng.sample(axes, min(len(axes), rng.choice((1, 2, 2, 2))))
    if axes[-1] not in picked and rng.random() < 0.8:
        picked[-1] = axes[-1]
    x = te.placeholder((most,) * len(picked), dtype, f"x{len(inputs)}")
    inputs.append(x)
    return x[tuple(picked)]


def whole_numbers(dag: ComputeDAG, seed: int) -> list[np.ndarray]:
    """Inputs of small whole numbers: every order of a sum gives the same bits."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-4, 5, t.shape).astype(t.dtype) for t in dag.inputs]
