"""Sizes that stay open in a model of ONNX: which there are in what a user gives for shapes, and numbers for
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import AttributeProto

from autotune.errors import ModelError
from autotune.models.model import identifier
from schedules.errors import WorkloadError
from schedules.expr import Expr
from schedules.te.dims import Dim, dims_of, extent_at
from schedules.te.open_sizes import OpenSize
from schedules.te.unique import Taken

# Where a size cannot stay open.
FIXED = "give that size another range in shapes=, or a number"
Shapes = Mapping[str, Any]


def open_sizes_of(shapes: Shapes, label: str) -> dict[Dim, OpenSize]:
    """The sizes in shapes, each with a name: its own, else that of where it stands. Raises ModelError for
    sizes that are not open."""
    taken, out = Taken(), dict[Dim, OpenSize]()
    for name, where, extent in _extents(shapes):
        for d in dims_of([extent]):
            if d.open is False:
                raise ModelError(
                    f"{label}: shapes= gives {name!r} the size {d!r} of a kernel for each number, and a "
                    f"model has one kernel for all: give autotune.dim({d.lo}, {d.hi}), or a number"
                )
            if d not in out and d.lo < d.hi:
                out[d] = OpenSize(taken.add(d.name or identifier(where)), d.lo, d.hi)
    return out


def numbers_of(shapes: Shapes, numbers: Mapping[Dim, int], label: str) -> dict[str, int | tuple[Any, ...]]:
    """Shapes of numbers. ``numbers``: of the open sizes. Raises ModelError for an extent that is none."""

    def number(name: str, n: Any) -> Any:
        if not isinstance(n, Expr):
            return n
        try:
            return extent_at(n, {**{d: d.lo for d in dims_of([n])}, **numbers})
        except WorkloadError as err:
            raise ModelError(f"{label}: shapes= of {name!r}: {err}") from err

    return {
        name: tuple(number(name, n) for n in x) if isinstance(x, Sequence) else number(name, x)
        for name, x in shapes.items()
    }


def numbers_in(file: Any) -> set[int]:
    """Numbers that are extents or attributes in a file."""
    out = {n for x in file.initializers.values() for n in x.shape}
    out |= {
        int(n) for x in file.initializers.values() if x.size <= 64 and x.dtype.kind in "iu" for n in x.flat
    }
    for port in file.proto.graph.input:
        out |= {d.dim_value for d in port.type.tensor_type.shape.dim}
    for node in file.proto.graph.node:
        for a in node.attribute:
            if a.type in (AttributeProto.INT, AttributeProto.INTS):
                out |= {a.i, *a.ints}
    return out


def _extents(shapes: Shapes) -> Iterator[tuple[str, str, Any]]:
    """(what is given a shape, where in it, an extent)."""
    for name, x in shapes.items():
        if isinstance(x, Sequence) and not isinstance(x, str):
            yield from ((name, f"{name}_{d}", n) for d, n in enumerate(x))
        else:
            yield name, name, x
