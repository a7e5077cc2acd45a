"""The weights of an exported model: as a file has them, and as each set of code reads them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.runtime.model_tables import WeightPack
from autotune.models.export_codes import CodeSet, PackedLater
from autotune.models.places import WEIGHT, up
from autotune.models.program import Program
from autotune.models.weights import KeptOnce
from schedules.dtypes import DTYPES
from schedules.graph.plan import ALIGNMENT

Array = NDArray[Any]


@dataclass(frozen=True)
class FileWeights:
    """Arrays, one after the other. ``at``: where each begins, by its `id`."""

    arrays: tuple[Array, ...]
    at: Mapping[int, int]
    nbytes: int

    @staticmethod
    def of(arrays: Sequence[Array]) -> FileWeights:
        """Each array once."""
        each = {id(a): a for a in arrays}
        at, end = {}, 0
        for a in each.values():
            at[id(a)] = end
            end = up(end + a.nbytes, ALIGNMENT)
        return FileWeights(tuple(each.values()), at, max(end, ALIGNMENT))

    def write(self, f: IO[bytes]) -> int:
        """Write them, and give their CRC-32."""
        crc = done = 0
        for a in self.arrays:
            gap = bytes(self.at[id(a)] - done)
            data: Any = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
            for part in (gap, memoryview(data)):
                crc = zlib.crc32(part, crc)
                f.write(part)
                done += len(part)
        end = bytes(self.nbytes - done)
        f.write(end)
        return zlib.crc32(end, crc)


@dataclass(frozen=True)
class ReadWeights:
    """Weights as a set of code reads them. ``at``: where each begins, by the `id` of what a program keeps, or
    of the first value of a state. ``packs``: what is made of a file for that; none where it is the file."""

    at: Mapping[int, int]
    packs: tuple[WeightPack, ...] = ()
    nbytes: int = 0


def stored_weights(programs: Sequence[Program]) -> FileWeights:
    """Weights as the kernels of programs read them, and the first values of states."""
    read = [a.weight for p in programs for places in p.arguments for a in places if a.base == WEIGHT]
    return FileWeights.of([*read, *programs[-1].initial.values()])


def plain_weights(programs: Sequence[Program]) -> tuple[FileWeights, list[dict[str, Array]]]:
    """Weights that kernels of any target can be given, equal ones once: (the file, those of each program)."""
    once = KeptOnce()
    each = [{n: once.of(p.weight(n)) for n in p.outline.constants} for p in programs]
    values = [a for named in each for a in named.values()]
    return FileWeights.of([*values, *programs[-1].initial.values()]), each


def read_weights(file: FileWeights, each: Sequence[Mapping[str, Array]], code: CodeSet) -> ReadWeights:
    """How a set of code reads a file of `plain_weights`. Equal parts are held once."""
    at: dict[int, int] = {}
    packs: dict[tuple[str, int], WeightPack] = {}
    end = 0

    def add(what: Any, given: int, symbol: str) -> None:
        nonlocal end
        if (symbol, given) not in packs:
            packs[symbol, given] = WeightPack(given, end, what.nbytes, symbol)
            end = up(end + what.nbytes, ALIGNMENT)
        at[id(what)] = packs[symbol, given].to

    for program, values in zip(code.programs, each, strict=True):
        for later in program.weights.values():
            assert isinstance(later, PackedLater)
            value = values[later.use.weight]
            first = later.use.start * DTYPES[value.dtype.name].itemsize if later.symbol else 0
            add(later, file.at[id(value)] + first, later.symbol)
    for value in code.programs[-1].initial.values():
        add(value, file.at[id(value)], "")
    return ReadWeights(at, tuple(packs.values()), end)
