"""Holds results of instructions in the registers of their unit, as long as nothing else touches them.

A tile of sums is loaded before the loop that adds to it, and stored after it. In between it is a local vector
that LLVM turns into a value (SROA), and then into a register. The same goes for tiles that unrolled loops
name, as many as there are registers. A tile whose first use only writes it is not loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from autotune.codegen.llvm import intrinsic
from autotune.codegen.llvm.store import Stores
from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr
from schedules.instructions import Instruction
from schedules.ir import Alloc, Intrinsic, Loop, Operand, Seq, Stmt, const, walk
from schedules.ir.exprs import loads, places
from schedules.model import LINE

# Where an operand begins: its buffer, the terms of its flat index, and the constant one.
Place = tuple[str, frozenset[tuple[Expr, int]], int]


@dataclass(frozen=True, slots=True)
class HeldUse:
    """One use of a result. ``sure``: it is reached whenever the statement is. ``fresh``: it does not read
    what the result holds."""

    instruction: Instruction
    operand: Operand
    sure: bool
    fresh: bool

    @property
    def most(self) -> int:
        """Results that leave registers for its inputs."""
        assert self.instruction.registers is not None
        return self.instruction.registers.count - len(self.instruction.meaning.inputs)


@dataclass(frozen=True, slots=True)
class HeldRegion:
    """Statements ``first`` to ``last`` of a sequence, over which results are held. ``held``: the first use of
    each. ``most``: results that may be held at a time, so that inputs find registers."""

    first: int
    last: int
    held: Mapping[Place, HeldUse]
    most: int


class HeldResults:
    """The held results of a function. ``local``: makes a local variable of a type."""

    def __init__(
        self, s: Stmt, x: Stores, declare: Callable[[str], None], local: Callable[[str], str]
    ) -> None:
        self.x, self.s, self.declare, self.local = x, x.s, declare, local
        self.slots: dict[Place, str] = {}
        self.writes: Counter[str] = Counter()  # of each buffer, so far
        self.any = any(self.holds(y) for y in walk(s))

    def holds(self, s: Stmt) -> bool:
        """Whether a statement is an instruction of this target with registers of its own."""
        if not isinstance(s, Intrinsic) or s.instruction.registers is None:
            return False
        return intrinsic.has(s.instruction, self.x.features)

    # -- what can be held ----------------------------------------------------------------------

    def regions(self, stmts: Sequence[Stmt]) -> list[HeldRegion]:
        """What can be held over some of ``stmts``, and is not held yet."""
        found = [self._uses(s) for s in stmts]
        buffers = {b for uses in found for b, xs in uses.items() if xs}
        held = {place[0] for place in self.slots}
        out: list[HeldRegion] = []
        for b in sorted(buffers - held):
            for r in self._regions(b, [x.get(b, ()) for x in found]):
                beside = sum(len(q.held) for q in out if q.first <= r.last and r.first <= q.last)
                if len(r.held) + beside + len(self.slots) <= r.most:
                    out.append(r)
        return out

    def _regions(self, buffer: str, uses: Sequence[Sequence[HeldUse] | None]) -> Iterator[HeldRegion]:
        """``uses``: of the buffer, by statement; None: something else touches it."""
        mine: list[int] = []
        for n, xs in enumerate([*uses, None]):
            if xs:
                mine.append(n)
            elif xs is None and mine:
                all_ = [u for k in mine for u in uses[k] or ()]
                held = self._together(all_)
                if held is not None:
                    yield HeldRegion(mine[0], mine[-1], held, min(u.most for u in all_))
                mine = []

    def _together(self, uses: Sequence[HeldUse]) -> Mapping[Place, HeldUse] | None:
        """The first use of each result, where all of them can be held at a time."""
        first: dict[Place, HeldUse] = {}
        sure = set()
        for u in uses:
            place = self.place(u.operand)
            first.setdefault(place, u)
            if u.sure:
                sure.add(place)
        registers, strides = uses[0].instruction.registers, uses[0].operand.strides
        if any(u.operand.strides != strides or u.instruction.registers is not registers for u in uses):
            return None
        if sure != set(first):
            return None
        shape = uses[0].instruction.result.shape
        apart = all(_apart(p, q, strides, shape) for p, q in combinations(first, 2))
        return first if apart else None

    def _uses(self, s: Stmt) -> dict[str, list[HeldUse] | None]:
        out: dict[str, list[HeldUse] | None] = {}
        self._collect(s, {}, frozenset(), True, out)
        return out

    def _collect(
        self,
        s: Stmt,
        fixed: Mapping[str, Expr],
        moving: frozenset[str],
        sure: bool,
        out: dict[str, list[HeldUse] | None],
    ) -> None:
        """Add the uses in ``s``. ``fixed``: unrolled variables. ``moving``: those of other loops."""
        if self.holds(s):
            assert isinstance(s, Intrinsic)
            *inputs, result = s.operands
            out.update((x.buffer, None) for x in inputs)
            use = self._use(s, fixed, sure)
            if moving & {v for i in use.operand.indices for v in E.variables(i)}:
                out[result.buffer] = None
            elif (known := out.setdefault(result.buffer, [])) is not None:
                known.append(use)
            return
        out.update(dict.fromkeys(_touched(s)))
        match s:
            case Seq(stmts=xs):
                for x in xs:
                    self._collect(x, fixed, moving, sure, out)
            case Loop(kind="unroll", var=v, body=body) if (n := const(s.extent)) is not None:
                for k in range(n):
                    self._collect(body, {**fixed, v: Const(k)}, moving, sure, out)
            case Loop(kind="serial", var=v, body=body):
                sure &= (const(s.extent) or 0) > 0
                self._collect(body, fixed, moving | {v}, sure, out)
            case Alloc(buffer=b, body=body):
                self._collect(body, fixed, moving, sure, out)
                out[b.name] = None
            case _:  # lanes, threads, and what a condition guards
                for x in walk(s)[1:]:
                    out.update(dict.fromkeys(_touched(x)))

    def _use(self, s: Intrinsic, fixed: Mapping[str, Expr], sure: bool) -> HeldUse:
        known = {v: Const(n) for v, n in self.x.env.items() if isinstance(n, int)} | dict(fixed)
        o = s.operands[-1]
        at = tuple(affine.simplify(E.substitute(i, known), {}) for i in o.indices)
        fresh = s.instruction.meaning.stages[0].reducer is None
        return HeldUse(s.instruction, replace(o, indices=at), sure, fresh)

    def place(self, o: Operand) -> Place:
        flat = self.x.flat(o.buffer, o.indices)
        return o.buffer, frozenset(flat.terms), flat.const

    # -- code ----------------------------------------------------------------------------------

    def enter(self, r: HeldRegion) -> None:
        """Load what a region holds."""
        for place, u in r.held.items():
            registers = u.instruction.registers
            assert registers is not None
            self.slots[place] = self.local(registers.spellings["llvm"]["type"])
            if u.fresh:
                self._ask(u)
            else:
                value = self._load(u.instruction, u.operand)
                self._text(u.instruction, "keep", value=value, slot=self.slots[place])

    def _ask(self, u: HeldUse) -> None:
        """Ask for the lines of an argument that will be stored, but were not loaded."""
        if self.x.places[u.operand.buffer].size:
            return
        where = self._where(u.instruction, u.operand)
        name = "@llvm.prefetch.p0"
        self.declare(f"declare void {name}(ptr, i32, i32, i32)")
        for row in range(int(where["rows"])):
            for at in range(0, int(where["bytes"]), LINE):
                offset = row * int(where["step"]) + at
                ptr = self.s.emit(f"getelementptr i8, ptr {where['at']}, i64 {offset}", hint="p")
                self.s.do(f"call void {name}(ptr {ptr}, i32 1, i32 3, i32 1)")

    def leave(self, r: HeldRegion) -> None:
        """Store what a region held."""
        for place, u in r.held.items():
            value = self.s.fresh("tile")
            self._text(u.instruction, "take", value=value, slot=self.slots.pop(place))
            self._text(u.instruction, "store", value=value, **self._where(u.instruction, u.operand))
            self.writes[u.operand.buffer] += 1

    def emit(self, s: Intrinsic) -> None:
        """An instruction on registers. Its result is held over it, if over nothing more."""
        ins, use = s.instruction, self._use(s, {}, True)
        place = self.place(use.operand)
        if place not in self.slots:
            alone = HeldRegion(0, 0, {place: use}, use.most)
            self.enter(alone)
            self.emit(s)
            self.leave(alone)
            return
        slots = {o.name: self._loaded(ins, o) for o in s.operands[:-1]}
        out, slot = s.operands[-1].name, self.slots[place]
        slots[out], slots[f"{out}.new"] = self.s.fresh("tile"), self.s.fresh("tile")
        if not use.fresh:
            self._text(ins, "take", value=slots[out], slot=slot)
        intrinsic.emit(ins.spellings["llvm"], slots, self.s, self.declare)
        self._text(ins, "keep", value=slots[f"{out}.new"], slot=slot)

    def _loaded(self, ins: Instruction, o: Operand) -> str:
        """An input in a register. It is loaded once where instructions that follow each other share it."""
        where = self._where(ins, o)
        key = ("tile", *where.values(), self.writes[o.buffer])
        known = self.s.top.memo.get(key)
        if known is None:
            known = self.s.top.memo[key] = self._load(ins, o)
        return str(known)

    def _load(self, ins: Instruction, o: Operand) -> str:
        value = self.s.fresh("tile")
        self._text(ins, "load", value=value, **self._where(ins, o))
        return value

    def _where(self, ins: Instruction, o: Operand) -> dict[str, str]:
        """Address of an operand, bytes from row to row, rows, bytes of a row."""
        layout = next(t for t in ins.operands if t.name == o.name)
        item = DTYPES[layout.dtype].itemsize
        return {
            "at": self.x.address(o.buffer, self.x.flat(o.buffer, o.indices))[0],
            "step": str(o.strides[0] * item),
            "rows": str(layout.shape[0]),
            "bytes": str(prod(layout.shape[1:]) * item),
        }

    def _text(self, ins: Instruction, what: str, **slots: str) -> None:
        assert ins.registers is not None
        intrinsic.emit(ins.registers.spellings["llvm"][what], slots, self.s, self.declare)


def _touched(s: Stmt) -> list[str]:
    """Buffers that a statement itself reads or writes."""
    return [*(x.buffer for x in places(s)), *(x.buffer for x in loads(s))]


def _apart(p: Place, q: Place, strides: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether two results share no element."""
    if p[:2] != q[:2] or len(shape) != 2:
        return False
    rows, columns = shape
    return all(abs(q[2] - p[2] - k * strides[0]) >= columns for k in range(1 - rows, rows))
