"""How fast a language model reads a prompt, and makes one token after the other: beside a peer, in turns.

A token reads all weights and the rows of the cache that are valid. So its time is set beside these bytes, and
beside the rate at which this machine reads memory, in the same rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.backends.peaks.cpu_peaks import MemoryLoop
from autotune.measure.compare.bench import MIN_ROUNDS, Comparison, DisagreementError, take_turns
from autotune.models.module import Module
from autotune.models.program import Program
from autotune.models.state import ModelState
from autotune.models.token_calls import TokenCalls
from schedules.graph.graph import Island
from schedules.model import Target
from schedules.te.gathers import most_read

# Calls: tokens, and the position of the first.
Calls = Sequence[tuple[NDArray[np.int64], int]]
# Tokens that are made in a round.
IN_A_ROUND = 8
# How far logits may be apart, by their deviation. Both round activations to few bits, each in its own way.
FAR = 0.15
# Kinds of steps.
PRODUCT, ATTENTION, OTHER = "products", "attention", "other"


@dataclass(frozen=True)
class Spent:
    """What a call took: seconds on the clock of the wall, and seconds of this process on all CPUs."""

    wall_s: float
    cpu_s: float


def timed(call: Callable[[], object]) -> Spent:
    """Time a call."""
    begin, used = time.perf_counter(), time.process_time()
    call()
    cpu_s = time.process_time() - used
    return Spent(time.perf_counter() - begin, cpu_s)


class TokenContender(Protocol):
    """What is compared. ``tells_cpu``: whether it knows its CPU time. ``logits``: of the last token of the
    last call; of another process it may have none. A call at a position takes the state back to there."""

    @property
    def name(self) -> str: ...

    @property
    def tells_cpu(self) -> bool: ...

    @property
    def logits(self) -> NDArray[np.float32]: ...

    def run(self, calls: Calls) -> list[Spent]: ...


class ModuleContender:
    """A compiled model as a contender, with a state of its own."""

    tells_cpu = True

    def __init__(self, net: Module, name: str) -> None:
        self.name, self.calls = name, TokenCalls(net)
        self.state = net.new_state()
        self.logits = np.zeros(0, np.float32)

    def run(self, calls: Calls) -> list[Spent]:
        spent = []
        for tokens, position in calls:
            self.calls.begin(self.state, position)

            def call(tokens: Any = tokens, position: int = position) -> None:
                self.logits = self.calls.logits(tokens, position, self.state)

            spent.append(timed(call))
        return spent


@dataclass(frozen=True)
class DecodingTask:
    """What is timed: a call of ``rows`` tokens after ``depth`` others. ``calls``: one after the other in a
    round."""

    rows: int
    depth: int
    calls: int

    @property
    def tokens(self) -> int:
        """How many tokens a state has room for at least."""
        return self.depth + self.rows * self.calls


def prefill(rows: int) -> DecodingTask:
    """A prompt of so many tokens, from an empty state."""
    return DecodingTask(rows, 0, 1)


def decode(depth: int) -> DecodingTask:
    """One token after the other, after ``depth`` others."""
    return DecodingTask(1, depth, IN_A_ROUND)


@dataclass(frozen=True)
class DecodingTimes:
    """``spent[name]``: of each call, in rounds. ``limits``: bytes a second that this machine read, in each
    round. ``by_cpu``: whether CPU time is what is compared, as with one thread."""

    task: DecodingTask
    spent: Mapping[str, Sequence[Sequence[Spent]]]
    limits: Sequence[float]
    by_cpu: bool

    def rounds(self, name: str) -> list[float]:
        """The median time of a call in each round (seconds)."""
        return [median(map(self._of, each)) for each in self.spent[name]]

    def _of(self, s: Spent) -> float:
        return s.cpu_s if self.by_cpu else s.wall_s

    @cached_property
    def comparison(self) -> Comparison:
        """Of the median calls of rounds, without limits."""
        return Comparison({name: self.rounds(name) for name in self.spent}, ())

    def best_s(self, name: str) -> float:
        """The least of the rounds (seconds). A single call may be told too little of CPU time."""
        return min(self.rounds(name))

    def wall_s(self, name: str) -> float:
        """The median of the clock of the wall (seconds)."""
        return median(s.wall_s for each in self.spent[name] for s in each)

    def cpu_s(self, name: str) -> float:
        """The median of CPU time, of all threads together (seconds)."""
        return median(s.cpu_s for each in self.spent[name] for s in each)

    def share(self, name: str, moved: float) -> float:
        """The share of the read bandwidth at which so many bytes were read in a call."""
        each = zip(self.rounds(name), self.limits, strict=True)
        return median(moved / t / limit for t, limit in each)


def made_up_tokens(count: int, vocabulary: int) -> NDArray[np.int64]:
    """Tokens of a made-up text."""
    return (np.arange(count, dtype=np.int64) * 7919 + 5) % vocabulary


def compare(
    contenders: Sequence[TokenContender],
    task: DecodingTask,
    vocabulary: int,
    target: Target,
    *,
    seconds: float = 5.0,
    least: int = MIN_ROUNDS,
    settle_s: float = 0.0,
) -> DecodingTimes:
    """Time rounds for about ``seconds``, ``least`` of them at least. ``settle_s``: as of
    `take_turns`."""
    words = made_up_tokens(task.tokens, vocabulary)
    rows, depth = task.rows, task.depth
    calls = [(words[at : at + rows], at) for at in range(depth, task.tokens, rows)]
    by_cpu = target.threads == 1 and all(s.tells_cpu for s in contenders)
    memory = MemoryLoop(target, "read", 1 << 28, cpu_clock=by_cpu)
    spent: dict[str, list[list[Spent]]] = {s.name: [] for s in contenders}
    limits: list[float] = []
    for s in contenders:
        if depth:
            s.run([(words[:depth], 0)])
        s.run(calls)

    def turn(s: TokenContender) -> None:
        s.run(calls[:1])  # so that it finds in the caches what repeated calls find there
        spent[s.name].append(s.run(calls))

    def first() -> None:
        limits.append(memory.bytes_a_second())

    take_turns(contenders, turn, first, seconds, least=least, most=math.inf, settle_s=settle_s)
    return DecodingTimes(task, spent, limits, by_cpu)


def apart(ours: TokenContender, theirs: TokenContender, tokens: int, vocabulary: int) -> float | None:
    """How far logits after so many tokens are apart (root of the mean square), by their deviation. None where
    a peer tells none."""
    words = made_up_tokens(tokens, vocabulary)
    for s in (ours, theirs):
        s.run([(words, 0)])
    if not theirs.logits.size:
        return None
    if ours.logits.shape != theirs.logits.shape:
        raise DisagreementError(
            f"{theirs.name} gives {theirs.logits.size} logits, and the model {ours.logits.size}; leave "
            f"{theirs.name} out of --against"
        )
    difference = ours.logits.astype(np.float64) - theirs.logits
    found = float(np.sqrt(np.mean(difference**2)) / theirs.logits.astype(np.float64).std())
    if not found <= FAR:  # also of NaN
        raise DisagreementError(
            f"{theirs.name} and the tuned model differ: logits after {tokens} tokens are apart by "
            f"{found:.3g} of their deviation; leave {theirs.name} out of --against"
        )
    return found


# -- what a call reads -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRead:
    """What a step of a program reads of weights and of states (bytes; of states: of all rows). ``kind``: a
    product reads all of a matrix of weights; attention reads states."""

    kind: str
    weights: int
    states: int


def program_of(net: Module, rows: int) -> Program:
    """The program of a call of so many tokens."""
    for sizes, program in zip(net.own_sizes, net.programs[1:], strict=True):
        if set(sizes.values()) == {rows}:
            return program
    return net.program


def steps_of(program: Program) -> list[StepRead]:
    """What each step of a program reads."""
    ol = program.outline
    states = {s.tensor for s in ol.states.values()}
    found = []
    for step in ol.steps:
        if isinstance(step, Island):
            found.append(StepRead(OTHER, 0, 0))
            continue
        dag = ol.tasks[step.task].dag
        read = most_read(dag)
        weights = kept = 0
        product = False
        for a, t in zip(step.reads, dag.inputs, strict=True):
            if a.tensor in ol.constants:
                weights += read[t.name]
                product |= read[t.name] == t.own_bytes and sum(n > 1 for n in t.shape) > 1
            elif ol.root(a.tensor) in states:
                kept += t.own_bytes
        kind = PRODUCT if product else ATTENTION if kept else OTHER
        found.append(StepRead(kind, weights, kept))
    return found


def bytes_read(steps: Sequence[StepRead], valid: float) -> float:
    """Bytes that a call reads. ``valid``: the share of the rows of states that are."""
    return sum(s.weights + s.states * valid for s in steps)


@dataclass(frozen=True)
class StepShares:
    """Where the time of a token goes. ``seconds``: by kind of step. ``weights``: bytes that products read."""

    seconds: Mapping[str, float]
    weights: int

    @property
    def product_rate(self) -> float:
        """Bytes a second of all products together."""
        return self.weights / self.seconds[PRODUCT] if self.seconds[PRODUCT] else 0.0

    def share(self, kind: str) -> float:
        """Of all steps together."""
        return self.seconds[kind] / max(sum(self.seconds.values()), 1e-12)


def step_shares(
    net: Module, calls: TokenCalls, depth: int, state: ModelState, repeat: int = 40
) -> StepShares:
    """Where the time of one token goes that is made after ``depth`` others: medians of each step."""
    steps = steps_of(program_of(net, 1))
    inputs = calls.inputs(made_up_tokens(1, calls.vocabulary), depth)
    profile = net.profile(*inputs, state=state, repeat=repeat)
    seconds = dict.fromkeys((PRODUCT, ATTENTION, OTHER), 0.0)
    for row, step in zip(profile.rows, steps, strict=True):
        seconds[step.kind] += row.in_place_s
    return StepShares(seconds, sum(s.weights for s in steps if s.kind == PRODUCT))
