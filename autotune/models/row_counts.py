"""Numbers of valid rows: sizes of a program that it computes of integers of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import ArgumentError
from autotune.models.call_numbers import number
from autotune.models.kept_states import call_arrays
from schedules import expr as E
from schedules.expr import Expr
from schedules.graph.facts import FAR
from schedules.graph.graph import ShortLoops
from schedules.te.compute_dag import Tensor
from schedules.te.open_sizes import OpenSize, check_sizes
from schedules.te.sizes_in_values import without_holes

if TYPE_CHECKING:
    from autotune.models.outline import Outline


# A number of rows, of the arrays of a call.
Counting = Callable[[Sequence[Any]], int]


@dataclass(frozen=True)
class RowCount(OpenSize):
    """How many rows of a state are valid after a call wrote some: ``number``, an integer that is computed of
    elements of its inputs and states, and of its sizes (`autotune.models.call_numbers`), from ``least`` to
    ``most``."""

    number: Expr


def row_counts(short: Iterable[ShortLoops], steps: Iterable[Any]) -> tuple[RowCount, ...]:
    """The numbers of rows at which loops end, as far as some of the ``steps`` is given them."""
    used = {name for s in steps for name in getattr(s, "sizes", ())}
    return tuple(RowCount(x.name, x.least, x.most, without_holes(x.end)) for x in short if x.name in used)


def rows_of_calls(ol: Outline) -> list[Counting]:
    """What computes each number of rows, in order, of the inputs and the states of a call (`counted`)."""
    places = {name: n for n, name in enumerate(call_arrays(ol))}
    return [counted(count, places, ol.tensors) for count in ol.counts]


def check_told(ol: Outline) -> None:
    """Raise ValueError for sizes that are none, for two of one name, and for numbers of rows that no call
    tells."""
    check_sizes(ol.told)
    rows_of_calls(ol)


def counted(count: RowCount, places: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Counting:
    """What computes a number of rows of the arrays of a call. ``places``: which of them each tensor is. It
    raises `ArgumentError` for a number out of range, and for integers for which nothing was proved. Raises
    ValueError for what is no number of a call.

    >>> n = RowCount("rows", 1, 8, Load("pos", (Const(0),), "int64") + 1)
    >>> counted(n, {"pos": 0}, {"pos": Tensor("pos", (1,), "int64")})([np.array([4])])
    5
    """
    end = number(count.number, places, tensors)
    read = [number(x, places, tensors) for x in dict.fromkeys(E.loads(count.number))]

    def told(arrays: Sequence[Any]) -> int:
        n = int(end(arrays))
        if not count.least <= n <= count.most or any(not -FAR <= x(arrays) <= FAR for x in read):
            raise ArgumentError(
                f"the call has {n} rows of its states, with those that it writes; it may have {count.least} "
                f"to {count.most}: give another position, or begin with a new state"
            )
        return n

    return told
