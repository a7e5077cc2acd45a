"""Random strides: dimensions in any order, with gaps between and behind their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from schedules.expr import Const
from schedules.ir import Nest
from schedules.ir.strides import known_extents
from schedules.te.compute_dag import ComputeDAG, Tensor
from schedules.te.strided import with_strides as strided_dag

GAPS = (0, 0, 0, 1, 2, 5)


def random_strides(shape: Sequence[int], rng: Random) -> tuple[int, ...]:
    """Strides that keep the elements of an array of that shape apart."""
    order = rng.sample(range(len(shape)), len(shape))
    out, size, reach = dict[int, int](), 1, 0
    for d in order:
        # at times as tight as can be: within the last step of the dimension further in
        out[d] = reach + 1 if rng.random() < 0.2 else size + rng.choice(GAPS)
        reach += (shape[d] - 1) * out[d]
        size = max(shape[d] * out[d], reach + 1)
    return tuple(out[d] for d in range(len(shape)))


def with_strides(nest: Nest, rng: Random) -> Nest:
    """The nest with random strides for every buffer that is no argument."""
    return replace(
        nest,
        buffers=tuple(
            b
            if b.name in nest.params
            else replace(b, strides=tuple(map(Const, random_strides(known_extents(b), rng))))
            for b in nest.buffers
        ),
    )


def with_strided_stages(dag: ComputeDAG, rng: Random) -> ComputeDAG:
    """The DAG with random strides for every tensor that is neither input nor output."""

    def lie(t: Tensor) -> Tensor:
        return t if t.name in dag.outputs else replace(t, strides=random_strides(t.shape, rng))

    return replace(dag, stages=tuple(replace(s, outputs=tuple(map(lie, s.outputs))) for s in dag.stages))


def view_strides(shape: Sequence[int], rng: Random, least: int = -4) -> tuple[int, ...]:
    """Strides of a view that is read: a slice, transposed, with repeated elements, with windows that overlap,
    every second element, and, where ``least`` is below 0, backwards."""
    steps = list(written_strides(shape, rng))
    if rng.random() < 0.15:
        steps = [rng.randint(1, 3) for _ in shape]
    if rng.random() < 0.2:
        steps = [2 * s for s in steps]
    for d in range(len(shape)):
        if rng.random() < 0.15:
            steps[d] = 0
        elif rng.random() < 0.15 and least < 0:
            steps[d] = -steps[d]
    return tuple(steps)


def written_strides(shape: Sequence[int], rng: Random) -> tuple[int, ...]:
    """Strides of a view that is written: rows with gaps between them, or dimensions in any order."""
    if rng.random() < 0.5:
        return random_strides(shape, rng)
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step = n * step + (rng.choice((0, 0, 3, 16)) if step == 1 or rng.random() < 0.3 else 0)
    return tuple(reversed(out))


def with_views(dag: ComputeDAG, rng: Random, share: float = 0.7, least: int = -4) -> ComputeDAG:
    """The DAG with such strides for about a ``share`` of its arguments."""
    strides = {
        t.name: written_strides(t.shape, rng) if t.name in dag.outputs else view_strides(t.shape, rng, least)
        for t in dag.params
        if rng.random() < share
    }
    return strided_dag(dag, strides)
