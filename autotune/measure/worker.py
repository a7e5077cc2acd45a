"""The loop of a worker process: load an object, check it in every placement, time it.

It runs in a process forked from the zygote and may die at any moment; whatever it was asked for, the
parent then answers from the signal and from the fault record.
"""

from __future__ import annotations

import ctypes
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any

from autotune.codegen.compile import LoadedObject, load_object
from autotune.codegen.entry import parse_signature
from autotune.devices.cpu import Reference
from autotune.errors import CompileError
from autotune.measure import protocol, wire
from autotune.measure.arena import Arena
from autotune.measure.check import Checker
from autotune.measure.native import MONOTONIC, THREAD_CPU, Native
from autotune.measure.results import Measurement, Options
from schedules.model import Target

COLD_S = 0.5e-3  # what a first run may lose to cold caches and fresh pages before it counts as slow


@dataclass
class Bench:
    """What a worker measures with; made in the zygote, so that a fork has it at once."""

    target: Target
    arena: Arena
    checker: Checker
    native: Native
    reference: Reference
    options: Options


def serve(sock: socket.socket, bench: Bench) -> None:
    """Answer requests until the parent goes away."""
    clock = protocol.Clock(bench.reference.seconds, bench.reference.nominal_s)
    while True:
        try:
            header, payload, _ = wire.receive(sock)
        except wire.Closed:
            return
        clock.rates.clear()
        if header["do"] == "measure":
            reply = asdict(measure(bench, clock, payload, header.get("best_s")))
        else:
            reply = {"times_s": remeasure(bench, clock, header, payload), "rate": clock.rate()}
        wire.send(sock, reply)


def measure(bench: Bench, clock: protocol.Clock, obj: bytes, best_s: float | None) -> Measurement:
    """Check and time one object."""
    start = time.perf_counter()
    try:
        loaded = load_object(obj)
        _fits(bench, loaded)
    except CompileError as err:
        return Measurement("compile_error", str(err))
    except MemoryError as err:
        return Measurement("error", str(err))
    error, seconds = 0.0, float("inf")
    limit = None if best_s is None else bench.options.give_up * best_s + COLD_S
    for number, placement in enumerate(bench.arena.placements):
        bench.arena.poison(placement, number)
        scratch = bench.arena.scratch(loaded.scratch_bytes, placement.name)
        seconds = min(seconds, _runner(bench, loaded, placement.pointers, scratch)(1))
        verdict = bench.checker.check(placement.outputs, number)
        if verdict.reason:
            return _wrong(verdict.reason, verdict.error, start)
        if bench.arena.scratch_overrun(loaded.scratch_bytes, placement.name):
            text = f"writes past the end of its {loaded.scratch_bytes} bytes of scratch"
            return Measurement("out_of_bounds", text, check_s=time.perf_counter() - start)
        error = max(error, verdict.error)
        if limit is not None and seconds > limit:
            rate = clock.fresh()
            took = seconds * rate
            reason = f"{took / (best_s or 1):.1f} times the best in its first run; not timed further"
            return Measurement(
                "slow", reason, (took,), took, error, rate, check_s=time.perf_counter() - start
            )
    checked = time.perf_counter()
    run = _runner(
        bench, loaded, bench.arena.timing.pointers, bench.arena.scratch(loaded.scratch_bytes, "begin")
    )
    timing = protocol.screen(run, clock, seconds, best_s, bench.options)
    reason = f"{timing.time_s / best_s:.1f} times the best" if timing.slow and best_s else ""
    return Measurement(
        "slow" if timing.slow else "ok", reason, timing.times_s, timing.time_s, error, timing.rate,
        check_s=checked - start, run_s=time.perf_counter() - checked,
    )  # fmt: skip


def remeasure(
    bench: Bench, clock: protocol.Clock, header: dict[str, Any], payload: bytes
) -> list[tuple[float, ...]]:
    """Normalised times of several checked objects, which lie end to end in ``payload``."""
    objects, at = [], 0
    for size in header["sizes"]:
        objects.append(load_object(payload[at : at + size]))
        at += size
    scratch = bench.arena.scratch(max(x.scratch_bytes for x in objects), "begin")
    runs = [_runner(bench, x, bench.arena.timing.pointers, scratch) for x in objects]
    seconds = [protocol.estimate(run, run(1), bench.options) for run in runs]
    return protocol.final(runs, clock, seconds, header["rounds"], header["repeats"], bench.options)


def _runner(
    bench: Bench, loaded: LoadedObject, pointers: ctypes.Array[ctypes.c_void_p], scratch: int
) -> protocol.Run:
    threads = bench.target.threads
    clock = THREAD_CPU if threads == 1 else MONOTONIC
    # With no scratch the kernel gets null, as from its ordinary caller.
    memory = scratch if loaded.scratch_bytes else None
    return lambda n: bench.native.time(loaded.address, pointers, memory, threads, n, clock) * 1e-9


def _fits(bench: Bench, loaded: LoadedObject) -> None:
    if loaded.threads != bench.target.threads:
        raise CompileError(f"compiled for {loaded.threads} threads, the target has {bench.target.threads}")
    wanted = tuple((p.dtype, p.shape) for p in bench.arena.params)
    if parse_signature(loaded.signature)[0] != wanted:
        raise CompileError(f"the object computes {loaded.signature}, which is not this workload")


def _wrong(reason: str, error: float, start: float) -> Measurement:
    # JSON has no infinity: an element never written has no error.
    shown = error if error < float("inf") else None
    return Measurement("wrong_result", reason, error=shown, check_s=time.perf_counter() - start)
