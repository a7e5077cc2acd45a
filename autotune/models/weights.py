"""Weights as kernels read them: packed once, before the first call; and back, to save them or pack them anew.

A kernel either reads a weight as it is or has a packing of its own (`Kernel.pack`), which puts the elements
elsewhere and fills up with zeros. Where every element of a weight can be found again in what was packed, the
weight itself is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.runtime import aligned
from autotune.models.outline import KernelCall, Outline
from autotune.run.kernel import Kernel
from schedules.dtypes import DTYPES, is_integer
from schedules.model import LINE

Array = NDArray[Any]
# Elements by which arrays are told apart at first, and bytes that are compared at once.
SAMPLED, BLOCK = 64, 1 << 20


@dataclass(frozen=True)
class Use:
    """One way in which steps read a weight. ``task``, ``argument``: whose packing; -1 where it is read as it
    is. ``start``: the first element that is read."""

    weight: str
    task: int = -1
    argument: int = -1
    start: int = 0

    @property
    def packed(self) -> bool:
        """Whether it is read in a layout of its own."""
        return self.task >= 0


def use_of(kernels: Sequence[Kernel], call: KernelCall, argument: int) -> Use:
    """How a step reads the weight that is its argument."""
    a = call.reads[argument]
    if argument in kernels[call.task].packed:
        return Use(a.tensor, call.task, argument, a.start)
    return Use(a.tensor)


def uses(outline: Outline, kernels: Sequence[Kernel]) -> dict[str, tuple[Use, ...]]:
    """{weight: every way in which it is read}."""
    found: dict[str, dict[Use, None]] = {name: {} for name in outline.constants}
    for step in outline.steps:
        if isinstance(step, KernelCall):
            for i, a in enumerate(step.reads):
                if a.tensor in found:
                    found[a.tensor][use_of(kernels, step, i)] = None
        else:
            for name in step.reads:
                if name in found:
                    found[name][Use(name)] = None
    return {name: tuple(all_) for name, all_ in found.items()}


class KeptOnce:
    """Arrays of several programs, of which those with equal bytes are held once.

    >>> kept = KeptOnce()
    >>> a = kept.of(np.arange(4.0))
    >>> kept.of(np.arange(4.0)) is a
    True
    """

    def __init__(self) -> None:
        self._known: dict[Any, list[Array]] = {}

    def known(self, value: Array) -> Array | None:
        """An array that is held and has the bytes of ``value``; None if there is none."""
        return next((a for a in self._known.get(_key(value), ()) if _same_bytes(a, value)), None)

    def of(self, value: Array) -> Array:
        """The array that is held in the place of one. Nobody may change either."""
        found = self.known(value)
        if found is None:
            self._known.setdefault(_key(value), []).append(value)
        return value if found is None else found


def place(
    kernels: Sequence[Kernel],
    ways: Sequence[Use],
    value: Array,
    mine: bool = False,
    once: KeptOnce | None = None,
) -> dict[Use, Array]:
    """A weight in each of the ways in which it is read, and as it is where `recover` could not give it back.
    ``mine``: nobody else has the array, so that it may be kept as it is; else it is copied. ``once``: what
    other programs hold, which is taken where it is the same."""
    once = once or KeptOnce()
    made: dict[Use, Array] = {}
    for use in ways:
        made[use] = once.of(_packed(kernels, use, value)) if use.packed else _own(value, mine, once)
    whole = Use(ways[0].weight)
    if whole not in made and not all(_only_moved(kernels, use) for use in ways):
        made[whole] = _own(value, mine, once)
    return made


def recover(
    kernels: Sequence[Kernel], have: Mapping[Use, Array], shape: tuple[int, ...], dtype: str
) -> Array:
    """The weight that `place` made these of, in its own layout. Elements that no kernel reads are 0."""
    for use, array in have.items():
        if not use.packed:
            return array
    flat = np.zeros(prod(shape), DTYPES[dtype].numpy)
    for use, array in have.items():
        places = _places(kernels, use)
        known = places > 0
        flat[use.start + places[known] - 1] = array[known]
    return flat.reshape(shape)


def _packed(kernels: Sequence[Kernel], use: Use, value: Array) -> Array:
    t = kernels[use.task].workload.dag.inputs[use.argument]
    part = value.reshape(-1)[use.start : use.start + prod(t.shape)].reshape(t.shape)
    return np.asarray(kernels[use.task].pack(use.argument, aligned_copy(part, keep=True)))


def _own(value: Array, mine: bool, once: KeptOnce) -> Array:
    found = once.known(value)
    return once.of(aligned_copy(value, mine and value.ctypes.data % LINE == 0)) if found is None else found


def _key(value: Array) -> Any:
    """What arrays of equal bytes have in common."""
    return value.dtype.str, value.shape, value.flat[:: max(value.size // SAMPLED, 1)].tobytes()


def _same_bytes(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape and dtype are equal, bit by bit."""
    if a is b:
        return True
    if a.flags.c_contiguous and b.flags.c_contiguous:
        a, b = a.reshape(-1), b.reshape(-1)
    step = max(len(a) * BLOCK // max(a.nbytes, 1), 1)
    return all(a[i : i + step].tobytes() == b[i : i + step].tobytes() for i in range(0, len(a), step))


def aligned_copy(value: Array, keep: bool = False) -> Array:
    """A row-major copy that begins where a line of the caches does. ``keep``: the array itself, if it is
    row-major and its elements are aligned."""
    if keep and value.flags.c_contiguous and value.flags.aligned:
        return value
    made = aligned.zeros(value.shape, value.dtype.name)
    made[...] = value
    return made


def _only_moved(kernels: Sequence[Kernel], use: Use) -> bool:
    """Whether packing moves elements alone: no stage computes of this weight and nothing else, and the
    schedule made neither other numbers of it nor several arrays (`cache_read_offset`)."""
    dag = kernels[use.task].workload.dag
    t, packed = dag.inputs[use.argument], kernels[use.task].parameters[0][use.argument]
    if packed.dtype != t.dtype or (is_integer(t.dtype) and len(packed.shape) < 2 <= len(t.shape)):
        return False
    name = t.name
    return all({x.buffer for x in s.reads()} != {name} for s in dag.stages)


def _places(kernels: Sequence[Kernel], use: Use) -> NDArray[np.int64]:
    """For each element of what is packed, one more than its place in what it is packed of; 0 where it is
    none. Places are packed as weights are, digit by digit, each exact in the weight's dtype."""
    t = kernels[use.task].workload.dag.inputs[use.argument]
    row = DTYPES[t.dtype]
    base = int(1 / row.epsilon) if row.kind == "float" else min(row.range[-1] + 1, 1 << 30)
    left = np.arange(1, prod(t.shape) + 1)
    places, unit = np.zeros((), np.int64), 1
    while unit <= prod(t.shape):
        digit = (left % base).astype(row.numpy).reshape(t.shape)
        places = places + unit * np.asarray(kernels[use.task].pack(use.argument, digit)).astype(np.int64)
        left //= base
        unit *= base
    return places
