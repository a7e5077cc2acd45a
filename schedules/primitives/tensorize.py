"""tensorize: run loops by one instruction of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.errors import ScheduleError, suggest
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.instructions.match import match
from schedules.ir import Loop, Nest, blocks, path_to, walk
from schedules.ir.nest import find_loop, mark
from schedules.model import Target
from schedules.passes.expand_blocks import written_out
from schedules.passes.simplify import simplify
from schedules.primitives.base import Primitive, require_serial


@dataclass(frozen=True)
class Tensorize(Primitive[None]):
    """Mark a loop: with the loops in it, it is one instruction.

    Before: ``for i in range(16): for t in range(2): c[i] += a[t] * b[i, t]``. After: ``vdpbf16ps(a, b, c)``.
    Legal where the loops are the axes of the instruction (`schedules.instructions`), in any order, and the
    block in them computes its meaning. Where its operands lie is asked when the schedule is lowered, as
    `pack` may come later. What does not fit is refused then, by name. A tail stays loops. On a target without
    the instruction all stay loops. Cost: what the instruction takes.
    """

    name: ClassVar[str] = "tensorize"
    loop: str
    instruction: Instruction

    @classmethod
    def of(cls, loop: str, instruction: str | Instruction) -> Tensorize:
        """``instruction``: its name in `INSTRUCTIONS`, or one of your own. Raises ScheduleError."""
        if isinstance(instruction, Instruction):
            return cls(loop, instruction)
        if instruction not in INSTRUCTIONS:
            close = suggest(instruction, INSTRUCTIONS)
            known = ", ".join(INSTRUCTIONS)
            raise ScheduleError(f"tensorize {loop}: no instruction {instruction!r}{close}; there are {known}")
        return cls(loop, INSTRUCTIONS[instruction])

    def sentence(self) -> str:
        return f"Run loop `{self.loop}`, with the loops in it, by the instruction `{self.instruction.name}`."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        loop = find_loop(nest, self.loop)
        require_serial(loop, "tensorize")
        found = blocks(loop.body)
        if len(found) != 1:
            names = ", ".join(b.name for b in found)
            raise self.refused(
                f"it holds the blocks {names}; an instruction is one block: move the others out by "
                "compute_at or decompose_reduction"
            )
        if found[0].init:
            raise self.refused(
                f"block {found[0].name} starts its sum inside of it, and {self.instruction} adds to what is "
                "there; decompose_reduction at a loop around it first"
            )
        match(_alone(nest, loop), self.instruction, None)

    def apply(self, nest: Nest) -> Nest:
        return mark(nest, find_loop(nest, self.loop), "tensorize", self.instruction)


def _alone(nest: Nest, loop: Loop) -> Loop:
    """The loop as lowering will have it, as far as that depends on the loops around it alone."""
    s = written_out(loop, nest)
    for x in reversed(path_to(nest.body, lambda y: y is loop) or ()):
        if isinstance(x, Loop) and x is not loop:
            s = replace(x, body=s)
    return next((x for x in walk(simplify(s)) if isinstance(x, Loop) and x.var == loop.var), loop)
