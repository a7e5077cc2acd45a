"""What a GPU runs: a program of kernels, each a grid of blocks of threads."""

from __future__ import annotations

from dataclasses import dataclass

from schedules.ir.nodes import Buffer, Loop, Stmt

Extents = tuple[int, int, int]


@dataclass(frozen=True)
class GridKernel:
    """One launch. ``params``: global arrays that it uses; those in ``written`` it writes. ``blocks`` are the
    loops over ``blockIdx``, outermost first; ``body`` is what a block does."""

    name: str
    params: tuple[Buffer, ...]
    written: frozenset[str]
    grid: Extents
    block: Extents
    blocks: tuple[Loop, ...]
    body: Stmt

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class GridProgram:
    """Kernels in the order of their launches; ``scratch`` are arrays that only they use."""

    params: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    kernels: tuple[GridKernel, ...]
