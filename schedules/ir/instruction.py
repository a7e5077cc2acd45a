"""What an instruction of a machine is: data with an executable meaning.

An instruction is a tensor expression. The shapes of its tensors are the layouts of its operands: a tensor of
shape (16, 2) is 32 elements side by side, the two of a pair next to each other. So the interpreter can run
it, loops can be compared with it, and how an operand must be packed can be read off it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from schedules.expr import Const, Load, Var
from schedules.ir.nodes import Loop, Stmt, Store
from schedules.layouts import Layout
from schedules.te.compute_dag import ComputeDAG, Tensor


@dataclass(frozen=True, eq=False)
class Registers:
    """Registers beside those of vectors, each of which holds an operand of two dimensions or more.

    ``count``: how many there are. ``bytes``: the size of one. ``spellings``: text by generator, by what it
    does. A generator says which it asks for.
    """

    name: str
    count: int
    bytes: int
    spellings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction.

    ``meaning``: a DAG of one stage. Where that reduces, it adds to what the output holds. ``free``:
    dimensions of operands, as (name, number), along which elements may lie any distance apart. Along all
    others they lie as in the tensor. ``features``: what a target needs for it, by LLVM's names.
    ``spellings``: its text, by generator. Where a generator has none, or a target lacks a feature, its loops
    are compiled. ``exact``: whether it rounds as its meaning does; else it adds in an order of its own.
    ``registers``: those that its operands lie in; None: the target's vector registers. ``start``: the
    instruction that starts its sums in such registers. ``cost``: how many multiply-adds of vectors take as
    long as it. ``latency``: cycles until its result can be added to; None: as of a multiply-add.
    ``unless``: features of targets that have a faster one for the same, so that it is not `offered` there.
    ``threads``: how many do it together, the lanes of a warp; 1: each does it alone. ``layouts``: of what
    they do together, which elements of an operand each of them has (`schedules.layouts`).

    Raises ValueError where the meaning has another number of stages. Example:
    `schedules.instructions.dot_products`.
    """

    name: str
    doc: str
    meaning: ComputeDAG
    free: frozenset[tuple[str, int]] = frozenset()
    features: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True
    registers: Registers | None = None
    start: Instruction | None = None
    cost: float = 1.0
    latency: float | None = None
    unless: tuple[str, ...] = ()
    threads: int = 1
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.meaning.stages) != 1 or len(self.meaning.outputs) != 1:
            raise ValueError(f"instruction {self.name}: its meaning has to be one stage with one output")

    def __repr__(self) -> str:
        return self.name

    @property
    def collective(self) -> bool:
        """Whether threads do it together."""
        return self.threads > 1

    def runs_on(self, features: Collection[str]) -> bool:
        """Whether a target with these features has it."""
        return all(f in features for f in self.features)

    def offered(self, features: Collection[str]) -> bool:
        """Whether schedules for a target with these features may be better with it."""
        return self.runs_on(features) and not any(f in features for f in self.unless)

    @property
    def result(self) -> Tensor:
        """The operand that is written."""
        return self.meaning.stages[0].outputs[0]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Inputs in order, then the result."""
        return (*self.meaning.inputs, self.result)

    @property
    def iterations(self) -> dict[str, int]:
        """Its axes with their extents, those of the result first."""
        stage = self.meaning.stages[0]
        return {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}

    @property
    def terms(self) -> int:
        """Steps of its sum; 1 where it adds up nothing."""
        return prod(a.extent for a in self.meaning.stages[0].reduce_axes)

    @property
    def step(self) -> Store:
        """What one iteration stores."""
        stage, out = self.meaning.stages[0], self.result
        at = tuple(Var(a.var) for a in stage.axes)
        value = stage.values[0]
        if stage.reducer is not None:
            (value,) = stage.reducer.apply((Load(out.name, at, out.dtype),), stage.values)
        return Store(out.name, at, value, stage.reducer is not None)

    @property
    def loops(self) -> Stmt:
        """Its meaning as loops over its operands."""
        s: Stmt = self.step
        for var, n in reversed(self.iterations.items()):
            s = Loop(var, Const(n), s)
        return s

    @property
    def operations(self) -> int:
        """Operations of one instruction, 2 for a multiply-add."""
        return 2 * prod(self.iterations.values()) if self.meaning.stages[0].reducer else 0

    @property
    def cost_each(self) -> float:
        """What one of its operations costs, in multiply-adds of vectors. It has some."""
        return self.cost / self.operations

    def layout(self, operand: str) -> str:
        """An operand's elements from the outermost dimension to the innermost, such as ``[i: 16, t: 2]``."""
        accesses: list[Store | Load] = [self.step, *self.meaning.stages[0].reads()]
        at = next(x for x in accesses if x.buffer == operand).indices
        shape = next(t.shape for t in self.operands if t.name == operand)
        names = (i.name if isinstance(i, Var) else str(i) for i in at)
        return "[" + ", ".join(f"{v}: {n}" for v, n in zip(names, shape, strict=True)) + "]"
