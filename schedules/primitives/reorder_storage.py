"""reorder_storage: store the dimensions of an intermediate tensor in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from schedules.expr import Expr
from schedules.ir import Nest
from schedules.ir.nest import map_blocks, redirect, set_buffer
from schedules.model import Target
from schedules.primitives.base import Primitive, as_tuple, require_intermediate


@dataclass(frozen=True)
class ReorderStorage(Primitive[None]):
    """Store ``buffer`` row-major, its dimensions in ``order``, outermost first (Halide's `reorder_storage`).
    ``reorder_storage("y_local", [1, 2, 0])`` of y[o, p, q] puts o innermost.

    Legal for any buffer that is no argument, whatever the loops around its blocks, because only addresses
    change. Cost: loops along the old innermost dimension no longer have unit stride.

    >>> s.reorder_storage("y", [1, 0])
    """

    name: ClassVar[str] = "reorder_storage"
    buffer: str
    order: tuple[int, ...]

    @classmethod
    def of(cls, buffer: str, order: Sequence[int]) -> ReorderStorage:
        """As `Schedule` has it."""
        return cls(buffer, as_tuple(order))

    def sentence(self) -> str:
        order = ", ".join(map(str, self.order))
        return f"Store `{self.buffer}` with its dimensions in the order {order}, outermost first."

    def check(self, nest: Nest, target: Target | None = None) -> None:
        require_intermediate(nest, self.buffer, self.name)
        rank = len(nest.buffer(self.buffer).shape)
        if sorted(self.order) != list(range(rank)):
            raise self.refused(
                f"order {list(self.order)} is not a permutation of its {rank} dimensions; name each of "
                f"0..{rank - 1} once"
            )

    def apply(self, nest: Nest) -> Nest:
        old = nest.buffer(self.buffer)

        def place(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(indices[k] for k in self.order)

        nest = map_blocks(nest, lambda b: redirect(b, self.buffer, self.buffer, place))
        return set_buffer(nest, replace(old, shape=tuple(old.shape[k] for k in self.order), strides=None))
