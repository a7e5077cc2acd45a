"""The interpreter of `GridProgram`: every block, its threads side by side.

Each thread runs until a barrier while the others wait, in one order or the other, so that a missing barrier
shows in the result; and it is found where it is missing: an element that one thread writes and another
uses, with no barrier between them, is a race. A barrier that some threads of a block do not come to is an
error too.

A copy in the background lands where it is begun, where it is awaited, or at random there or here; in between
its elements hold nothing. Whenever it lands, they are under way until their thread awaits them: whoever uses
one before is found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schedules import expr as E
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
    bound_to,
    kids,
    walk,
)
from schedules.ir.exprs import beside, written
from schedules.ir.grid import GridKernel, GridProgram
from schedules.ir.interp import (
    Action,
    Compiler,
    Env,
    InterpError,
    as_merged,
    new_array,
    rounding,
    unwritten,
)
from schedules.ir.lanes import LANE, Elements, give_and_take, is_collective, together
from schedules.layouts import LANES

Steps = list[tuple[int, Iterator[Stmt]]]  # threads that go on
AFTER = Seq(())  # where the values of a reduction may be overwritten
AFTER_WARP = Seq(())  # the same, of one that the lanes of a warp do by themselves
LANDINGS = ("late", "early", "random")  # when copies in the background land
Place = tuple[str, tuple[int, ...]]
Who = tuple[tuple[int, ...], int]  # block, and thread in it


@dataclass
class _Use:
    """Who used an element last, by kind, and in which phase of its block."""

    writer: Who | None = None
    written: int = -1
    readers: dict[Who, int] = field(default_factory=dict)
    joiners: dict[Who, int] = field(default_factory=dict)  # by atomic updates, which may meet


@dataclass
class _Copies:
    """Copies that a thread began and has not awaited: how each ends. ``latest``: those of no group yet."""

    groups: list[list[Callable[[], None]]] = field(default_factory=list)
    latest: list[Callable[[], None]] = field(default_factory=list)

    def any(self) -> bool:
        return bool(self.latest or any(self.groups))


class GridMemory:
    """What `interp.Compiler` asks for an array: a thread's own, its block's, or everyone's."""

    def __init__(self) -> None:
        self.everyone: dict[str, np.ndarray] = {}
        self.block: dict[str, np.ndarray] = {}
        self.own: dict[int, dict[str, np.ndarray]] = {}
        self.thread = 0
        self.arrays = _Lookup(self)
        self.written = _Ignored()

    def new(self, b: Buffer) -> np.ndarray:
        """An array for a buffer. GPUs have no sizes that a call tells."""
        return new_array(b)

    def add(self, name: str, array: np.ndarray, *, known: bool) -> None:
        self.own[self.thread][name] = array


class _Lookup(dict[str, np.ndarray]):
    def __init__(self, mem: GridMemory) -> None:
        super().__init__()
        self.mem = mem

    def __missing__(self, name: str) -> np.ndarray:
        for where in (self.mem.own.get(self.mem.thread, {}), self.mem.block, self.mem.everyone):
            if name in where:
                return where[name]
        raise InterpError(f"{name} is used where it does not live")


class _Ignored(dict[str, Any]):
    """Outputs are looked at for NaN or their poison instead."""

    def __missing__(self, name: str) -> Any:
        return {}


class CheckedCompiler(Compiler):
    """Statements without barriers, with every access to memory that threads share checked for races."""

    def __init__(self, mem: GridMemory, shared: frozenset[str]) -> None:
        super().__init__(mem, None)  # type: ignore[arg-type]
        self.shared = shared
        self.at: tuple[int, ...] = ()
        self.phase = 0
        self.uses: dict[Place, _Use] = {}
        self.joins = False  # whether what is done now is an atomic update
        self.landing = LANDINGS[0]
        self.chance = np.random.default_rng(0)
        self.copies: dict[int, _Copies] = {}  # by thread
        self.under_way: dict[Place, Who] = {}

    def stmt(self, s: Stmt) -> Action:
        match s:
            case Copy():
                return self.copy(s)
            case Signal():
                return lambda env: self.signal()
            case Await(pending=n):
                return lambda env: self.wait(n)
        return super().stmt(s)

    def own_copies(self) -> _Copies:
        return self.copies.setdefault(self.mem.thread, _Copies())  # type: ignore[attr-defined]

    def signal(self) -> None:
        own = self.own_copies()
        own.groups.append(own.latest)
        own.latest = []

    def wait(self, pending: int) -> None:
        own = self.own_copies()
        while len(own.groups) > pending:
            for end in own.groups.pop(0):
                end()

    def copy(self, s: Copy) -> Action:
        """A copy that begins. Its lanes are side by side, as those of a vector."""
        at, source = (beside(ix, E.Var(LANE)) for ix in (s.indices, s.value.indices))
        place = tuple(map(self.expr, at))
        put, load = self.place(s.buffer, at), self.load(s.value.buffer, source)
        cond, nothing = self.expr(s.cond), unwritten(s.value.dtype)

        def begin(env: Env) -> None:
            there, early = bool(cond(env)), self.lands_early()
            for env[LANE] in range(s.count):
                self.begins((s.buffer, tuple(i(env) for i in place)), put(env), early, nothing,
                            load(env) if there else 0)  # fmt: skip
            del env[LANE]

        return begin

    def lands_early(self) -> bool:
        return self.landing == "early" or (self.landing == "random" and self.chance.random() < 0.5)

    def begins(self, p: Place, put: Callable[[Any], None], early: bool, nothing: Any, value: Any) -> None:
        """An element is under way until its end."""
        me: Who = (self.at, self.mem.thread)  # type: ignore[attr-defined]
        put(value if early else nothing)
        self.under_way[p] = me

        def end() -> None:
            del self.under_way[p]
            if not early:
                put(value)
            self.uses[p].writer, self.uses[p].written = me, self.phase

        self.own_copies().latest.append(end)

    def ended(self) -> None:
        """A block is done."""
        for thread, own in self.copies.items():
            if own.any():
                (buffer, p), _ = next(x for x in self.under_way.items() if x[1] == (self.at, thread))
                raise InterpError(
                    f"thread {thread} of block {list(self.at)} ends, and nothing awaited its copy to "
                    f"{buffer}{list(p)}"
                )
        self.copies, self.under_way = {}, {}

    def atomic(self, s: Atomic) -> Action:
        value = self.expr(s.value)
        here = E.Load(s.buffer, s.indices, E.dtype_of(s.value))
        seen, put, keep = self.expr(here), self.place(s.buffer, s.indices), rounding(here.dtype)

        def update(env: Env) -> None:
            v = value(env)
            self.joins = True
            put(env)(keep(E.NUMERIC[s.op](seen(env), v)))
            self.joins = False

        return update

    def bounds(self, buffer: str, p: tuple[int, ...], what: str) -> None:
        super().bounds(buffer, p, what)
        if buffer not in self.shared:
            return
        me: Who = (self.at, self.mem.thread)  # type: ignore[attr-defined]
        use = self.uses.setdefault((buffer, p), _Use())
        if (other := self.under_way.get((buffer, p))) is not None:
            raise InterpError(self._race(buffer, p, me, other, "begun to copy and not awaited"))
        writes = what == "writes"
        if use.writer is not None and self._meets(me, use.writer, use.written):
            raise InterpError(self._race(buffer, p, me, use.writer, "written"))
        if self.joins:
            writes = True  # reading is a part of it
        for other, phase in () if self.joins else use.joiners.items():
            if self._meets(me, other, phase):
                raise InterpError(self._race(buffer, p, me, other, "updated"))
        if writes:
            for other, phase in use.readers.items():
                if self._meets(me, other, phase):
                    raise InterpError(self._race(buffer, p, me, other, "read"))
            if self.joins:
                use.joiners[me] = self.phase
            else:
                use.writer, use.written = me, self.phase
        else:
            use.readers[me] = self.phase

    def entered(self, loop: Loop, env: Env, has_iteration: bool) -> None:
        """A thread came to a loop over threads. For who watches (`schedules.ir.warps`)."""

    def _meets(self, me: Who, other: Who, phase: int) -> bool:
        return other != me and (other[0] != me[0] or phase == self.phase)

    def _race(self, buffer: str, p: tuple[int, ...], me: Who, other: Who, done: str) -> str:
        who = f"thread {other[1]} of block {list(other[0])}"
        return f"race on {buffer}{list(p)}: thread {me[1]} of block {list(me[0])} uses what {who} has {done}"


def all_arrays(program: GridProgram, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a program's parameters as its kernels see them, and those between its kernels."""
    return (
        dict(arrays)
        | {b.name: as_merged(b, arrays[b.name]) for b in program.params}
        | {b.name: new_array(b) for b in program.scratch}
    )


@np.errstate(all="ignore")  # infinities and NaN are results like others
def run_grid(
    program: GridProgram,
    arrays: Mapping[str, np.ndarray],
    *,
    backwards: bool = False,
    landing: str = LANDINGS[0],
    seed: int = 0,
) -> None:
    """Execute on numpy arrays by parameter name; outputs are written in place. ``backwards``: the last thread
    of a block first. ``landing``: when copies in the background land: "late", where they are awaited;
    "early", where they are begun; "random", by ``seed``. Raises InterpError on a race, a barrier that not all
    threads reach, an access out of bounds, an element that is used while a copy to it is under way, a copy
    that nothing awaits, or an output that holds NaN where nothing was written."""
    everyone = all_arrays(program, arrays)
    for kernel in program.kernels:
        run = GridRun(kernel, everyone, backwards)
        run.code.landing, run.code.chance = landing, np.random.default_rng(seed)
        run.run()


class GridRun:
    def __init__(
        self,
        kernel: GridKernel,
        everyone: dict[str, np.ndarray],
        backwards: bool,
        checked: type[CheckedCompiler] = CheckedCompiler,
    ) -> None:
        self.kernel, self.backwards = kernel, backwards
        self.mem = GridMemory()
        self.mem.everyone = everyone
        allocs = [x.buffer for x in walk(kernel.body) if isinstance(x, Alloc)]
        self.on_chip = [b for b in allocs if b.scope == "shared"]
        shared = frozenset(b.name for b in self.on_chip) | kernel.written
        self.code = checked(self.mem, shared)
        self.actions: dict[int, Any] = {}
        self.lanes: dict[int, Any] = {}  # by instruction: what a lane gives and takes
        self.given: dict[int, Elements] = {}  # by thread, for the instruction that it has come to
        self.values: dict[tuple[int, int], Any] = {}  # of a reduction: (row of threads, thread in it)

    def run(self, places: Sequence[tuple[int, ...]] | None = None) -> None:
        """``places``: the blocks that are run (None: all)."""
        for at in self.places() if places is None else places:
            self._block(at)

    def places(self) -> list[tuple[int, ...]]:
        """All blocks of the grid."""
        extents = (range(int(E.evaluate(x.extent, {}))) for x in self.kernel.blocks)
        return list(itertools.product(*extents))

    def _block(self, at: tuple[int, ...]) -> None:
        self.mem.block = {b.name: new_array(b) for b in self.on_chip}
        self.mem.own = {}
        self.code.at, self.code.phase = at, 0
        for place in [p for p in self.code.uses if p[0] in self.mem.block]:
            del self.code.uses[place]  # other memory, though of that name
        threads = []
        for number, (z, y, x) in enumerate(itertools.product(*map(range, reversed(self.kernel.block)))):
            env = dict(zip((b.var for b in self.kernel.blocks), at, strict=True))
            self.mem.own[number] = {}
            threads.append((number, self._steps(self.kernel.body, env, number, {"x": x, "y": y, "z": z}, "")))
        if self.backwards:
            threads.reverse()
        while threads:
            stopped: dict[int, list[int]] = {}
            left = []
            for number, steps, where in self._stops(threads, at):
                stopped.setdefault(id(where) if where is not None else 0, []).append(number)
                if where is not None:
                    left.append((number, steps))
            if len(stopped) > 1:
                few = min(stopped.values(), key=len)
                raise InterpError(
                    f"{self.kernel.name}: a barrier in block {list(at)} that not all threads reach: thread "
                    f"{few[0]} is elsewhere"
                )
            threads = left
            self.code.phase += 1
        self.code.ended()

    def _stops(self, threads: Steps, at: tuple[int, ...]) -> list[tuple[int, Iterator[Stmt], Stmt | None]]:
        """Where each thread has to wait for the others of its block, or ends. What the lanes of a warp do
        together is done on the way, in no phase of its own."""
        out: list[tuple[int, Iterator[Stmt], Stmt | None]] = []
        while threads:
            stops: dict[int, list[tuple[int, Iterator[Stmt], Stmt | None]]] = {}
            for number, steps in threads:
                self.mem.thread = number
                stops.setdefault(number // LANES, []).append((number, steps, next(steps, None)))
            threads = []
            for warp in stops.values():
                s = next((x for _, _, x in warp if x is AFTER_WARP or _is_of_warp(x)), None)
                if s is None:
                    out += warp
                    continue
                away = [n for n, _, x in warp if x is not s]
                if away or len(warp) < LANES:
                    who = f"thread {away[0]} is elsewhere" if away else f"its warp has {len(warp)} threads"
                    what = s.instruction.name if isinstance(s, Intrinsic) else "a reduction of neighbours"
                    raise InterpError(
                        f"{self.kernel.name}: {what} in block {list(at)}, which not all "
                        f"{LANES} lanes of a warp reach: {who}"
                    )
                if isinstance(s, Intrinsic):
                    results = together(s.instruction, [self.given[n] for n in sorted(n for n, _, _ in warp)])
                    for n, _, _ in warp:
                        self.given[n] = results[n % LANES]
                threads += [(n, steps) for n, steps, _ in warp]
        return out

    def _steps(self, s: Stmt, env: Env, number: int, at: dict[str, int], axes: str) -> Iterator[Stmt]:
        """A thread's way through a statement: it stops at every barrier. Of threads that differ in an axis
        that no loop around stands for (``axes`` do), the first writes what all share."""
        match s:
            case Seq(stmts=xs):
                for x in xs:
                    yield from self._steps(x, env, number, at, axes)
            case Alloc(buffer=b, body=body):
                if b.scope == "local":
                    self.mem.own[number][b.name] = new_array(b)
                yield from self._steps(body, env, number, at, axes)
            case Barrier():
                yield s
            case AllReduce():
                yield from self._reduce(s, env, number, at)
            case Intrinsic():
                yield from self._as_lane(s, env, number)
            case Loop(kind=kind, var=v, extent=n, body=body) if bound_to(s, "threadIdx"):
                env[v] = at[kind[-1]]
                has_iteration = at[kind[-1]] < int(E.evaluate(n, env))
                self.code.entered(s, env, has_iteration)
                if has_iteration:
                    yield from self._steps(body, env, number, at, axes + kind[-1])
                else:
                    yield from self._attend(body, env)
                del env[v]
            case Loop(var=v, extent=n, body=body) if _waits(body) or _has_threads(body):
                for i in range(int(E.evaluate(n, env))):
                    env[v] = i
                    yield from self._steps(body, env, number, at, axes)
                env.pop(v, None)
            case Guard(cond=c, body=body) if _waits(body) or _has_threads(body):
                if self.code.expr(c)(env):
                    yield from self._steps(body, env, number, at, axes)
            case _:
                stored = (n for x in walk(s) for n in written(x))
                own = all(n in self.mem.own[number] for n in stored)
                if own or all(at[a] == 0 for a in at if a not in axes):
                    self._action(s)(env)

    def _as_lane(self, s: Intrinsic, env: Env, number: int) -> Iterator[Stmt]:
        """What a thread does of what the lanes of its warp do together."""
        if id(s) not in self.lanes:
            self.lanes[id(s)] = give_and_take(self.code, s)
        give, take = self.lanes[id(s)]
        self.given[number] = give(env, number % LANES)
        yield s
        take(env, self.given[number])

    def _attend(self, s: Stmt, env: Env) -> Iterator[Stmt]:
        """The way through a loop over threads of one that it has no iteration for: all come to reductions."""
        match s:
            case AllReduce():
                yield s
                yield AFTER_WARP if s.near else AFTER
            case Loop(var=v, extent=n, body=body) if _waits(body) and not bound_to(s, "threadIdx"):
                for i in range(int(E.evaluate(n, env))):
                    env[v] = i
                    yield from self._attend(body, env)
                env.pop(v, None)
            case Guard(cond=c, body=body) if _waits(body):
                if self.code.expr(c)(env):
                    yield from self._attend(body, env)
            case _:
                for x in kids(s):
                    yield from self._attend(x, env)

    def _action(self, s: Stmt) -> Any:
        if id(s) not in self.actions:
            self.actions[id(s)] = self.code.stmt(s)
        return self.actions[id(s)]

    def _reduce(self, s: AllReduce, env: Env, number: int, at: dict[str, int]) -> Iterator[Stmt]:
        width = self.kernel.block[0]
        if at["x"] < s.extent:
            env[s.var] = at["x"]
            self.values[number // width, at["x"]] = self.code.expr(s.value)(env)
            del env[s.var]
        yield s
        dtype = E.dtype_of(s.value)
        here = E.Load(s.buffer, s.indices, dtype)
        total, keep = self.code.expr(here)(env), rounding(dtype)
        first = at["x"] // s.near * s.near if s.near else 0
        for x in range(first, first + s.near if s.near else s.extent):
            total = keep(E.NUMERIC[s.op](total, self.values[number // width, x]))
        self.code.place(s.buffer, s.indices)(env)(total)
        yield AFTER_WARP if s.near else AFTER


def _is_of_warp(s: Stmt | None) -> bool:
    """Whether the lanes of a warp do a statement together, without the other threads of their block."""
    return isinstance(s, Intrinsic) or (isinstance(s, AllReduce) and s.near > 0)


def _waits(s: Stmt) -> bool:
    return any(isinstance(x, (Barrier, AllReduce)) or is_collective(x) for x in walk(s))


def _has_threads(s: Stmt) -> bool:
    return any(bound_to(x, "threadIdx") for x in walk(s))
