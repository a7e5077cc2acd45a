"""Where the elements of an array lie in memory: its strides.

A stride is the distance, in elements, from an index to the next along one dimension. An array that names none
is row-major. `strides_of` tells them, of a tensor of the DAG as of a buffer of the IR: what computes an
address, a size, or what lies side by side asks there, or one of the functions of `schedules.ir.strides`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Strided(Protocol):
    """A tensor of the DAG, or a buffer of the IR."""

    @property
    def shape(self) -> tuple[Any, ...]: ...
    @property
    def strides(self) -> tuple[Any, ...] | None: ...


def strides_of(x: Strided) -> tuple[Any, ...]:
    """The strides of an array, in elements: as its shape is, integers or expressions.

    >>> from schedules.te.compute_dag import Tensor
    >>> strides_of(Tensor("x", (4, 3, 8), "float32"))
    (24, 8, 1)
    """
    return row_major(x.shape) if x.strides is None else x.strides


def row_major(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of an array without gaps whose last index moves to the neighbour."""
    out: list[Any] = []
    step: Any = 1
    for n in reversed(shape):
        out.append(step)
        step = step * n
    return tuple(reversed(out))


def settled(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Strides in their one spelling: None for row-major ones, and, since the stride of an extent of 1 says
    nothing, that of a row-major dimension for it."""
    if len(strides) != len(shape):
        return tuple(strides)  # `flaw` says so
    out: list[int] = []
    step = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        out.append(step if n == 1 else s)
        step = n * out[-1]
    found = tuple(reversed(out))
    return None if found == row_major(shape) else found


def inner_first(strides: Sequence[int]) -> list[int]:
    """The dimensions from the one whose elements lie closest together to the one where they lie farthest
    apart; the last first where two are alike, as in a row-major array."""
    return sorted(range(len(strides)), key=lambda d: (strides[d], -d))


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory from the first to the last that the array has, both included."""
    return 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """How an argument of a compiled kernel lies. ``shape`` and ``strides``: in elements. None: row-major."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides, those of a row-major array too."""
        return strides_of(self)

    @property
    def reach(self) -> tuple[int, int]:
        """Elements of memory before the first element, where it walks backwards, and from there to its end.

        >>> MemoryLayout((4, 3), (-3, 1)).reach
        (9, 3)
        """
        if 0 in self.shape:
            return 0, 0
        ends = [(n - 1) * s for n, s in zip(self.shape, self.steps, strict=True)]
        return -sum(e for e in ends if e < 0), 1 + sum(e for e in ends if e > 0)

    @property
    def span(self) -> int:
        """Elements of memory from the first to the last in memory, both included."""
        return sum(self.reach)

    @property
    def rows(self) -> tuple[int, int]:
        """Elements from one row in memory to the next, and those that a row takes with its gaps; zeros where
        rows do not lie forwards one after another.

        >>> MemoryLayout((6, 4, 10), (128, 10, 1)).rows
        (128, 40)
        """
        long = sorted((abs(s), s, n) for n, s in zip(self.shape, self.steps, strict=True) if n > 1 and s)
        if not long or any(s < 0 for _, s, _ in long[:-1]):
            return 0, 0
        taken = 1 + sum((n - 1) * s for _, s, n in long[:-1])
        return (long[-1][0], taken) if taken <= long[-1][0] else (0, 0)

    @property
    def is_apart(self) -> bool:
        """Whether no two elements lie in one place, as far as `flaw` tells."""
        return self.strides is None or not flaw(self.shape, tuple(map(abs, self.strides)), written=True)

    def lies_as(self, strides: Sequence[float]) -> bool:
        """Whether an array of this shape with these strides, in elements, lies so. The stride of an extent of
        1 says nothing, nor does any where there are no elements."""
        pairs = zip(self.shape, self.steps, strides, strict=True)
        return 0 in self.shape or all(n == 1 or s == t for n, s, t in pairs)

    def __str__(self) -> str:
        """Such as ``[7,5]``, and with strides ``[7,5;1,7]``."""
        strides = "" if self.strides is None else f";{','.join(map(str, self.strides))}"
        return f"[{','.join(map(str, self.shape))}{strides}]"


def refitted(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[Any], pad: Any = 0
) -> tuple[Any, ...]:
    """Strides for an array of shape ``new`` that lies as one of ``shape`` and ``strides`` does: its
    dimensions in the same order, with the same gaps (elements that belong to no index) between them, and
    ``pad`` more elements behind each innermost row. The stride of an extent of 1 says nothing.

    >>> refitted((6, 10), (12, 1), (3, 4))  # rows with two elements behind each
    (6, 1)
    >>> refitted((6, 10), (1, 6), (3, 4))  # column-major
    (1, 3)
    """
    out: dict[int, Any] = {}
    old: int = 1  # elements that all dimensions further in take, with their gaps
    size: Any = 1  # the same of the new ones
    for k, d in enumerate(inner_first(strides)):
        gap = strides[d] - old if shape[d] > 1 else 0  # below 0 where a step is less than all of these
        old = shape[d] * strides[d] if shape[d] > 1 else old
        out[d] = size + (gap + pad if k == 1 else gap)
        size = new[d] * out[d]
    return tuple(out[d] for d in range(len(strides)))


def flaw(shape: Sequence[int], strides: Sequence[int], *, written: bool) -> str:
    """What is wrong with the strides of an array of that shape, with the remedy; nothing where they are fine.
    What is ``written`` has no two elements in one place: in the order of its strides, each step is past all
    elements of the dimensions further in. (Arrays that interleave in other ways are refused too.) What is
    read only may lie anyhow: a stride of 0 repeats an element, a negative one walks backwards."""
    if len(strides) != len(shape):
        return f"{len(strides)} strides for {len(shape)} dimensions; give one stride for each dimension"
    reach = 0  # the last element of the dimensions further in
    for d in inner_first(strides) if written else ():
        if shape[d] == 1:
            continue
        if strides[d] < 1:
            return (
                f"stride {strides[d]} of dimension {d}: it is written, and only what is read may repeat its "
                "elements or walk backwards; make the stride 1 or more"
            )
        if strides[d] <= reach:
            return (
                f"stride {strides[d]} of dimension {d}: it is written, and the dimensions further in reach "
                f"{reach} elements far, so that two may lie in one place; make the stride {reach + 1} or more"
            )
        reach += (shape[d] - 1) * strides[d]
    return ""
