"""Comparing implementations of one workload, interleaved in one run.

Every round times each implementation once, in an order that rotates, and the machine's limit
beside them; ratios are taken within a round and then their median. So whatever slows the machine
down for a while slows all of them. The garbage collector is off while the clock runs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from statistics import median

import numpy as np

from autotune.measure.check import Checker, rms_of
from autotune.measure.inputs import random_inputs
from autotune.measure.roofline import warm
from schedules.dtypes import DTYPES, is_float
from schedules.errors import AutotuneError
from schedules.model import Workload

SAMPLE_S = 0.02  # how long one sample of one implementation should take at least
MIN_ROUNDS = 5


class DisagreementError(AutotuneError):
    """A peer computes something else, so that its time says nothing."""


def arrays_for(workload: Workload, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs as `random_inputs` draws them, and NaN- or zero-filled outputs."""
    made = [workload.dag.tensors[n] for n in workload.dag.outputs]
    outputs = [np.full(t.shape, np.nan if is_float(t.dtype) else 0, t.dtype) for t in made]
    return random_inputs(workload.dag, seed), outputs


def agree(workload: Workload, name: str, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Raises `DisagreementError` unless a peer's outputs are ours, to the tolerance that a trial has."""
    for tensor, a, b in zip(workload.dag.outputs, found, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise DisagreementError(
                f"{name} gives {a.dtype}{list(a.shape)} for {tensor}, not {b.dtype}{list(b.shape)}"
            )
    bounds = [_peer_bound(workload, x) for x in expected]
    verdict = Checker(workload.dag.outputs, expected, bounds).check(found, 0)
    if verdict.reason:
        raise DisagreementError(
            f"{name} and the tuned kernel differ: {verdict.reason}; leave {name} out of --against"
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
    """An implementation: ``call()`` computes the workload once, into arrays that it holds. ``sample(n)``:
    seconds a call of ``n`` calls, for one that times itself, in a process of its own."""

    name: str
    call: Callable[[], object]
    sample: Callable[[int], float] | None = None


@dataclass(frozen=True)
class Comparison:
    """``times_s[name][round]`` in seconds a call; ``limits_s[round]``: the least time that the
    machine allows, as measured in that round (empty when it was not)."""

    times_s: Mapping[str, Sequence[float]]
    limits_s: Sequence[float]

    def time_s(self, name: str) -> float:
        return median(self.times_s[name])

    def share(self, name: str) -> float | None:
        """The limit's part of the time: 1.0 is as fast as the machine can go."""
        if not self.limits_s:
            return None
        return median(limit / t for limit, t in zip(self.limits_s, self.times_s[name], strict=True))

    def ratio(self, name: str, peer: str) -> float:
        """How many times as fast as ``peer``: the median over rounds of its time over ours."""
        return median(self._ratios(name, peer))

    def quartiles(self, name: str, peer: str) -> tuple[float, float]:
        """Between which half of the rounds' ratios lie."""
        first, third = np.quantile(self._ratios(name, peer), (0.25, 0.75))
        return float(first), float(third)

    def _ratios(self, name: str, peer: str) -> list[float]:
        return [p / t for t, p in zip(self.times_s[name], self.times_s[peer], strict=True)]


def compare(
    contenders: Sequence[Contender],
    limit: Callable[[], float] | None = None,
    *,
    seconds: float = 5.0,
    max_rounds: int = 200,
    settle_s: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Rounds for about ``seconds``, at least `MIN_ROUNDS`. ``limit`` measures, in seconds a call, what
    the machine allows at best. Before each sample are calls that aren't timed: contenders that read
    the same array would else find it in the caches where another, with one of its own, does not (1x4096x4096
    on an Intel server had 0.87 of numpy's speed after ONNX Runtime, 1.17 where numpy came after it).
    ``settle_s``: a pause before these, and before the limit: thread pools of OpenMP, OpenBLAS and ONNX
    Runtime spin for up to a tenth of a second after their last work and would slow whoever comes next."""
    numbers = {c.name: _calibrate(c, clock) for c in contenders}
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    limits: list[float] = []
    start = clock()
    with collector_off():
        for r in range(max_rounds):
            if r >= MIN_ROUNDS and clock() - start >= seconds:
                break
            if limit is not None:
                time.sleep(settle_s)
                limits.append(limit())
            turn = r % len(contenders)
            for c in (*contenders[turn:], *contenders[:turn]):
                time.sleep(settle_s)
                warm(c.call, clock)
                times[c.name].append(sample(c, numbers[c.name], clock))
    return Comparison(times, limits)


def _calibrate(c: Contender, clock: Callable[[], float]) -> int:
    """How many calls fill `SAMPLE_S`; the calls made here also warm caches and thread pools."""
    c.call()
    number = 1
    while True:
        took = sample(c, number, clock) * number
        if took >= SAMPLE_S / 2 or number >= 1 << 20:
            return max(1, round(number * SAMPLE_S / max(took, 1e-9)))
        number *= 4


def sample(c: Contender, number: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds a call, of ``number`` calls."""
    if c.sample is not None:
        return c.sample(number)
    call = c.call
    begin = clock()
    for _ in range(number):
        call()
    return (clock() - begin) / number


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage is collected meanwhile."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
