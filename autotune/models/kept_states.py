"""Checks of the states of an outline: what lies in a state, and in which order it is written and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.errors import ModelError
from autotune.models.call_numbers import checked, number
from schedules import affine
from schedules import expr as E
from schedules.expr import Const
from schedules.graph.graph import Argument, PlaceMove
from schedules.te.sizes_in_values import variable

if TYPE_CHECKING:
    from autotune.models.outline import Outline


def refuse_states(states: Iterable[str], on_device: bool) -> None:
    """Raise ModelError that names the states of a model for a device."""
    if on_device and (names := ", ".join(states)):
        raise ModelError(
            f"the model keeps states ({names}), which models on a GPU do not: compile it for the CPU, "
            'target="cpu"; or take them as inputs, and return their new values'
        )


def check_states(outline: Outline) -> None:
    """Raise ValueError for states that are none: a tensor or a new value that is missing, given or returned;
    or of another shape or dtype."""
    given = {*outline.inputs, *outline.constants, *outline.outputs}
    every = [x for s in outline.states.values() for x in (s.tensor, s.new)]
    for name, s in outline.states.items():
        for x in (s.tensor, s.new):
            if x not in outline.tensors or x in given:
                raise ValueError(f"state {name!r} is {x!r}, which is no tensor of its own")
        old, new = outline.tensors[s.tensor], outline.tensors[s.new]
        if (old.shape, old.dtype) != (new.shape, new.dtype) or old.strides or new.strides:
            raise ValueError(f"the new value of state {name!r} is another tensor than the old one")
        if s.tensor in outline.views or s.tensor in outline.joins:
            raise ValueError(f"state {name!r} lies in another tensor")
    if len(set(every)) != len(every):
        raise ValueError("two states share a tensor")
    for a in every_argument(outline):
        for m in a.moves:
            _check_move(outline, m)


def every_argument(outline: Outline) -> Iterable[Argument]:
    """Places in tensors: of what lies in others, and of what is read."""
    yield from outline.views.values()
    for call in outline.calls:
        yield from call.reads


def _check_move(outline: Outline, m: PlaceMove) -> None:
    places = {n: i for i, n in enumerate(call_arrays(outline))}
    number(m.index, places, outline.tensors)
    if m.counted is not None:
        number(m.counted, places, outline.tensors)
        ranges = {variable(s.name): s.range for s in outline.sizes}
        found = affine.bounds(affine.simplify(m.counted, ranges), ranges)
        if found is None or found[0] < 1 or found[1] != m.rows:
            raise ValueError(f"a number of rows, {E.show(m.counted)}, is not from 1 to {m.rows}")
    if m.stride < 1 or not 1 <= m.rows <= m.extent:
        raise ValueError(f"{m.rows} rows of {m.extent}, {m.stride} elements apart, are no place in a state")


def call_arrays(outline: Outline) -> tuple[str, ...]:
    """Of what numbers of a call are computed, in order: inputs and states, and the variables of sizes."""
    states = (s.tensor for s in outline.states.values())
    return (*outline.inputs, *states, *(variable(s.name) for s in outline.sizes))


class CallNumbers:
    """The numbers that calls tell: where rows of states lie. ``moves``: each once, in the order of what
    `of_call` gives."""

    def __init__(self, outline: Outline) -> None:
        places = {n: i for i, n in enumerate(call_arrays(outline))}
        known = {s.tensor: name for name, s in outline.states.items()}
        users: dict[PlaceMove, str] = {}
        for a in every_argument(outline):
            root = outline.root(a.tensor)
            for m in a.moves:
                users.setdefault(m, f"state {known[root]!r}" if root in known else repr(outline.label(root)))
        self.moves = tuple(users)
        self._users = tuple(users.values())
        self._read = [number(m.index, places, outline.tensors) for m in self.moves]
        self._rows = [number(Const(m.rows) if m.counted is None else m.counted, places, outline.tensors) for m in self.moves]

    def of_call(self, arrays: Sequence[Any]) -> list[int]:
        """The numbers, of the inputs and the states of a call, and its sizes. Raises ArgumentError for rows
        that would not be inside of a state."""
        every = zip(self.moves, self._read, self._rows, self._users, strict=True)
        return [checked(m, read(arrays), rows(arrays), user) for m, read, rows, user in every]

    def settle(self, outline: Outline, inputs: Sequence[Any]) -> None:
        """Change made-up inputs so that the last rows of states are written, or the first ones."""
        for m in self.moves:
            for x in E.loads(m.index):
                if x.buffer in outline.inputs:
                    at = tuple(int(i.value) for i in x.indices if isinstance(i, Const))
                    inputs[outline.inputs.index(x.buffer)][at] = m.most if x == m.index else 0


class StateOrder:
    """What lies in states while the steps of an outline run, one after the other."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.tensors = {s.tensor for s in outline.states.values()}
        self.alive = {t: {t} for t in self.tensors}  # {state: what lies in it now}
        self.begun: dict[str, str] = {}  # {state: the new value that is being written}
        self.part_of = {
            p: name for name, parts in outline.joins.items() if self._root(name) for p in parts[1:]
        }

    def _root(self, name: str) -> str | None:
        root = self.outline.root(name)
        return root if root in self.tensors else None

    def step(self, reads: Iterable[str], writes: Iterable[str]) -> None:
        """Raise ValueError for a step that reads what was written over, or writes where it reads."""
        read = {root for name in reads if (root := self._root(name))}
        for name in reads:
            root = self._root(name)
            if root and name not in self.alive[root]:
                raise ValueError(f"{name!r} is read after it was written over")
        for name in writes:
            root = self._root(name)
            if root is None:
                continue
            if root in read:
                raise ValueError(f"a step reads state {root!r}, and writes {name!r} there")
            new = self.part_of.get(name)
            if new is None:
                raise ValueError(f"{name!r} is written to state {root!r}, and is no part of a value of it")
            if self.begun.get(root) != new:
                if root in self.begun or self.outline.joins[new][0] not in self.alive[root]:
                    raise ValueError(f"{name!r} is written to state {root!r} out of its turn")
                self.alive[root] = set()
                self.begun[root] = new
            self.alive[root].add(name)
            if self.alive[root].issuperset(self.outline.joins[new][1:]):
                self.alive[root].add(new)
                del self.begun[root]

    def end(self) -> None:
        """Raise ValueError for states whose new value does not lie there, or was not made."""
        for name, s in self.outline.states.items():
            in_place = self._root(s.new) == s.tensor
            now = s.new if in_place else s.tensor
            if now not in self.alive[s.tensor] or s.tensor in self.begun:
                raise ValueError(f"no step makes the new value of state {name!r}")
