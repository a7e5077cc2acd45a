"""Emits tables of few numbers (`schedules.expr.lookups`) as LLVM IR: permutations of a register, or a load.

`vpermps` and `vpermd` pick 32-bit entries by the lowest bits of an index, 16 on AVX-512 and 8 on AVX2.
`pshufb` picks bytes, of 16 within each 128 bits; `vpermi2b` of AVX512-VBMI picks among 128. (Intel 64 and
IA-32 Architectures Software Developer's Manual, volume 2.) Lanes without any of these compare the index, as
the expression has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.codegen.llvm import by_tables
from autotune.codegen.llvm.casts import Casts
from autotune.codegen.llvm.pieces import joined, pieces
from autotune.codegen.llvm.types import LLVM_TYPE, Value, literal, vector
from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, wrapped
from schedules.expr import Binary, Cast, Const, Expr, Lookup
from schedules.model import LINE

# {bytes of a vector: (feature, intrinsic)} that picks bytes.
_BYTES = {
    64: ("avx512bw", "llvm.x86.avx512.pshuf.b.512"),
    32: ("avx2", "llvm.x86.avx2.pshuf.b"),
    16: ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
}
# {dtype: intrinsic} that picks among 16, and among 8.
_SIXTEEN = {"float32": "llvm.x86.avx512.permvar.sf.512", "int32": "llvm.x86.avx512.permvar.si.512"}
# Values of a byte; fewest lanes for which a table of as many is loaded as vectors.
BYTE_VALUES, _LEAST = 256, 8
_EIGHT = {"float32": "llvm.x86.avx2.permps", "int32": "llvm.x86.avx2.permd"}


class Tables(Casts):
    """Emits lookups into `Scopes`."""

    def looked_up(self, e: Expr) -> Value | None:
        """The entry of a table. None: the expression is none, or its comparisons are to be emitted."""
        t = E.lookup_of(e)
        return None if t is None else self.entry(t)

    def entry(self, t: Lookup) -> Value | None:
        """As `looked_up`, of a table."""
        dtype = t.values[0].dtype
        if not self.lane_dependent(t.index):
            return self._from_memory(self._index(t), t.values)
        if dtype not in _SIXTEEN:
            return None
        if "avx512f" in self.features:
            match t.index:  # the instruction looks at no other bits, and its table ends with the last entry
                case Binary(op="&", a=code, b=Const(value=15)):
                    index = self.cast(self.value(code), "int32")
                case _:
                    index = self._index(t)
            pick, width = self._among_sixteen, 16
        elif "avx2" in self.features:
            index, pick, width = self._index(t), self._among_eight, 8
        else:
            return None
        if index.lanes == 1:
            return self._from_memory(self._index(t), t.values)
        return self._in_pieces(index, width, dtype, lambda piece: pick(piece, t.values))

    def looked_up_byte(self, e: Expr, dtype: str) -> Value | None:
        """The entry of a table of int32 as a byte. None: as `looked_up`, and a cast."""
        t = E.lookup_of(e)
        if t is None or not self.lane_dependent(t.index) or t.values[0].dtype != "int32":
            return None
        sizes = [n for n, (feature, _) in _BYTES.items() if feature in self.features]
        if not sizes:
            return None
        index = self.cast(self._index(t), "uint8")
        if index.lanes == 1:
            return None
        width = next((n for n in sizes if n <= index.lanes), sizes[-1])
        entries = [wrapped(int(v.value), dtype) for v in t.values]
        table = _vector("i8", [str(x) for x in entries], 16, width)

        def pick(piece: Value) -> str:
            name, kind = _BYTES[width][1], f"<{width} x i8>"
            self.declare(f"declare {kind} @{name}({kind}, {kind})")
            return self.s.emit(f"call {kind} @{name}({kind} {table}, {piece})")

        return self._in_pieces(index, width, dtype, pick)

    def byte_of_table(self, index: Expr, dtype: str, load: Callable[[int], str]) -> Value | None:
        """The bytes, of ``dtype``, of a tensor of `BYTE_VALUES` at an integer from 0 on, one a lane.
        ``load``: emits a load of 64 of them from a place on. None: the target has no such instruction."""
        if by_tables.FEATURE not in self.features:
            return None
        at = self.cast(self.value(index.a if isinstance(index, Cast) else index), "uint8")
        if at.lanes < _LEAST:
            return None
        width, vt = by_tables.WIDTH, vector("i8", by_tables.WIDTH)
        parts = [load(n) for n in range(0, BYTE_VALUES, width)]
        self.declare(by_tables.PICK)

        def pick(piece: Value) -> str:
            half = [by_tables.picked(low, high, str(piece), self.s) for low, high in (parts[:2], parts[2:])]
            upper = self.s.emit(f"icmp slt {piece}, zeroinitializer")
            return self.s.emit(f"select <{width} x i1> {upper}, {vt} {half[1]}, {vt} {half[0]}")

        return self._in_pieces(at, width, dtype, pick)

    def _index(self, t: Lookup) -> Value:
        """The index, from 0 to the last entry."""
        e, last = t.index, len(t.values) - 1
        ends = affine.value_bounds(e, {})
        if ends is None or ends[0] < 0 or ends[1] > last:
            e = E.minimum(E.maximum(e, 0), last)
        return self.cast(self.value(e), "int32")

    def _from_memory(self, index: Value, values: Sequence[Const]) -> Value:
        dtype = values[0].dtype
        kind, numbers = LLVM_TYPE[dtype], [literal(v.value, dtype) for v in values]
        array, name = f"[{len(values)} x {kind}]", f'@"table {kind} {" ".join(numbers)}"'
        entries = ", ".join(f"{kind} {x}" for x in numbers)
        self.declare(f"{name} = private constant {array} [{entries}], align {LINE}")
        place = self.s.emit(f"getelementptr {array}, ptr {name}, i64 0, {index}", hint="p")
        return Value(self.s.emit(f"load {kind}, ptr {place}, align {DTYPES[dtype].itemsize}"), dtype)

    def _among_sixteen(self, piece: Value, values: Sequence[Const]) -> str:
        kind, dtype = LLVM_TYPE[values[0].dtype], values[0].dtype
        vt, name = f"<16 x {kind}>", _SIXTEEN[dtype]
        self.declare(f"declare {vt} @{name}({vt}, <16 x i32>)")
        return self.s.emit(f"call {vt} @{name}({vt} {_entries(values, 16)}, {piece})")

    def _among_eight(self, piece: Value, values: Sequence[Const]) -> str:
        kind, dtype = LLVM_TYPE[values[0].dtype], values[0].dtype
        vt, name = f"<8 x {kind}>", _EIGHT[dtype]
        self.declare(f"declare {vt} @{name}({vt}, <8 x i32>)")
        halves = [
            self.s.emit(f"call {vt} @{name}({vt} {_entries(values[at:], 8)}, {piece})")
            for at in range(0, len(values), 8)
        ]
        if len(halves) == 1:
            return halves[0]
        low = self.s.emit(f"icmp ult {piece}, splat (i32 8)")
        return self.s.emit(f"select <8 x i1> {low}, {vt} {halves[0]}, {vt} {halves[1]}")

    def _in_pieces(self, index: Value, width: int, dtype: str, pick: Callable[[Value], str]) -> Value:
        """The entries at an index of any number of lanes, by as many instructions of ``width`` lanes as it
        needs."""
        return joined([pick(x) for x in pieces(index, width, self.s)], dtype, width, index.lanes, self.s)


def _entries(values: Sequence[Const], width: int) -> str:
    """The first entries of a table as a vector."""
    dtype = values[0].dtype
    return _vector(LLVM_TYPE[dtype], [literal(v.value, dtype) for v in values[:width]], width, width)


def _vector(kind: str, numbers: Sequence[str], each: int, width: int) -> str:
    """A constant vector of ``width`` lanes: numbers filled up to ``each`` with the last of them, again and
    again."""
    whole = [*numbers, *[numbers[-1]] * (each - len(numbers))] * (width // each)
    return f"<{', '.join(f'{kind} {x}' for x in whole)}>"
