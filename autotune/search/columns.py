"""Compiles recorded formulas over the columns of a decision matrix (`schedules.space.estimate.recording`).

numpy takes a microsecond for each operation, however few candidates there are, and for thousands its columns
leave the second cache. Compiled code passes eight rows at a time through all operations, with the same
results to the bit. It is compiled without optimisation: that would take three times as long as compiling, and
save half of what is a tenth of numpy's time. Reasons: ADR 27.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.codegen.llvm.compile import compile_module, host_target, link
from autotune.errors import CompileError
from schedules.space.estimate.recording import Group, Listing, Operation, Run, Values, to_integer, to_real

# Rows in a vector: one vector of the widest CPUs, two of others.
LANES = 8
# Rows whose columns are in memory at a time.
CHUNK = 512
# {kind of dtype: LLVM type of a vector}.
TYPES = {"f": f"<{LANES} x double>", "i": f"<{LANES} x i64>", "b": f"<{LANES} x i1>"}
# {numpy operation: LLVM instruction, condition or function}, here and below.
ARITHMETIC = {np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "div"}
COMPARISONS = {
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.equal: "eq",
    np.not_equal: "ne",
}
EXTREMES = {np.maximum: "gt", np.minimum: "lt"}
CALLS: dict[Operation, str] = {
    np.floor: "floor",
    np.ceil: "ceil",
    np.absolute: "fabs",
    np.sqrt: "sqrt",
    np.log2: "log2",
}
LOGIC = {np.bitwise_and: "and", np.bitwise_or: "or", np.bitwise_xor: "xor"}

# (memory, stride between columns, rows) -> None: a compiled group of steps.
Compiled = Callable[[int, int, int], None]


def compile_columns(listing: Listing) -> Run | None:
    """A function with the same results as the listing. None if the listing has an operation that is not known
    here, or this machine has no compiler."""
    memory = _Memory(listing)
    try:
        groups = [_Group(memory, k).text(f"group{k}") for k in range(len(listing.steps))]
        called = [f"declare {TYPES['f']} {_intrinsic(f)}({TYPES['f']})" for f in CALLS]
        names = [f"group{k}" for k in range(len(groups))]
        text = "\n".join([*called, *groups])
        obj = compile_module(text, host_target(), optimize=False, level=0)
        addresses, keep = link(obj, names, {})
    except (NotImplementedError, CompileError):
        return None
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return _Columns(memory, [function(addresses[name]) for name in names], keep)


class _Memory:
    """Where columns are in memory: inputs first, then what the first group leaves to others, then from
    ``results[k]`` on the results of group ``k``."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        used = {i for steps in listing.steps[1:] for step in steps for i in step[2]}
        used |= {i for results in listing.results[1:] for i in results}
        left = sorted(used & {step[1] for step in listing.steps[0]})
        self.places = {i: k for k, i in enumerate([*range(listing.holes), *left])}
        ends = accumulate((len(group) for group in listing.results), initial=len(self.places))
        *self.results, self.columns = ends

    def constant(self, column: int) -> bool:
        """Whether a column was known beforehand."""
        return self.listing.constants[column] is not None


class _Group:
    """The text of one group of steps."""

    def __init__(self, memory: _Memory, number: int) -> None:
        self._memory, self._kinds = memory, memory.listing.kinds
        self._names: dict[int, str] = {}  # of columns, in this group
        self._entry: list[str] = []
        self._body: list[str] = []
        for f, out, inputs, _ in memory.listing.steps[number]:
            self._step(f, out, inputs)
        for k, column in enumerate(memory.listing.results[number]):
            self._store(memory.results[number] + k, self._value(column, "f"))

    def text(self, name: str) -> str:
        """``void @name(ptr memory, i64 stride, i64 n)`` for ``n`` rows, a multiple of `LANES`. The beginnings
        of two columns are ``stride`` numbers apart."""
        return "\n  ".join(
            [
                f"define void @{name}(ptr %memory, i64 %stride, i64 %n) {{\nentry:",
                *self._entry,
                "br label %rows\nrows:",
                "%i = phi i64 [ 0, %entry ], [ %next, %rows ]",
                *self._body,
                f"%next = add i64 %i, {LANES}",
                "%more = icmp slt i64 %next, %n",
                "br i1 %more, label %rows, label %done\ndone:",
                "ret void\n}",
            ]
        )

    def _step(self, f: Operation, out: int, inputs: Sequence[int]) -> None:
        kinds, made = [self._kinds[i] for i in inputs], self._kinds[out]
        common = "f" if "f" in (made, *kinds) else "i"
        value: str
        if f in ARITHMETIC and made != "b":
            x, y = self._values(inputs, common)
            value = f"{'f' if common == 'f' else ''}{ARITHMETIC[f]} {TYPES[common]} {x}, {y}"
        elif f in COMPARISONS:
            x, y = self._values(inputs, common)
            value = f"{_compare(COMPARISONS[f], common)} {x}, {y}"
        elif f in EXTREMES and made != "b":
            x, y = self._values(inputs, common)
            first = self._named(f"{_compare(EXTREMES[f], common)} {x}, {y}")
            value = f"select {TYPES['b']} {first}, {TYPES[common]} {x}, {TYPES[common]} {y}"
        elif f in CALLS and made == "f":
            (x,) = self._values(inputs, "f")
            value = f"call {TYPES['f']} {_intrinsic(f)}({TYPES['f']} {x})"
        elif f is np.negative and made == "f":
            value = f"fneg {TYPES['f']} {self._values(inputs, 'f')[0]}"
        elif f is np.negative:
            value = f"sub {TYPES['i']} zeroinitializer, {self._values(inputs, 'i')[0]}"
        elif f in LOGIC:
            x, y = self._values(inputs, made)
            value = f"{LOGIC[f]} {TYPES[made]} {x}, {y}"
        elif f is np.invert:
            ones = _constant(1 if made == "b" else -1, made)
            value = f"xor {TYPES[made]} {self._values(inputs, made)[0]}, {ones}"
        elif f is np.where:
            (which,), (x, y) = self._values(inputs[:1], "b"), self._values(inputs[1:], made)
            value = f"select {TYPES['b']} {which}, {TYPES[made]} {x}, {TYPES[made]} {y}"
        elif f in (to_integer, to_real):
            self._define(out, self._values(inputs, made)[0])
            return
        else:
            raise NotImplementedError(f"{f} of {kinds}")
        self._define(out, self._named(value))

    def _define(self, column: int, value: str) -> None:
        self._names[column] = value
        if (place := self._memory.places.get(column)) is not None:
            self._store(place, self._as(value, self._kinds[column], "f"))

    def _store(self, place: int, value: str) -> None:
        self._body.append(f"store {TYPES['f']} {value}, ptr {self._address(place)}, align 8")

    def _values(self, columns: Sequence[int], kind: str) -> list[str]:
        return [self._value(i, kind) for i in columns]

    def _value(self, column: int, kind: str) -> str:
        """A column as one of this kind."""
        if self._memory.constant(column):
            return _constant(self._memory.listing.constants[column], kind)
        if column not in self._names:
            address = self._address(self._memory.places[column])
            loaded = self._named(f"load {TYPES['f']}, ptr {address}, align 8")
            self._names[column] = self._as(loaded, "f", self._kinds[column])
        return self._as(self._names[column], self._kinds[column], kind)

    def _as(self, value: str, kind: str, wanted: str) -> str:
        if kind == wanted:
            return value
        if wanted == "b":
            zero = _constant(0, kind)
            return self._named(f"{_compare('ne', kind)} {value}, {zero}")
        how = {"bf": "uitofp", "if": "sitofp", "bi": "zext", "fi": "fptosi"}[kind + wanted]
        return self._named(f"{how} {TYPES[kind]} {value} to {TYPES[wanted]}")

    def _address(self, place: int) -> str:
        n = len(self._entry)
        self._entry.append(
            f"%offset{n} = mul i64 %stride, {place}\n  "
            f"%column{n} = getelementptr double, ptr %memory, i64 %offset{n}"
        )
        return self._named(f"getelementptr double, ptr %column{n}, i64 %i")

    def _named(self, value: str) -> str:
        name = f"%v{len(self._body)}"
        self._body.append(f"{name} = {value}")
        return name


class _Columns:
    """Runs rows through compiled groups, as `Program.run` does."""

    def __init__(self, memory: _Memory, groups: Sequence[Compiled], keep: object) -> None:
        self._groups, self._keep = groups, keep
        self._holes, self._columns = memory.listing.holes, memory.columns
        self._results = [slice(a, a + len(x)) for a, x in zip(memory.results, memory.listing.results)]

    def __call__(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[slice, Values, Group]]:
        # Columns a power of two apart would share few sets of the cache.
        memory = np.empty((self._columns, _whole(min(CHUNK, len(rows))) + LANES))
        for begin in range(0, len(rows), CHUNK):
            part = slice(begin, min(begin + CHUNK, len(rows)))
            count = part.stop - begin
            memory[: self._holes, :count] = rows[part].T
            memory[: self._holes, count : _whole(count)] = 1.0
            run = partial(self._group, memory, count)
            yield part, run(0), run

    def _group(self, memory: Values, count: int, group: int) -> Values:
        self._groups[group](memory.ctypes.data, memory.shape[1], _whole(count))
        return memory[self._results[group], :count]


def _whole(count: int) -> int:
    """``count`` rounded up to a multiple of `LANES`."""
    return -(-count // LANES) * LANES


def _intrinsic(f: Operation) -> str:
    return f"@llvm.{CALLS[f]}.v{LANES}f64"


def _compare(how: str, kind: str) -> str:
    """The beginning of an LLVM comparison. As in numpy, comparisons of floats with NaN are false, except
    ``ne``."""
    if kind == "f":
        return f"fcmp {'u' if how == 'ne' else 'o'}{how} {TYPES['f']}"
    return f"icmp {how if how in ('eq', 'ne') else 's' + how} {TYPES[kind]}"


def _constant(x: Any, kind: str) -> str:
    """A vector of one number."""
    if kind == "f":
        each = f"double 0x{struct.pack('>d', float(x)).hex().upper()}"
    else:
        each = f"{'i64' if kind == 'i' else 'i1'} {int(x)}"
    return f"<{', '.join([each] * LANES)}>"
