"""Kernels of several programs that read weights in one layout, where that costs little.

A weight is held in each layout in which a kernel reads it. Kernels of a single size and of all sizes are
tuned apart. So they choose panels of other widths, though others are as fast within the noise of timing. Here
a pair of kernels that packs weights alike takes the place of the fastest two, if the log has one that takes
hardly longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from autotune.errors import CompileError
from autotune.models.outline import Outline
from autotune.run.asked import Asked
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from autotune.run.stored import OTHERS, hits
from kernels_db.records import Record
from schedules.constants import split_constants
from schedules.errors import ScheduleError
from schedules.expr import Const
from schedules.model import Trace, TraceError
from schedules.schedule import Schedule

# How much longer a kernel may take than the fastest, alone (share).
LONGER = 0.03
# Shape and dtype of what is made of a weight; none where it is read as it is.
Layout = tuple[tuple[tuple[int, ...], str], ...]
# Numbers of arguments: of a task, and of another that reads the same weights.
Arguments = Mapping[int, int]


@dataclass(frozen=True)
class _Option:
    """A kernel that may be taken. ``longer``: its time over that of the fastest."""

    longer: float
    record: Record
    layouts: Mapping[int, Layout]


def with_shared_packings(
    outlines: Sequence[Outline], numbers: Sequence[Sequence[int]], kernels: Sequence[Kernel], asked: Asked
) -> list[Kernel]:
    """Kernels of tasks, some of them others of the log. ``outlines``: of the program of all sizes, then of
    others. ``numbers``: which of the kernels each has for its tasks. Pinned kernels stay, and those that were
    the fastest inside the model though not alone."""
    found = list(kernels)
    settled: set[int] = set()
    for ol, own in zip(outlines[1:], numbers[1:], strict=True):
        for (a, b), arguments in _pairs(outlines[0], ol).items():
            pair = numbers[0][a], own[b]
            if pair[0] == pair[1] or any(found[n].record is None for n in pair):
                continue
            sides = (tuple(arguments), tuple(arguments.values()))
            options = [
                _options(found[n], args, asked, n in settled) for n, args in zip(pair, sides, strict=True)
            ]
            alike = [
                (x, y)
                for x in options[0]
                for y in options[1]
                if all(x.layouts[i] == y.layouts[j] for i, j in arguments.items())
            ]
            for chosen in sorted(alike, key=lambda both: prod(o.longer for o in both)):
                try:
                    made = [_kernel(found[n], o) for n, o in zip(pair, chosen, strict=True)]
                except (TraceError, ScheduleError, CompileError):
                    continue
                for n, kernel in zip(pair, made, strict=True):
                    found[n] = kernel
                settled.update(pair)
                break
    return found


def _pairs(whole: Outline, own: Outline) -> dict[tuple[int, int], dict[int, int]]:
    """{(a task of the one, a task of the other): the arguments that are the same weights}."""
    readers = [
        {
            a.tensor: (call.task, i)
            for call in ol.calls
            for i, a in enumerate(call.reads)
            if a.tensor in ol.constants
        }
        for ol in (whole, own)
    ]
    pairs: dict[tuple[int, int], dict[int, int]] = {}
    for weight, (task, i) in readers[0].items():
        if weight in readers[1]:
            other, j = readers[1][weight]
            pairs.setdefault((task, other), {})[i] = j
    return pairs


def _options(kernel: Kernel, arguments: Sequence[int], asked: Asked, settled: bool) -> list[_Option]:
    """What may be taken in the place of a kernel, and itself."""
    record: Record = kernel.record
    known = [h for h in islice(hits(kernel.workload, asked), OTHERS) if not h.doubted]
    stays = settled or not known or known[0].pinned
    if stays or known[0].record.trace_digest != record.trace_digest:
        known = []
    options: dict[str, _Option] = {}
    for r in (record, *(h.record for h in known if h.target == kernel.target)):
        longer = (r.time_s or 0.0) / (record.time_s or 1.0)
        if longer <= 1 + LONGER and r.trace_digest not in options:
            try:
                layouts = _layouts(kernel, r.trace, arguments)
            except (TraceError, ScheduleError):
                continue
            options[r.trace_digest] = _Option(longer, r, layouts)
    return [*options.values()]


def _layouts(kernel: Kernel, trace: Trace, arguments: Sequence[int]) -> dict[int, Layout]:
    """In which layouts a schedule reads its arguments."""
    dag = kernel.workload.canonical
    _, packing = split_constants(Schedule.replay(dag, trace, kernel.target).nest, dag.constants)
    found: dict[int, Layout] = {}
    for i in arguments:
        nest = packing.get(dag.inputs[i].name)
        made = () if nest is None else (nest.buffer(n) for n in nest.params[1:])
        found[i] = tuple(
            (tuple(int(n.value) if isinstance(n, Const) else -1 for n in b.shape), b.dtype) for b in made
        )
    return found


def _kernel(now: Kernel, option: _Option) -> Kernel:
    if option.record.trace_digest == now.record.trace_digest:
        return now
    return kernel_of(now.workload, now.target, option.record.trace, option.record)
