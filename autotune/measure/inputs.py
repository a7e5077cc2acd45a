"""Random inputs for a DAG, and which of them tell right kernels from wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from autotune.targets import usable_cpus
from schedules.dtypes import DTYPES, bound_dtype, computed, is_float
from schedules.errors import WorkloadError
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import ComputeDAG

PIECE = 1 << 21  # elements that a thread draws at a time
MOST_NAN = 0.1  # of an output: what is NaN is right wherever a kernel has NaN, too
MOST_BYTES = 1 << 30  # of a draw, inputs and outputs: above it there is one draw, above half of it two
SPARSE_FROM, SPARSE = 512, 64  # length of a sum that gets a draw of few numbers, and how many these are
LARGEST_POWER = 50  # of two, that factors of the draw for products reach in any order; their squares 100
STEADY_FROM = 4  # times the longest chain: a sum that gets a draw of equal numbers
EXTREMES = frozenset({"min", "max", ""})  # reductions in which one element may count for all
TURNED: tuple[Callable[[np.ndarray], np.ndarray], ...] = (lambda x: x, np.abs, lambda x: 1 + np.abs(x))


def random_inputs(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """For every input of a DAG: standard-normal floats, integers from -8 to 7, or of a dtype of storage all
    integers that it has, whose ends show what saturates or takes the wrong sign."""
    rng = np.random.default_rng(seed)
    return [
        _normal(t.shape, t.dtype, rng) if is_float(t.dtype) else _integers(t.shape, t.dtype, rng)
        for t in dag.inputs
    ]


def _integers(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    row = DTYPES[dtype]
    first, end = (row.range[0], row.range[-1] + 1) if row.is_storage else (-8, 8)
    return rng.integers(first, end, shape, row.numpy)


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


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the reference where the user says so: ``atol + rtol * |reference|``."""

    rtol: float = 0.0
    atol: float = 0.0

    def bound(self, reference: np.ndarray) -> np.ndarray:
        """For each element of an output."""
        dtype = bound_dtype(str(reference.dtype))
        size = np.abs(reference, dtype=dtype, casting="unsafe")
        return np.asarray(self.rtol * np.where(np.isfinite(size), size, 0) + self.atol, dtype)


@dataclass(frozen=True)
class Draw:
    """Inputs of a check, the right outputs for them, and how far a right kernel may be from these."""

    inputs: tuple[np.ndarray, ...]
    reference: tuple[np.ndarray, ...]
    bounds: tuple[np.ndarray, ...]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (*self.inputs, *self.reference, *self.bounds)

    def within(self, tolerance: Tolerance | None) -> Draw:
        """The same with the bounds that a user states in place of those of rounding."""
        if tolerance is None:
            return self
        return replace(self, bounds=tuple(tolerance.bound(x) for x in self.reference))


def judged(dag: ComputeDAG, inputs: Sequence[np.ndarray], **kind: bool) -> Draw:
    """These inputs with the right outputs; ``kind`` as `evaluate_with_bounds` has it."""
    from schedules.te.rounding import evaluate_with_bounds

    found = evaluate_with_bounds(dag, inputs, **kind)
    return Draw(tuple(inputs), found.values, found.bounds)


def draws(dag: ComputeDAG, seed: int = 0) -> list[Draw]:
    """What candidates are checked on. The first draw is what they are timed on, too.

    - Standard-normal numbers, as `random_inputs` draws them.
    - Where something is summed, small whole numbers without 0, of random signs. Sums of their products need
      no rounding, so that a term left out shows at any length.
    - Where something is multiplied up, factors whose product stays near 1, none of them 1 (odd integers): one
      left out shows, or some side by side.
    - Where extremes are looked for, the whole numbers are largest at the end of each axis, and in one draw
      more at its beginning: schedules leave out what is there.
    - Where a long sum is rounded all the same, few numbers that are not 0, at the ends of each axis among
      others: there a term is a large part of the sum.
    - Where a sum is longer than schedules add terms one after another, one number for all elements of an
      input: what adds them all one after another is far off.

    Where the outputs are no numbers for these, as of roots and logarithms, they are made positive, or above
    1. Raises `WorkloadError` where an output is NaN everywhere for the first draw however made.
    """
    first = _telling(dag, random_inputs(dag, seed), signs=True)
    if first is None:
        raise WorkloadError(
            f"an output of {', '.join(dag.outputs)} is NaN everywhere, for random inputs, positive ones and "
            "those above 1: no kernel of it could be checked"
        )
    found = [first]
    longest = max((prod(a.extent for a in s.reduce_axes) for s in dag.stages), default=1)
    nbytes = sum(x.nbytes for x in found[0].arrays)
    if longest == 1 or nbytes > MOST_BYTES:
        return found
    rng = np.random.default_rng([seed, 1])
    does = _reductions(dag)
    by_ends = bool(does & EXTREMES)
    whole = _telling(dag, _whole(dag, rng, longest, int(by_ends)), signs=not by_ends, steady=True)
    more = [whole]
    if 2 * nbytes <= MOST_BYTES:
        if by_ends:
            more.append(_telling(dag, _whole(dag, rng, longest, -1), steady=True))
        if "*" in does:
            more.append(_telling(dag, _factors(dag, rng, longest)))
        if longest >= SPARSE_FROM and (whole is None or any(x.any() for x in whole.bounds)):
            more.append(_telling(dag, _sparse(dag, rng, longest), steady=True))
        if longest > STEADY_FROM * CHAIN:
            more.append(_telling(dag, [_steady(x) for x in first.inputs], steady=True))
    return found + [x for x in more if x is not None]


def _telling(
    dag: ComputeDAG, drawn: Sequence[np.ndarray], signs: bool = False, steady: bool = False
) -> Draw | None:
    """A draw whose outputs are numbers, by a turn of its inputs if need be; None where each is NaN."""
    least = 1.0
    chosen: Draw | None = None
    for turned in TURNED:
        inputs = [turned(x).astype(x.dtype, copy=False) if _has_nan(x) else x for x in drawn]
        draw = judged(dag, inputs, signs=signs and turned is TURNED[0], steady=steady)
        share = max((float(np.isnan(x).mean()) for x in draw.reference if _has_nan(x)), default=0.0)
        if share < least:
            chosen, least = draw, share
        if least <= MOST_NAN:
            break
    return chosen


def _reductions(dag: ComputeDAG) -> frozenset[str]:
    """What the stages reduce by: +, *, min, max; "" for anything else."""
    reducers = [s.reducer for s in dag.stages if s.reducer is not None]
    return frozenset(r.operation(n) for r in reducers for n in range(len(r.combine)))


def _whole(dag: ComputeDAG, rng: np.random.Generator, longest: int, ends: int = 0) -> list[np.ndarray]:
    """Whole numbers from -3 to 3 (of the longest sums: -1 and 1), none of them 0. With ``ends`` of 1 the last
    of each axis are the largest of all, and the first the least; with -1 the first are the largest. What is
    at the ends of more axes is more so: the corner where all end is the only largest one."""
    most = 3 if 9 * longest < 1 << 24 else 1

    def one(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        size = rng.integers(1, most + 1, shape, np.int8) if most > 1 else np.ones(shape, np.int8)
        out = np.where(rng.random(shape, np.float32) < 0.5, -size, size)
        return _as(_with_ends(out, most, ends) if ends else out, dtype)

    return [one(t.shape, t.dtype) for t in dag.inputs]


def _with_ends(x: np.ndarray, most: int, ends: int) -> np.ndarray:
    """Numbers up to ``most``, those at ends of axes beyond it: by how many more axes end there than begin."""
    more = np.zeros(x.shape, np.int8)
    for d in (d for d, n in enumerate(x.shape) if n > 1):
        along = np.moveaxis(more, d, 0)
        along[0] -= ends
        along[-1] += ends
    largest, least = more > 0, more < 0
    more *= 2
    x[largest] = most + more[largest]
    x[least] = more[least] - most + 1
    return x


def _factors(dag: ComputeDAG, rng: np.random.Generator, longest: int) -> list[np.ndarray]:
    """Factors of random signs, each from 1/4 to 4, none of them 1: of longest products nearer to it, so that
    not even all those above 1 have too large a product, which lanes might multiply. Along every axis products
    stay near 1, and no part of a row is likely to have a product of 1. Integers: -3, -1 and 3, whose products
    never wrap to 0."""
    scale = min(1.0, LARGEST_POWER / longest)

    def one(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if not is_float(dtype):
            return rng.choice(np.array([-3, -1, 3]), shape).astype(dtype)
        long = [d for d, n in enumerate(shape) if n > 1]
        # logarithms: differences along every axis of numbers whose signs alternate, so that sums are short
        power = rng.uniform(0.25, 1, [n + (n > 1) for n in shape])
        for d in long:
            np.moveaxis(power, d, 0)[::2] *= -1
        for d in long:
            power = np.diff(power, axis=d)
        signed = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        return (np.exp2(power * scale * 2.0 ** (1 - len(long))) * signed).astype(dtype)

    return [one(t.shape, t.dtype) for t in dag.inputs]


def _sparse(dag: ComputeDAG, rng: np.random.Generator, longest: int) -> list[np.ndarray]:
    """Zeros but for about `SPARSE` elements of a sum, and the ends of every axis."""

    def one(x: np.ndarray) -> np.ndarray:
        keep = rng.random(x.shape, np.float32) < SPARSE / longest
        for d in range(x.ndim):
            ends: list[Any] = [slice(None)] * x.ndim
            ends[d] = [0, -1]
            border = keep[tuple(ends)]
            share = SPARSE / max(SPARSE, x.size // x.shape[d])
            keep[tuple(ends)] = border | (rng.random(border.shape, np.float32) < share)
        return np.where(keep, x, 0).astype(x.dtype)

    return [one(x) for x in _whole(dag, rng, 1)]


def _steady(x: np.ndarray) -> np.ndarray:
    """One number in all elements, whose sums are rounded."""
    return np.full_like(x, 0.1 if _has_nan(x) else 1)


def _has_nan(x: np.ndarray) -> bool:
    return is_float(x.dtype.name)


def _as(x: np.ndarray, dtype: str) -> np.ndarray:
    """Whole numbers in a dtype, in the same order. Where it has none below 0, all are above 0. Of bool, those
    above 0 are true."""
    row = DTYPES[dtype]
    if row.kind == "bool":
        return x > 0
    return (x - x.min() + 1 if row.range and row.range[0] == 0 else x).astype(dtype)


def _drawn(dtype: str) -> np.dtype[Any]:
    """What numpy draws floats of ``dtype`` as: there are no generators of those of storage."""
    return DTYPES[computed(dtype)].numpy
