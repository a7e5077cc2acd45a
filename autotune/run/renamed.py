"""A workload that a log holds under other names, or with its tensors in another order. Both are part of what
a workload is found by, so that it is another one; the message of what is not found says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernels_db import lookup
from schedules.model import Workload
from schedules.te.compute_dag import ComputeDAG

Name = tuple[str, str]  # what is named, and its name
SHOWN = 6


def renamed(workload: Workload, where: str) -> str | None:
    """What is named or listed otherwise in a stored workload that is the same but for that; None if there
    is none."""
    shape, names = _anonymous(workload.dag)
    members = _unordered(workload.dag)
    for text in lookup.of_flops(where, workload.flops):
        try:
            other = Workload.from_json(text).dag
        except (ValueError, TypeError, AttributeError, RecursionError):  # damaged, or of another version
            continue
        theirs_shape, theirs = _anonymous(other)
        if theirs_shape == shape and theirs != names:
            return _told(names, theirs)
        if _unordered(other) == members and other != workload.dag:
            listed = ", ".join(t.name for t in other.params)
            return f"stored there with its tensors in another order: {listed}; list them so"
    return None


def _unordered(dag: ComputeDAG) -> Any:
    """The JSON of a DAG, whatever order its tensors are listed in."""
    v = dag.to_json()
    return v | {k: sorted(v[k], key=str) for k in ("inputs", "stages", "outputs")}


def _told(ours: list[Name], theirs: list[Name]) -> str:
    pairs = list(zip(ours, theirs, strict=True))
    differ = [f"{what} {a!r} is {b!r} there" for (what, a), (_, b) in pairs if a != b]
    shown = ", ".join(differ[:SHOWN]) + (", ..." if len(differ) > SHOWN else "")
    return (
        f"stored there under other names, which a kernel is found by: {shown}; use the names that are "
        "stored: name= of tensors and reductions, the parameters of the function of te.compute"
    )


def _anonymous(dag: ComputeDAG) -> tuple[Any, list[Name]]:
    """The JSON of a DAG with numbers for names, and the names in the order of the numbers."""
    v = dag.to_json()
    names: list[Name] = []
    tensors: dict[str, int] = {}

    def tensor(x: list[Any], what: str) -> list[Any]:
        tensors[x[0]] = len(tensors)
        names.append((what, x[0]))
        return [tensors[x[0]], *x[1:]]

    inputs = [tensor(x, "input") for x in v["inputs"]]
    stages = []
    for s in v["stages"]:
        outputs = [tensor(x, "tensor") for x in s["outputs"]]
        of, axes = s["outputs"][0][0], dict[str, int]()
        for kind in ("axes", "reduce_axes"):
            for name, _ in s[kind]:
                axes[name] = len(axes)
                names.append((f"{'axis' if kind == 'axes' else 'reduction axis'} of {of}", name))
        reducer = s["reducer"]
        if reducer is not None:
            names.append((f"reducer of {of}", reducer["name"]))
            reducer = reducer | {"name": ""}
        values = [list(_numbered(x, tensors, axes)) for x in s["values"]]
        extents = [[n for _, n in s[kind]] for kind in ("axes", "reduce_axes")]
        stages.append([outputs, extents, values, reducer])
    returned = [[tensors[n] for n in v.get(kind, ())] for kind in ("outputs", "constants")]
    return [inputs, stages, returned], names


def _numbered(v: Any, tensors: dict[str, int], axes: dict[str, int]) -> Iterator[Any]:
    """An expression's JSON, in pieces, with numbers for names."""
    if not isinstance(v, list):
        yield v
    elif v[0] == "var":
        yield "var"
        yield axes[v[1]]
    else:
        head = ["load", tensors[v[1]], v[2]] if v[0] == "load" else v[:1]
        yield from head
        for x in v[len(head) :]:
            yield list(_numbered(x, tensors, axes))
