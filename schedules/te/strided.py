"""Arguments that lie in memory with strides: what is given by name becomes part of the DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from schedules.errors import WorkloadError, suggest
from schedules.te.compute_dag import ComputeDAG, Stage, Tensor, require_dag
from schedules.te.dims import check_stride
from schedules.te.open_sizes import open_strides, with_room

# Strides of arguments, by name; None: row-major.
Strides = Mapping[str, Sequence[int] | None]


def with_strides(dag: ComputeDAG, strides: Strides) -> ComputeDAG:
    """The DAG whose arguments lie with these strides: inputs and outputs by name, in elements. None makes
    one row-major, and one that is not named stays as it is. Raises `WorkloadError` for what is no argument,
    and for strides that do not fit it: no two elements of an output may lie in one place.

    >>> dag = at.ops.workload("matmul", {"m": 8, "n": 4, "k": 2}).dag
    >>> te.with_strides(dag, {"a": (1, 8)}).inputs[0].strides  # a is stored transposed
    (1, 8)
    """
    require_dag(dag, "te.with_strides", ", or strides to te.placeholder")
    if not strides:
        return dag
    names = [t.name for t in dag.params]
    for name in strides:
        if name not in names:
            what = "is computed on the way" if name in dag.tensors else "is no argument"
            raise WorkloadError(
                f"strides: {name!r} {what}; the arguments are {', '.join(names)}{suggest(name, names)}"
            )
    known = {name: None if steps is None else _numbers(name, steps) for name, steps in strides.items()}

    def lie(t: Tensor) -> Tensor:
        return replace(t, strides=known[t.name]) if t.name in known else t

    def stage(s: Stage) -> Stage:
        return replace(s, outputs=tuple(map(lie, s.outputs)))

    if dag.open is not None:  # what is not named stays as it is
        now = {dag.params[k].name for k in dag.open.roomy}
        roomy = now - known.keys() | {n for n, steps in known.items() if steps is not None}
        dag = replace(dag, open=replace(dag.open, roomy=()))
    else:
        roomy = set()
    try:
        made = replace(dag, inputs=tuple(map(lie, dag.inputs)), stages=tuple(map(stage, dag.stages)))
    except ValueError as err:
        raise WorkloadError(f"strides: {err}") from None
    return with_room(made, roomy)


def strides_given(dag: ComputeDAG) -> dict[str, tuple[int, ...]]:
    """The strides of the arguments that are not row-major, by name."""
    every = {t.name: open_strides(dag, t) for t in dag.params}
    return {name: steps for name, steps in every.items() if steps is not None}


def _numbers(name: str, steps: Any) -> tuple[int, ...]:
    listed = list(steps) if isinstance(steps, (tuple, list)) else [steps]
    for s in listed:
        check_stride(name, s, ())
        if isinstance(s, bool) or not hasattr(s, "__index__"):
            raise WorkloadError(f"strides: {name} has stride {s!r}, which is no integer; give elements")
    return tuple(map(int, listed))
