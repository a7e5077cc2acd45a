"""A stage as a key of what its checks found."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedules.te.compute_dag import Stage


class VeryStage:
    """A stage that is equal to those of equal outputs and axes with the very same values and reducer, not
    equal ones: 1, 1.0 and True are equal, and only one of them may be right."""

    __slots__ = ("_key", "stage")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage  # which keeps the values alive, and so their numbers theirs
        objects = [*map(id, stage.values), id(stage.reducer)]
        objects += [-1, *map(id, stage.where), -1, *map(id, stage.places)]
        self._key = (stage.outputs, stage.axes, stage.reduce_axes, stage.scan, tuple(objects))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VeryStage) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)
