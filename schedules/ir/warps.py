"""What the threads of a warp do side by side: addresses that they access, and guards that they differ in.

The interpreter of grids runs every thread, and `watch` records. Threads of a warp that do the same access in
the same iteration of all loops around do it at once: a request. Lanes of a vectorised loop belong to one
request; iterations of an unrolled loop do not, though a compiler may join them.

Global memory moves sectors of 32 bytes, so a request costs the sectors that it touches. Shared memory has 32
banks of 4 bytes: words of one bank come one after another, so a request costs the most different words of a
bank. Source: CUDA C++ Programming Guide, "Global Memory" and "Shared Memory" of compute capability 5 and
later.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.expr import Expr
from schedules.ir import Alloc, Buffer, Guard, Loop, Stmt, bound_to, walk
from schedules.ir.grid import GridKernel, GridProgram
from schedules.ir.interp import Action, Env, Thunk
from schedules.ir.interp_grid import CheckedCompiler, GridMemory, GridRun, all_arrays
from schedules.ir.lanes import LANE
from schedules.ir.strides import swizzled

SECTOR = 32  # bytes
BANKS, BANK_BYTES = 32, 4


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """Accesses to a buffer. ``scope``: "global", "shared" or "local" (registers). ``read_bytes`` and
    ``written_bytes``: of all threads, what a warp asks for twice in a request once. ``requests``: of warps.
    ``cost``: sectors of global memory, or turns of shared memory; ``least``: what it would be if the bytes
    lay side by side."""

    name: str
    scope: str
    read_bytes: int
    written_bytes: int
    requests: int
    cost: int
    least: int


@dataclass(frozen=True, slots=True)
class KernelCounts:
    """A kernel, of which ``blocks`` of ``of_blocks`` blocks were run. ``branches``: times that a warp comes
    to a guard, to a loop of varying length or to one over threads; ``divergent``: those in which its threads
    differ."""

    name: str
    blocks: int
    of_blocks: int
    buffers: tuple[BufferCounts, ...]
    branches: int
    divergent: int

    def of(self, scope: str) -> tuple[BufferCounts, ...]:
        """Buffers of a memory."""
        return tuple(b for b in self.buffers if b.scope == scope)


@np.errstate(all="ignore")
def watch(
    program: GridProgram, arrays: Mapping[str, np.ndarray], warp: int = 32, ends: bool = False
) -> tuple[KernelCounts, ...]:
    """Run a program as `run_grid` does, and count what each kernel's warps of ``warp`` threads do. Outputs
    are written. ``ends``: run the first and the last block of each kernel only. Raises InterpError as
    `run_grid` does."""
    everyone = all_arrays(program, arrays)
    found = []
    for kernel in program.kernels:
        run = GridRun(kernel, everyone, False, _Watching)
        code = run.code
        assert isinstance(code, _Watching)
        code.begin(kernel, warp)
        places = run.places()
        chosen = [places[0], *places[1:][-1:]] if ends else places
        run.run(chosen)
        found.append(code.summary(kernel.name, len(chosen), len(places)))
    return tuple(found)


# (what, the iteration of the loops around, warp)
_Key = tuple[Any, ...]


class _Watching(CheckedCompiler):
    def __init__(self, mem: GridMemory, shared: frozenset[str]) -> None:
        super().__init__(mem, shared)
        self.memory = mem
        self.requests: defaultdict[_Key, set[int]] = defaultdict(set)
        self.choices: defaultdict[_Key, set[int]] = defaultdict(set)
        self.registers: Counter[tuple[str, str]] = Counter()
        self.scopes: dict[str, tuple[str, int]] = {}
        self.side_by_side: frozenset[str] = frozenset()
        self.swizzles: dict[str, Buffer] = {}
        self.warp = 32

    def begin(self, kernel: GridKernel, warp: int) -> None:
        """What is to be known of a kernel ahead."""
        loops = [x for x in walk(kernel.body) if isinstance(x, Loop)]
        own = {x.var for x in loops if bound_to(x, "threadIdx")}
        self.warp = warp
        self.side_by_side = frozenset(own | {x.var for x in loops if x.kind == "vectorize"} | {LANE})
        buffers = (x.buffer for x in walk(kernel.body) if isinstance(x, Alloc))
        self.swizzles = {b.name: b for b in buffers if b.swizzle}

    def iteration(self, env: Env) -> tuple[int, ...]:
        """The iteration of the loops around, of those that are not done side by side."""
        return tuple(v for name, v in env.items() if name not in self.side_by_side)

    def key(self, what: Any, env: Env) -> _Key:
        return (what, self.at, self.iteration(env), self.memory.thread // self.warp)

    def access(self, kind: str, buffer: str, at: tuple[Thunk, ...], what: Any) -> Callable[[Env], None]:
        def record(env: Env) -> None:
            array = self.mem.arrays[buffer]
            if buffer not in self.scopes:
                self.scopes[buffer] = (self.scope(buffer), array.itemsize)
            if self.scopes[buffer][0] == "local":
                self.registers[kind, buffer] += 1
                return
            offset = sum(i(env) * s for i, s in zip(at, array.strides, strict=True))
            if buffer in self.swizzles:
                offset = swizzled(offset, self.swizzles[buffer])
            self.requests[self.key((kind, buffer, what), env)].add(offset)

        return record

    def scope(self, buffer: str) -> str:
        if buffer in self.memory.own.get(self.memory.thread, {}):
            return "local"
        return "shared" if buffer in self.memory.block else "global"

    def load(self, buffer: str, ix: tuple[Expr, ...]) -> Thunk:
        value = super().load(buffer, ix)
        record = self.access("read", buffer, tuple(map(self.expr, ix)), ix)

        def f(env: Env) -> Any:
            record(env)
            return value(env)

        return f

    def place(self, name: str, ix: tuple[Expr, ...]) -> Callable[[Env], Callable[[Any], None]]:
        put = super().place(name, ix)
        record = self.access("write", name, tuple(map(self.expr, ix)), ix)

        def f(env: Env) -> Callable[[Any], None]:
            record(env)
            return put(env)

        return f

    def stmt(self, s: Stmt) -> Action:
        inner = super().stmt(s)
        if not isinstance(s, (Guard, Loop)) or (isinstance(s, Loop) and bound_to(s, "threadIdx")):
            return inner
        decides = self.expr(s.cond if isinstance(s, Guard) else s.extent)
        if isinstance(s, Loop) and not E.variables(s.extent):
            return inner

        def f(env: Env) -> None:
            self.choices[self.key(id(s), env)].add(int(decides(env)))
            inner(env)

        return f

    def entered(self, loop: Loop, env: Env, has_iteration: bool) -> None:
        self.choices[self.key(id(loop), env)].add(int(has_iteration))

    def summary(self, name: str, blocks: int, of_blocks: int) -> KernelCounts:
        """What was recorded."""
        moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for ((kind, buffer, _), *_rest), offsets in self.requests.items():
            scope, item = self.scopes[buffer]
            total = moved[buffer]
            total[kind] += len(offsets) * item
            total["requests"] += 1
            if scope == "global":
                total["cost"] += len({o // SECTOR for o in offsets})
                total["least"] += -(-len(offsets) * item // SECTOR)
            else:
                words = {w for o in offsets for w in range(o // BANK_BYTES, (o + item - 1) // BANK_BYTES + 1)}
                total["cost"] += max(Counter(w % BANKS for w in words).values())
                total["least"] += -(-len(words) // BANKS)
        for (kind, buffer), times in self.registers.items():
            moved[buffer][kind] += times * self.scopes[buffer][1]
        buffers = tuple(
            BufferCounts(
                b,
                self.scopes[b][0],
                *(total[k] for k in ("read", "write", "requests", "cost", "least")),
            )
            for b, total in sorted(moved.items())
        )
        differ = sum(len(x) > 1 for x in self.choices.values())
        return KernelCounts(name, blocks, of_blocks, buffers, len(self.choices), differ)
