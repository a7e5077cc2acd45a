"""`Schedule`: the fluent façade. Every call checks a primitive, applies it and appends it to the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from schedules.errors import ScheduleError
from schedules.expr import Hole
from schedules.instructions import Instruction
from schedules.ir import printer
from schedules.ir.nest import block_names, initial, loops_of
from schedules.model import Step, Target, Trace
from schedules.primitives import PRIMITIVES
from schedules.primitives.annotate import Annotate
from schedules.primitives.base import Primitive
from schedules.primitives.bind import Bind
from schedules.primitives.cache_read import CacheRead
from schedules.primitives.cache_write import CacheWrite
from schedules.primitives.compute_at import ComputeAt
from schedules.primitives.decompose_reduction import DecomposeReduction
from schedules.primitives.fuse import Fuse
from schedules.primitives.inline import Inline
from schedules.primitives.online import Online
from schedules.primitives.pack import Pack
from schedules.primitives.parallel import Parallel
from schedules.primitives.partition import Partition
from schedules.primitives.reorder import Reorder
from schedules.primitives.reorder_storage import ReorderStorage
from schedules.primitives.reverse_compute_at import ReverseComputeAt
from schedules.primitives.rfactor import Rfactor
from schedules.primitives.set_scope import SetScope
from schedules.primitives.split import Split
from schedules.primitives.tensorize import Tensorize
from schedules.primitives.tile import Tile
from schedules.primitives.unroll import Unroll
from schedules.primitives.vectorize import Vectorize
from schedules.te.compute_dag import ComputeDAG
from schedules.te.tensors import dag as dag_of

Factor = int | Hole


class Schedule:
    """A compute DAG being scheduled. Loops and blocks are named by strings; every method raises
    `ScheduleError` where the primitive is not legal, and then changes nothing.

    ``program`` is a `ComputeDAG` or the list of tensors that `te.dag` takes.
    """

    def __init__(self, program: ComputeDAG | Sequence[Any], target: Target | None = None) -> None:
        if not isinstance(program, ComputeDAG):
            program = dag_of(program)
        self.dag = program
        self.target = target
        self.nest = initial(program)
        self._steps: list[Step] = []

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

    def apply(self, p: Primitive) -> Any:
        """Check, apply and record one primitive; returns the names it makes."""
        p.check(self.nest, self.target)
        self.nest = p.apply(self.nest)
        self._steps.append(p.step())
        return p.result()

    def blocks(self) -> list[str]:
        """Names of the blocks, in program order."""
        return block_names(self.nest)

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [x.var for x in loops_of(self.nest, block)]

    def __str__(self) -> str:
        return printer.show(self.nest)

    # one line a primitive: the documentation is the primitive's own (below)
    def split(self, loop: str, factors: Sequence[Factor | None], tail: str = "guard") -> list[str]:
        return self.apply(Split(loop, tuple(factors), tail))

    def fuse(self, *loops: str) -> str:
        return self.apply(Fuse(loops))

    def reorder(self, *loops: str) -> None:
        self.apply(Reorder(loops))

    def tile(self, loops: Sequence[str], factors: Sequence[Factor]) -> list[str]:
        return self.apply(Tile(tuple(loops), tuple(factors)))

    def vectorize(self, loop: str) -> None:
        self.apply(Vectorize(loop))

    def tensorize(self, loop: str, instruction: str | Instruction) -> None:
        self.apply(Tensorize.of(loop, instruction))

    def unroll(self, loop: str) -> None:
        self.apply(Unroll(loop))

    def parallel(self, loop: str) -> None:
        self.apply(Parallel(loop))

    def bind(self, loop: str, axis: str) -> None:
        self.apply(Bind(loop, axis))

    def partition(self, loop: str) -> None:
        self.apply(Partition(loop))

    def annotate(self, where: str, key: str, value: Factor) -> None:
        self.apply(Annotate(where, key, value))

    def reorder_storage(self, buffer: str, order: Sequence[int]) -> None:
        self.apply(ReorderStorage(buffer, tuple(order)))

    def set_scope(self, buffer: str, scope: str) -> None:
        self.apply(SetScope(buffer, scope))

    def inline(self, block: str) -> None:
        self.apply(Inline(block))

    def compute_at(self, block: str, loop: str) -> None:
        self.apply(ComputeAt(block, loop))

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self.apply(ReverseComputeAt(block, loop))

    def cache_read(self, block: str, buffer: str, scope: str = "global") -> str:
        return self.apply(CacheRead(block, buffer, scope))

    def cache_write(self, block: str, scope: str = "local") -> str:
        return self.apply(CacheWrite(block, scope))

    def pack(self, buffer: str, tiles: Sequence[Factor], order: Sequence[int]) -> list[str]:
        return self.apply(Pack(buffer, tuple(tiles), tuple(order)))

    def rfactor(self, block: str, loop: str) -> str:
        return self.apply(Rfactor(block, loop))

    def online(self, block: str, sums: Sequence[str], size: Factor) -> str:
        return self.apply(Online(block, tuple(sums), size))

    def decompose_reduction(self, block: str, loop: str) -> str:
        return self.apply(DecomposeReduction(block, loop))


for _name, _primitive in PRIMITIVES.items():
    getattr(Schedule, _name).__doc__ = _primitive.__doc__


def fill(step: Step, decisions: Mapping[str, int]) -> Step:
    """The step with its holes replaced by the decisions' integers."""

    def f(v: Any) -> Any:
        if isinstance(v, tuple):
            if len(v) == 2 and v[0] == "?" and v[1] in decisions:
                return int(decisions[v[1]])
            return tuple(map(f, v))
        return v

    return Step(step.primitive, tuple((k, f(v)) for k, v in step.args))
