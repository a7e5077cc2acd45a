"""The interpreter: what a nest means, scheduled or lowered.

Scalar and slow, for small shapes. It traps what hardware would not: indices out of bounds and, as
NaN or a trap for integers, reads of elements never written. Primitives and passes are right when
the interpreter gives the same before and after.

Every operation is rounded to its dtype; compiled code may round the product and the sum of a reduction's
update (`ir.multiply_add`) at once. Integers wrap, and dividing them by zero gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.expr import Binary, Call, Cast, Compare, Const, Expr, Fma, Hole, Load, Logic, Select, Var
from schedules.functions import FUNCTIONS
from schedules.ir import (
    Alloc,
    Atomic,
    Block,
    Buffer,
    Guard,
    Intrinsic,
    Loop,
    LoweredFunc,
    Nest,
    Operand,
    Prefetch,
    Seq,
    Stmt,
    Store,
    size_variable,
    skew,
)
from schedules.ir.strides import elements, given_strides, known_strides

Env = dict[str, int]
Thunk = Callable[[Env], Any]
Action = Callable[[Env], None]


# The key of operations in counts.
OPERATIONS = "operations"


class InterpError(RuntimeError):
    """The program did what no legal program does: the message says where."""


class Memory:
    """Arrays by name, with the elements written so far."""

    def __init__(self, sizes: Env | None = None) -> None:
        """``sizes``: values of the variables of sizes."""
        self.arrays: dict[str, np.ndarray] = {}
        self.written: dict[str, np.ndarray] = {}
        self.sizes = sizes or {}

    def new(self, b: Buffer) -> np.ndarray:
        """An array for a buffer of this size."""
        return new_array(_at_sizes(b, self.sizes))

    def add(self, name: str, array: np.ndarray, *, known: bool) -> None:
        self.arrays[name] = array
        self.written[name] = _alike(array, known)


@np.errstate(all="ignore")  # infinities and NaN are results like others
def run(
    program: Nest | LoweredFunc,
    arrays: Mapping[str, np.ndarray],
    *,
    counts: dict[str, int] | None = None,
    operations: bool = False,
    skews: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Execute on numpy arrays by parameter name; outputs are written in place.

    ``counts``, if given, receives ``load <buffer>`` and ``store <buffer>`` element counts; with
    ``operations`` also `OPERATIONS`: arithmetic on elements, 2 for a multiply-add. ``skews``: what `ir.skew`
    of an argument is, 0 unless given. ``sizes``: what the sizes are that a call tells; all of them are given.
    Raises InterpError on an access out of bounds or an output left unwritten.
    """
    told = {size_variable(s.name).name: (sizes or {})[s.name] for s in program.sizes}
    mem = Memory(told)
    if isinstance(program, Nest):
        params = [program.buffer(n) for n in program.params]
        for b in program.buffers:
            if b.name not in program.params:
                mem.add(b.name, mem.new(b), known=False)
    else:
        params = list(program.params)
    for open_buffer in params:
        b, a = _at_sizes(open_buffer, told), arrays[open_buffer.name]
        want = tuple(int(E.evaluate(n, {})) for n in b.given or b.shape)
        if a.shape != want or a.dtype != np.dtype(b.dtype):
            raise InterpError(f"{b.name}: expected {b.dtype}{list(want)}, got {a.dtype}{list(a.shape)}")
        steps = given_strides(b)
        if b.strides is not None and not _lies_as(a, steps):
            got = [s / a.itemsize for s in a.strides]
            raise InterpError(f"{b.name}: expected strides {list(steps)} in elements, got {got}")
        mem.add(b.name, as_merged(b, a), known=b.name not in program.outputs)
    env = told | {skew(b.name).name: (skews or {}).get(b.name, 0) for b in params}
    Compiler(mem, counts, operations).stmt(program.body)(env)
    for n in program.outputs:
        missing = int((~mem.written[n]).sum())
        if missing:
            first = tuple(int(i) for i in np.argwhere(~mem.written[n])[0])
            raise InterpError(
                f"{n}: {missing} of {mem.written[n].size} elements never written, first at {list(first)}"
            )


def _at_sizes(b: Buffer, sizes: Mapping[str, int]) -> Buffer:
    """A buffer with numbers for the extents that depend on a size. ``sizes``: values of their variables."""

    def numbers(extents: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(Const(int(E.evaluate(n, sizes))) for n in extents)

    if not sizes:
        return b
    return replace(b, shape=numbers(b.shape), given=None if b.given is None else numbers(b.given))


def as_merged(b: Buffer, a: np.ndarray) -> np.ndarray:
    """An argument as the program sees it, with the dimensions that are merged. Raises InterpError if they do
    not lie one after another."""
    if b.given is None:
        return a
    shape = tuple(int(E.evaluate(n, {})) for n in b.shape)
    if b.strides is not None:
        return _strided(a, shape, [s * a.itemsize for s in known_strides(b)])
    merged = a.view()
    try:
        merged.shape = shape
    except AttributeError:
        raise InterpError(f"{b.name}: expected row-major elements, got strides {list(a.strides)}") from None
    return merged


def _lies_as(a: np.ndarray, strides: tuple[int, ...]) -> bool:
    """Whether an array has these strides, in elements; those of an extent of 1 say nothing."""
    return all(n == 1 or s * a.itemsize == t for n, s, t in zip(a.shape, strides, a.strides, strict=True))


def _strided(a: np.ndarray, shape: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """`as_strided`, which does not know floats of 8 bits."""
    return as_strided(a.view(f"u{a.itemsize}"), shape, steps).view(a.dtype)


def _reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The first and the last element of memory that an array has, from its index 0."""
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)


def _alike(array: np.ndarray, known: bool) -> np.ndarray:
    """Whether each element is known, in an array that lies as the given one does. Elements of what is only
    read may share a place: all of these are known."""
    steps = [s // array.itemsize for s in array.strides]
    if array.flags.c_contiguous or any(s < 1 for s in steps):
        return np.full(array.shape, known)
    return _strided(np.full(_reach(array.shape, steps)[1] + 1, known), array.shape, steps)


def unwritten(dtype: str) -> float | int:
    """What stands where nothing is written."""
    row = DTYPES[dtype]
    return np.nan if E.is_float(dtype) else row.range[0] + (1 << 8 * row.itemsize) // 4


def new_array(b: Buffer) -> np.ndarray:
    """An array that lies as the buffer does, of elements that nothing has written."""
    shape = tuple(int(E.evaluate(n, {})) for n in b.shape)
    row = DTYPES[b.dtype]
    if b.strides is None:
        return np.full(shape, unwritten(b.dtype), row.numpy)
    memory = np.full(elements(b), unwritten(b.dtype), row.numpy)
    return _strided(memory, shape, [s * memory.itemsize for s in known_strides(b)])


@cache
def rounding(dtype: str) -> Callable[[Any], Any]:
    """A Python number as a value of the dtype: infinity beyond its largest, of which numpy warns."""
    if E.is_float(dtype):
        kind = DTYPES[dtype].numpy.type
        return float if dtype == "float64" else lambda v: float(kind(v))
    if is_integer(dtype):
        least, size = DTYPES[dtype].range[0], 1 << 8 * DTYPES[dtype].itemsize
        return lambda v: (int(v) - least) % size + least
    return int


def saturating(dtype: str) -> Callable[[float], int]:
    """A float as an integer of the dtype, cut off at its ends; NaN is 0 (as LLVM's fptosi.sat)."""
    least, most = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    return lambda v: 0 if v != v else int(min(max(v, least), most))


@cache
def _keeping(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """`rounding` by the dtype of an array, whose name numpy makes up at each use."""
    return rounding(dtype.name)


class Compiler:
    """Statements and expressions as Python closures over an environment of loop variables."""

    def __init__(self, mem: Memory, counts: dict[str, int] | None, operations: bool = False) -> None:
        self.mem = mem
        self.counts = counts
        self.operations = operations

    def counted(self, f: Thunk) -> Thunk:
        """An operation on elements, which is counted if operations are."""
        if not self.operations:
            return f

        def g(env: Env) -> Any:
            self.count(OPERATIONS)
            return f(env)

        return g

    def count(self, key: str, times: int = 1) -> None:
        if self.counts is not None:
            self.counts[key] = self.counts.get(key, 0) + times

    def expr(self, e: Expr) -> Thunk:
        match e:
            case Const(value=v, dtype=d):
                v = rounding(d)(v) if E.is_float(d) else v
                return lambda env: v
            case Var(name=n):
                return lambda env: env[n]
            case Hole(name=n) if n in self.mem.sizes:
                size = self.mem.sizes[n]
                return lambda env: size
            case Binary(op=op, a=a, b=b) | Compare(op=op, a=a, b=b):
                f, x, y = E.NUMERIC[op], self.expr(a), self.expr(b)
                d = E.dtype_of(a)
                if isinstance(e, Binary) and d != E.INDEX:
                    r = rounding(d)
                    return self.counted(lambda env: r(f(x(env), y(env))))
                return lambda env: f(x(env), y(env))
            case Logic(op="not", args=(a,)):
                inner = self.expr(a)
                return lambda env: not inner(env)
            case Logic(op=op, args=args):
                parts, joined = [self.expr(x) for x in args], all if op == "and" else any
                return lambda env: joined(p(env) for p in parts)
            case Call(fn=fn, args=args):
                g, parts, r = FUNCTIONS[fn].of, [self.expr(x) for x in args], rounding(E.dtype_of(e))
                return self.counted(lambda env: r(g(*(np.float64(p(env)) for p in parts))))
            case Fma(a=a, b=b, c=c):
                return self.expr(E.binary("+", E.binary("*", a, b), c))
            case Select(cond=c, a=a, b=b):
                k, x, y = self.expr(c), self.expr(a), self.expr(b)
                return lambda env: x(env) if k(env) else y(env)
            case Cast(dtype=d, a=a):
                x = self.expr(a)
                whole = is_integer(d) and E.is_float(E.dtype_of(a))
                r = saturating(d) if whole else rounding(d)
                return lambda env: r(x(env))
            case Load(buffer=b, indices=ix):
                return self.load(b, ix)
        raise InterpError(f"cannot interpret {E.show(e)}")

    def load(self, buffer: str, ix: tuple[Expr, ...]) -> Thunk:
        at = [self.expr(i) for i in ix]
        mem, key = self.mem, f"load {buffer}"

        def f(env: Env) -> Any:
            p = tuple([i(env) for i in at])
            self.bounds(buffer, p, "reads")
            self.count(key)
            return mem.arrays[buffer][p].item()

        return f

    def bounds(self, buffer: str, p: tuple[int, ...], what: str) -> None:
        shape = self.mem.arrays[buffer].shape
        for i, n in zip(p, shape, strict=True):
            if not 0 <= i < n:
                raise InterpError(f"{what} {buffer}{list(p)}, out of bounds of {list(shape)}")

    def stmt(self, s: Stmt) -> Action:
        match s:
            case Seq():
                return self.sequence(s)
            case Loop():
                return self.loop(s)
            case Guard():
                return self.guard(s)
            case Alloc():
                return self.alloc(s)
            case Store(buffer=name, indices=ix, value=v):
                return self.store(name, ix, self.expr(v))
            case Prefetch():
                return lambda env: None
            case Atomic():
                return self.atomic(s)
            case Intrinsic():
                return self.intrinsic(s)
            case Block():
                return self.block(s)
        raise InterpError(f"cannot interpret {s!r}")

    def sequence(self, s: Seq) -> Action:
        parts = [self.stmt(x) for x in s.stmts]

        def run_all(env: Env) -> None:
            for p in parts:
                p(env)

        return run_all

    def loop(self, s: Loop) -> Action:
        var, extent, body = s.var, self.expr(s.extent), self.stmt(s.body)

        def loop(env: Env) -> None:
            for i in range(extent(env)):
                env[var] = i
                body(env)
            env.pop(var, None)

        return loop

    def guard(self, s: Guard) -> Action:
        cond, inner = self.expr(s.cond), self.stmt(s.body)

        def guard(env: Env) -> None:
            if cond(env):
                inner(env)

        return guard

    def alloc(self, s: Alloc) -> Action:
        buf, inner, mem = s.buffer, self.stmt(s.body), self.mem

        def alloc(env: Env) -> None:
            mem.add(buf.name, mem.new(buf), known=False)
            inner(env)

        return alloc

    def intrinsic(self, s: Intrinsic) -> Action:
        """The meaning of an instruction, run on its operands where they lie."""
        shapes = {t.name: t.shape for t in s.instruction.operands}
        starts = [(x, [self.expr(i) for i in x.indices]) for x in s.operands]
        inside, counts = Memory(), dict[str, int]()
        buffers = {f"{how} {x.name}": f"{how} {x.buffer}" for x in s.operands for how in ("load", "store")}
        body = Compiler(inside, counts, self.operations).stmt(s.instruction.loops)

        def run_it(env: Env) -> None:
            for x, at in starts:
                p = tuple(i(env) for i in at)
                inside.arrays[x.name], inside.written[x.name] = self.operand(x, p, shapes[x.name])
            counts.clear()
            body({})
            for key, n in counts.items():
                self.count(buffers.get(key, key), n)

        return run_it

    def operand(
        self, x: Operand, p: tuple[int, ...], shape: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Views of a buffer, and of what of it is written, as the operand that begins at ``p``."""
        self.bounds(x.buffer, p, "begins an operand at")
        array, written = self.mem.arrays[x.buffer], self.mem.written[x.buffer]
        steps = [s // array.itemsize for s in array.strides]
        first = sum(i * s for i, s in zip(p, steps, strict=True))
        own, whole = _reach(shape, x.strides), _reach(array.shape, steps)
        if first + own[0] < whole[0] or first + own[1] > whole[1]:
            raise InterpError(f"operand {x.name} at {x.buffer}{list(p)} leaves {list(array.shape)}")
        here = tuple(slice(i, None) for i in p)
        array_view, written_view = (
            _strided(a[here], shape, [k * a.itemsize for k in x.strides]) for a in (array, written)
        )
        return array_view, written_view

    def store(self, name: str, ix: tuple[Expr, ...], value: Thunk) -> Action:
        put = self.place(name, ix)
        return lambda env: put(env)(value(env))

    def atomic(self, s: Atomic) -> Action:
        d = E.dtype_of(s.value)
        joined = self.expr(E.binary(s.op, Load(s.buffer, s.indices, d), s.value))
        return self.store(s.buffer, s.indices, joined)

    def place(self, name: str, ix: tuple[Expr, ...]) -> Callable[[Env], Callable[[Any], None]]:
        at = [self.expr(i) for i in ix]
        mem, key = self.mem, f"store {name}"

        def f(env: Env) -> Callable[[Any], None]:
            p = tuple([i(env) for i in at])
            self.bounds(name, p, "writes")
            self.count(key)
            a, w = mem.arrays[name], mem.written[name]
            r = _keeping(a.dtype)

            def put(v: Any) -> None:
                a[p] = r(v)
                w[p] = True

            return put

        return f

    def block(self, b: Block) -> Action:
        binds = [(i, self.expr(e), self.expr(i.extent)) for i, e in zip(b.iters, b.binds, strict=True)]
        where = [self.expr(w) for w in b.where]
        places = [self.place(w.buffer, w.indices) for w in b.writes]
        reducer = b.reducer
        if reducer is None:
            values = [self.expr(v) for v in b.values]
        else:
            dtypes = [self.mem.arrays[w.buffer].dtype.name for w in b.writes]
            acc = tuple(Load(w.buffer, w.indices, d) for w, d in zip(b.writes, dtypes, strict=True))
            values = [self.expr(v) for v in reducer.apply(acc, b.values)]
            identity = [c.value for c in reducer.identity]

        def instance(env: Env) -> None:
            at: Env = {}
            inside = start = True
            for it, e, n in binds:
                v = at[it.var] = e(env)
                ok = 0 <= v < n(env)
                if it.kind == "spatial":
                    if not ok:
                        return
                else:
                    inside = inside and ok
                    start = start and v == 0
            if b.init and start:
                for p, c in zip(places, identity, strict=True):
                    p(at)(c)
            if inside and all(w(at) for w in where):
                new = [v(at) for v in values]
                for p, v in zip(places, new, strict=True):
                    p(at)(v)

        return instance
