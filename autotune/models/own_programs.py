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
class SharedTask:
    """A task of one program or of several. ``nodes``: names of the model's nodes that it runs, each once.
    ``where``: at which sizes it runs, for messages; empty for a task of all sizes. ``work``: operations and
    bytes of its calls in all programs."""

    workload: Workload
    nodes: tuple[str, ...]
    where: str
    work: int


def joint_tasks(
    outlines: Sequence[Outline], sizes: Sequence[Mapping[str, int]]
) -> tuple[list[SharedTask], list[list[int]]]:
    """(The tasks of programs, each once; for each outline the numbers of its tasks there). ``sizes``: of each
    program."""
    found: dict[str, SharedTask] = {}
    for ol, at in zip(outlines, sizes, strict=True):
        for i, workload in enumerate(ol.tasks):
            old = found.get(workload.digest, SharedTask(workload, (), shown_sizes(at), 0))
            nodes = tuple(dict.fromkeys((*old.nodes, *ol.nodes(i))))
            work = ol.count(i) * (workload.flops + sum(t.nbytes for t in workload.dag.params))
            found[workload.digest] = replace(old, nodes=nodes, work=old.work + work)
    numbers = {digest: n for n, digest in enumerate(found)}
    return [*found.values()], [[numbers[w.digest] for w in ol.tasks] for ol in outlines]


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
