"""A kernel for all sizes of a range also serves a range that lies in it, and one size of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from autotune.run.dynamic_workload import DynamicWorkload, Sizes
from autotune.run.open_kernel import sizes_of_open
from kernels_db import lookup
from schedules.model import Workload
from schedules.te.flops import count_flops
from schedules.te.open_sizes import untold

# Factor of the FLOPs of the largest sizes within which a log is searched.
AROUND = 1024.0


def wider(workload: Workload, where: str) -> list[Workload]:
    """The workloads of a log whose open sizes have ranges that hold those of ``workload``, and which are the
    same at some sizes of these; the narrowest first. None where no input tells a size, as in a kernel of a
    model that ends with the valid rows of a state."""
    if untold(workload.dag):
        return []
    own = sizes_of_open(workload)
    points = _points(own)
    found: list[tuple[int, Workload]] = []
    for other, sizes in _open_workloads(workload, where):
        if len(sizes.dims) == len(own.dims) and all(_at(sizes, own, p) == own.at(p).digest for p in points):
            found.append((_count(sizes), _called(other, workload, sizes)))
    return [w for _, w in sorted(found, key=lambda x: (x[0], x[1].digest))]


def holding(workload: Workload, where: str) -> list[tuple[Workload, Sizes]]:
    """The workloads of a log that are ``workload``, which has no open sizes, at one of their sizes, and that
    size; the narrowest ranges first."""
    shapes = [t.shape for t in workload.dag.inputs]
    found: list[tuple[int, Workload, Sizes]] = []
    for other, sizes in _open_workloads(workload, where):
        there = sizes.sizes_of(shapes)
        if there is not None and sizes.at(there).digest == workload.digest:
            found.append((_count(sizes), _called(other, workload, sizes), there))
    return [(w, there) for _, w, there in sorted(found, key=lambda x: (x[0], x[1].digest))]


def _open_workloads(workload: Workload, where: str) -> Iterator[tuple[Workload, DynamicWorkload]]:
    """Other workloads of a log that have open sizes which inputs tell, of about as many operations."""
    for text, names in lookup.about_flops(where, max(workload.flops, 1), AROUND):
        if '"open"' not in text:
            continue
        try:
            other = Workload.from_json(text, names=json.loads(names))
        except (ValueError, TypeError, AttributeError, RecursionError):  # damaged, or of another version
            continue
        if other.dag.open is not None and other.digest != workload.digest and not untold(other.dag):
            yield other, sizes_of_open(other)


def _count(sizes: DynamicWorkload) -> int:
    """How many sizes there are in the ranges."""
    return math.prod(d.hi - d.lo + 1 for d in sizes.dims)


def _points(own: DynamicWorkload) -> list[Sizes]:
    """Sizes of a workload: the ends of the ranges; one alone at its least, so that two are not taken for
    one; and some between, where sizes of one range differ."""
    top = own.largest
    each = [(*top[:k], d.lo, *top[k + 1 :]) for k, d in enumerate(own.dims)]
    between = tuple(min(d.hi, d.lo + (d.hi - d.lo) // 2 + k) for k, d in enumerate(own.dims))
    return list(dict.fromkeys([own.least, top, *each, between]))


def _called(other: Workload, workload: Workload, sizes: DynamicWorkload) -> Workload:
    """A workload of a log by the name and the parameters of one that it differs from in its ranges."""
    ranges = {d.name: f"{d.lo}..{d.hi},open" for d in sizes.dims}
    params = tuple((k, ranges.get(k, v)) for k, v in workload.params)
    whole = count_flops(other.dag.largest) / max(count_flops(workload.dag.largest), 1)
    return replace(other, op=workload.op, params=params, flops=round(workload.flops * whole))


def _at(other: DynamicWorkload, own: DynamicWorkload, sizes: Sizes) -> str | None:
    """The digest that another has where its inputs are as long as those of ``own`` at some sizes; None where
    they never are."""
    there = other.sizes_of([t.shape for t in own.at(sizes).dag.inputs])
    return None if there is None else other.at(there).digest
