"""Random inputs for a DAG, chosen so that wrong kernels give wrong outputs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from autotune.codegen.runtime.laid import settled_values
from autotune.targets import usable_cpus
from schedules.dtypes import DTYPES, bound_dtype, computed, is_float, is_integer
from schedules.errors import WorkloadError
from schedules.strides import MemoryLayout
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.gathers import compared_extents, indexed_extents

# Elements that a thread draws at a time.
PIECE = 1 << 21
# Largest share of NaN in an output: where the reference is NaN, a kernel's NaN passes.
MOST_NAN = 0.1
# Most bytes of a draw, inputs and outputs. Above it there is one draw, above half of it there are two.
MOST_BYTES = 1 << 30
# Sparse draw: shortest sum (terms) that gets one, and how many of its terms are not 0.
SPARSE_FROM, SPARSE = 512, 64
# Products of factors stay below 2 ** LARGEST_POWER in any order; their squares below 2 ** (2 *
# LARGEST_POWER).
LARGEST_POWER = 50
# Shortest sum that gets a draw of equal numbers, in lengths of the longest chain of additions.
STEADY_FROM = 4
# Share of indices that lie outside of what they index.
OUTSIDE = 1 / 32
# Reductions in which one element may decide the result.
EXTREMES = frozenset({"min", "max", ""})
# What makes inputs valid for roots and logarithms, tried in this order: as drawn, positive, above 1.
TURNED: tuple[Callable[[np.ndarray], np.ndarray], ...] = (lambda x: x, np.abs, lambda x: 1 + np.abs(x))


def random_inputs(
    dag: ComputeDAG, seed: int = 0, known: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """For every input of a DAG: standard-normal floats, integers from -8 to 7, or of a dtype of storage all
    integers that it has, whose ends show what saturates or takes the wrong sign. What is read as an index is
    drawn as `_places` does. What is compared with an axis, as the position of a mask, is a place on it; one
    number is in its second half, as it may hide all behind it. ``known``: those of the largest sizes, whose
    first parts are taken where values do not depend on a size."""
    rng = np.random.default_rng(seed)
    places, masks = indexed_extents(dag), compared_extents(dag)

    def one(t: Tensor) -> np.ndarray:
        if is_float(t.dtype):
            return _normal(t.shape, t.dtype, rng)
        if t.name in places:
            return _places(t.shape, t.dtype, places[t.name], rng)
        if t.name in masks:
            most = min(masks[t.name], DTYPES[t.dtype].range[-1] + 1)
            return rng.integers(most // 2 if prod(t.shape) == 1 else 0, most, t.shape, DTYPES[t.dtype].numpy)
        row = DTYPES[t.dtype]
        first, end = (row.range[0], row.range[-1] + 1) if row.is_storage else (-8, 8)
        return rng.integers(first, end, t.shape, row.numpy)

    if known is None:
        return [_held(t, one(t)) for t in dag.inputs]
    first = [x[tuple(map(slice, t.shape))] for t, x in zip(dag.inputs, known, strict=True)]
    anew = {*places, *masks}
    return [_held(t, one(t) if t.name in anew else x) for t, x in zip(dag.inputs, first, strict=True)]


def _held(t: Tensor, values: np.ndarray) -> np.ndarray:
    """Values as an input can hold them: alike where its elements share a place."""
    return settled_values(values, MemoryLayout(t.shape, t.strides))


def _places(shape: tuple[int, ...], dtype: str, extent: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of a dimension of ``extent`` elements, all of them alike, as few would stay in a cache. A share
    of `OUTSIDE` lies within a length before its beginning or behind its end."""
    row = DTYPES[dtype].range
    inside = rng.integers(0, extent, shape)
    outside = rng.integers(-extent, 2 * extent, shape)
    drawn = np.where(rng.random(shape) < OUTSIDE, outside, inside)
    return drawn.clip(row[0], row[-1]).astype(DTYPES[dtype].numpy)


def _normal(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """A draw, by all usable CPUs where it is large. The result does not depend on their number."""
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
        """The bound of each element of an output."""
        dtype = bound_dtype(str(reference.dtype))
        size = np.abs(reference, dtype=dtype, casting="unsafe")
        return np.asarray(self.rtol * np.where(np.isfinite(size), size, 0) + self.atol, dtype)


@dataclass(frozen=True)
class Draw:
    """Inputs of a check, the right outputs for them, and for each element its largest allowed error.

    ``places``: where each output was computed, as slices; elsewhere any number is right. None: everywhere."""

    inputs: tuple[np.ndarray, ...]
    reference: tuple[np.ndarray, ...]
    bounds: tuple[np.ndarray, ...]
    places: tuple[tuple[tuple[slice, ...], ...], ...] | None = None

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All arrays: inputs, right outputs, bounds."""
        return (*self.inputs, *self.reference, *self.bounds)

    def within(self, tolerance: Tolerance | None) -> Draw:
        """The same draw with the user's bounds in place of those of rounding; itself if there are none."""
        if tolerance is None:
            return self
        bounds = [tolerance.bound(x) for x in self.reference]
        if self.places is not None:
            bounds = [np.where(old == np.inf, old, b) for old, b in zip(self.bounds, bounds, strict=True)]
        return replace(self, bounds=tuple(bounds))

    @property
    def nan_share(self) -> float:
        """The largest share of NaN in an output."""
        every: Any = self.places or (((...,),),) * len(self.reference)
        floats = [(x, at) for x, at in zip(self.reference, every, strict=True) if _has_nan(x)]
        return max((float(np.mean([np.isnan(x[i]).mean() for i in at])) for x, at in floats), default=0.0)


def judged(dag: ComputeDAG, inputs: Sequence[np.ndarray], **kind: Any) -> Draw:
    """These inputs with their right outputs. ``kind``: keywords of `evaluate_with_bounds`."""
    from schedules.te.rounding import evaluate_with_bounds

    found = evaluate_with_bounds(dag, inputs, **kind)
    return Draw(tuple(inputs), found.values, found.bounds)


# Gives inputs their right outputs: `judged`, or `autotune.measure.sampled.judged_in_part`.
Judge = Callable[..., Draw]


def draws(
    dag: ComputeDAG,
    seed: int = 0,
    judge: Judge = judged,
    most_bytes: int = MOST_BYTES,
    plain: Sequence[np.ndarray] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> list[Draw]:
    """The inputs that candidates are checked on, with right outputs. Candidates are timed on the first draw.
    ``most_bytes``: of a draw, inputs and outputs; above it there is one draw, above half of it there are two.
    ``plain``: what `random_inputs` gave, if it was asked before. ``enough``: whether those that there are
    must do, asked before each one but the first.

    - Always: standard-normal numbers, as `random_inputs` draws them.
    - For sums: small whole numbers of random signs, no 0. Their sums are exact, so a missing term shows.
    - For products: factors whose product stays near 1, none of them 1 (integers: odd). A missing factor
      shows.
    - For extremes: the largest whole numbers lie at the end of each axis, in one more draw at its beginning.
    - For long sums that are rounded: few numbers that are not 0, so that each is a large part of the sum.
    - For sums longer than schedules add up in one chain: equal numbers. One long chain of additions is far
      off.

    Where outputs would be NaN, as for roots and logarithms, inputs are made positive, or above 1, masks are
    denied, or integers count up, as positions do. Raises `WorkloadError` where an output is NaN everywhere
    even then.
    """
    places = indexed_extents(dag)
    plain = random_inputs(dag, seed) if plain is None else plain
    found: list[Draw] = []

    def telling(drawn: Sequence[np.ndarray], **kind: bool) -> Draw | None:
        if found and enough():
            return None
        both = zip(dag.inputs, plain, drawn, strict=True)
        return _telling(dag, judge, [at if t.name in places else _held(t, x) for t, at, x in both], **kind)

    first = telling(plain, signs=True)
    if first is None:
        raise _never_a_number(dag)
    found.append(first)
    longest = max((prod(a.extent for a in s.reduce_axes) for s in dag.stages), default=1)
    nbytes = sum(x.nbytes for x in found[0].arrays)
    if longest == 1 or nbytes > most_bytes:
        return found
    rng = np.random.default_rng([seed, 1])
    does = _reductions(dag)
    by_ends = bool(does & EXTREMES)
    whole = telling(_whole(dag, rng, longest, int(by_ends)), signs=not by_ends, steady=True)
    more = [whole]
    if 2 * nbytes <= most_bytes:
        if by_ends:
            more.append(telling(_whole(dag, rng, longest, -1), steady=True))
        if "*" in does:
            more.append(telling(_factors(dag, rng, longest)))
        if longest >= SPARSE_FROM and (whole is None or any(x.any() for x in whole.bounds)):
            more.append(telling(_sparse(dag, rng, longest), steady=True))
        if longest > STEADY_FROM * CHAIN:
            more.append(telling([_steady(x) for x in first.inputs], steady=True))
    return found + [x for x in more if x is not None]


def _never_a_number(dag: ComputeDAG) -> WorkloadError:
    return WorkloadError(
        f"an output of {', '.join(dag.outputs)} is NaN everywhere for random inputs, for positive ones "
        "and for those above 1, so no kernel can be checked; change the expression or its inputs"
    )


def _telling(
    dag: ComputeDAG, judge: Judge, drawn: Sequence[np.ndarray], signs: bool = False, steady: bool = False
) -> Draw | None:
    """A draw whose outputs are numbers, with its inputs turned by `TURNED` if need be, masks denied, or
    integers in steps; None if none is."""
    least = 1.0
    chosen: Draw | None = None
    ways: list[tuple[Any, Callable[[], Sequence[np.ndarray]]]] = [(way, lambda: drawn) for way in TURNED]
    if any(x.dtype == np.bool_ for x in drawn):  # a mask may hide all of a short row
        ways.append((TURNED[0], lambda: [~x if x.dtype == np.bool_ else x for x in drawn]))
    if any(is_integer(t.dtype) for t in dag.inputs):  # a mask may be made of these
        ways += [(TURNED[0], lambda: _in_steps(dag, drawn, True)), (TURNED[0], lambda: _in_steps(dag, drawn))]
    for turned, given in ways:
        inputs = [turned(x).astype(x.dtype, copy=False) if _has_nan(x) else x for x in given()]
        draw = judge(dag, inputs, signs=signs and turned is TURNED[0], steady=steady)
        share = draw.nan_share
        if share < least:
            chosen, least = draw, share
        if least <= MOST_NAN:
            break
    return chosen


def _in_steps(dag: ComputeDAG, drawn: Sequence[np.ndarray], to_end: bool = False) -> list[np.ndarray]:
    """Integers that are no indices count up, as numbers of rows and positions do: all from 0 on, or all to
    one end."""
    places = indexed_extents(dag)
    counted = [is_integer(t.dtype) and t.name not in places for t in dag.inputs]
    longest = max((x.size for x, c in zip(drawn, counted, strict=True) if c), default=0)

    def one(t: Tensor, x: np.ndarray) -> np.ndarray:
        first = longest - x.size if to_end else 0
        values = np.arange(first, first + x.size).clip(None, DTYPES[t.dtype].range[-1])
        return values.reshape(x.shape).astype(x.dtype)

    each = zip(dag.inputs, drawn, counted, strict=True)
    return [_held(t, one(t, x)) if c else x for t, x, c in each]


def _reductions(dag: ComputeDAG) -> frozenset[str]:
    """What the stages reduce by: +, *, min, max; "" for anything else."""
    reducers = [s.reducer for s in dag.stages if s.reducer is not None]
    return frozenset(r.operation(n) for r in reducers for n in range(len(r.combine)))


def _whole(dag: ComputeDAG, rng: np.random.Generator, longest: int, ends: int = 0) -> list[np.ndarray]:
    """Whole numbers from -3 to 3 (for the longest sums -1 and 1), none of them 0.

    ``ends``: 1 puts the largest at the last place of each axis and the least at the first; -1 the reverse.
    An element at the ends of more axes is larger, so the corner is the only largest one."""
    most = 3 if 9 * longest < 1 << 24 else 1

    def one(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        size = rng.integers(1, most + 1, shape, np.int8) if most > 1 else np.ones(shape, np.int8)
        out = np.where(rng.random(shape, np.float32) < 0.5, -size, size)
        return _as(_with_ends(out, most, ends) if ends else out, dtype)

    return [one(t.shape, t.dtype) for t in dag.inputs]


def _with_ends(x: np.ndarray, most: int, ends: int) -> np.ndarray:
    """``x`` of up to ``most``, made larger by how many more axes end than begin at each element."""
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
    """Factors of random signs from 1/4 to 4, none of them 1; integers: -3, -1 and 3, which never wrap to 0.

    Factors of long products are nearer to 1, so that the product of all those above 1 stays small in any
    order. Products along every axis stay near 1, and no part of a row is likely to have a product of 1."""
    scale = min(1.0, LARGEST_POWER / longest)

    def one(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if not is_float(dtype):
            return rng.choice(np.array([-3, -1, 3]), shape).astype(dtype)
        long = [d for d, n in enumerate(shape) if n > 1]
        # Logarithms: differences along each axis of numbers of alternating sign, so that sums stay short.
        power = rng.uniform(0.25, 1, [n + (n > 1) for n in shape])
        for d in long:
            np.moveaxis(power, d, 0)[::2] *= -1
        for d in long:
            power = np.diff(power, axis=d)
        signed = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        return (np.exp2(power * scale * 2.0 ** (1 - len(long))) * signed).astype(dtype)

    return [one(t.shape, t.dtype) for t in dag.inputs]


def _sparse(dag: ComputeDAG, rng: np.random.Generator, longest: int) -> list[np.ndarray]:
    """Inputs of 0 except about `SPARSE` elements of each sum, and the ends of every axis."""

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
