"""A program as tables for code without Python (`autotune.codegen.runtime.model_tables`): where each argument
of a kernel lies, and what each call computes for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from autotune.codegen.runtime.model_tables import (
    FIRST_ARRAY,
    MEMORY,
    MOST_RANK,
    TOLD,
    WEIGHTS,
    Check,
    NativeProgram,
    NativeStep,
    Room,
    TableCopy,
    Word,
)
from autotune.errors import ModelError
from autotune.models.host_memory import HostLayout
from autotune.models.outline import nbytes
from autotune.models.places import ARENA, INPUT, OUTPUT, STATE, WEIGHT, ArgumentPlace, place_of, up
from autotune.models.program import Program
from autotune.models.sizes import is_roomy
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Cast, Const, Expr, Load, Var
from schedules.graph.facts import FAR
from schedules.graph.graph import PlaceMove
from schedules.graph.plan import ALIGNMENT
from schedules.ir import Buffer, LoweredFunc, Seq, Store
from schedules.ir.nest import tensor_buffer
from schedules.strides import strides_of
from schedules.te.open_sizes import OpenSize
from schedules.te.sizes_in_values import in_variables, variable

NUMBERS = "numbers"  # the buffer that a call's numbers are written to


@dataclass(frozen=True)
class Bases:
    """Which base each thing of a model has. All programs of it have the same inputs and outputs; they are
    numbered. ``states``, ``sizes``: by users' names."""

    inputs: int
    outputs: int
    states: tuple[str, ...]
    sizes: tuple[str, ...]

    def array(self, kind: int, number: int) -> int:
        """Of an input or output."""
        return FIRST_ARRAY + number + (self.inputs if kind == OUTPUT else 0)

    def state(self, name: str) -> int:
        return FIRST_ARRAY + self.inputs + self.outputs + self.states.index(name)

    def size(self, name: str) -> int:
        return FIRST_ARRAY + self.inputs + self.outputs + len(self.states) + self.sizes.index(name)

    def number(self, n: int) -> int:
        return FIRST_ARRAY + self.inputs + self.outputs + len(self.states) + len(self.sizes) + n


@dataclass
class _Numbers:
    """Numbers of the call as they are found."""

    expressions: list[Expr] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def add(self, e: Expr) -> int:
        self.expressions.append(e)
        return len(self.expressions) - 1

    def checked(self, e: Expr, least: int, most: int) -> int:
        n = self.add(e)
        self.checks.append(Check(n, least, most))
        return n


@dataclass(frozen=True)
class WrittenProgram:
    """``tables``: of a program. ``functions``: {function: the program that computes numbers of the call}.
    ``numbers``: how many. ``memory_bytes``: of what lies between steps, scratch, and arrays with room."""

    tables: NativeProgram
    functions: Mapping[str, LoweredFunc]
    numbers: int
    memory_bytes: int


@dataclass
class ProgramWriter:
    """Writes a ``program``. ``prefix``: of the functions that it needs. ``sizes``: that it is for alone.
    ``weight_at``: where the weights begin, by the `id` of what the program keeps. ``kernels``: function of
    the kernel of each task."""

    program: Program
    bases: Bases
    prefix: str
    sizes: Mapping[str, int]
    weight_at: Mapping[int, int]
    kernels: Mapping[int, str]

    def __post_init__(self) -> None:
        self.outline = self.program.outline
        self.layout = cast(HostLayout, self.program.layout)
        self.end = up(self.layout.nbytes, ALIGNMENT)

    def written(self) -> WrittenProgram:
        """Its tables. Raises `ModelError` for what only Python runs."""
        ol, program = self.outline, self.program
        numbers = _Numbers()
        rooms = self._rooms(numbers)
        extents = len(numbers.expressions)
        self.moves = {m: self._move(numbers, m) for m in program.told.moves}
        self.counts = {c.name: numbers.checked(c.number, c.least, c.most) for c in ol.counts}
        for read in dict.fromkeys(x for c in ol.counts for x in E.loads(c.number)):
            numbers.checked(read, -FAR, FAR)
        functions: dict[str, LoweredFunc] = {}
        computed = []
        for part, first, last in (("extents", 0, extents), ("numbers", extents, len(numbers.expressions))):
            if first < last:
                symbol = f"{self.prefix}_{part}"
                functions[symbol], words = self._function(numbers.expressions[first:last], first)
                computed.append(NativeStep(symbol, words))
        steps = tuple(
            NativeStep(
                self.kernels[call.task],
                (*map(self._word, places), *(Word(self._size(n)) for n in call.sizes)),
                program.kernels[call.task].code.threads,
            )
            for call, places in zip(ol.calls, program.arguments, strict=True)
        )
        tables = NativeProgram(
            tuple(self.sizes.get(n) for n in self.bases.sizes),
            steps,
            tuple(computed),
            tuple(numbers.checks),
            rooms,
            tuple(self._copies()),
            self.layout.scratch_at,
        )
        return WrittenProgram(tables, functions, len(numbers.expressions), self.end)

    # -- places ------------------------------------------------------------------------------

    def _word(self, at: ArgumentPlace) -> Word:
        moves = tuple((self.moves[m], nbytes) for m, nbytes in at.moves)
        if at.base == WEIGHT:
            return Word(WEIGHTS, self.weight_at[id(at.weight)] + at.offset, moves)
        return Word(self._base(at), at.offset, moves)

    def _base(self, at: ArgumentPlace) -> int:
        if at.base == ARENA:
            return MEMORY
        if at.base == STATE:
            return self.bases.state(self.program.state_names[at.number])
        return self.bases.array(at.base, at.number)

    def _size(self, name: str) -> int:
        return self.bases.number(self.counts[name]) if name in self.counts else self.bases.size(name)

    def _copies(self) -> list[TableCopy]:
        found = []
        for n, new in self.program.replaced:
            at = place_of(self.outline, self.program.plan, new)
            to = self.bases.states.index(self.program.state_names[n])
            found.append(TableCopy(to, self._base(at), at.offset, nbytes(self.outline.tensors[new])))
        return found

    def _rooms(self, numbers: _Numbers) -> tuple[Room, ...]:
        ol, found = self.outline, []
        for kind, names in ((INPUT, ol.inputs), (OUTPUT, tuple(dict.fromkeys(ol.outputs)))):
            for i, name in enumerate(names):
                if not is_roomy(ol, name):
                    continue
                t, extents = ol.tensors[name], dict(ol.extents[name])
                if len(t.shape) > MOST_RANK:
                    raise ModelError(
                        f"{ol.label(name)!r} has {len(t.shape)} dimensions, of which C copies {MOST_RANK}"
                    )
                first = len(numbers.expressions)
                for d, n in enumerate(t.shape):
                    numbers.add(in_variables(extents[d]) if d in extents else Const(n))
                item = DTYPES[t.dtype].itemsize
                base = self.bases.array(kind, i)
                found.append(Room(base, kind == OUTPUT, self.end, item, tuple(strides_of(t)), first))
                self.end = up(self.end + t.nbytes, ALIGNMENT)
        return tuple(found)

    # -- numbers of the call -----------------------------------------------------------------

    def _move(self, numbers: _Numbers, m: PlaceMove) -> int:
        """The number by which a place moves: its rows are inside of their axis."""
        index, rows = m.index, Const(m.rows) if m.counted is None else m.counted
        n = numbers.checked(index, 0, m.extent)
        left = Cast("int64", Const(m.extent) - rows)
        numbers.checked(left - Cast("int64", index), 0, m.extent)
        return n

    def _arrays(self) -> dict[str, int]:
        """{tensor that numbers may read: its base}."""
        ol = self.outline
        found = {name: self.bases.array(INPUT, i) for i, name in enumerate(ol.inputs)}
        return found | {s.tensor: self.bases.state(user) for user, s in ol.states.items()}

    def _function(self, expressions: Sequence[Expr], first: int) -> tuple[LoweredFunc, tuple[Word, ...]]:
        """What computes numbers of the call from number ``first`` on, and its arguments. Names in it are
        plain, as users' need not be names of LLVM."""
        ol, arrays = self.outline, self._arrays()
        read = list(dict.fromkeys(x.buffer for e in expressions for x in E.loads(e)))
        words = {name: f"read{i}" for i, name in enumerate(read)}
        sizes = [OpenSize(f"s{k}", s.least, s.most) for k, s in enumerate(ol.sizes)]
        plain: dict[str, Expr] = {
            variable(s.name): Var(variable(own.name)) for s, own in zip(ol.sizes, sizes, strict=True)
        }

        def named(x: Expr) -> Expr | None:
            return Load(words[x.buffer], x.indices, x.dtype) if isinstance(x, Load) else None

        params = [tensor_buffer(replace(ol.tensors[name], name=word)) for name, word in words.items()]
        params.append(Buffer(NUMBERS, (Const(len(expressions)),), "int64"))
        stores = tuple(
            Store(NUMBERS, (Const(k),), Cast("int64", E.substitute(E.rewrite(e, named), plain)))
            for k, e in enumerate(expressions)
        )
        func = LoweredFunc("numbers", tuple(params), (NUMBERS,), Seq(stores), sizes=tuple(sizes))
        given = (*(Word(arrays[n]) for n in read), Word(TOLD, 8 * first))
        return func, (*given, *(Word(self.bases.size(s.name)) for s in ol.sizes))
