"""The loop of a worker process: load an object, check it in every placement, time it.

The process is forked from the zygote and may die at any moment. The parent then answers for it, from the
signal and the fault record.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from autotune import backends
from autotune.backends.drivers.protocol import DeviceError
from autotune.backends.peaks.cpu_peaks import Reference
from autotune.codegen import bundle
from autotune.codegen.llvm.compile import LoadedObject
from autotune.codegen.runtime import aligned
from autotune.codegen.runtime.entry import parse_signature
from autotune.errors import CompileError
from autotune.measure import timing, wire
from autotune.measure.arena import Arena, Placement
from autotune.measure.check import Checker
from autotune.measure.native import Native
from autotune.measure.on_device import DeviceArrays, OnDevice
from autotune.measure.open_checks import SizeCheck
from autotune.measure.results import SIZES_S, Measurement, Options
from autotune.platform import clocks
from schedules.model import LINE, Target

Pointers = ctypes.Array[ctypes.c_void_p]
# (bytes of scratch) -> the clock beside which a kernel with that much scratch is timed.
Beside = Callable[[int], timing.Clock]
# Time that a first run may lose to cold caches and fresh pages before it counts as slow (seconds).
COLD_S = 0.5e-3


@dataclass
class MeasuringBench:
    """What a worker measures with; made in the zygote, so that a fork has it at once."""

    target: Target
    arena: Arena
    checkers: tuple[Checker, ...]  # one for each draw of inputs
    native: Native
    reference: Reference
    options: Options
    arrays: DeviceArrays | None = None  # made by the first candidate for a device
    sizes: tuple[SizeCheck, ...] = ()  # other sizes than the largest, where a call tells them
    told: tuple[int, ...] = ()  # the largest sizes, behind the pointers


def serve(sock: socket.socket, bench: MeasuringBench) -> None:
    """Answer requests until the parent goes away."""
    of_cpu = timing.Clock(bench.reference.seconds, bench.reference.nominal_s)
    plain = timing.Clock(lambda: 1.0, 1.0)  # no normalising: for devices, and for what waits for memory
    control: _Control | None = None
    while True:
        try:
            header, payload, _ = wire.receive(sock)
        except wire.Closed:
            return
        size, seconds = header["control"]
        obj, payload = payload[:size], payload[size:]
        if obj and (control is None or control.data != obj):
            control = _Control(bench, obj)
        on_device = backends.of_code(payload).measuring.on_device
        clock = plain if on_device or bench.options.from_memory else of_cpu
        clock.rates.clear()
        beside = partial(control.clock, seconds) if control and obj else partial(_always, clock)
        if header["do"] == "measure":
            reply = asdict(measure(bench, clock, payload, header.get("best_s"), beside))
        else:
            reply = remeasure(bench, beside, header, payload)
        wire.send(sock, reply)


def _always(clock: timing.Clock, scratch_bytes: int) -> timing.Clock:
    return clock


def measure(
    bench: MeasuringBench, clock: timing.Clock, obj: bytes, best_s: float | None, beside: Beside
) -> Measurement:
    """Check and time one object. ``beside``: the clock of its timings."""
    start = time.perf_counter()
    try:
        loaded = _loaded(bench, obj)
    except CompileError as err:
        return Measurement("compile_error", str(err))
    except (MemoryError, DeviceError) as err:  # no memory there
        return Measurement("error", str(err))
    with contextlib.closing(loaded):
        return _measured(bench, clock, loaded, best_s, beside, start)


def _measured(
    bench: MeasuringBench,
    clock: timing.Clock,
    loaded: _Loaded | OnDevice,
    best_s: float | None,
    beside: Beside,
    start: float,
) -> Measurement:
    error, seconds = 0.0, float("inf")
    limit = None if best_s is None else bench.options.give_up * best_s + COLD_S
    for number, placement in enumerate(loaded.placements):
        seconds = min(seconds, loaded.run(placement, number))
        checker = bench.checkers[placement.draw]
        verdict = checker.check(placement.outputs, number)
        if verdict.reason and loaded.again():
            loaded.run(placement, number)
            verdict = checker.check(placement.outputs, number)
        if verdict.reason:
            return _wrong(verdict.reason, verdict.error, start)
        text = loaded.overrun(placement)
        if text:
            return Measurement("out_of_bounds", text, check_s=time.perf_counter() - start)
        error = max(error, verdict.error)
        if limit is not None and seconds > limit:
            rate = clock.fresh()
            took = seconds * rate
            reason = f"{took / (best_s or 1):.1f} times the best in its first run; not timed further"
            return Measurement(
                "slow", reason, (took,), took, error, rate, check_s=time.perf_counter() - start,
                facts=loaded.facts(),
            )  # fmt: skip
    elsewhere = loaded.at_other_sizes() if isinstance(loaded, _Loaded) else None
    if elsewhere is not None:
        return replace(elsewhere, check_s=time.perf_counter() - start)
    checked = time.perf_counter()
    # before the clock, which opens scratch for the control too
    others = loaded.timers_at_sizes() if isinstance(loaded, _Loaded) else {}
    run, clock = loaded.timer(), beside(loaded.scratch_bytes)
    found = timing.screen(run, clock, seconds, best_s, bench.options)
    reason = f"{found.time_s / best_s:.1f} times the best" if found.slow and best_s else ""
    facts = loaded.facts()
    if others and not found.slow:
        facts[SIZES_S] = {
            words: timing.screen(other, clock, other(1), None, bench.options).time_s
            for words, other in others.items()
        }
    return Measurement(
        "slow" if found.slow else "ok", reason, found.times_s, found.time_s, error, found.rate,
        check_s=checked - start, run_s=time.perf_counter() - checked, facts=facts,
    )  # fmt: skip


def remeasure(
    bench: MeasuringBench, beside: Beside, header: dict[str, Any], payload: bytes
) -> dict[str, Any]:
    """Normalised times of several checked objects, which lie end to end in ``payload``, and the facts of
    each, what they take at smaller sizes among them where the header asks for it."""
    parts, at = [], 0
    for size in header["sizes"]:
        parts.append(payload[at : at + size])
        at += size
    keep: list[np.ndarray] = []  # what is packed: each has its own
    with contextlib.ExitStack() as stack:
        if bench.arrays is not None and not bench.arrays.fresh:
            bench.arrays.renew()
        loaded = [stack.enter_context(contextlib.closing(_loaded(bench, x))) for x in parts]
        runs, at_sizes = _side_by_side(bench, loaded, keep)
        clock = beside(max(x.scratch_bytes for x in loaded))

        def final(runs: Sequence[timing.Run]) -> list[tuple[float, ...]]:
            seconds = [timing.estimate(run, run(1), bench.options) for run in runs]
            return timing.final(runs, clock, seconds, header["rounds"], header["repeats"], bench.options)

        times, rate, told = final(runs), clock.rate(), [x.facts() for x in loaded]
        for words, others in at_sizes if header["at_sizes"] else ():
            for facts, t in zip(told, final(others), strict=True):
                facts.setdefault(SIZES_S, {})[words] = clock.settled(t, final=True)
        time_s = [clock.settled(t, final=True) for t in times]
        return {"times_s": times, "time_s": time_s, "rate": rate, "facts": told}


def _loaded(bench: MeasuringBench, data: bytes) -> _Loaded | OnDevice:
    backend = backends.of_code(data)
    if not backend.measuring.on_device:
        return _Loaded(bench, data)
    if bench.arrays is None:
        bench.arrays = DeviceArrays(backend.device(), bench.arena)
    return OnDevice(bench.arena, bench.arrays, data)


def _side_by_side(
    bench: MeasuringBench, loaded: list[_Loaded | OnDevice], keep: list[np.ndarray]
) -> tuple[list[timing.Run], list[tuple[str, list[timing.Run]]]]:
    """Timers of several candidates that stay loaded together, and those at the sizes by which finalists are
    ranked beside the largest, each with its name. ``keep`` gets the arrays that they need."""
    objects = [x for x in loaded if isinstance(x, _Loaded)]
    if len(objects) < len(loaded):
        return [x.timer() for x in loaded], []
    pointers = [x.packed(bench.arena.timing, keep) for x in objects]
    scratch = bench.arena.scratch.open(max(x.scratch_bytes for x in objects), "begin")

    def timers(pointers: Sequence[Pointers]) -> list[timing.Run]:
        return [_timed(bench, x.kernel, p, scratch) for x, p in zip(objects, pointers, strict=True)]

    at_sizes = [
        (size.words, timers([x.at_size(size, p) for x, p in zip(objects, pointers, strict=True)]))
        for size in bench.sizes
        if size.ranks
    ]
    return timers(pointers), at_sizes


class _Loaded:
    """The objects of one candidate, loaded: its kernel, and the functions that pack its constants, by number
    of input. Raises CompileError if they do not belong to this workload."""

    def __init__(self, bench: MeasuringBench, data: bytes) -> None:
        self._bench = bench
        self.kernel, self.packing = bundle.load(data)
        self.scratch_bytes = self.kernel.scratch_bytes
        self.placements = bench.arena.placements
        self._fits()

    def run(self, placement: Placement, number: int) -> float:
        """Run once in a placement, whose outputs are poisoned with its number; seconds."""
        self._bench.arena.poison(placement, number)
        return _runner(self._bench, self.kernel, self.packed(placement), placement.name)(1)

    def at_other_sizes(self) -> Measurement | None:
        """What is wrong at a size other than the largest; None if nothing is."""
        for x in self._bench.sizes:
            for number, placement in enumerate(x.arena.placements):
                x.arena.poison(placement, number)
                pointers = self.packed(placement, told=x.told)
                _runner(self._bench, self.kernel, pointers, placement.name)(1)
                verdict = x.checkers[placement.draw].check(placement.outputs, number)
                if verdict.reason:
                    return _wrong(f"at {x.words}: {verdict.reason}", verdict.error, 0.0)
                if text := self.overrun(placement, x.arena):
                    return Measurement("out_of_bounds", f"at {x.words}: {text}")
        return None

    def again(self) -> bool:
        """False: a wrong result stays wrong, because nobody can write to the inputs."""
        return False

    def timer(self) -> timing.Run:
        return _runner(self._bench, self.kernel, self.packed(self._bench.arena.timing), "begin")

    def timers_at_sizes(self) -> dict[str, timing.Run]:
        """Timers at the sizes by which candidates are ranked beside the largest, by the names of these."""
        sizes = [x for x in self._bench.sizes if x.ranks]
        pointers = self.packed(self._bench.arena.timing) if sizes else None
        return {
            x.words: _runner(self._bench, self.kernel, self.at_size(x, pointers), "begin")
            for x in sizes
            if pointers is not None
        }

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing to do: the code is unmapped with this object."""

    def packed(
        self,
        placement: Placement,
        keep: list[np.ndarray] | None = None,
        told: tuple[int, ...] | None = None,
    ) -> Pointers:
        """The pointers of a placement, with packed constants in place of the constants, and behind them the
        sizes that a call tells: ``told``, or the largest. Packs into the arena's memory, or, if ``keep`` is
        given, into new arrays that are added to it."""
        sizes = self._bench.told if told is None else told
        if not self.packing and not sizes:
            return placement.pointers
        pointers = (ctypes.c_void_p * (len(placement.pointers) + len(sizes)))(*placement.pointers, *sizes)
        for i, pack in self.packing.items():
            nbytes = self.packed_bytes(i)
            if keep is None:
                to = self._bench.arena.packed[i].open(nbytes, placement.name)
            else:
                keep.append(aligned.zeros((nbytes,), "uint8"))
                to = keep[-1].ctypes.data
            both = (ctypes.c_void_p * 2)(placement.pointers[i], to)
            _runner(self._bench, pack, both, placement.name)(1)
            pointers[i] = to
        return pointers

    def at_size(self, size: SizeCheck, largest: Pointers) -> Pointers:
        """The pointers with which candidates are timed at a size. ``largest``: those of the largest, whose
        packed constants are the same."""
        pointers = (ctypes.c_void_p * len(largest))(*size.arena.timing.pointers, *size.told)
        for i in self.packing:
            pointers[i] = largest[i]
        return pointers

    def overrun(self, placement: Placement, of: Arena | None = None) -> str:
        """What was written past an end that no inaccessible page follows directly; empty if nothing. ``of``:
        the arena of the placement, unless it is that of the largest sizes."""
        arena = self._bench.arena
        if arena.scratch.overrun(self.kernel.scratch_bytes, placement.name):
            return f"writes past the end of its {self.kernel.scratch_bytes} bytes of scratch"
        for i in self.packing:
            nbytes = self.packed_bytes(i)
            if arena.packed[i].overrun(nbytes, placement.name):
                return f"packing writes past the end of the {nbytes} bytes of {arena.params[i].name}"
        return (of or arena).spilled(placement)

    def packed_bytes(self, i: int) -> int:
        dtype, lies = parse_signature(self.packing[i].signature)[0][1]
        return lies.span * np.dtype(dtype).itemsize

    def _fits(self) -> None:
        arena, target = self._bench.arena, self._bench.target
        for x in (self.kernel, *self.packing.values()):
            if x.threads != target.threads:
                raise CompileError(f"compiled for {x.threads} threads, the target has {target.threads}")
        wanted = [(p.dtype, p.layout) for p in arena.params]
        for i, pack in self.packing.items():
            source, *made = parse_signature(pack.signature)[0]
            if i not in arena.packed or source != wanted[i] or len(made) != 1:
                raise CompileError(f"the object packs {pack.signature}, which is not of this workload")
            wanted[i] = made[0]
        if parse_signature(self.kernel.signature)[0] != tuple(wanted):
            raise CompileError(f"the object computes {self.kernel.signature}, which is not this workload")


class _Control:
    """A checked object that stays loaded, as the reference beside which others are timed."""

    def __init__(self, bench: MeasuringBench, data: bytes) -> None:
        self.data = data
        self._bench = bench
        self._loaded = _Loaded(bench, data)
        self._keep: list[np.ndarray] = []  # what is packed
        self._pointers = self._loaded.packed(bench.arena.timing, self._keep)
        packed = {i: self._loaded.packed_bytes(i) for i in self._loaded.packing}
        params = enumerate(bench.arena.params)
        sizes = [(0, packed[i]) if i in packed else (p.before, p.nbytes) for i, p in params]
        arrays = self._pointers[: len(sizes)]  # and not the sizes behind them
        both = zip(arrays, sizes, strict=True)
        self._lines = [_first_of_lines((at or 0) - before, n) for at, (before, n) in both]
        self._changes = timing.no_changes()

    def clock(self, seconds: float, scratch_bytes: int) -> timing.Clock:
        """The control's clock. ``seconds``: what a run of it normally takes. ``scratch_bytes``: scratch of
        the kernel that is timed; both use the same memory."""
        room = max(scratch_bytes, self._loaded.scratch_bytes)
        scratch = self._bench.arena.scratch.open(room, "begin")
        run = _timed(self._bench, self._loaded.kernel, self._pointers, scratch)
        options = self._bench.options
        number = timing.repeats_of(seconds, options)
        return timing.ControlClock(run, number, seconds, self._changes, options, self._touch)

    def _touch(self) -> None:
        """Read a byte of every cache line of its arrays, which the candidate may have evicted."""
        for lines in self._lines:
            lines.max(initial=0)


def _runner(bench: MeasuringBench, loaded: LoadedObject, pointers: Pointers, where: str) -> timing.Run:
    return _timed(bench, loaded, pointers, bench.arena.scratch.open(loaded.scratch_bytes, where))


def _timed(bench: MeasuringBench, loaded: LoadedObject, pointers: Pointers, scratch: int) -> timing.Run:
    threads = bench.target.threads
    clock = clocks.THREAD_CPU if threads == 1 else clocks.MONOTONIC
    # With no scratch the kernel gets null, as from its ordinary caller.
    memory = scratch if loaded.scratch_bytes else None
    return lambda n: bench.native.time(loaded.address, pointers, memory, threads, n, clock) * 1e-9


def _first_of_lines(address: int, nbytes: int) -> np.ndarray:
    """The first byte of every line of memory."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))[::LINE]


def _wrong(reason: str, error: float, start: float) -> Measurement:
    # JSON has no infinity. The error of an output with an unwritten element is infinite.
    shown = error if error < float("inf") else None
    return Measurement("wrong_result", reason, error=shown, check_s=time.perf_counter() - start)
