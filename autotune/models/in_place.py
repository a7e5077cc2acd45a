"""Times finalists inside the model, and keeps which of them is the fastest there (ADR 55).

A kernel is tuned with its arrays in the caches. In a model its weights come from memory, and its inputs from
where the kernel before left them, so that another schedule may be faster. So the model runs with the best
candidates of its tasks in turns, and each step is timed. What was found is kept in the log, as an option of a
run of the task: no time of it ranks beside times that were taken alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.runtime.laid import laid
from autotune.errors import CompileError
from autotune.measure.memory import free_bytes
from autotune.models.outline import Outline
from autotune.models.program import Program, Times
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from kernels_db import lookup
from kernels_db.records import Record
from schedules.dtypes import DTYPES, is_float
from schedules.errors import ScheduleError
from schedules.model import Target, TraceError, canonical, digest
from schedules.strides import MemoryLayout

if TYPE_CHECKING:
    from kernels_db.store import Log

Array = NDArray[Any]
# The key in the options of a run.
KEY = "in_place"
# Most candidates of a task, and the records among which they are looked for.
CANDIDATES, LOOKED_AT = 8, 256
# A task counts if it takes so large a share of the model, and so much longer in it than alone: else its order
# alone is good enough.
SHARE, SLOWER = 0.005, 1.03
# Slower alone than the best by this factor times what the best loses in the model, a candidate will not win.
NEAR = 1.1
# How much faster another candidate must be (ratio of times) before it is taken: the median of its ratios, and
# that many standard errors of it above, as the luckiest of several looks too good beside other work.
FASTER, SURE = 0.98, 2.0
# Rounds at least, if there is time, and at most; runs of a program in a round, of which the last is timed.
LEAST_ROUNDS, MOST_ROUNDS, RUNS = 3, 15, 2
# Share of the time in which candidates are compiled.
COMPILING = 0.6


@dataclass(frozen=True)
class InPlace:
    """A task inside the model. ``own``: the sizes of its program, of those for single sizes. ``alone_s``:
    seconds of its best kernel when it was tuned; ``best_s``: of the same in the model. ``times_s``: {digest
    of a trace: seconds in the model}. ``best``, ``chosen``: the traces that are the fastest alone, and in the
    model."""

    task: int
    alone_s: float
    best_s: float
    times_s: Mapping[str, float]
    best: str
    chosen: str
    own: str = ""

    @property
    def chosen_s(self) -> float:
        """Seconds of what is the fastest in the model."""
        return self.times_s[self.chosen]


def context_of(outline: Outline) -> str:
    """What identifies the surroundings of a model's tasks: which run, in which order."""
    return digest(canonical([outline.tasks[c.task].digest for c in outline.calls]))


def random_arguments(outline: Outline, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """(Random inputs, empty outputs) of a model: standard-normal floats, and integers 0 and 1, which any
    table of embeddings and any mask has."""
    rng = np.random.default_rng(seed)
    inputs = []
    for name in outline.inputs:
        t = outline.tensors[name]
        drawn = rng.standard_normal(t.shape) if is_float(t.dtype) else rng.integers(0, 2, t.shape)
        inputs.append(laid(drawn.astype(DTYPES[t.dtype].numpy), MemoryLayout(t.shape, t.strides)))
    tensors = [outline.tensors[n] for n in dict.fromkeys(outline.outputs)]
    return inputs, [np.empty(t.shape, DTYPES[t.dtype].numpy) for t in tensors]


def choose(
    program: Program,
    value_of: Callable[[str], Array],
    log: Log,
    machine: Mapping[str, Any],
    until: float,
) -> list[InPlace]:
    """Time candidates of a program's tasks inside it, until about ``until`` (`time.monotonic` seconds), and
    log what was found. The program's kernels are the best of the log. ``value_of``: the
    values of its weights. ``machine``: as of `Log.start_run`."""
    ol = program.outline
    arguments = random_arguments(ol)
    program.told.settle(ol, arguments[0])
    alone = all(k.target.threads == 1 for k in program.kernels)
    begin = time.monotonic()
    first = task_times(program, *arguments, alone)
    turn_s = time.monotonic() - begin
    begin += turn_s
    compiling = begin + COMPILING * (until - begin)
    found: dict[int, list[tuple[Record, Kernel]]] = {}
    for task in sorted(first, key=lambda t: -first[t]):
        kernel = program.kernels[task]
        if kernel.record is None or first[task] < SHARE * sum(first.values()):
            continue
        slower = first[task] / ol.count(task) / kernel.record.time_s
        if slower >= SLOWER and time.monotonic() < compiling:
            candidates = _candidates(kernel, log, slower, compiling)
            if len(candidates) > 1:
                found[task] = candidates
    most = int((until - time.monotonic()) / (LEAST_ROUNDS * turn_s)) if found else 0
    variants = _variants(program, found, value_of, most)
    rounds = _rounds(variants, arguments, alone, until) if len(variants) > 1 else []
    results = []
    for task, candidates in found.items() if rounds else ():
        count, n = ol.count(task), min(len(candidates), len(variants))
        times = [[one[v][task] / count for one in rounds] for v in range(n)]
        results.append(_decided(task, candidates, times))
    told = results or [_alone(ol, program, max(first, key=lambda t: first[t]), first)]
    for one in told:
        _keep(log, ol, program.kernels[one.task].target, machine, one)
    return results


def known(outline: Outline, target: Target, where: str) -> bool:
    """Whether a log has what was found of any task of a model inside it."""
    context = context_of(outline)
    return any(
        isinstance(told := options.get(KEY), dict) and told.get("model") == context
        for w in outline.tasks
        for options in lookup.run_options(where, w.digest, target.digest)
    )


def preferred(best: Kernel, where: str) -> Kernel:
    """The kernel that was the fastest inside a model, if ``best``, the log's best alone, was timed there too;
    else ``best``. ``where``: the log."""
    if best.record is None:
        return best
    task = (best.workload.digest, best.target.digest)
    for options in lookup.run_options(where, *task):
        told = options.get(KEY)
        times = told.get("times_s") if isinstance(told, dict) else None
        if isinstance(told, dict) and isinstance(times, dict) and best.record.trace_digest in times:
            chosen = told.get("chosen")
            if not isinstance(chosen, str) or chosen == best.record.trace_digest:
                return best
            record = lookup.of_trace(where, *task, chosen)
            if record is None:
                return best
            try:
                return kernel_of(best.workload, best.target, record.trace, record)
            except (ScheduleError, TraceError, CompileError):
                return best
    return best


def _candidates(best: Kernel, log: Log, slower: float, until: float) -> list[tuple[Record, Kernel]]:
    """The best kernel, and others that may be faster in a model: half are the fastest of other sketches, half
    the fastest. ``slower``: time of the best in the model over its time alone."""
    workload, record = best.workload, best.record
    found = [(record, best)]
    top = log.top_k(workload, best.target, LOOKED_AT)
    near = [r for r in top if r.time_s and r.time_s <= NEAR * slower * record.time_s]
    near = [r for r in near if r.trace_digest != record.trace_digest]
    of_sketches = {r.sketch: r for r in reversed(near) if r.sketch != record.sketch}
    others = sorted(of_sketches.values(), key=near.index)[: (CANDIDATES - 1) // 2]
    chosen = others + [r for r in near if r not in others][: CANDIDATES - 1 - len(others)]
    for r in chosen:
        if time.monotonic() > until:
            break
        try:
            found.append((r, kernel_of(workload, best.target, r.trace, r)))
        except (ScheduleError, TraceError, CompileError):
            continue
    return found


def _variants(
    program: Program,
    found: Mapping[int, Sequence[tuple[Record, Kernel]]],
    value_of: Callable[[str], Array],
    most: int,
) -> list[Program]:
    """Programs, of which number ``n`` has candidate ``n`` of each task, or its best: ``most`` at most, and as
    many as memory holds."""
    variants = [program]
    for n in range(1, min(most, max(map(len, found.values()), default=0))):
        if 2 * program.weights_bytes > free_bytes():
            break
        others = {t: c[n][1] for t, c in found.items() if n < len(c)}
        variants.append(program.with_kernels(others, value_of))
    return variants


def _rounds(
    variants: Sequence[Program], arguments: tuple[list[Array], list[Array]], alone: bool, until: float
) -> list[list[dict[int, float]]]:
    """For each round and program, seconds by task. Programs take turns, in another order each round."""
    rounds: list[list[dict[int, float]]] = []
    while len(rounds) < MOST_ROUNDS and (len(rounds) < LEAST_ROUNDS or time.monotonic() < until):
        turn = len(rounds) % len(variants)
        one: dict[int, dict[int, float]] = {}
        for n in (*range(turn, len(variants)), *range(turn)):
            one[n] = task_times(variants[n], *arguments, alone)
        rounds.append([one[n] for n in range(len(variants))])
    return rounds


def task_times(
    program: Program, inputs: Sequence[Array], outputs: Sequence[Array], alone: bool
) -> dict[int, float]:
    """Seconds of each task, all its calls together, in the last of `RUNS` runs."""
    times = Times(program.outline, alone)
    for _ in range(RUNS):
        times = Times(program.outline, alone)
        program.run(inputs, outputs, times)
    taken: dict[int, float] = {}
    for call, ns in zip(program.outline.calls, times.calls, strict=False):
        taken[call.task] = taken.get(call.task, 0.0) + ns * 1e-9
    return taken


def _decided(
    task: int, candidates: Sequence[tuple[Record, Kernel]], times: Sequence[Sequence[float]]
) -> InPlace:
    """Which candidate is the fastest, by the median of its ratios to the best one within rounds."""
    best_s = statistics.median(times[0])
    each = [[t / b for t, b in zip(x, times[0], strict=True)] for x in times]
    ratios = [statistics.median(x) for x in each]
    n = min(range(len(ratios)), key=ratios.__getitem__)
    chosen = n if ratios[n] + SURE * _error(each[n]) < FASTER else 0
    digests = [r.trace_digest for r, _ in candidates[: len(times)]]
    seconds = {d: best_s * ratio for d, ratio in zip(digests, ratios, strict=True)}
    return InPlace(task, candidates[0][0].time_s or 0.0, best_s, seconds, digests[0], digests[chosen])


def _error(values: Sequence[float]) -> float:
    """The standard error of a median, from the middle half of some values."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (0.0, 0.0, 0.0)
    return (high - low) / len(values) ** 0.5


def _alone(outline: Outline, program: Program, task: int, first: Mapping[int, float]) -> InPlace:
    """What is known of a task without other candidates. It tells that the model was looked at (`known`)."""
    record = program.kernels[task].record
    seconds = first[task] / outline.count(task)
    return InPlace(
        task, record.time_s, seconds, {record.trace_digest: seconds}, record.trace_digest, record.trace_digest
    )


def _keep(log: Log, outline: Outline, target: Target, machine: Mapping[str, Any], result: InPlace) -> None:
    """Log what was found of a task, as an option of a run without trials."""
    told = {"model": context_of(outline), "times_s": dict(result.times_s), "chosen": result.chosen}
    run = log.start_run(outline.tasks[result.task], target, machine, seed=0, options={KEY: told})
    log.finish_run(run)
