"""A program some of whose sizes vary: one kernel for all of them where it can be, else one for each (ADR 93).

`autotune.dim` says which is wanted, or leaves it open. Then the program and the target decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.run.dynamic_workload import DynamicWorkload, as_dynamic
from autotune.run.warned import warn
from autotune.run.workloads import Program, as_workload
from schedules.errors import WorkloadError
from schedules.model import Workload
from schedules.te.dims import Dim
from schedules.te.open_sizes import strides_that_depend
from schedules.te.strided import Strides
from schedules.te.tensors import dims as dims_of

# What `as_dynamic` and `as_workload` are told of a program before its strides.
_Told = tuple[
    Program, Mapping[str, Any], str | None, str | None, bool | Sequence[str], Callable[..., Any] | None
]


@dataclass(frozen=True)
class Varying:
    """A program with sizes that leave open whether one kernel is for all of them. ``opened``: what it is with
    one; None where that is refused, for the reason ``why``. ``fixed``: the workloads of each size."""

    opened: Workload | DynamicWorkload | None
    fixed: DynamicWorkload
    why: str = ""

    def decided(self, say: Callable[[str], None] = warn) -> Workload | DynamicWorkload:
        """What is tuned. ``say``: is told where that is a kernel for each size, and why."""
        if self.opened is not None:
            return self.opened
        say(f"{self.fixed}: each size gets a kernel of its own, as one for all is refused: {self.why}")
        return self.fixed


def undecided(program: Program, params: Mapping[str, Any]) -> bool:
    """Whether a program has sizes of which nobody said whether one kernel is for all of them."""
    if isinstance(program, str):
        flat = (i for x in params.values() for i in (x if isinstance(x, (list, tuple)) else (x,)))
        return any(isinstance(x, Dim) and x.open is None for x in flat)
    return isinstance(program, (list, tuple)) and any(d.open is None for d in dims_of(program))


def varying(
    program: Program,
    params: Mapping[str, Any],
    dtype: str | None,
    layout: str | None,
    constant_weights: bool | Sequence[str],
    caller: Callable[..., Any] | None,
    strides: Strides | None,
    grid: bool,
) -> Varying:
    """Both ways to take a program that is `undecided`. Arguments as of `as_workload`. ``grid``: whether
    it is for a GPU. Raises `WorkloadError` where neither way can be taken."""
    told = (program, params, dtype, layout, constant_weights, caller)
    why, opened = "", None
    try:
        opened = _taken(told, strides, True)
        check_open(opened, grid)
    except WorkloadError as err:
        why, opened = str(err), None
    fixed = as_dynamic(*told, strides)
    assert fixed is not None
    return Varying(opened, fixed, why)


def as_asked(
    program: Program,
    params: Mapping[str, Any],
    dtype: str | None,
    layout: str | None,
    constant_weights: bool | Sequence[str],
    caller: Callable[..., Any] | None,
    strides: Strides | None,
    grid: bool,
) -> Workload | DynamicWorkload:
    """What is tuned for a program: a workload, or those of each size. Arguments and errors as of `varying`.
    Warns where a size is not open of which nobody said that it should not be."""
    told = (program, params, dtype, layout, constant_weights, caller)
    if undecided(program, params):
        return varying(*told, strides, grid).decided()
    found = _taken(told, strides, False)
    check_open(found, grid)
    return found


def check_open(program: Workload | DynamicWorkload, grid: bool) -> None:
    """Raise `WorkloadError` where open sizes of a program are refused: by its strides, or because it is for a
    GPU (``grid``)."""
    one = program if isinstance(program, Workload) else program.at(program.largest)
    if wrong := strides_that_depend(one.dag):
        raise WorkloadError(wrong)
    if grid and one.dag.open is not None:
        raise WorkloadError(
            "kernels for a GPU take no open sizes; give open=False for a kernel of each size, or tune for a "
            "CPU"
        )


def _taken(told: _Told, strides: Strides | None, opened: bool) -> Workload | DynamicWorkload:
    """A program as `as_dynamic` has it, or as a workload where no size of it is fixed."""
    dynamic = as_dynamic(*told, strides, opened)
    return as_workload(*told, strides) if dynamic is None else dynamic
