"""The whole loop-nest IR on one page: frozen, slotted nodes.

A scheduled `Nest` is loops around blocks. A `Block` keeps its own iteration variables; loops only
bind them, so that loop transformations rewrite bindings and never bodies. Lowering (`lower.py`)
replaces every block by `Store` and `Guard`, and places an `Alloc` around the uses of every
intermediate buffer: the same tree, with no blocks left, is a `LoweredFunc`.

**Meaning of a block instance.** With the loop variables fixed, each iteration variable has the
value of its binding. The instance runs only where every iteration variable lies in its domain
``0 <= value < extent`` and every condition of ``where`` holds: that is how tails are expressed, so
that split may round up. A reduction block with ``init`` first writes the identity, when all its
reduce iterations are 0; the identity is written wherever the *spatial* iterations are in their
domain, whatever ``where`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TYPE_CHECKING, Any, TypeGuard, Union, get_args

from schedules.expr import TRUE, Binary, Const, Expr, Hole, Load, Var, dtype_of, is_float
from schedules.te.compute_dag import Reducer
from schedules.te.open_sizes import OpenSize
from schedules.te.sizes_in_values import variable

if TYPE_CHECKING:
    from schedules.ir.instruction import Instruction

GPU_AXES = (
    "blockIdx.x",
    "blockIdx.y",
    "blockIdx.z",
    "threadIdx.x",
    "threadIdx.y",
    "threadIdx.z",
    "vthread",
)
LOOP_KINDS = ("serial", "parallel", "vectorize", "unroll", *GPU_AXES)
# local: registers or the stack of one thread; fragment: registers of the threads of a warp together, each of
# which has the elements that the layout of an instruction gives it (on other targets: as local)
SCOPES = ("global", "shared", "local", "fragment")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named array; extents are expressions over holes until a decision fills them. ``strides``: elements of
    memory from an index to the next along each dimension; None: row-major (see `schedules.ir.strides`).
    ``given``: the shape in which callers give an argument whose dimensions were merged (`merge_dims`).
    ``swizzle``: 32, 64 or 128: in rows of so many bytes of shared memory, chunks of 16 bytes change places
    (`schedules.ir.strides.swizzled`); 0: each lies where its index says."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: str = "global"
    strides: tuple[Expr, ...] | None = None
    given: tuple[Expr, ...] | None = None
    swizzle: int = 0


@dataclass(frozen=True, slots=True)
class Iter:
    """An iteration variable of a block: 0 <= var < extent."""

    var: str
    extent: Expr
    kind: str  # "spatial" or "reduce"


@dataclass(frozen=True, slots=True)
class Access:
    """A place in a buffer that a block writes."""

    buffer: str
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """``writes[o] = values[o]``, or with a reducer ``writes = reducer(writes, values)``.

    ``values``, ``where`` and ``writes`` speak of the iteration variables; ``binds`` (one for each
    of ``iters``) of the loops around the block.
    """

    name: str
    iters: tuple[Iter, ...]
    binds: tuple[Expr, ...]
    writes: tuple[Access, ...]
    values: tuple[Expr, ...]
    reducer: Reducer | None = None
    init: bool = False
    where: tuple[Expr, ...] = ()
    annotations: tuple[tuple[str, int | Hole], ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """``for var in range(extent): body``. In lowered code ``extent`` may speak of outer loops."""

    var: str
    extent: Expr
    body: Stmt
    kind: str = "serial"
    annotations: tuple[tuple[str, Any], ...] = ()  # of ints, holes, and an `Instruction`

    @property
    def instruction(self) -> Instruction | None:
        """What the loop, and those in it, are to be (`primitives.tensorize`)."""
        return next((v for k, v in self.annotations if k == "tensorize"), None)


@dataclass(frozen=True, slots=True)
class Seq:
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Lowered: ``buffer[indices] = value``. Where it is the ``update`` of a reduction, see `multiply_add`."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    update: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """Lowered: ``if cond: body``. A ``speculative`` guard only keeps a block inside its spatial
    domain: it may be dropped where running outside is harmless."""

    cond: Expr
    body: Stmt
    speculative: bool = False


@dataclass(frozen=True, slots=True)
class Alloc:
    """Lowered: ``buffer`` lives while ``body`` runs; its contents start undefined."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Lowered, CPU: ``buffer[indices]`` is read soon: its line may be fetched into ``cache`` 1 or 2. A
    hint, which traps nowhere: the place may lie outside the buffer."""

    buffer: str
    indices: tuple[Expr, ...]
    cache: int = 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """Lowered, GPU: no thread of a block goes on until all are here, and sees what they wrote."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Lowered, GPU: ``buffer[indices] = op(buffer[indices], value of every thread)`` in each thread, where
    the threads ``0 <= var < extent`` of axis ``threadIdx.x`` give one value each. ``near``: a power of two;
    only as many neighbours of a warp do it together; 0: all threads."""

    buffer: str
    indices: tuple[Expr, ...]
    op: str
    value: Expr
    var: str
    extent: int
    near: int = 0


@dataclass(frozen=True, slots=True)
class Atomic:
    """Lowered, GPU: ``buffer[indices] = op(buffer[indices], value)`` as one step, between whose reading and
    writing no other thread writes."""

    buffer: str
    indices: tuple[Expr, ...]
    op: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Copy:
    """Lowered, GPU: the ``count`` elements of shared memory from ``buffer[indices]`` on, along its last
    dimension, become those from ``value`` on, in global memory; 0 where ``cond`` does not hold, and nothing
    is read then. A thread begins it here. It is done, for this thread, behind the `Await` of its group."""

    buffer: str
    indices: tuple[Expr, ...]
    value: Load
    count: int
    cond: Expr = TRUE


@dataclass(frozen=True, slots=True)
class Signal:
    """Lowered, GPU: the copies that a thread began since its last one are a group."""


@dataclass(frozen=True, slots=True)
class Await:
    """Lowered, GPU: a thread goes on when at most ``pending`` of its groups, the latest, are under way."""

    pending: int


@dataclass(frozen=True, slots=True)
class Operand:
    """Where an operand of an instruction lies: the element that it begins with, and how many elements lie
    between neighbours along each of its own dimensions."""

    name: str
    buffer: str
    indices: tuple[Expr, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """Lowered: one instruction. ``body``: the loops that it stands for. They mean the same. A target without
    the instruction runs them."""

    instruction: Instruction
    operands: tuple[Operand, ...]
    body: Stmt


Stmt = Union[
    Loop,
    Seq,
    Block,
    Store,
    Guard,
    Alloc,
    Prefetch,
    Barrier,
    AllReduce,
    Atomic,
    Copy,
    Signal,
    Await,
    Intrinsic,
]


@dataclass(frozen=True, slots=True)
class Nest:
    """A scheduled program. ``buffers`` holds every buffer by name, arguments included; ``params``
    names the arguments of the kernel in order (``outputs`` of them are written). ``joined``: neighbours among
    these that callers give as one array (`schedules.ir.arguments`). Extents speak of `size_hole` of the
    ``sizes``, which a call tells."""

    params: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    body: Stmt
    sizes: tuple[OpenSize, ...] = ()
    joined: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        return f"<Nest of {', '.join(self.outputs)}>"[:200]

    def buffer(self, name: str) -> Buffer:
        """Raises KeyError."""
        for b in self.buffers:
            if b.name == name:
                return b
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class LoweredFunc:
    """A lowered program: no blocks, every intermediate buffer allocated, extents concrete.
    ``params`` are the kernel's arguments in order; those named in ``outputs`` are written, and of these the
    ``streamed`` are not worth a place in the caches. The body reads `skew` of the ``skewed``. It, and shapes
    of arguments, read `size_variable` of the ``sizes``, which a call tells. ``joined``: as in `Nest`.
    ``overlapping``: (output, input) that may share memory; all others do not (`schedules.ir.in_place`).
    ``scans``: whether it has steps that read what earlier ones made."""

    name: str
    params: tuple[Buffer, ...]
    outputs: tuple[str, ...]
    body: Stmt
    streamed: tuple[str, ...] = ()
    skewed: tuple[str, ...] = ()
    sizes: tuple[OpenSize, ...] = ()
    joined: tuple[tuple[str, ...], ...] = ()
    overlapping: tuple[tuple[str, str], ...] = ()
    scans: bool = False


def multiply_add(s: Store) -> tuple[Expr, Expr, Expr] | None:
    """``a``, ``b`` and ``c`` of a reduction's update ``a * b + c``: code may round it once, after the sum.
    None for all other stores, whose every operation is rounded."""
    match s:
        case Store(
            update=True,
            value=Binary(op="+", a=c, b=Binary(op="*", a=a, b=b))
            | Binary(op="+", a=Binary(op="*", a=a, b=b), b=c),
        ) if is_float(dtype_of(c)):
            return a, b, c
    return None


def skew(name: str) -> Var:
    """The elements of an argument that lie before the first line of memory that
    begins in it: a variable that the call sets."""
    return Var(f"{name}.skew")


def size_hole(name: str) -> Hole:
    """A size that a call tells, in a nest: primitives take it as they take a number that is not decided."""
    return Hole(variable(name))


def size_variable(name: str) -> Var:
    """The same in a lowered program."""
    return Var(variable(name))


def size_ranges(sizes: Sequence[OpenSize]) -> dict[str, tuple[int, int]]:
    """What is known of the variables of sizes: {name of the variable: (least, most)}."""
    return {size_variable(s.name).name: s.range for s in sizes}


def bound_to(s: Stmt, axis: str) -> TypeGuard[Loop]:
    """Whether the statement is a loop over "blockIdx" or "threadIdx", whatever its dimension."""
    return isinstance(s, Loop) and s.kind.startswith(axis)


def const(e: Expr) -> int | None:
    """The value of an integer literal, else None."""
    return e.value if isinstance(e, Const) and isinstance(e.value, int) else None


def with_body(s: Stmt, f: Callable[[Stmt], Stmt]) -> Stmt:
    """``s`` with ``f`` applied to its direct children."""
    if type(s) in _AROUND:
        b = f(s.body)  # type: ignore[union-attr]
        return s if b is s.body else _around(s, b)  # type: ignore[union-attr]
    if isinstance(s, Seq):
        new = [f(x) for x in s.stmts]
        return s if all(map(is_, new, s.stmts)) else seq(*new)
    return s


def _around(s: Stmt, body: Stmt) -> Stmt:
    """``s`` around another body: `dataclasses.replace`, without its price where it is asked for often."""
    match s:
        case Loop():
            return Loop(s.var, s.extent, body, s.kind, s.annotations)
        case Guard():
            return Guard(s.cond, body, s.speculative)
        case Alloc():
            return Alloc(s.buffer, body)
    return replace(s, body=body)  # type: ignore[arg-type]


def seq(*stmts: Stmt) -> Stmt:
    """Statements in order, flattened; one alone stands for itself."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(in_order(s))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def loop_nest(s: Stmt) -> tuple[list[Loop], Stmt]:
    """The loops that a statement begins with, outermost first, and what stands in the last of them."""
    found = []
    while isinstance(s, Loop):
        found.append(s)
        s = s.body
    return found, s


def in_order(s: Stmt) -> tuple[Stmt, ...]:
    """The statements of a sequence; one that is none stands for itself."""
    return s.stmts if isinstance(s, Seq) else (s,)


def allocated(buffers: Sequence[Buffer], s: Stmt) -> Stmt:
    """``s`` with the buffers allocated around it, the first outermost."""
    for b in reversed(buffers):
        s = Alloc(b, s)
    return s


def allocations(s: Stmt) -> tuple[list[Buffer], Stmt]:
    """The buffers that are allocated around a statement, outermost first, and the statement without them."""
    found = []
    while isinstance(s, Alloc):
        found.append(s.buffer)
        s = s.body
    return found, s


def kids(s: Stmt) -> tuple[Stmt, ...]:
    if type(s) in _AROUND:
        return (s.body,)  # type: ignore[union-attr]
    return s.stmts if isinstance(s, Seq) else ()


# what stands around a body
_AROUND: frozenset[type] = frozenset(c for c in get_args(Stmt) if "body" in c.__dataclass_fields__)


def walk(s: Stmt) -> list[Stmt]:
    """Every statement, parents first, in program order."""
    out: list[Stmt] = []
    todo = [s]
    while todo:
        x = todo.pop()
        out.append(x)
        while type(x) in _AROUND:  # by class: this is asked of every nest again and again
            x = x.body  # type: ignore[union-attr]
            out.append(x)
        if type(x) is Seq:
            todo.extend(x.stmts[::-1])
    return out


def blocks(s: Stmt) -> tuple[Block, ...]:
    return tuple([x for x in walk(s) if type(x) is Block])


def loops_around(b: Block, within: Stmt) -> list[Loop]:
    """The loops of a statement around a block that is in it, outermost first."""
    return [x for x in path_to(within, lambda s: s is b) or () if isinstance(x, Loop)]


def path_to(s: Stmt, is_target: Callable[[Stmt], bool]) -> tuple[Stmt, ...] | None:
    """Statements from ``s`` down to the first that is the target, both included."""
    path: list[Stmt] = []
    while True:
        path.append(s)
        if is_target(s):
            return tuple(path)
        if isinstance(s, Seq):
            for k in s.stmts:
                rest = path_to(k, is_target)
                if rest is not None:
                    return (*path, *rest)
            return None
        if type(s) not in _AROUND:
            return None
        s = s.body  # type: ignore[union-attr]
