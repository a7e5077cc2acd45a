"""One arena for what lies between kernels: every tensor's place while it is alive.

The first reader frees nothing; the last one does. Tensors are placed from the largest to the smallest, each
at the lowest offset where nothing that lives beside it lies (greedy by size: Pisarchyk and Lee, *Efficient
memory management for deep neural net inference*, 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a line of the caches, and the widest vector


@dataclass(frozen=True)
class Plan:
    """``offsets``: {tensor: bytes from the arena's first}. ``nbytes``: of the arena."""

    offsets: Mapping[str, int]
    nbytes: int


@dataclass(frozen=True)
class PlanStep:
    """What one step of a program reads and writes, by name of tensor."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def plan(
    steps: Sequence[PlanStep],
    nbytes: Mapping[str, int],
    kept: Iterable[str] = (),
    alignment: int = ALIGNMENT,
) -> Plan:
    """The places of tensors of ``nbytes`` bytes each. A tensor lives from the step that writes it to the last
    one that reads it; those ``kept`` live on to the end. Names that ``nbytes`` lacks lie elsewhere. Each
    place begins at a multiple of ``alignment`` bytes.

    >>> steps = [PlanStep((), ("a",)), PlanStep(("a",), ("b",)), PlanStep(("b",), ("c",))]
    >>> plan(steps, {"a": 64, "b": 64, "c": 64}).nbytes
    128
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, step in enumerate(steps):
        for name in step.writes:
            first.setdefault(name, n)
            last[name] = n
        for name in step.reads:
            last[name] = n
    last |= dict.fromkeys(kept, len(steps))
    placed: list[tuple[int, int, str]] = []  # (offset, end, name)
    offsets: dict[str, int] = {}
    for name in sorted((n for n in first if n in nbytes), key=lambda n: (-nbytes[n], first[n], n)):
        size = -(-nbytes[name] // alignment) * alignment
        at = 0
        for begin, end, other in sorted(placed):
            beside = first[other] <= last[name] and first[name] <= last[other]
            if beside and begin < at + size and at < end:
                at = end
        offsets[name] = at
        placed.append((at, at + size, name))
    return Plan(offsets, max((end for _, end, _ in placed), default=0))
