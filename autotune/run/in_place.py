"""Calls whose outputs lie in the memory of inputs (ADR 105).

The code of a kernel takes its arrays to be apart. For a call of which an output and an input share memory,
the schedule is lowered again, and it is proved that each element is read before it is overwritten. Then code
is made that does not take the two to be apart. It is kept, for the same places of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune import backends
from autotune.errors import ArgumentError
from autotune.run.host_arrays import memory_of, may_share, overlap
from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.codegen.llvm.compile import LoadedObject
    from autotune.run.kernel import Kernel

REMEDY = (
    "give it memory of its own, or a kernel whose schedule reads each element before it overwrites it, as the "
    "plain loops of one thread may; at.repeat(kernel, times, swap=...) runs steps with two arrays in turns"
)


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """Argument number ``output`` begins ``nbytes`` bytes after argument ``input``, in its memory."""

    output: int
    input: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class InPlaceCode:
    """Code for such places. ``fast``: the builtin of `entry.at_call` for them."""

    loaded: LoadedObject
    fast: Callable[..., int]


def shared_places(views: Sequence[np.ndarray], inputs: int) -> tuple[SharedPlace, ...]:
    """Which outputs share memory with other arguments. ``views``: of all arguments, ``inputs`` inputs first."""
    spans = [*map(memory_of, views)]
    return tuple(
        SharedPlace(w, i, views[w].ctypes.data - views[i].ctypes.data)
        for w in range(inputs, len(views))
        for i in range(w)
        if overlap(*spans[w], *spans[i]) and may_share(views[w], views[i])
    )


def code_of(kernel: Kernel, places: tuple[SharedPlace, ...], name: Callable[[int], str]) -> InPlaceCode:
    """The code of a kernel for arrays that lie so. ``name``: of an argument, by its number. Raises
    ArgumentError, which names a pair of accesses where one is in the way."""
    first = places[0]
    what = f"{name(first.output)} shares memory with {name(first.input)}"
    ins, outs = kernel.parameters
    params = (*ins, *outs)
    for p in places:
        sizes = [DTYPES[params[n].dtype].itemsize for n in (p.output, p.input)]
        if p.input >= len(ins) or p.input in kernel.packed or sizes[0] != sizes[1] or p.nbytes % sizes[0]:
            raise ArgumentError(
                f"{name(p.output)} shares memory with {name(p.input)}; give it memory of its own"
            )
    trace = kernel.trace
    if backends.of(kernel.target).name != "cpu" or trace is None or kernel.workload.dag.open is not None:
        raise ArgumentError(f"{what}; give it memory of its own")
    try:
        return _built(kernel, trace, places)
    except ScheduleError as err:
        raise ArgumentError(f"{what}: {_reason(err)}; {REMEDY}") from None


def _built(kernel: Kernel, trace: Any, places: tuple[SharedPlace, ...]) -> InPlaceCode:
    """Raises ScheduleError."""
    from autotune.backends.building.from_trace import module_of, scheduled
    from autotune.backends.building.object_cache import ObjectCache, key
    from autotune.codegen.llvm.compile import compile_module, load_object
    from autotune.settings import cache_dir
    from schedules.in_place.proof import Lies, in_place

    ins, outs = kernel.parameters
    params = (*ins, *outs)
    target = backends.of(kernel.target).confined(kernel.target)
    lies = [
        Lies(params[p.output].name, params[p.input].name, p.nbytes // DTYPES[params[p.output].dtype].itemsize)
        for p in places
    ]
    version = f"{backends.of(target).versions(target)[0]} in place {lies}"
    objects, of = ObjectCache(cache_dir()), kernel.workload.named_digest
    named = key(trace.to_json(), of, target.digest, version)
    obj = objects.get(named)
    if obj is None:
        func = in_place(scheduled(kernel.workload.dag, trace, target), lies, target.threads)
        obj = compile_module(module_of(func, target).text, target)
        objects.put(named, obj)
    loaded = load_object(obj)
    loaded.lie_together([(p.output, p.input, p.nbytes) for p in places])
    return InPlaceCode(loaded, loaded.python_function() or _slow)


def _slow(*_: object) -> int:
    return 1


def _reason(err: ScheduleError) -> str:
    """What a ScheduleError says behind the names of the tensors."""
    text = str(err)
    return text.partition(": ")[2] or text
