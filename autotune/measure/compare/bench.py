"""Compares implementations of one workload, interleaved in one run.

Every round times each implementation once, in an order that rotates, and beside them the machine's limit.
Ratios are taken within a round; the result is their median. So a slow spell of the machine slows all of them.
The garbage collector is off while the clock runs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import TypeVar

import numpy as np

from autotune.backends.peaks.roofline import warm
from autotune.codegen.runtime.laid import laid
from autotune.measure.check import Checker, rms_of
from autotune.measure.inputs import random_inputs
from schedules.dtypes import DTYPES, is_float
from schedules.errors import AutotuneError
from schedules.instructions.work import limiting
from schedules.model import Workload
from schedules.space.gc_paused import gc_paused
from schedules.strides import MemoryLayout
from schedules.te.compute_dag import Tensor

# Least length of a sample of one implementation (seconds).
SAMPLE_S = 0.02
# Fewest and most rounds.
MIN_ROUNDS, MAX_ROUNDS = 5, 200
One = TypeVar("One")


class DisagreementError(AutotuneError):
    """A peer computes something else, so its time means nothing."""


def arrays_for(workload: Workload, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(inputs as `random_inputs` draws them, outputs filled with NaN or zero), as arguments lie."""
    dag = workload.dag
    made = [dag.tensors[n] for n in dag.outputs]
    outputs = [np.full(t.shape, np.nan if is_float(t.dtype) else 0, t.dtype) for t in made]
    return copied(dag.inputs, random_inputs(dag, seed)), copied(made, outputs)


def copied(tensors: Sequence[Tensor], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """New arrays of these values that lie as their tensors do."""
    return [
        a.copy() if t.strides is None else laid(a, MemoryLayout(t.shape, t.strides))
        for t, a in zip(tensors, arrays)
    ]


def agree(workload: Workload, name: str, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Raises `DisagreementError` unless a peer's outputs equal ours within `_peer_bound`."""
    for tensor, theirs, ours in zip(workload.dag.outputs, found, expected, strict=True):
        same_form(name, tensor, theirs, ours)
    bounds = [_peer_bound(workload, x) for x in expected]
    verdict = Checker(workload.dag.outputs, expected, bounds).check(found, 0)
    if verdict.reason:
        raise DisagreementError(
            f"{name} and the tuned kernel differ: {verdict.reason}; leave {name} out of --against"
        )


def same_form(peer: str, tensor: str, theirs: np.ndarray, ours: np.ndarray) -> None:
    """Raises `DisagreementError` for an output of another shape or dtype."""
    if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
        made, wanted = (f"{x.dtype}{list(x.shape)}" for x in (theirs, ours))
        raise DisagreementError(
            f"{peer} gives {made} for {tensor}, not {wanted}; leave {peer} out of --against"
        )


def _peer_bound(workload: Workload, ours: np.ndarray) -> np.ndarray:
    """How far another library may be from us: by its size and by that of all elements, and more for long
    sums. It may compute in another way, and round what it stores at every step; what is wrong is far off."""
    if not is_float(ours.dtype.name):
        return np.zeros(ours.shape, np.float32)
    terms = sum(prod(a.extent for a in s.reduce_axes) for s in workload.dag.stages if s.reduce_axes)
    size = np.abs(ours.astype(np.float32))
    rms, _ = rms_of(size)
    eps = DTYPES[ours.dtype.name].epsilon
    return np.asarray(eps * (32 + 8 * np.sqrt(max(1, terms))) * (rms + size), np.float32)


@dataclass(frozen=True)
class Contender:
    """An implementation. ``call()``: computes the workload once, into arrays that it holds. ``sample(n)``:
    seconds a call over ``n`` calls, for one that times itself in a process of its own."""

    name: str
    call: Callable[[], object]
    sample: Callable[[int], float] | None = None


@dataclass(frozen=True)
class Comparison:
    """``times_s[name][round]``: seconds a call. ``limits_s[round]``: the machine's limit in that round
    (seconds), empty if it was not measured."""

    times_s: Mapping[str, Sequence[float]]
    limits_s: Sequence[float]

    def time_s(self, name: str) -> float:
        """The median time of an implementation (seconds a call)."""
        return median(self.times_s[name])

    def share(self, name: str) -> float | None:
        """The limit over the time: 1.0 is as fast as the machine can be. None without a limit."""
        if not self.limits_s:
            return None
        return median(limit / t for limit, t in zip(self.limits_s, self.times_s[name], strict=True))

    def instruction(self, workload: Workload, rates: Mapping[str, float]) -> str | None:
        """The instruction whose peak the limit is, None if it is that of something else. ``rates``: that it
        was found from."""
        if not self.limits_s:
            return None
        return limiting(workload.dag, workload.flops, median(self.limits_s), rates)

    def ratio(self, name: str, peer: str) -> float:
        """How many times as fast as ``peer``: the median over rounds of its time over ours."""
        return median(self._ratios(name, peer))

    def quartiles(self, name: str, peer: str) -> tuple[float, float]:
        """The quartiles of the rounds' ratios."""
        first, third = np.quantile(self._ratios(name, peer), (0.25, 0.75))
        return float(first), float(third)

    def _ratios(self, name: str, peer: str) -> list[float]:
        return [p / t for t, p in zip(self.times_s[name], self.times_s[peer], strict=True)]


def compare(
    contenders: Sequence[Contender],
    limit: Callable[[], float] | None = None,
    *,
    seconds: float = 5.0,
    settle_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time rounds for about ``seconds``. ``limit``: measures the machine's limit (seconds a call).
    ``settle_s``: as of `take_turns`.

    Calls that are not timed precede each sample. Else a contender would find a shared array in the caches, or
    not, by who ran before it: docs/measurements/memory-access.md."""
    numbers = {c.name: _calibrate(c, clock) for c in contenders}
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    limits: list[float] = []

    def turn(c: Contender) -> None:
        warm(c.call, clock)
        times[c.name].append(sample(c, numbers[c.name], clock))

    first = None if limit is None else lambda: limits.append(limit())
    take_turns(contenders, turn, first, seconds, settle_s=settle_s, clock=clock)
    return Comparison(times, limits)


def take_turns(
    contenders: Sequence[One],
    turn: Callable[[One], object],
    first: Callable[[], object] | None,
    seconds: float,
    *,
    least: int = MIN_ROUNDS,
    most: float = MAX_ROUNDS,
    settle_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Call ``turn`` with each contender in each round, for about ``seconds`` and from ``least`` to ``most``
    rounds. ``first``: is called before, in each. ``settle_s``: pause before each call (seconds), because idle
    thread pools of OpenMP, OpenBLAS and ONNX Runtime spin for up to a tenth of a second."""
    start, r = clock(), 0
    gc.collect()
    with gc_paused():
        while r < most and (r < least or clock() - start < seconds):
            if first is not None:
                time.sleep(settle_s)
                first()
            n = r % len(contenders)
            for c in (*contenders[n:], *contenders[:n]):
                time.sleep(settle_s)
                turn(c)
            r += 1


def _calibrate(c: Contender, clock: Callable[[], float]) -> int:
    """Calls that fill `SAMPLE_S`. The calls made here also warm caches and thread pools."""
    c.call()
    number = 1
    while True:
        took = sample(c, number, clock) * number
        if took >= SAMPLE_S / 2 or number >= 1 << 20:
            return max(1, round(number * SAMPLE_S / max(took, 1e-9)))
        number *= 4


def sample(c: Contender, number: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds a call over ``number`` calls."""
    if c.sample is not None:
        return c.sample(number)
    call = c.call
    begin = clock()
    for _ in range(number):
        call()
    return (clock() - begin) / number
