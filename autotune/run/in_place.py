"""Calls whose outputs lie in the memory of inputs (ADR 105).

The code of a kernel takes its arrays to be apart. For a call of which an output and an input share memory,
the schedule is lowered again, and it is proved that each element is read before it is overwritten. Then code
is made that does not take the two to be apart. It is kept, for the same places of arrays.

A tile that is moved back at the end of a loop computes some elements twice, the second time from what it
overwrote. Where that is in the way, its tail is guarded instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune import backends
from autotune.codegen.runtime.entry import layout_of
from autotune.errors import ArgumentError
from autotune.run.host_arrays import may_share, memory_of, overlap
from schedules.dtypes import DTYPES
from schedules.errors import AutotuneError, ScheduleError, suggest
from schedules.ir import Buffer
from schedules.ir.in_place import Lies
from schedules.ir.nest import tensor_buffer
from schedules.model import TraceError
from schedules.trace_names import to_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.codegen.llvm.compile import LoadedObject
    from autotune.run.kernel import Kernel
    from schedules.ir import LoweredFunc
    from schedules.model import Target, Trace, Workload

# Places that a kernel keeps code for at most, or why there is none.
MOST_PLACES = 16
REMEDY = (
    "give it memory of its own, or a kernel whose schedule reads each element before it overwrites it, as "
    "the plain loops of one thread may; at.repeat(kernel, times, swap=...) has two arrays take turns"
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
    """Which outputs share memory with other arguments. ``views``: of all, ``inputs`` inputs first."""
    spans = [*map(memory_of, views)]
    return tuple(
        SharedPlace(w, i, views[w].ctypes.data - views[i].ctypes.data)
        for w in range(inputs, len(views))
        for i in range(w)
        if overlap(*spans[w], *spans[i]) and may_share(views[w], views[i])
    )


def prepare(kernel: Kernel, pairs: Mapping[str, str]) -> None:
    """Make the code of a kernel for outputs that are inputs: ``{output: input}`` by name, each the same
    array. Raises ArgumentError for names that are none, for two that do not lie alike, and, with the pair of
    accesses, where the schedule does not allow it."""
    places = _places(*kernel.parameters, pairs)
    if places:
        kernel.take_in_place(tuple(sorted(places, key=lambda p: (p.output, p.input))))


def check(workload: Workload, target: Target, pairs: Mapping[str, str]) -> None:
    """Raises ArgumentError for ``{output: input}`` that no schedule of a workload allows: as `prepare`, and
    for GPUs, open sizes and inputs known ahead."""
    params = tuple(map(tensor_buffer, workload.dag.params))
    n = len(workload.dag.inputs)
    _places(params[:n], params[n:], pairs)
    ahead = next((i for i in pairs.values() if i in workload.dag.constants), None)
    for wrong, why in (
        (target.grid, f"kernels for {target.kind} take arrays that are apart"),
        (workload.dag.open is not None, "kernels of open sizes take arrays that are apart; give numbers"),
        (ahead is not None, f"{ahead!r} is known ahead, so that no call gives its memory"),
    ):
        if wrong:
            raise ArgumentError(f"in_place is {dict(pairs)}: {why}")


def refusal(
    workload: Workload, target: Target, trace: Trace, pairs: Mapping[str, str]
) -> AutotuneError | None:
    """Why a schedule does not allow it that outputs are inputs; None where it does. It is that of `prepare`,
    without a kernel. ``trace``: under canonical names."""
    named = to_named(workload, trace)
    lies = [Lies(output, of) for output, of in pairs.items()]
    first: AutotuneError | None = None
    for tried in _forms(named):
        try:
            _proved(workload, tried, backends.of(target).confined(target), lies)
            return None
        except (ScheduleError, TraceError) as err:
            first = first or err
    return first


def _places(ins: Sequence[Buffer], outs: Sequence[Buffer], pairs: Mapping[str, str]) -> list[SharedPlace]:
    """Raises ArgumentError."""
    names = [b.name for b in ins], [b.name for b in outs]
    if not isinstance(pairs, Mapping):
        raise ArgumentError(
            f"in_place is {pairs!r}; give {{output: input}}, as in "
            f"in_place={{{names[1][0]!r}: {names[0][0]!r}}}"
        )
    for output, of in pairs.items():
        for name, known, what in ((output, names[1], "output"), (of, names[0], "input")):
            if name not in known:
                raise ArgumentError(
                    f"in_place has {name!r}, which is no {what}{suggest(name, known)}; it is "
                    f"{{output: input}}, of {', '.join(known)}"
                )
        a, b = outs[names[1].index(output)], ins[names[0].index(of)]
        if (layout_of(a), a.dtype) != (layout_of(b), b.dtype):
            raise ArgumentError(
                f"in_place has {{{output!r}: {of!r}}}, which are {a.dtype}{layout_of(a)} and "
                f"{b.dtype}{layout_of(b)}; give two that lie alike"
            )
    return [SharedPlace(len(ins) + names[1].index(o), names[0].index(i), 0) for o, i in pairs.items()]


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
    if kernel.target.grid or trace is None or kernel.workload.dag.open is not None:
        raise ArgumentError(f"{what}; give it memory of its own")
    first_error: ScheduleError | None = None
    for tried in _forms(trace):
        try:
            return _built(kernel, tried, places)
        except ScheduleError as err:
            first_error = first_error or err
    raise ArgumentError(f"{what}: {_reason(first_error)}; {REMEDY}") from None


def _forms(trace: Trace) -> Iterable[Trace]:
    """A schedule, and the same with guarded tails in place of tiles that are moved back over what was
    computed."""
    steps = (
        replace(s, args=tuple((k, "guard" if (k, v) == ("tail", "shift") else v) for k, v in s.args))
        for s in trace.steps
    )
    return dict.fromkeys((trace, replace(trace, steps=tuple(steps))))


def _proved(workload: Workload, trace: Trace, target: Target, lies: Sequence[Lies]) -> LoweredFunc:
    """The program whose outputs lie so. Raises ScheduleError."""
    from autotune.backends.building.from_trace import scheduled
    from schedules.ir.in_place import in_place

    return in_place(scheduled(workload.dag, trace, target), lies, target.threads)


def _built(kernel: Kernel, trace: Trace, places: tuple[SharedPlace, ...]) -> InPlaceCode:
    """Raises ScheduleError."""
    from autotune.backends.building.from_trace import module_of
    from autotune.backends.building.object_cache import key, objects_of_user
    from autotune.codegen.llvm.compile import compile_module, load_object

    ins, outs = kernel.parameters
    params = (*ins, *outs)
    target = backends.of(kernel.target).confined(kernel.target)
    lies = [
        Lies(params[p.output].name, params[p.input].name, p.nbytes // DTYPES[params[p.output].dtype].itemsize)
        for p in places
    ]
    version = f"{backends.of(target).versions(target)[0]} in place {lies}"
    objects, of = objects_of_user(), kernel.workload.named_digest
    named = key(trace.to_json(), of, target.digest, version)
    obj = objects.get(named)
    if obj is None:
        obj = compile_module(module_of(_proved(kernel.workload, trace, target, lies), target).text, target)
        objects.put(named, obj)
    loaded = load_object(obj)
    loaded.lie_together([(p.output, p.input, p.nbytes) for p in places])
    return InPlaceCode(loaded, loaded.python_function() or _slow)


def _slow(*_: object) -> int:
    return 1


def _reason(err: ScheduleError | None) -> str:
    """What a ScheduleError says behind the names of the tensors."""
    text = str(err)
    return text.partition(": ")[2] or text
