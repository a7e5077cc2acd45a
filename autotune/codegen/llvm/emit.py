"""Emits LLVM IR text from lowered functions: explicit vectors and constant shapes.

It relies on no IR pass beyond scalar clean-up. The reasons are Halide's CodeGen_LLVM and
docs/measurements/code-generation.md.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from math import prod

from autotune.codegen.llvm import by_tables, intrinsic
from autotune.codegen.llvm.address import BufferAddress
from autotune.codegen.llvm.driver import ROOT_TOKEN, SHARE, THREAD_TOKEN, driver
from autotune.codegen.llvm.expr import CodegenError
from autotune.codegen.llvm.held import HeldResults
from autotune.codegen.llvm.room import room
from autotune.codegen.llvm.scope import Scope, Scopes
from autotune.codegen.llvm.slide import Carried, slide
from autotune.codegen.llvm.store import Stores
from autotune.codegen.llvm.stream import FENCE, STREAM_ALIGN, forks
from autotune.codegen.llvm.types import LLVM_TYPE, Value, in_memory
from autotune.errors import CompileError
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.ir import (
    Alloc,
    Buffer,
    Guard,
    Intrinsic,
    Loop,
    LoweredFunc,
    Prefetch,
    Seq,
    Stmt,
    Store,
    const,
    nbytes,
    size_ranges,
    skew,
    walk,
)
from schedules.ir.arguments import arguments
from schedules.ir.exprs import substitute
from schedules.ir.strides import elements, known_strides
from schedules.model import LINE, Target

# Bytes: the largest intermediate buffer on the stack, where small ones end up in registers; most of such
# buffers in a function, copies of unrolled loops included; the alignment of buffers.
STACK_BYTES, MOST_STACK_BYTES, ALIGN = 16384, 1 << 18, 64


@dataclass(frozen=True, slots=True)
class LlvmModule:
    """IR text that defines ``void @kernel(ptr args, ptr scratch, i32 nthreads)``. ``args``: a pointer for
    each argument, then an int64 for each size that a call tells. ``scratch_bytes``: scratch memory that the
    kernel needs with the target's threads."""

    text: str
    scratch_bytes: int


@dataclass(slots=True)
class _Shared:
    """The state that the functions of one module share."""

    func: LoweredFunc
    threads: int
    vector_bytes: int
    registers: int
    features: tuple[str, ...]
    declares: dict[str, None] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    root_bytes: int = 0
    thread_bytes: int = 0
    n: int = 0
    runs: dict[str, tuple[int, int]] = field(default_factory=dict)  # as of `Addresses`
    streaming: bool | None = None  # whether code emitted now streams results; None: not decided yet

    def streams(self, buffer: str) -> bool:
        return bool(self.streaming) and buffer in self.func.streamed


def emit(func: LoweredFunc, target: Target) -> LlvmModule:
    """LLVM IR of a lowered function for a CPU target. Parallel loops run on the process's thread pool, or
    serially for a target of one thread. Raises CompileError for float16 on an x86 without F16C."""
    _check_half(func, target)
    shared = _Shared(
        func,
        target.threads,
        target.limit("vector_bytes", 16),
        target.limit("vector_registers", 16),
        target.features,
    )
    params = _params(func)
    sizes = "".join(f", i64 %{v}" for v in size_ranges(func.sizes))
    body = _Function(shared, (), in_parallel=False)
    text = body.build(func.body)
    shared.functions.append(
        f"define internal void @body({params}, ptr noalias %scratch, ptr %args, i32 %nthreads{sizes})"
        f" nounwind{body.stack} {{\n{text}\n{FENCE if func.streamed else ''}\n  ret void\n}}"
    )
    loads, args = _loaded(func)
    call = ", ".join(f"ptr %arg.{b.name}" for b in func.params)
    shared.functions.append(
        f"define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {{\n{loads}\n"
        f"  call void @body({call}, ptr %scratch, ptr {args}, i32 %nthreads{sizes})\n  ret void\n}}"
    )
    if func.streamed:
        shared.functions.append("!0 = !{i32 1}")
    whole = "\n".join([*shared.declares, *shared.functions])
    whole = whole.replace(ROOT_TOKEN, str(shared.root_bytes)).replace(THREAD_TOKEN, str(shared.thread_bytes))
    return LlvmModule(whole, shared.root_bytes + target.threads * shared.thread_bytes)


def _loaded(func: LoweredFunc) -> tuple[str, str]:
    """(code that loads the parameters and sizes, where the addresses of parameters lie one after another):
    those that were given, or where some are joined a list of this call's own."""
    given = arguments(func.params, func.joined)
    lines = [] if not func.joined else [f"  %parts = alloca ptr, i64 {len(func.params)}"]
    for n, a in enumerate(given):
        lines.append(f"  %s{n} = getelementptr ptr, ptr %args, i64 {n}")
        if not func.joined:
            lines.append(f"  %arg.{a.buffer.name} = load ptr, ptr %s{n}")
            continue
        lines.append(f"  %g{n} = load ptr, ptr %s{n}")
        lines += [f"  %arg.{b.name} = getelementptr i8, ptr %g{n}, i64 {at}" for b, at in a.parts]
    for k, b in enumerate(func.params if func.joined else ()):
        lines.append(f"  %p{k} = getelementptr ptr, ptr %parts, i64 {k}")
        lines.append(f"  store ptr %arg.{b.name}, ptr %p{k}")
    for n, v in enumerate(size_ranges(func.sizes), len(given)):
        lines += [f"  %s{n} = getelementptr i64, ptr %args, i64 {n}", f"  %{v} = load i64, ptr %s{n}"]
    return "\n".join(lines), "%parts" if func.joined else "%args"


def _check_half(func: LoweredFunc, target: Target) -> None:
    """Raise CompileError without F16C, as LLVM would call library functions that kernels are not linked
    with."""
    x86 = (target.triple or platform.machine()).startswith("x86_64")
    if not x86 or not target.features or "f16c" in target.features:
        return
    made = [x.buffer for x in walk(func.body) if isinstance(x, Alloc)]
    for b in (*func.params, *made):
        if b.dtype == "float16":
            raise CompileError(
                f"{b.name} is float16, but {target.arch or 'the target'} lacks the F16C instructions of x86 "
                "for it; use float32"
            )


def _params(func: LoweredFunc) -> str:
    """The pointers of a function. Those that may share memory are not promised to be apart."""
    shared = {name for pair in func.overlapping for name in pair}
    return ", ".join(
        f"ptr {'' if b.name in shared else 'noalias '}nocapture %arg.{b.name}" for b in func.params
    )


def _stores(s: Stmt, overlapping: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Buffers that are written in ``s``, as those are that share memory with one that is, or allocated there:
    their contents end with an iteration."""
    out = {x.buffer for x in walk(s) if isinstance(x, Store)}
    out |= {read for written, read in overlapping if written in out}
    return frozenset(out | {x.buffer.name for x in walk(s) if isinstance(x, Alloc)})


def _place(b: Buffer, pointer: str, size: int = 0) -> BufferAddress:
    outer = takewhile(lambda n: const(n) == 1, b.shape)  # whose strides say nothing
    inner = b.shape[len([*outer]) + 1 :]
    # Strides tell where elements are; those of a row-major buffer are made of all extents but the outermost.
    if any(const(n) is None for n in (inner if b.strides is None else b.strides)):
        raise CodegenError(f"buffer {b.name} has no constant shape")
    elements = 0 if b.strides is not None else prod(const(n) or 0 for n in b.shape)
    return BufferAddress(pointer, 0, in_memory(b.dtype), known_strides(b), size, elements)


class _Function:
    """Emits one function: the body of the kernel, or of a parallel loop."""

    def __init__(self, shared: _Shared, captured: tuple[str, ...], *, in_parallel: bool) -> None:
        self.shared = shared
        self.in_parallel = in_parallel
        self.allocas: list[str] = []
        self.stack_bytes = 0  # of buffers among these
        self.offset = 0
        self.captured = captured
        self.aligned: Value | None = None  # whether streamed arrays have `STREAM_ALIGN`

    def build(self, s: Stmt, inherited: dict[str, tuple[Buffer, int]] | None = None) -> str:
        """The function's instructions, without the final ``ret``."""
        self.s = Scopes(self.written(s))
        shared = self.shared
        self.x = Stores(
            self.s,
            lambda d: shared.declares.setdefault(d),
            shared.features,
            shared.streams,
            shared.func.scans,
        )
        self.x.runs = shared.runs
        for b in self.shared.func.params:
            self.x.places[b.name] = _place(b, f"%arg.{b.name}")
        for v in self.captured:
            self.x.env[v] = (f"%in_{v}", 0)
        if not self.in_parallel:
            self.x.env |= {v: (f"%{v}", 0) for v in size_ranges(self.shared.func.sizes)}
        for b in self.shared.func.params:
            if b.name in self.shared.func.skewed and skew(b.name).name not in self.captured:
                self.x.env[skew(b.name).name] = (self.skew(b), 0)
        self.roots: dict[str, tuple[Buffer, int]] = dict(inherited or {})
        for name, (b, at) in self.roots.items():
            ptr = self.s.emit(f"getelementptr i8, ptr %scratch, i64 {at}", hint="a")
            self.x.places[name] = _place(b, ptr)
        self.forks = forks(s, self.shared.func.streamed)
        self.held = HeldResults(s, self.x, lambda d: shared.declares.setdefault(d), self.local)
        self.stmt(s)
        return "\n".join(["entry:", *self.allocas, *self.s.top.lines])

    @property
    def stack(self) -> str:
        """An attribute that aligns the function's stack. Functions of lanes have more values than there are
        registers, and LLVM aligns these on the stack only where there are local variables."""
        return f" alignstack({ALIGN})" if self.x.calls_functions and not self.allocas else ""

    def written(self, s: Stmt) -> frozenset[str]:
        """Buffers whose loads do not stay valid after ``s``."""
        return _stores(s, self.shared.func.overlapping)

    def skew(self, b: Buffer) -> str:
        """`ir.skew` of an argument, computed from its address."""
        at = self.s.emit(f"ptrtoint ptr %arg.{b.name} to i64")
        over = self.s.emit(f"and i64 {self.s.emit(f'sub i64 0, {at}')}, {LINE - 1}")
        return self.s.emit(f"udiv i64 {over}, {DTYPES[b.dtype].itemsize}")

    # -- statements ----------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> None:
        if not self.held.any or self.forked(s):
            self.one(s)
            return
        stmts = s.stmts if isinstance(s, Seq) else (s,)
        regions = self.held.regions(stmts)
        for n, x in enumerate(stmts):
            for r in regions:
                if r.first == n:
                    self.held.enter(r)
            self.one(x)
            for r in regions:
                if r.last == n:
                    self.held.leave(r)

    def one(self, s: Stmt) -> None:
        if self.forked(s):
            self.fork(s)
            return
        match s:
            case Seq(stmts=xs):
                for x in xs:
                    self.stmt(x)
            case Store():
                self.held.writes[s.buffer] += 1
                self.x.store(s)
            case Prefetch():
                self.x.prefetch(s)
            case Intrinsic():
                self.intrinsic(s)
            case Guard():
                self.guard(s)
            case Alloc():
                self.alloc(s)
            case Loop():
                if (n := const(s.extent)) is not None:
                    self.x.runs[s.var] = (0, n - 1)
                self.repeated(s)
                self.x.runs.pop(s.var, None)
            case _:
                raise CodegenError(f"cannot emit {type(s).__name__}")

    def repeated(self, s: Loop) -> None:
        match s.kind:
            case "unroll":
                count = self.constant(s)
                self.x.unrolled[s.var] = (count, self.s.top)
                for n in range(count):
                    self.x.env[s.var] = n
                    self.stmt(s.body)
                self.x.env.pop(s.var, None)
                del self.x.unrolled[s.var]
            case "vectorize":
                self.vectorized(s)
            case "parallel" if self.shared.threads > 1 and not self.in_parallel:
                self.parallel(s)
            case _:
                self.loop(s)

    def intrinsic(self, s: Intrinsic) -> None:
        """The instruction where the target has it, else the loops that it stands for."""
        if not intrinsic.has(s.instruction, self.shared.features):
            self.stmt(s.body)
            return
        if s.instruction.registers is not None:
            self.held.emit(s)
            return
        self.held.writes[s.operands[-1].buffer] += 1
        slots: dict[str, str] = {}  # {a}: the address of operand a; {a.0.3}: elements to its fourth row
        shapes = {t.name: t.shape for t in s.instruction.operands}
        for o in s.operands:
            slots[o.name] = self.x.address(o.buffer, self.x.flat(o.buffer, o.indices))[0]
            slots |= {
                f"{o.name}.{d}.{k}": str(k * step)
                for d, (step, n) in enumerate(zip(o.strides, shapes[o.name], strict=True))
                for k in range(n)
            }
        text = s.instruction.spellings["llvm"]
        read = {o.name: o.buffer for o in s.operands}
        intrinsic.emit(text, slots, self.s, lambda d: self.shared.declares.setdefault(d), read)

    def local(self, kind: str) -> str:
        """A local variable of a type of LLVM, one for the whole function."""
        name = self.s.fresh("held")
        self.allocas.append(f"  {name} = alloca {kind}, align {ALIGN}")
        return name

    def forked(self, s: Stmt) -> bool:
        return self.shared.streaming is None and id(s) in self.forks

    def fork(self, s: Stmt) -> None:
        """``s`` twice: with streaming stores if the arrays are aligned for them, which only the call shows,
        and without."""
        if self.aligned is None:
            low = "0"
            for name in self.shared.func.streamed:
                at = self.s.emit(f"ptrtoint ptr {self.x.places[name].pointer} to i64", at=0)
                low = self.s.emit(f"or i64 {low}, {at}", at=0)
            low = self.s.emit(f"and i64 {low}, {STREAM_ALIGN - 1}", at=0)
            self.aligned = Value(self.s.emit(f"icmp eq i64 {low}, 0", at=0), "bool")

        def emit_as(streaming: bool) -> None:
            self.shared.streaming = streaming
            self.stmt(s)

        self.branch(self.aligned, self.written(s), lambda: emit_as(True), lambda: emit_as(False))
        self.shared.streaming = None

    def constant(self, s: Loop) -> int:
        n = const(s.extent)
        if n is None:
            raise CodegenError(f"{s.kind} loop {s.var} has no constant extent")
        return n

    def loop(self, s: Loop) -> None:
        """A counted loop, tested at its end. If it may be empty, it is entered under a test."""
        extent = self.x.scalar(s.extent)
        known = const(s.extent)
        head, done = self.s.label("loop"), self.s.label("done")
        var = self.s.fresh("i")
        inner = not any(isinstance(x, Loop) and x.kind not in ("unroll", "vectorize") for x in walk(s.body))
        free = room(s, self.shared.registers, self.shared.vector_bytes)
        self.s.stack.append(Scope(head, known is not None, self.written(s.body), room=free, innermost=inner))
        self.x.env[s.var] = (var, self.s.depth)
        self.stmt(s.body)
        del self.x.env[s.var]
        body = self.s.stack.pop()
        slid: list[Carried] = []
        if ("slide", 1) in s.annotations and known is not None and body.label == head:
            slid = slide(body, var, self.s)
        before = self.s.top.label
        if known is None:
            enter = self.s.emit(f"icmp sgt i64 {extent.ref}, 0")
            self.s.do(f"br i1 {enter}, label %{head}, label %{done}")
        else:
            self.s.do(f"br label %{head}")
        after = self.s.fresh("n")
        out = self.s.top.lines
        # A counter that nothing reads counts down, because comparing with 0 is free.
        first, step, last = ("0", 1, extent.ref) if body.counted else (extent.ref, -1, "0")
        out.append(f"{head}:")
        out.append(f"  {var} = phi i64 [ {first}, %{before} ], [ {after}, %{body.label} ]")
        for ptr, start, _, _ in body.pointers:
            out.append(f"  {ptr} = phi ptr [ {start}, %{before} ], [ {ptr}.next, %{body.label} ]")
        for c in slid:
            out.append(f"  {c.name} = phi {c.kind} [ {c.first}, %{before} ], [ {c.after}, %{body.label} ]")
        out.extend(body.lines)
        for ptr, _, elem, by in body.pointers:
            out.append(f"  {ptr}.next = getelementptr {elem}, ptr {ptr}, i64 {by}")
        out.append(f"  {after} = add nsw i64 {var}, {step}")
        more = self.s.emit(f"icmp ne i64 {after}, {last}")
        self.s.do(f"br i1 {more}, label %{head}, label %{done}")
        self.s.start(done)

    def guard(self, s: Guard) -> None:
        asked = [c for c in E.conjuncts(s.cond) if E.loads(c)]
        sure = [c for c in E.conjuncts(s.cond) if c not in asked]
        if asked and sure:  # memory is read where the others hold alone
            self.guard(Guard(E.all_of(*sure), Guard(E.all_of(*asked), s.body)))
            return
        lanes = [c for c in E.conjuncts(s.cond) if self.x.lane_dependent(c)]
        plain = [c for c in E.conjuncts(s.cond) if not self.x.lane_dependent(c)]
        outer = self.x.mask
        if plain:
            cond = self.x.scalar(E.all_of(*plain))
            rest = Guard(E.all_of(*lanes), s.body) if lanes else s.body
            self.branch(cond, self.written(s.body), lambda: self.stmt(rest))
            return
        if not lanes:  # the rest of a condition after loops around a parallel one were unrolled
            self.stmt(s.body)
            return
        mask = self.x.and_mask(self.x.value(E.all_of(*lanes)))
        stores = self.written(s.body)

        def masked() -> None:
            # A load that all lanes share may be out of bounds if none of them is active.
            self.x.mask = mask
            self.branch(self.fold("or", mask), stores, lambda: self.stmt(s.body))
            self.x.mask = outer

        if outer is None:
            # Whole vectors are stored without a mask, because a masked store costs tens of cycles on some
            # CPUs.
            self.branch(self.fold("and", mask), stores, lambda: self.stmt(s.body), masked)
        else:
            masked()

    def fold(self, op: str, mask: Value) -> Value:
        """Whether any ("or") or every ("and") lane is active."""
        name = f"@llvm.vector.reduce.{op}.v{mask.lanes}i1"
        self.shared.declares.setdefault(f"declare i1 {name}(<{mask.lanes} x i1>)")
        return Value(self.s.emit(f"call i1 {name}({mask})"), "bool")

    def branch(
        self,
        cond: Value,
        stores: frozenset[str],
        then: Callable[[], None],
        other: Callable[[], None] | None = None,
    ) -> None:
        """``if cond: then() else: other()``, each side in a scope of its own."""
        done = self.s.label("done")
        sides: list[tuple[str, Scope]] = []
        for side in (then, other):
            if side is None:
                continue
            label = self.s.label("side")
            self.s.stack.append(Scope(label, False, stores))
            side()
            sides.append((label, self.s.stack.pop()))
        self.s.do(f"br {cond}, label %{sides[0][0]}, label %{sides[1][0] if len(sides) > 1 else done}")
        for label, scope in sides:
            self.s.top.lines.append(f"{label}:")
            self.s.top.lines.extend(scope.lines)
            self.s.do(f"br label %{done}")
        self.s.start(done)

    def alloc(self, s: Alloc) -> None:
        b = s.buffer
        count = elements(b)
        size = -(-nbytes(b) // ALIGN) * ALIGN
        shared_by_threads = (
            any(isinstance(x, Loop) and x.kind == "parallel" for x in walk(s.body))
            and not self.in_parallel
            and self.shared.threads > 1
        )
        mark = self.offset
        if size <= STACK_BYTES and self.stack_bytes + size <= MOST_STACK_BYTES and not shared_by_threads:
            self.stack_bytes += size
            ptr = self.s.fresh("local")
            kind = LLVM_TYPE[in_memory(b.dtype)]
            self.allocas.append(f"  {ptr} = alloca [{count} x {kind}], align {ALIGN}")
        else:
            at = self.offset
            self.offset += size
            if self.in_parallel:
                self.shared.thread_bytes = max(self.shared.thread_bytes, self.offset)
                ptr = f"getelementptr i8, ptr %thread, i64 {at}"
            else:
                self.shared.root_bytes = max(self.shared.root_bytes, self.offset)
                self.roots[b.name] = (b, at)
                ptr = f"getelementptr i8, ptr %scratch, i64 {at}"
            ptr = self.s.emit(ptr, at=0, hint="a") if self.s.depth else self.s.emit(ptr, hint="a")
        old = self.x.places.get(b.name)
        self.x.places[b.name] = _place(b, ptr, count)
        self.x.forget(b.name)
        self.stmt(s.body)
        if old is not None:
            self.x.places[b.name] = old
        self.roots.pop(b.name, None)
        self.offset = mark

    # -- vectors -------------------------------------------------------------------------------

    def vectorized(self, s: Loop) -> None:
        """The body once for all lanes. A store that lanes cannot share is written out lane by lane."""
        n = self.constant(s)
        if n == 1 or not all(self.x.fits_lanes(x, s.var) for x in walk(s.body) if isinstance(x, Store)):
            for lane in range(n):
                self.x.env[s.var] = lane
                self.stmt(s.body)
            self.x.env.pop(s.var, None)
            return
        try:
            for base, width in self.registers(s, n):
                if width == 1:
                    self.x.lane_var, self.x.lanes = None, 1
                    self.x.env[s.var] = base
                    self.stmt(s.body)
                    del self.x.env[s.var]
                    continue
                self.x.lane_var, self.x.lane_base, self.x.lanes = s.var, base, width
                self.stmt(s.body)
        finally:
            self.x.lane_var, self.x.lane_base, self.x.lanes = None, 0, 1

    def registers(self, s: Loop, n: int) -> list[tuple[int, int]]:
        """The lanes in pieces of one register, the rest in powers of two, as LLVM splits vectors of other
        lengths badly. A horizontal reduction stays whole, because it folds vertically first."""
        stores = [x for x in walk(s.body) if isinstance(x, Store)]
        if n & (n - 1) == 0 and not all(any(s.var in E.variables(i) for i in x.indices) for x in stores):
            return [(0, n)]
        widest = max(DTYPES[self.x.places[x.buffer].dtype].itemsize for x in stores)
        full = max(1, self.shared.vector_bytes // widest)
        if n >= by_tables.WIDTH and any(self._is_tabled(x, s.var) for x in stores):
            full = max(full, by_tables.WIDTH)
        out: list[tuple[int, int]] = []
        at = 0
        while at < n:
            width = full if n - at >= full else 1 << ((n - at).bit_length() - 1)
            out.append((at, width))
            at += width
        return out

    def _is_tabled(self, s: Store, lane: str) -> bool:
        """Whether a store widens what lanes read of their own by tables of bytes."""
        return any(
            lane in E.variables(i) and by_tables.applies(x.dtype, by_tables.WIDTH, self.shared.features)
            for x in E.loads(s.value)
            for i in x.indices
        )

    # -- threads -------------------------------------------------------------------------------

    def parallel(self, s: Loop) -> None:
        """Make the body a function of the iteration. A driver claims chunks from counters in its context, and
        the thread pool runs the driver on every thread."""
        sh = self.shared
        sh.n += 1
        name = f"parallel{sh.n}"
        told = (f"count{sh.n}", f"chunk{sh.n}")
        n, chunk = self.shared_out(s, *told)
        outer = [v for v, x in self.x.env.items() if not isinstance(x, int)]
        fixed = {v: E.Const(x) for v, x in self.x.env.items() if isinstance(x, int)}
        inner = _Function(sh, (*outer, s.var), in_parallel=True)
        text = inner.build(substitute(s.body, dict(fixed)), self.roots)
        params = _params(sh.func)
        ints = "".join(f", i64 %in_{v}" for v in (*outer, s.var))
        sh.functions.append(
            f"define internal void @{name}_body({params}, ptr %scratch, ptr noalias %thread{ints}) nounwind"
            f"{inner.stack} {{\n{text}\n  ret void\n}}"
        )
        shares = max(1, min(sh.threads, n)) if isinstance(n, int) else sh.threads
        end = FENCE if sh.func.streamed else ""
        sh.functions.append(driver(name, n, chunk, shares, sh.func.params, outer, s.var, end))
        counters = shares * SHARE
        ctx = self.s.fresh("ctx")
        self.allocas.append(f"  {ctx} = alloca [{counters + 2 + len(outer)} x i64], align {ALIGN}")
        for k in range(0, counters, SHARE):
            p = self.s.emit(f"getelementptr i64, ptr {ctx}, i64 {k}")
            self.s.do(f"store atomic i64 0, ptr {p} monotonic, align 8")
        for k, v in enumerate(["ptr %args", "ptr %scratch", *(f"i64 {self._ref(v)}" for v in outer)]):
            p = self.s.emit(f"getelementptr i64, ptr {ctx}, i64 {counters + k}")
            self.s.do(f"store {v}, ptr {p}, align 8")
        sh.declares.setdefault("declare void @at_parallel(ptr, ptr, i32)")
        self.s.do(f"call void @at_parallel(ptr @{name}, ptr {ctx}, i32 %nthreads)")
        for v in told:
            self.x.env.pop(v, None)

    def shared_out(self, s: Loop, count: str, chunk: str) -> tuple[int | str, int | str]:
        """The iterations of a parallel loop, and how many a thread claims at a time. What a call tells
        becomes a variable of its context, ``count`` and ``chunk``, and is named as its driver has it."""
        hinted = dict(s.annotations).get("chunk", 0)
        assert isinstance(hinted, int)
        n, parts = const(s.extent), 16 * self.shared.threads
        if n is not None:
            return n, hinted or max(1, n // parts)
        self.x.env[count] = (self.x.scalar(s.extent).ref, self.s.depth)
        if hinted:
            return f"%in_{count}", hinted
        self.x.env[chunk] = (self.x.scalar(E.maximum(s.extent // parts, 1)).ref, self.s.depth)
        return f"%in_{count}", f"%in_{chunk}"

    def _ref(self, var: str) -> str:
        x = self.x.counter(var)
        assert not isinstance(x, int)
        return x[0]


__all__ = ["CodegenError", "LlvmModule", "emit"]
