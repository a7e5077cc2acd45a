"""Vectors of any number of lanes, done in pieces of as many lanes as an instruction has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.codegen.llvm.scope import Scopes
from autotune.codegen.llvm.types import LLVM_TYPE, Value


def pieces(x: Value, width: int, s: Scopes) -> Iterator[Value]:
    """The lanes of a vector, ``width`` of them at a time. What the last piece has beyond them is any value.
    A vector of this width is its one piece."""
    if x.lanes == width:
        yield x
        return
    for at in range(0, x.lanes, width):
        lanes = [f"i32 {k}" if k < x.lanes else "i32 poison" for k in range(at, at + width)]
        ref = s.emit(f"shufflevector {x}, {x.type} poison, <{width} x i32> <{', '.join(lanes)}>")
        yield Value(ref, x.dtype, width)


def joined(parts: Sequence[str], dtype: str, width: int, lanes: int, s: Scopes) -> Value:
    """The first ``lanes`` of vectors of ``width`` lanes, neighbours side by side."""
    kind, whole = LLVM_TYPE[dtype], list(parts)
    while len(whole) > 1:
        mask = ", ".join(f"i32 {k}" for k in range(2 * width))
        if len(whole) % 2:
            whole.append("poison")
        t = f"<{width} x {kind}>"
        whole = [
            s.emit(f"shufflevector {t} {a}, {t} {b}, <{2 * width} x i32> <{mask}>")
            for a, b in zip(whole[::2], whole[1::2], strict=True)
        ]
        width *= 2
    if width == lanes:
        return Value(whole[0], dtype, lanes)
    mask = ", ".join(f"i32 {k}" for k in range(lanes))
    t = f"<{width} x {kind}>"
    return Value(s.emit(f"shufflevector {t} {whole[0]}, {t} poison, <{lanes} x i32> <{mask}>"), dtype, lanes)
