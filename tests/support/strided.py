"""Random strides: dimensions in any order, with gaps between and behind their elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from schedules.expr import Const
from schedules.ir import Nest
from schedules.ir.strides import known_extents
from schedules.te.compute_dag import ComputeDAG, Tensor

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
