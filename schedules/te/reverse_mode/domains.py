"""Sums of what is masked become sums over domains: a gradient of a triangle does half the work too."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from schedules.te.domains import flaw_of_condition
from schedules.te.reverse_mode.graph import guarded, guards, like, rebuilt
from schedules.te.tensors import Op, Tensor


def with_domains(roots: Sequence[Tensor], fixed: Collection[Op]) -> list[Tensor]:
    """The same tensors, with the affine conditions of new sums as their ``where``: the transpose of a domain
    is one again."""

    def change(old: Op, new: Op) -> Tensor | None:
        if (
            old in fixed
            or new.reducer is None
            or new.places
            or new.reducer.name != "sum"
            or len(new.values) != 1
        ):
            return None
        conditions, value = guards(new.values[0])
        affine = [c for c in conditions if not flaw_of_condition(c)]
        if not affine or new.where:
            return None
        rest = [c for c in conditions if c not in affine]
        return like(new, guarded(rest, value), where=tuple(affine))

    return rebuilt(roots, change)
