"""Measures what this CPU can do: FMA rate (FLOP/s), memory bandwidth (bytes/s), and a reference loop.

Each loop is compiled, loaded and timed as a tuned kernel is. Results are kept for the life of the process and
never on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import Protocol

import numpy as np

from autotune.codegen.llvm.compile import LoadedObject, compile_module, load_object
from autotune.codegen.runtime import aligned, entry
from autotune.targets import cores_first, on_cpus, usable_cpu_set
from schedules.expr import Const
from schedules.ir import Buffer
from schedules.model import Target

# Least length of a sample (seconds): on one thread; on several, which do not begin at the same instant.
SAMPLE_S = 2e-3
TOGETHER_S = 10e-3
# Length of a run of the reference loop (seconds, about).
LOOP_S = 0.3e-3
# FMA loop: independent accumulators. 2 FMA units × latency 4 to 5 need 8 to 10; AVX2 has 16 registers.
CHAINS = 12
# FMA loop: FMAs of each chain in a run, about 1.5 µs.
STEPS = 1024
# Tile loop: rows and vectors (12 accumulators), and steps until it reads the same elements again.
ROWS, VECTORS, SPAN = 4, 3, 16
# Spells in which a normal time is measured, and the pause between two (seconds).
SPELLS, PAUSE_S = 5, 0.03
# Runs at the beginning of a spell that do not count (seconds): a core may clock higher. Source: ADR 31.
HEAT_S = 0.015
# {mode of the memory loop: arrays that it reads}.
MODES = {"read": "A", "copy": "A", "stream": "A", "triad": "AB"}
# Runs of a loop by which its length is told.
WARM = 200
# {dtype with an FMA loop: LLVM's type}.
_LLVM_TYPE = {"float32": "float", "float64": "double"}


class KernelLoop:
    """A loop that stays in the core: its object, and its ``arrays``."""

    def __init__(self, loaded: LoadedObject, arrays: Sequence[np.ndarray]) -> None:
        self._object, self.arrays = loaded, arrays
        self._pointers = [a.ctypes.data for a in arrays]

    def on_arrays_of_its_own(self) -> KernelLoop:
        """The same code on copies of the arrays, for another thread."""
        return KernelLoop(self._object, [a.copy() for a in self.arrays])

    def seconds(self, runs: int, cpu_clock: bool = False) -> float:
        """Seconds that ``runs`` runs take together, on the monotonic clock or in thread CPU time."""
        return self._object.bench(self._pointers, runs, cpu_clock=cpu_clock) * 1e-9


class FmaLoop(KernelLoop):
    """The FMA loop of the widest vector unit: `CHAINS` × `STEPS` fused multiply-adds a run."""

    def __init__(self, target: Target, dtype: str = "float32") -> None:
        if dtype not in _LLVM_TYPE:
            raise ValueError(f"no FMA loop for dtype {dtype!r}; use float32 or float64")
        one = replace(target, threads=1)
        lanes = vector_lanes(target, dtype)
        self.flops = 2 * CHAINS * STEPS * lanes
        loaded = load_loop(_fma_text(dtype, lanes), (("C", (CHAINS * lanes,), dtype),), one)
        super().__init__(loaded, [np.zeros(CHAINS * lanes, dtype)])


class Together:
    """Jobs that run at the same time, one a thread, each returning its seconds.

    The threads are kept, each with the CPUs that the maker of this could use, as that process may be bound to
    one later. They begin on different CPUs: the kernel would wake them all on the waker's CPU and leave them
    there for milliseconds."""

    def __init__(self, jobs: Sequence[Callable[[], float]]) -> None:
        self._jobs = list(jobs)
        self._cpus = cores_first(usable_cpu_set())
        self._pool = ThreadPoolExecutor(len(jobs))
        self.seconds()

    def seconds(self) -> float:
        """From the first that begins to the last that ends: one after the other they take twice as long."""
        if len(self._jobs) == 1:
            return self._jobs[0]()
        start = threading.Barrier(len(self._jobs))

        def work(number: int, job: Callable[[], float]) -> tuple[float, float]:
            start.wait()
            with suppress(OSError), on_cpus(frozenset(self._cpus[number : number + 1])):
                pass  # moved there, if it is there still, and free to be moved again
            begin = time.perf_counter()
            return begin, begin + job()  # by its own clock: Python's thread may have to wait to go on

        try:
            spans = list(self._pool.map(work, range(len(self._jobs)), self._jobs))
        except BaseException:  # Ctrl-C before all have begun: those that wait would for ever
            start.abort()
            raise
        return max(end for _, end in spans) - min(begin for begin, _ in spans)


def sample_seconds(threads: int) -> float:
    """Least length of a sample on this many threads (seconds)."""
    return SAMPLE_S if threads == 1 else TOGETHER_S


class Rated(Protocol):
    """A loop that does arithmetic on all threads of a target at once."""

    def flops_a_second(self) -> float:
        """Operations a second, now."""


class LoopsTogether:
    """A loop of arithmetic on some threads at once, on each with arrays of its own. ``flops``: of a run."""

    def __init__(self, loop: KernelLoop, threads: int, flops: int) -> None:
        loops = [loop, *(loop.on_arrays_of_its_own() for _ in range(threads - 1))]
        runs = max(1, round(sample_seconds(len(loops)) / (loops[0].seconds(WARM) / WARM)))
        self._flops = flops * len(loops) * runs
        self._jobs = Together([partial(x.seconds, runs) for x in loops])

    def flops_a_second(self) -> float:
        """The rate now."""
        return self._flops / self._jobs.seconds()


class FmaLoops(LoopsTogether):
    """The FMA loop on ``target.threads`` threads at once."""

    def __init__(self, target: Target, dtype: str = "float32") -> None:
        loop = FmaLoop(target, dtype)
        super().__init__(loop, target.threads, loop.flops)


class MemoryLoop:
    """A loop over a working set of ``working_set`` bytes in all, on ``target.threads`` threads at once. See
    `bandwidth` for ``mode``. A sample takes `sample_seconds` or one pass. ``cpu_clock``: it is timed in CPU
    time of its threads, which others take none of. Raises ValueError for another mode."""

    def __init__(self, target: Target, mode: str, working_set: int, cpu_clock: bool = False) -> None:
        if mode not in MODES:
            raise ValueError(f"no bandwidth loop {mode!r}; one of {', '.join(MODES)}")
        arrays = len(MODES[mode]) + (mode != "read")
        lanes = vector_lanes(target, "float32")
        unit = 8 * lanes
        n = max(1, working_set // (4 * arrays * unit * target.threads)) * unit
        shapes = {"A": n, "B": n, "C": unit if mode == "read" else n}  # "read" writes its sums only
        params = [(name, (shapes[name],), "float32") for name in MODES[mode] + "C"]
        loaded = load_loop(_stream_text(mode, n, lanes), params, replace(target, threads=1))
        self._arrays = [[_aligned(p[1][0]) for p in params] for _ in range(target.threads)]
        loops = [KernelLoop(loaded, each) for each in self._arrays]
        runs = max(1, round(sample_seconds(target.threads) / max(1e-9, loops[0].seconds(1))))
        self._moved = 4 * n * arrays * runs * target.threads
        # without ``self``: arrays of a cycle would stay until the collector comes
        self._jobs = Together([partial(x.seconds, runs, cpu_clock) for x in loops])

    def bytes_a_second(self) -> float:
        """The rate now."""
        return self._moved / self._jobs.seconds()


class TileLoop(KernelLoop):
    """The inner loop of a register tile, from the first cache: `ROWS` × `VECTORS` accumulators. Each of
    `STEPS` steps loads a vector of each column and broadcasts an element of each row."""

    def __init__(self, target: Target) -> None:
        lanes = vector_lanes(target, "float32")
        self.flops = 2 * ROWS * VECTORS * STEPS * lanes
        params = (("A", (SPAN * ROWS,)), ("B", (SPAN * VECTORS * lanes,)), ("C", (ROWS * VECTORS * lanes,)))
        shapes = [(name, shape, "float32") for name, shape in params]
        loaded = load_loop(_tile_text(lanes), shapes, replace(target, threads=1))
        super().__init__(loaded, [_aligned(shape[0]) for _, shape in params])


class Reference:
    """A fixed loop of about 0.3 ms. Its duration beside a timing over ``nominal_s`` says how much slower than
    nominal the machine ran just then, so that drifting clocks and busy siblings divide out.

    It is the loop of a register tile: a loop of FMAs alone runs slower right after a kernel (ADR 30).
    ``nominal_s``: given where several processes must agree on it, with its ``runs``. Else it is measured: the
    median over a few spells of the 10th percentile of each, so that no slow or fast spell decides it alone.
    """

    def __init__(self, target: Target, nominal_s: float | None = None, runs: int | None = None) -> None:
        self._loop = TileLoop(target)
        self.cpu_clock = target.threads == 1
        self._loop.seconds(100)
        self.runs = runs or max(1, round(LOOP_S / (min(self._loop.seconds(20) for _ in range(5)) / 20)))
        self.nominal_s = nominal_s or self._nominal()

    def seconds(self) -> float:
        """How long the loop takes now."""
        return self._loop.seconds(self.runs, self.cpu_clock)

    def _nominal(self) -> float:
        found: list[float] = []
        for _ in spells():
            self._loop.seconds(round(self.runs * HEAT_S / LOOP_S))
            found.append(float(np.percentile([self.seconds() for _ in range(8)], 10)))
        return float(np.median(found))


def spells() -> Iterator[None]:
    """Yields `SPELLS` times with pauses of `PAUSE_S`, because a machine's speed changes over milliseconds."""
    for number in range(SPELLS):
        time.sleep(PAUSE_S * (number > 0))
        yield


def measure_bandwidth(
    target: Target, mode: str = "copy", working_set: int = 1 << 28, rounds: int = 5
) -> float:
    """Bytes/s that loads and stores move, best of ``rounds``, on ``target.threads`` threads over
    ``working_set`` bytes in all.

    ``mode``: "read": s += A[i]; "copy": C[i] = A[i]; "stream": a copy with streaming stores; "triad":
    C[i] = A[i] + s * B[i]. Only bytes that the loop names count, not those a cache fetches in order to write.
    """
    loop = MemoryLoop(target, mode, working_set)
    return max(loop.bytes_a_second() for _ in range(rounds))


bandwidth = cache(measure_bandwidth)  # as it was when it was asked first


def level_bytes(target: Target, working_set: int) -> int:
    """The working set (bytes) to measure for one of ``working_set`` bytes: half of the first or second cache
    that holds it; itself in the third, whose speed differs by size (a virtual machine may name its host's);
    else 256 MiB."""
    for level in ("l1_bytes", "l2_bytes"):
        size = target.limit(level) * target.threads
        if working_set <= size:
            return size // 2
    return working_set if working_set <= target.limit("l3_bytes") * target.threads else 1 << 28


def vector_lanes(target: Target, dtype: str) -> int:
    """Elements in a vector register."""
    return max(1, target.limit("vector_bytes", 16) // np.dtype(dtype).itemsize)


def _aligned(n: int) -> np.ndarray:
    ones = aligned.zeros((n,), "float32")
    ones[:] = 1  # zeros that nobody wrote would all be one page, in the first cache
    return ones


def load_loop(
    kernel: str, params: Sequence[tuple[str, tuple[int, ...], str]], target: Target
) -> LoadedObject:
    """A kernel written as LLVM IR, with parameters as (name, shape, dtype), the last of them its output."""
    buffers = tuple(Buffer(n, tuple(Const(e, "int32") for e in shape), d) for n, shape, d in params)
    text = kernel + entry.entry(buffers, (params[-1][0],), 0, 1)
    return load_object(compile_module(text, target, optimize=False))


def _loop_text(
    vec: str,
    names: str,
    *,
    phis: Sequence[str],
    body: Sequence[str],
    done: Sequence[str],
    end: int,
    step: int = 1,
    constants: Mapping[str, float] = MappingProxyType({}),
    begin: Sequence[str] = (),
) -> str:
    """A kernel of one loop: %i from 0 to ``end`` by ``step``. ``names``: of its arrays. ``vec``: its type of
    vectors. ``constants``: vectors of one number, loaded at run time, so that nothing folds away."""
    lanes, scalar = vec.strip("<>").split(" x ")
    each = [", ".join([f"{scalar} {x}"] * int(lanes)) for x in constants.values()]
    declared = [f"@at_{name} = global {vec} <{x}>" for name, x in zip(constants, each)]
    loaded = [f"  %{name} = load volatile {vec}, ptr @at_{name}" for name in constants]
    arguments = [
        f"  %{x}at = getelementptr ptr, ptr %args, i64 {i}\n  %{x} = load ptr, ptr %{x}at"
        for i, x in enumerate(names)
    ]
    lines = [
        f"declare {vec} {_fma(vec)}({vec}, {vec}, {vec})",
        *declared,
        "define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {\nentry:",
        *arguments,
        *loaded,
        *begin,
        "  br label %loop\nloop:\n  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *phis,
        *body,
        f"  %next = add i64 %i, {step}\n  %more = icmp ult i64 %next, {end}",
        "  br i1 %more, label %loop, label %done\ndone:",
        *done,
        "  ret void\n}\n!0 = !{i32 1}\n",
    ]
    return "\n".join(lines)


def _fma(vec: str) -> str:
    """The name of LLVM's function for vectors of a type."""
    lanes, scalar = vec.strip("<>").split(" x ")
    return f"@llvm.fma.v{lanes}f{32 if scalar == 'float' else 64}"


def _fma_text(dtype: str, lanes: int) -> str:
    """``acc[c] = acc[c] * x + y``."""
    vec, chains = f"<{lanes} x {_LLVM_TYPE[dtype]}>", range(CHAINS)
    return _loop_text(
        vec,
        "C",
        constants={"x": 0.5, "y": 0.25},
        begin=[
            f"  %p{c} = getelementptr {vec}, ptr %C, i64 {c}\n  %i{c} = load {vec}, ptr %p{c}, align 4"
            for c in chains
        ],
        phis=[f"  %a{c} = phi {vec} [ %i{c}, %entry ], [ %n{c}, %loop ]" for c in chains],
        body=[f"  %n{c} = call {vec} {_fma(vec)}({vec} %a{c}, {vec} %x, {vec} %y)" for c in chains],
        done=[f"  store {vec} %n{c}, ptr %p{c}, align 4" for c in chains],
        end=STEPS,
    )


def _tile_text(lanes: int) -> str:
    """``c[r][v] += a[k % SPAN][r] * b[k % SPAN][v]``, all of c in registers."""
    vec, tile = f"<{lanes} x float>", [(r, v) for r in range(ROWS) for v in range(VECTORS)]
    init, phis, body, stores = [], [], [], []
    body.append(f"  %s = and i64 %i, {SPAN - 1}")
    for v in range(VECTORS):
        body.append(f"  %bp{v} = getelementptr [{VECTORS} x {vec}], ptr %B, i64 %s, i64 {v}")
        body.append(f"  %b{v} = load {vec}, ptr %bp{v}, align 4")
    for r in range(ROWS):
        body.append(f"  %ap{r} = getelementptr [{ROWS} x float], ptr %A, i64 %s, i64 {r}")
        body.append(f"  %as{r} = load float, ptr %ap{r}, align 4")
        body.append(f"  %ai{r} = insertelement {vec} poison, float %as{r}, i64 0")
        body.append(f"  %a{r} = shufflevector {vec} %ai{r}, {vec} poison, <{lanes} x i32> zeroinitializer")
    for n, (r, v) in enumerate(tile):
        init.append(f"  %p{n} = getelementptr {vec}, ptr %C, i64 {n}")
        init.append(f"  %i{n} = load {vec}, ptr %p{n}, align 4")
        phis.append(f"  %c{n} = phi {vec} [ %i{n}, %entry ], [ %n{n}, %loop ]")
        body.append(f"  %n{n} = call {vec} {_fma(vec)}({vec} %a{r}, {vec} %b{v}, {vec} %c{n})")
        stores.append(f"  store {vec} %n{n}, ptr %p{n}, align 4")
    return _loop_text(vec, "ABC", begin=init, phis=phis, body=body, done=stores, end=STEPS)


def _stream_text(mode: str, n: int, lanes: int) -> str:
    """A loop of eight vectors a turn over ``n`` floats."""
    how = f"align {4 * lanes}, !nontemporal !0" if mode == "stream" else "align 4"
    vec = f"<{lanes} x float>"
    lines = []
    for u in range(8):
        lines.append(f"  %i{u} = add i64 %i, {u * lanes}")
        for name in MODES[mode]:
            lines.append(f"  %{name}p{u} = getelementptr float, ptr %{name}, i64 %i{u}")
            lines.append(f"  %{name}{u} = load {vec}, ptr %{name}p{u}, align 4")
        value = f"%A{u}"
        if mode == "triad":
            value = f"%t{u}"
            lines.append(f"  %t{u} = call {vec} {_fma(vec)}({vec} %B{u}, {vec} %s, {vec} %A{u})")
        if mode == "read":
            lines.append(f"  %n{u} = fadd {vec} %r{u}, %A{u}")
        else:
            lines.append(f"  %Cp{u} = getelementptr float, ptr %C, i64 %i{u}")
            lines.append(f"  store {vec} {value}, ptr %Cp{u}, {how}")
    phis, after = [], []
    if mode == "read":
        phis = [f"  %r{u} = phi {vec} [ zeroinitializer, %entry ], [ %n{u}, %loop ]" for u in range(8)]
        for u in range(8):
            after.append(f"  %Cp{u} = getelementptr {vec}, ptr %C, i64 {u}")
            after.append(f"  store {vec} %n{u}, ptr %Cp{u}, align 4")
    return _loop_text(
        vec,
        MODES[mode] + "C",
        constants={"s": 3.0},
        phis=phis,
        body=lines,
        done=[*after, "  fence seq_cst"],
        end=n,
        step=8 * lanes,
    )
