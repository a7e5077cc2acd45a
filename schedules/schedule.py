"""`Schedule`: the fluent façade. Every call checks a primitive, applies it and appends it to the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeVar

from schedules.errors import ScheduleError
from schedules.ir import printer
from schedules.ir.nest import block_names, initial, loops_of
from schedules.model import Step, Target, Trace
from schedules.primitives import PRIMITIVES, Methods
from schedules.primitives.base import Primitive
from schedules.primitives.scan_order import check_scans, scanned
from schedules.te.compute_dag import ComputeDAG
from schedules.te.tensors import dag as dag_of

R = TypeVar("R")


class Schedule(Methods):
    """A compute DAG being scheduled by primitives. Loops and blocks are named by strings; every method raises
    `ScheduleError` where the primitive is not legal, and then changes nothing.

    ``program`` is a `ComputeDAG` or the list of tensors that `te.dag` takes.

    >>> x = te.placeholder((64, 64), name="x")
    >>> schedule = at.Schedule([x, te.compute((64, 64), lambda i, j: x[i, j] + 1.0, name="y")])
    >>> schedule.loops("y")
    ['y_i', 'y_j']
    >>> outer, inner = schedule.split("y_j", 16)
    >>> schedule.vectorize(inner)
    >>> schedule.parallel("y_i")
    >>> print(schedule)
    def nest(x: float32[64, 64], y: float32[64, 64]):
        parallel y_i in range(64):
            for y_j_0 in range(4):
                vectorize y_j_1 in range(16):
                    ...
    """

    def __init__(self, program: ComputeDAG | Sequence[Any], target: Target | None = None) -> None:
        if not isinstance(program, ComputeDAG):
            program = dag_of(program)
        if target is not None and not isinstance(target, Target):
            raise ScheduleError(f"the target {target!r} is no Target; leave it out, and name it in build")
        self.dag = program
        self.target = target
        self.nest = initial(program)
        self._steps: list[Step] = []
        self._scanned = scanned(program)

    def __copy__(self) -> Schedule:
        """Another one with the same steps; what is done to one does not change the other."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._steps = list(self._steps)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Schedule:
        return self.__copy__()  # all else in it does not change

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return Trace(tuple(self._steps))

    @staticmethod
    def replay(
        dag: ComputeDAG,
        trace: Trace,
        target: Target | None = None,
        decisions: Mapping[str, int] | None = None,
    ) -> Schedule:
        """Apply a trace through every legality check; ``decisions`` fill its holes by name.
        Raises ScheduleError naming the step that does not fit."""
        if not isinstance(trace, Trace):
            raise ScheduleError(f"a {type(trace).__name__} is no trace; Trace.from_json makes one of text")
        s = Schedule(dag, target)
        for n, step in enumerate(trace.steps):
            cls = PRIMITIVES.get(step.primitive)
            if cls is None:
                raise ScheduleError(
                    f"step {n}: unknown primitive {step.primitive!r}; this version knows "
                    f"{', '.join(PRIMITIVES)}"
                )
            if decisions is not None:
                step = fill(step, decisions)
            try:
                s.apply(cls.from_step(step))
            except ScheduleError as err:
                raise ScheduleError(f"step {n}: {err}") from None
        return s

    def apply(self, p: Primitive[R]) -> R:
        p.check(self.nest, self.target)
        nest = p.apply(self.nest)
        if self._scanned:
            check_scans(p, self.nest, nest, self._scanned)
        self.nest = nest
        self._steps.append(p.step())
        return p.result()

    def blocks(self) -> list[str]:
        """Names of the blocks, in program order."""
        return block_names(self.nest)

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [x.var for x in loops_of(self.nest, block)]

    def __repr__(self) -> str:
        n = len(self._steps)
        return f"<Schedule of {', '.join(self.dag.outputs)[:120]}: {n} step{'s' if n != 1 else ''}>"

    def __str__(self) -> str:
        """The loop nest, as `print` shows it."""
        return printer.show(self.nest)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def fill(step: Step, decisions: Mapping[str, int]) -> Step:
    """The step with its holes replaced by the decisions' integers."""

    def f(v: Any) -> Any:
        if isinstance(v, tuple):
            if len(v) == 2 and v[0] == "?" and v[1] in decisions:
                return int(decisions[v[1]])
            return tuple(map(f, v))
        return v

    return Step(step.primitive, tuple((k, f(v)) for k, v in step.args))
