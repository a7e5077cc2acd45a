"""Programs of their own for single sizes of a model, beside the one of all sizes (ADR 96).

A model with open sizes has one program for all of them. A product of one row is another kernel than one of
many, so that a model may have programs of their own for single sizes (`Model.with_own_sizes`). Each is the
program of the model with numbers for these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.models.model import shown_sizes
from autotune.models.origin import ModelOrigin
from autotune.models.outline import Outline
from autotune.models.program import Program
from autotune.models.sizes import shape_at
from schedules.model import Workload
from schedules.te.compute_dag import Tensor


@dataclass(frozen=True)
class OwnProgram:
    """The program of calls of these ``sizes``. ``tuned_s``, ``origin``: as of `Module`."""

    sizes: Mapping[str, int]
    program: Program
    tuned_s: tuple[float | None, ...]
    origin: ModelOrigin | None = None


@dataclass(frozen=True)
class TaskList:
    """Tasks of programs, each once. ``named``: the nodes of each. ``where``: at which sizes it runs, for
    messages; empty for a task of all sizes. ``work``: operations and bytes of its calls in all programs."""

    tasks: tuple[Workload, ...]
    named: tuple[tuple[str, ...], ...]
    where: tuple[str, ...]
    work: tuple[int, ...]

    def nodes(self, task: int) -> tuple[str, ...]:
        """Names of the model's nodes that a task runs, each once."""
        return self.named[task]


def joint_tasks(
    outlines: Sequence[Outline], sizes: Sequence[Mapping[str, int]]
) -> tuple[TaskList, list[list[int]]]:
    """(The tasks of programs, for each outline the numbers of its tasks there). ``sizes``: of each
    program."""
    numbers: dict[str, int] = {}
    tasks: list[Workload] = []
    named: list[dict[str, None]] = []
    where: list[str] = []
    work: list[int] = []
    places: list[list[int]] = []
    for ol, at in zip(outlines, sizes, strict=True):
        places.append([])
        for i, workload in enumerate(ol.tasks):
            number = numbers.setdefault(workload.digest, len(tasks))
            if number == len(tasks):
                tasks.append(workload)
                named.append({})
                where.append(shown_sizes(at))
                work.append(0)
            named[number] |= dict.fromkeys(ol.nodes(i))
            work[number] += ol.count(i) * (workload.flops + sum(t.nbytes for t in workload.dag.params))
            places[-1].append(number)
    return TaskList(tuple(tasks), tuple(map(tuple, named)), tuple(where), tuple(work)), places


def check_own(whole: Outline, own: Outline, sizes: Mapping[str, int]) -> None:
    """Raise ValueError unless ``own`` takes, returns and keeps what ``whole`` does at these sizes."""
    known = {s.name: s for s in whole.sizes}
    if not sizes or any(n not in known for n in sizes):
        raise ValueError(f"a program is for the sizes {shown_sizes(sizes)[:80]!r}, which the model has not")
    for name, n in sizes.items():
        if not known[name].least <= n <= known[name].most:
            raise ValueError(f"a program is for {name}={n}, outside {known[name].least}..{known[name].most}")
    left = [(s.name, s.least, s.most) for s in whole.sizes if s.name not in sizes]
    if [(s.name, s.least, s.most) for s in own.sizes] != left:
        raise ValueError(f"the program for {shown_sizes(sizes)} has other open sizes than the model")
    at = {s.name: s.most for s in whole.sizes} | dict(sizes)
    for a, b in ((whole.inputs, own.inputs), (whole.outputs, own.outputs)):
        if [_port(whole, n, at) for n in a] != [_port(own, n, at) for n in b] or _order(a) != _order(b):
            raise ValueError(f"the program for {shown_sizes(sizes)} takes or returns something else")
    if _kept(whole) != _kept(own):
        raise ValueError(f"the program for {shown_sizes(sizes)} keeps other states than the model")


def _port(ol: Outline, name: str, sizes: Mapping[str, int]) -> tuple[str, tuple[int, ...], str]:
    return ol.label(name), shape_at(ol, name, sizes), ol.tensors[name].dtype


def _order(names: Sequence[str]) -> list[int]:
    each = [*dict.fromkeys(names)]
    return [each.index(n) for n in names]


def _kept(ol: Outline) -> dict[str, Tensor]:
    return {name: replace(ol.tensors[s.tensor], name=name) for name, s in ol.states.items()}
