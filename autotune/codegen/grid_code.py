"""Kernels for a device as bytes: what builders hand to workers, and what the object cache keeps.

`MAGIC`, a line of JSON (launches, arrays, bytes of source), the source in the language of the device, and its
machine code where that is made ahead. Nothing of it runs by being read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from autotune.codegen.runtime.entry import layout_of
from autotune.errors import CompileError
from schedules.documents import (
    Malformed,
    any_integer,
    any_text,
    integer,
    items,
    list_of,
    mapping_of,
    one_of,
    parsed,
    record,
)
from schedules.dtypes import DTYPES
from schedules.ir import Buffer
from schedules.ir.strides import SWIZZLES, elements
from schedules.strides import MemoryLayout

if TYPE_CHECKING:  # loading a kernel generates no code, and imports nothing that does
    from autotune.codegen.simt.emit import Generated
    from schedules.ir.grid import Extents, GridProgram

MAGIC = b"autotune-grid-2\n"
# Blocks of a cluster, and bytes that a block may ask for: more is a mistake.
MOST_TOGETHER, MOST_SHARED = 16, 1 << 20


@dataclass(frozen=True)
class Launch:
    """One kernel: its grid in blocks, its block in threads, and the names of the arrays that it takes.
    ``shared``: bytes of memory that it asks for, for each block to share; ``cluster``: blocks that run
    together, along each axis of the grid."""

    kernel: str
    grid: Extents
    block: Extents
    arrays: tuple[str, ...]
    shared: int = 0
    cluster: Extents = (1, 1, 1)


@dataclass(frozen=True)
class GridArray:
    """An array of the device, which begins at a multiple of ``align`` bytes. ``strides``: in elements, 0 or
    more; None: row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    align: int
    strides: tuple[int, ...] | None = None

    @property
    def layout(self) -> MemoryLayout:
        """Its shape and strides."""
        return MemoryLayout(self.shape, self.strides)

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to its last."""
        return self.layout.span * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class TensorMap:
    """An array as a kernel is told of it to copy boxes of it at once: a parameter of 128 bytes, which a call
    gives the array's address. ``shape`` and ``strides``: in elements; the last stride is 1. ``box``: elements
    along each dimension; ``swizzle``: as of `Buffer`. Raises ValueError for what no driver takes. Source:
    CUDA Driver API, *cuTensorMapEncodeTiled*.
    """

    name: str
    array: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0

    def __post_init__(self) -> None:
        item, rank = DTYPES[self.dtype].itemsize, len(self.shape)
        if not 1 <= rank <= 5 or len(self.strides) != rank or len(self.box) != rank or self.strides[-1] != 1:
            raise ValueError(f"{self.name}: a map has 1 to 5 dimensions, whose last has stride 1")
        if any(n * item % 16 for n in (*self.strides[:-1], self.box[-1])):
            raise ValueError(f"{self.name}: rows and rows of a box are no multiples of 16 bytes")
        if any(not 1 <= n <= 256 for n in self.box) or any(not 1 <= n <= 1 << 32 for n in self.shape):
            raise ValueError(f"{self.name}: a box has 1 to 256 elements a dimension, an array up to 2**32")
        if self.swizzle not in (0, *SWIZZLES) or (self.swizzle and self.box[-1] * item > self.swizzle):
            raise ValueError(f"{self.name}: rows of a box fit into the swizzle, of 32, 64 or 128 bytes")


@dataclass(frozen=True)
class GridCode:
    """A program for a kind of device: ``params`` are its arguments, inputs then ``outputs``; ``scratch`` are
    arrays that only its kernels use. ``facts``: what the compiler tells of each kernel, by name. ``maps``:
    what launches may name beside arrays."""

    kind: str
    params: tuple[GridArray, ...]
    outputs: tuple[str, ...]
    scratch: tuple[GridArray, ...]
    launches: tuple[Launch, ...]
    source: str
    binary: bytes = b""
    facts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    maps: tuple[TensorMap, ...] = ()

    def numbered(self) -> list[tuple[Launch, list[int]]]:
        """Each launch with its arrays as their places among ``params`` and, behind those, ``scratch`` and
        ``maps``."""
        arrays = [a.name for a in (*self.params, *self.scratch)]
        place = {name: i for i, name in enumerate([*arrays, *(m.name for m in self.maps)])}
        return [(x, [place[name] for name in x.arrays]) for x in self.launches]

    def to_bytes(self) -> bytes:
        head = {
            "kind": self.kind,
            "params": [*map(_told, self.params)],
            "outputs": self.outputs,
            "scratch": [*map(_told, self.scratch)],
            "source": len(self.source.encode()),
            "launches": [*map(_told_launch, self.launches)],
            "facts": self.facts,
            **({"maps": [[*vars(m).values()] for m in self.maps]} if self.maps else {}),
        }
        return b"".join([MAGIC, json.dumps(head).encode(), b"\n", self.source.encode(), self.binary])

    @staticmethod
    def from_bytes(data: bytes) -> GridCode:
        """Inverse of `to_bytes`. Raises CompileError for what it cannot have made."""
        head, _, rest = data[len(MAGIC) :].partition(b"\n")
        try:
            v = _HEAD(parsed(head))
            size = v["source"]
            code = GridCode(**v | {"source": rest[:size].decode(), "binary": rest[size:]})
            arrays = {a.name for a in (*code.params, *code.scratch)}
            used = {name for x in code.launches for name in x.arrays} - {m.name for m in code.maps}
            if strange := (used | {m.array for m in code.maps}) - arrays:
                raise Malformed(f"a launch or a map names {min(strange)}, which is no array")
            return code
        except ValueError as err:
            raise CompileError(f"damaged code for a device: {err}") from None


def is_grid_code(data: bytes) -> bool:
    return data.startswith(MAGIC)


def kind_of(data: bytes) -> str | None:
    """The kind of device that code is for. None for other code; nothing where it is damaged."""
    if not is_grid_code(data):
        return None
    try:
        return str(_KIND(parsed(data[len(MAGIC) :].partition(b"\n")[0]))["kind"])
    except Malformed:
        return ""


def grid_code(
    program: GridProgram,
    kind: str,
    made: Generated,
    binary: bytes = b"",
    facts: Mapping[str, Mapping[str, int]] | None = None,
) -> GridCode:
    """The program with its source, ready to be sent."""

    def array(b: Buffer, lies: MemoryLayout) -> GridArray:
        align = made.align.get(b.name, DTYPES[b.dtype].itemsize)
        return GridArray(b.name, b.dtype, lies.shape, align, lies.strides)

    def own(b: Buffer) -> GridArray:
        # the kernels know how what is their own lies: the device gives memory
        return array(b, layout_of(b) if b.strides is None else MemoryLayout((elements(b),)))

    return GridCode(
        kind,
        tuple(array(b, layout_of(b)) for b in program.params),
        program.outputs,
        tuple(map(own, program.scratch)),
        tuple(
            Launch(k.name, k.grid, k.block, tuple(b.name for b in k.params), made.shared.get(k.name, 0))
            for k in program.kernels
        ),
        made.text,
        binary,
        facts or {},
    )


def _told(a: GridArray) -> list[object]:
    return [a.name, a.dtype, a.shape, a.align, *([] if a.strides is None else [a.strides])]


def _told_launch(x: Launch) -> list[object]:
    asks = [x.shared, x.cluster] if (x.shared, x.cluster) != (0, (1, 1, 1)) else []
    return [x.kernel, x.grid, x.block, x.arrays, *asks]


def _read_launch(x: object) -> Launch:
    read = Launch(*(_ASKING if isinstance(x, list) and len(x) == 6 else _LAUNCH)(x))
    torn = any(g % c for g, c in zip(read.grid, read.cluster, strict=True))
    if torn or prod(read.cluster) > MOST_TOGETHER:
        raise Malformed(
            f"a grid of {read.grid} blocks is not cut into clusters of {read.cluster}, which have "
            f"{MOST_TOGETHER} blocks at most"
        )
    return read


def _read_array(x: object) -> GridArray:
    return GridArray(*(_STRIDED if isinstance(x, list) and len(x) == 5 else _ARRAY)(x))


_SIZE = integer(0, 1 << 48)
_EXTENTS = items(_SIZE, _SIZE, _SIZE)
_ARRAY = items(any_text, one_of(*DTYPES), list_of(_SIZE), _SIZE)
_STRIDED = items(any_text, one_of(*DTYPES), list_of(_SIZE), _SIZE, list_of(_SIZE))
_CLUSTER = items(*[integer(1, MOST_TOGETHER)] * 3)
_LAUNCH = items(any_text, _EXTENTS, _EXTENTS, list_of(any_text))
_ASKING = items(any_text, _EXTENTS, _EXTENTS, list_of(any_text), integer(0, MOST_SHARED), _CLUSTER)
_ARRAYS = list_of(_read_array)
_EACH = list_of(_SIZE, 5, 1)
_MAP = items(any_text, any_text, one_of(*DTYPES), _EACH, _EACH, _EACH, _SIZE)
_KIND = record({"kind": any_text}, open_ended=True)
_HEAD = record(
    {
        "kind": any_text,
        "params": _ARRAYS,
        "outputs": list_of(any_text),
        "scratch": _ARRAYS,
        "launches": list_of(_read_launch),
        "source": _SIZE,
        "facts": mapping_of(mapping_of(any_integer)),
    },
    {"maps": list_of(lambda x: TensorMap(*_MAP(x)))},
)
