"""Emits C for GPUs from a `GridProgram`, in CUDA C or OpenCL C.

The common parts are here: loops, indices, vectors of 16 bytes, reductions across threads. A `Dialect` has the
differences: the spelling of kernels, memory spaces, ids and barriers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.codegen.simt import atomics
from autotune.codegen.simt.dialect import Dialect
from autotune.codegen.simt.expr import CExpressions, Lanes, member
from autotune.errors import CompileError
from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load, Logic, Select, Var
from schedules.gpu_architectures import STATIC_SHARED
from schedules.ir import (
    Alloc,
    AllReduce,
    Atomic,
    Await,
    Barrier,
    Buffer,
    Copy,
    Guard,
    Intrinsic,
    Loop,
    Seq,
    Signal,
    Stmt,
    Store,
    bound_to,
    const,
    walk,
)
from schedules.ir.exprs import beside
from schedules.ir.grid import GridKernel, GridProgram, shared_places
from schedules.ir.strides import elements, nbytes
from schedules.passes.cross_thread import identity
from schedules.passes.simplify import loop_range

# Widest access of a thread (bytes).
VECTOR_BYTES = 16
# Threads of a warp.
WARP = 32


@dataclass(frozen=True)
class Generated:
    """Text in a dialect. ``align``: {global array: alignment (bytes)} where elements alone need less.
    ``shared``: {kernel: bytes of shared memory that its launch has to ask for}, of those that need any."""

    text: str
    align: Mapping[str, int]
    shared: Mapping[str, int] = field(default_factory=dict)


def emit(kernel: GridKernel, dialect: Dialect) -> Generated:
    """One kernel without the prelude. Raises CompileError for a dtype that the dialect lacks."""
    emitter = _Emitter(kernel, dialect)
    text = emitter.text()
    return Generated(text, emitter.align, {kernel.name: emitter.asked} if emitter.asked else {})


def source(dialect: Dialect, program: GridProgram) -> str:
    """The text of all kernels of a program, after the prelude."""
    return generate(dialect, program).text


def generate(dialect: Dialect, program: GridProgram) -> Generated:
    """`source`, with the alignment that it needs of its arrays."""
    kernels = [emit(k, dialect) for k in program.kernels]
    align: dict[str, int] = {}
    for k in kernels:
        for name, n in k.align.items():
            align[name] = max(n, align.get(name, 1))
    text = "\n".join(k.text + "\n" for k in kernels)
    before = [dialect.before(text), *atomics_of(dialect, program), *instructions_of(dialect, program)]
    whole = "\n".join([*before, text])
    return Generated(whole, align, {name: n for k in kernels for name, n in k.shared.items()})


def atomics_of(dialect: Dialect, *programs: GridProgram) -> list[str]:
    """The functions of the atomic updates of some programs; nothing where there are none."""
    every = (x for p in programs for k in p.kernels for x in walk(k.body) if isinstance(x, Atomic))
    found = {(atomics.NAMES[x.op], E.dtype_of(x.value)) for x in every}
    return [dialect.atomics(found)] if found else []


def instructions_of(dialect: Dialect, *programs: GridProgram) -> list[str]:
    """The functions of the instructions of some programs, which an emulator has of its own; nothing where
    there are none."""
    every = (
        x.instruction for p in programs for k in p.kernels for x in walk(k.body) if isinstance(x, Intrinsic)
    )
    found = {i.spellings[f"{dialect.calls} function"] for i in every}
    return ["#ifndef AT_EMULATED", *sorted(found), "#endif"] if found else []


class _Emitter(CExpressions):
    def __init__(self, kernel: GridKernel, dialect: Dialect) -> None:
        super().__init__(kernel, dialect)
        self.lines: list[str] = []
        self.shared: list[Buffer] = []  # under their names in the text
        self.asked = 0  # bytes of shared memory that the launch asks for
        self.depth = 1
        self.align: dict[str, int] = {}
        self.axes = ""  # axes of the loops over threads around
        self.present: list[str] = []  # conditions of threads that take part, if others wait for a reduction
        self.serial = 0  # number of loops around, outside those
        self.fresh = 0

    def text(self) -> str:
        for b in self.k.params:
            if b.dtype not in DTYPES:
                raise CompileError(f"{self.d.name}: no dtype {b.dtype} of {b.name}; use {', '.join(DTYPES)}")
        for x in self.k.blocks:
            at = self.d.block_id.format(axis=x.kind[-1])
            self.do(f"const {self.index} {self.name(x.var)} = {at};")
        self.stmt(self.k.body)
        params = ", ".join(
            self.d.parameter(self.d.types[b.dtype], self.name(b.name), b.name in self.k.written)
            for b in self.k.params
        )
        head = self.d.head(self.k.name, params, self.k)
        return "\n".join([f"{head} {{", *self.shared_arrays(), *self.lines, "}"])

    def shared_arrays(self) -> list[str]:
        """Their declarations. Where a kernel always has room for them, the compiler places them."""
        form, places = self.d.shared, dict[str, int]()
        if self.d.asked and sum(map(nbytes, self.shared)) > STATIC_SHARED:
            form = self.d.asked
            places, self.asked = shared_places(self.shared)
        return [
            "  "
            + form.format(type=self.d.types[b.dtype], name=b.name, count=elements(b), at=places.get(b.name))
            for b in self.shared
        ]

    # -- text ----------------------------------------------------------------------------------

    def do(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.do(line + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.do("}")

    def temporary(self) -> str:
        self.fresh += 1
        return f"t{self.fresh}"

    # -- statements ----------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> None:
        if self.present and not any(isinstance(x, AllReduce) for x in walk(s)):
            held, self.present = self.present, []
            self.open(f"if ({' && '.join(held)})")
            self.stmt(s)
            self.close()
            self.present = held
            return
        match s:
            case Seq(stmts=xs):
                for x in xs:
                    self.stmt(x)
            case Loop():
                self.loop(s)
            case Guard(cond=c, body=body):
                self.open(f"if ({self.expr(c)})")
                self.stmt(body)
                self.close()
            case Alloc():
                self.alloc(s)
            case Store():
                self.store(s)
            case Barrier():
                self.do(self.d.barrier)
            case AllReduce():
                self.all_reduce(s)
            case Atomic():
                self.atomic(s)
            case Intrinsic():
                self.intrinsic(s)
            case Copy():
                self.copy(s)
            case Signal() | Await():
                if self.d.copies:
                    self.do(f"AT_AWAIT({s.pending});" if isinstance(s, Await) else "AT_SIGNAL();")
            case _:
                raise CompileError(f"{self.d.name}: cannot emit {type(s).__name__}")

    def loop(self, s: Loop) -> None:
        held = self.ranges
        r = loop_range(s.extent, self.ranges)
        self.ranges = {**held, s.var: r} if r is not None else held
        v = self.name(s.var)
        if bound_to(s, "threadIdx"):
            axis = s.kind[-1]
            n = const(s.extent) or 0
            at = self.d.thread_id.format(axis=axis)
            guard = f"{at} < {n}" if n < self.k.block["xyz".index(axis)] else ""
            together = any(isinstance(x, AllReduce) for x in walk(s.body))
            self.open(f"if ({guard})" if guard and not together else "")
            self.do(f"const {self.index} {v} = {at};")
            self.axes += axis
            around = self.present
            if guard and together:  # all threads reach the reduction, but only these do the rest
                self.present = [*around, guard]
            self.stmt(s.body)
            self.present = around
            self.axes = self.axes[:-1]
            self.close()
        elif s.kind == "vectorize" and self.vectorized(s):
            pass
        else:
            unrolled = self.unrolled
            if s.kind in ("unroll", "vectorize"):
                self.unrolled |= {s.var}
                self.do("#pragma unroll")
            n_text = self.expr(s.extent)
            self.open(f"for ({self.index} {v} = 0; {v} < {n_text}; ++{v})")
            self.serial += 1
            self.stmt(s.body)
            self.serial -= 1
            self.close()
            self.unrolled = unrolled
        self.ranges = held

    def alloc(self, s: Alloc) -> None:
        b = s.buffer
        self.buffers[b.name] = b
        if b.scope == "shared":
            self.shared.append(replace(b, name=self.name(b.name)))
            self.stmt(s.body)
            return
        self.open("")
        given = (o.buffer for x in walk(s.body) if isinstance(x, Intrinsic) for o in x.operands)
        words = "__align__(16) " if b.name in given else ""  # instructions take elements as words
        self.do(f"{words}{self.d.types[b.dtype]} {self.name(b.name)}[{elements(b)}];")
        self.stmt(s.body)
        self.close()

    def store(self, s: Store) -> None:
        text = self.assigned(s.buffer, s.indices, self.stored(s))
        guard = self.guard(s.buffer)
        self.do(f"if ({guard}) {text}" if guard else text)

    def intrinsic(self, s: Intrinsic) -> None:
        """What the lanes of a warp do together: a call with where this one has its parts."""
        call = s.instruction.spellings.get(self.d.calls)
        if call is None:
            raise CompileError(f"{self.d.name}: no instruction {s.instruction.name}")
        at = {}
        for o in s.operands:
            here = f"{self.name(o.buffer)}[{self.flat(o.buffer, o.indices)}]"
            at[o.name] = here if self.buffers[o.buffer].scope == "shared" else f"&{here}"
        self.do(call.format(**at))

    def assigned(self, buffer: str, indices: tuple[Expr, ...], value: str) -> str:
        """The assignment of a value to an element."""
        place, cache = f"{self.name(buffer)}[{self.flat(buffer, indices)}]", self.cache_of_writes(buffer)
        return f"AT_WRITE_AS({cache}, {place}, {value});" if cache else f"{place} = {value};"

    def cache_of_writes(self, buffer: str) -> str:
        return self.k.writes.get(buffer, "") if self.d.caches else ""

    def atomic(self, s: Atomic) -> None:
        at = f"&{self.name(s.buffer)}[{self.flat(s.buffer, s.indices)}]"
        text = f"at_atomic_{atomics.NAMES[s.op]}_{E.dtype_of(s.value)}({at}, {self.expr(s.value)});"
        guard = self.guard(s.buffer)
        self.do(f"if ({guard}) {text}" if guard else text)

    def copy(self, s: Copy) -> None:
        """A copy that begins; where a language has none, one that is done."""
        if not self.d.copies:
            lane = Var(".lane")
            at, from_ = (beside(x.indices, lane) for x in (s, s.value))
            value = E.select(s.cond, replace(s.value, indices=from_), Const(0, s.value.dtype))
            self.stmt(Loop(lane.name, Const(s.count), Store(s.buffer, at, value), "vectorize"))
            return
        to, source = (f"{self.name(x.buffer)}[{self.flat(x.buffer, x.indices)}]" for x in (s, s.value))
        count = s.count * DTYPES[s.value.dtype].itemsize
        text = f"AT_COPY({count}, {to}, {source}, {self.expr(s.cond)});"
        self.needs(s.value.buffer, s.count)
        guard = self.guard(s.buffer)
        self.do(f"if ({guard}) {text}" if guard else text)

    def guard(self, buffer: str) -> str:
        """A condition for one thread, where all would write the same to shared memory: it tests the thread
        axes that have no loop around."""
        if self.buffers[buffer].scope == "local":
            return ""
        axes = [a for a, n in zip("xyz", self.k.block, strict=True) if n > 1 and a not in self.axes]
        return " && ".join(f"{self.d.thread_id.format(axis=a)} == 0" for a in axes)

    # -- vectors -------------------------------------------------------------------------------

    def vectorized(self, s: Loop) -> bool:
        """Write a loop over lanes as accesses to whole vectors. Returns False if it cannot be."""
        store, conds = s.body, list[Expr]()
        while isinstance(store, Guard):
            conds += E.conjuncts(store.cond)
            store = store.body
        n = const(s.extent) or 0
        if not isinstance(store, Store) or self.guard(store.buffer) or self.lanes is not None:
            return False
        if self.step(store.buffer, store.indices, s.var) not in (0, 1):
            return False
        width = VECTOR_BYTES // self.widest(store, s.var)
        while width > 1 and (
            n % width
            or not self.aligned(store.buffer, store.indices, s.var, width)
            or not all(affine.is_uniform(c, s.var, width, self.ranges) for c in conds)
        ):
            width //= 2
        if width < 2 or "int64" in (
            self.buffers[store.buffer].dtype,
            *(x.dtype for x in E.loads(store.value) if self.step(x.buffer, x.indices, s.var) != 0),
        ):
            return False
        for first in range(0, n, width):
            held = [self.expr(E.substitute(c, {s.var: Const(first)})) for c in conds]
            self.open(f"if ({' && '.join(held)})" if held else "")
            self.vector(store, s.var, first, width)
            self.close()
        return True

    def widest(self, s: Store, var: str) -> int:
        """Bytes of the largest element in vectors of the loop: lanes that are contiguous in memory that
        threads share."""
        places = [(s.buffer, s.indices), *((x.buffer, x.indices) for x in E.loads(s.value))]
        wide = [
            DTYPES[self.buffers[name].dtype].itemsize
            for name, indices in places
            if self.buffers[name].scope != "local" and self.step(name, indices, var) == 1
        ]
        return max(wide, default=DTYPES[self.buffers[s.buffer].dtype].itemsize)

    def vector(self, s: Store, var: str, first: int, width: int) -> None:
        lanes = self.lanes = Lanes(var)
        for x, cond in self.read_whole(s, var, width):
            t = self.temporary()
            kind = self.d.types[x.dtype]
            at = self.flat(x.buffer, _at(x.indices, var, first))
            text = self.d.load.format(type=kind, n=width, buffer=self.name(x.buffer), at=at)
            text = self.read(x.buffer, text)
            if cond == E.TRUE:
                self.do(f"const {kind}{width} {t} = {text};")
            else:  # outside it no lane is read
                self.do(f"{kind}{width} {t};")
                self.do(f"if ({self.expr(E.substitute(cond, {var: Const(first)}))}) {t} = {text};")
            self.needs(x.buffer, width)
            lanes.loaded[x] = f".{t}"
        values = []
        sums = self.step(s.buffer, s.indices, var) == 0
        for lane in range(width):
            at_lane = partial(self.in_lane, first=first, lane=lane)
            values.append(self.stored(replace(s, value=E.rewrite(s.value, at_lane))))
            if sums:
                self.do(f"{self.name(s.buffer)}[{self.flat(s.buffer, s.indices)}] = {values[-1]};")
        if not sums:
            self.write(s, var, first, width, values)
        self.lanes = None

    def read_whole(self, s: Store, var: str, width: int) -> list[tuple[Load, Expr]]:
        """(load, condition) of the loads that are done for all lanes at once; without the condition the
        memory may not exist. A load that only some lanes need is left to each lane, unless it stays in its
        array."""
        conds: dict[Load, list[Expr]] = {}
        for x, cond in _conditional(s.value, E.TRUE):
            if self.whole(x, var, width):
                known = conds.setdefault(x, [])
                if not any({*E.conjuncts(c)} <= {*E.conjuncts(cond)} for c in known):  # which say more
                    known.append(cond)
        out: list[tuple[Load, Expr]] = []
        for x in sorted(conds, key=E.show):
            if E.TRUE in conds[x] or self.inside(x, s):
                out.append((x, E.TRUE))
            elif all(affine.is_uniform(c, var, width, self.ranges) for c in conds[x]):
                out.append((x, E.any_of(*conds[x])))
        return out

    def inside(self, x: Load, s: Store) -> bool:
        """Whether a load, and those that it is indexed by, stay in their arrays wherever the store is done,
        whatever else it depends on."""
        if not all(self.inside(y, s) for i in x.indices for y in E.loads(i)):
            return False
        at, size = self.offset(x.buffer, x.indices), elements(self.buffers[x.buffer])
        if at == self.offset(s.buffer, s.indices) and size >= elements(self.buffers[s.buffer]):
            return True
        span = affine.bounds(affine.simplify(at, self.ranges), self.ranges)
        return span is not None and 0 <= span[0] and span[1] < size

    def write(self, s: Store, var: str, first: int, width: int, values: Sequence[str]) -> None:
        kind, name = self.d.types[self.buffers[s.buffer].dtype], self.name(s.buffer)
        if not self.whole(Load(s.buffer, s.indices, self.buffers[s.buffer].dtype), var, width):
            for lane, value in enumerate(values):
                self.do(self.assigned(s.buffer, _at(s.indices, var, first + lane), value))
            return
        t = self.temporary()
        self.do(f"{kind}{width} {t};")
        for lane, value in enumerate(values):
            self.do(f"{t}.{member(self.buffers[s.buffer].dtype, lane)} = {value};")
        at = self.flat(s.buffer, _at(s.indices, var, first))
        text = self.d.store.format(type=kind, n=width, buffer=name, at=at, value=t) + ";"
        cache = self.cache_of_writes(s.buffer)
        self.do(text.replace("AT_STORE(", f"AT_STORE_AS({cache}, ", 1) if cache else text)
        self.needs(s.buffer, width)

    def needs(self, buffer: str, width: int) -> None:
        """Note that vectors of ``width`` elements are accessed."""
        b = self.buffers[buffer]
        if self.d.aligned and b.scope == "global":
            self.align[buffer] = max(self.align.get(buffer, 1), width * DTYPES[b.dtype].itemsize)

    def in_lane(self, e: Expr, first: int, lane: int) -> Expr | None:
        assert self.lanes is not None
        if isinstance(e, Load) and e in self.lanes.loaded:
            return Load(self.lanes.loaded[e], (Const(lane),), e.dtype)
        return Const(first + lane) if e == Var(self.lanes.var) else None

    def step(self, buffer: str, indices: tuple[Expr, ...], var: str) -> int | None:
        """Elements between neighbouring lanes, None if that is not constant."""
        terms, _ = affine.linear(self.offset(buffer, indices))
        if any(var in E.variables(a) and a != Var(var) for a in terms):
            return None
        c = terms.get(Var(var), Const(0))
        return c.value if isinstance(c, Const) and isinstance(c.value, int) else None

    def whole(self, x: Load, var: str, width: int) -> bool:
        """Whether the lanes' elements are an aligned vector in memory."""
        if self.step(x.buffer, x.indices, var) != 1 or self.buffers[x.buffer].scope == "local":
            return False
        return self.aligned(x.buffer, x.indices, var, width)

    def aligned(self, buffer: str, indices: tuple[Expr, ...], var: str, width: int) -> bool:
        rest = E.substitute(self.offset(buffer, indices), {var: Const(0)})
        return affine.multiple(affine.simplify(rest, self.ranges)) % width == 0

    # -- reductions across threads ---------------------------------------------------------------

    def all_reduce(self, s: AllReduce) -> None:
        dtype = E.dtype_of(s.value)
        kind, acc = self.d.types[dtype], self.temporary()
        x = self.d.thread_id.format(axis="x")
        width, rows = self.k.block[0], self.k.block[1] * self.k.block[2]
        nothing = self.expr(Const(identity(s.op, dtype), dtype))
        self.open("")
        self.do(f"{kind} {acc} = {nothing};")
        self.ranges = {**self.ranges, s.var: (0, s.extent - 1)}
        there = [*self.present, *([f"{x} < {s.extent}"] if s.extent < width else [])]
        self.open(f"if ({' && '.join(there)})" if there else "")
        self.do(f"const {self.index} {self.name(s.var)} = {x};")
        self.do(f"{acc} = {self.expr(s.value)};")
        self.close()
        within = s.near or min(width, WARP)
        shuffles = (
            self.d.shuffles
            and within & (within - 1) == 0
            and width % within == 0
            and self.k.threads % WARP == 0
        )
        if s.near and not shuffles:
            raise CompileError(f"{self.d.name}: {s.near} neighbours cannot reduce into {s.buffer} alone")
        if shuffles:
            distance = within // 2
            while distance:
                other = f"__shfl_xor_sync(0xffffffffu, {acc}, {distance})"
                self.do(f"{acc} = {self.combine(s.op, dtype, acc, other)};")
                distance //= 2
        each = within if shuffles else 1  # threads with the same partial result
        if width > each and not s.near:
            part, row = self.temporary(), self.row()
            count = width // each
            self.shared.append(Buffer(part, (Const(count * rows),), dtype, "shared"))
            if self.serial:
                self.do(self.d.barrier)  # threads may still read results of the last iteration
            guard = f"if ({x} % {each} == 0) " if each > 1 else ""
            self.do(f"{guard}{part}[{row} * {count} + {x} / {each}] = {acc};")
            self.do(self.d.barrier)
            self.do(f"{acc} = {part}[{row} * {count}];")
            i = self.temporary()
            self.open(f"for (int {i} = 1; {i} < {count}; ++{i})")
            self.do(f"{acc} = {self.combine(s.op, dtype, acc, f'{part}[{row} * {count} + {i}]')};")
            self.close()
        place = f"{self.name(s.buffer)}[{self.flat(s.buffer, s.indices)}]"
        text = f"{place} = {self.combine(s.op, dtype, place, acc)};"
        guard = " && ".join([*self.present, *filter(None, [self.guard(s.buffer)])])
        self.do(f"if ({guard}) {text}" if guard else text)
        self.close()

    def row(self) -> str:
        y, z = (self.d.thread_id.format(axis=a) for a in "yz")
        if self.k.block[2] > 1:
            return f"({z} * {self.k.block[1]} + {y})"
        return y if self.k.block[1] > 1 else "0"


def _at(indices: tuple[Expr, ...], var: str, k: int) -> tuple[Expr, ...]:
    return tuple(E.substitute(i, {var: Const(k)}) for i in indices)


def _conditional(e: Expr, cond: Expr) -> Iterator[tuple[Load, Expr]]:
    """(load, condition under which it is done) of an expression that is needed under a condition."""
    match e:
        case Select(cond=c, a=a, b=b):
            yield from _conditional(c, cond)
            yield from _conditional(a, E.all_of(cond, c))
            yield from _conditional(b, E.all_of(cond, Logic("not", (c,))))
        case _:
            if isinstance(e, Load):
                yield e, cond
            for x in E.children(e):
                yield from _conditional(x, cond)
