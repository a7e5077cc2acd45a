"""What the interpreter counts when it runs a lowered nest: of the problem itself, or where data decides what
is run, of one that is small enough to be run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.results.explanation import Row, Section
from schedules import expr as E
from schedules.constants import split_constants
from schedules.dtypes import DTYPES
from schedules.errors import AutotuneError
from schedules.ir import Alloc, Block, Buffer, Loop, LoweredFunc, Nest, Seq, Stmt, const, walk
from schedules.ir.interp import OPERATIONS, run
from schedules.ir.tally import tally
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.flops import count_flops
from schedules.te.smaller import lengths, with_length
from schedules.units import size

MOST = 100_000  # points that are run: about a second
MORE_WASTE = 1.1  # times as many iterations a point as in the whole problem, at most


@dataclass(frozen=True)
class Countable:
    """A schedule that is short enough to be interpreted. ``changed``: {length: (the problem's, its)}; empty
    if it is the problem itself."""

    schedule: Schedule
    changed: Mapping[str, tuple[int, int]]

    @property
    def words(self) -> str:
        """``i 512 -> 64, k 512 -> 128``."""
        return ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.changed.items())


def points(dag: ComputeDAG) -> int:
    """Points of all stages."""
    return sum(math.prod(a.extent for a in (*s.axes, *s.reduce_axes)) for s in dag.stages)


def countable(
    schedule: Schedule,
    most: float = MOST,
    wanted: float | None = None,
    cost: Callable[[Schedule], float] = lambda s: points(s.dag),
) -> Countable | None:
    """The schedule, or its trace on a smaller problem, whose ``cost`` is at most ``most`` (points). None if
    there is none in which tiles are as full. The longest lengths are halved first, until the cost is
    ``wanted`` (None: ``most``) or less, if that is possible."""
    dag, found = schedule.dag, schedule
    wanted = most if wanted is None else wanted
    usual = _waste(schedule.nest)
    stuck: set[tuple[str, int | None]] = set()
    first: dict[str, int] = {}
    while cost(found) > wanted:
        free = [x for x in lengths(dag) if (x.name, x.output) not in stuck]
        if not free:
            break
        longest = max(free, key=lambda x: x.extent)
        smaller = with_length(dag, longest, -(-longest.extent // 2))
        other = None if smaller is None else _replayed(smaller, schedule)
        less = other is not None and cost(other) < cost(found) and _alike(usual, _waste(other.nest))
        if other is None or smaller is None or not less:
            stuck.add((longest.name, longest.output))
            continue
        first.setdefault(longest.name, longest.extent)
        dag, found = smaller, other
    if cost(found) > most:
        return None
    now = {x.name: x.extent for x in lengths(dag)}
    return Countable(found, {name: (n, now.get(name, 1)) for name, n in first.items()})


def section(schedule: Schedule) -> Section:
    """Operations, and elements loaded and stored in each buffer; or why they were not counted."""
    found, func = Countable(schedule, {}), _lowered(schedule)
    counts = tally(func)
    if counts is None:  # data decides, or too much does
        smaller = countable(schedule)
        if smaller is None:
            text = (
                f"none: {points(schedule.dag):,} points are too many to be interpreted (at most {MOST:,}), "
            )
            text += "and its tiles fit no problem that is small enough"
            return Section("Counted", (Row("problem", text, "definition", {"points": points(schedule.dag)}),))
        found, func = smaller, _lowered(smaller.schedule)
        counts = counted(func)
    buffers = {
        b.name: b for b in (*func.params, *(x.buffer for x in walk(func.body) if isinstance(x, Alloc)))
    }
    total, flops = counts.pop(OPERATIONS, 0), count_flops(found.schedule.dag)
    rows = [problem(schedule.dag, found)] if found.changed else []
    rows.append(
        Row("operations run", f"{total:,}; the expression has {flops:,}", "counter", {"operations": total})
    )
    for name in sorted({key.partition(" ")[2] for key in counts}):
        loads, stores = counts.get(f"load {name}", 0), counts.get(f"store {name}", 0)
        text = f"{loads:,} loads, {stores:,} stores"
        moved = (loads + stores) * DTYPES[buffers[name].dtype].itemsize
        where = " in registers" if buffers[name].scope == "local" else ""
        text = f"{text}{where}: {size(moved)}"
        rows.append(Row(name, text, "counter", {"loads": loads, "stores": stores, "bytes": moved}))
    return Section("Counted: elements loaded and stored, vectors lane by lane", tuple(rows))


def _lowered(schedule: Schedule) -> LoweredFunc:
    return lower(split_constants(schedule.nest, schedule.dag.constants)[0])


def problem(dag: ComputeDAG, found: Countable) -> Row:
    """Which smaller problem was counted."""
    part = points(found.schedule.dag) / points(dag)
    text = f"the same trace on a smaller one, {found.words}: {part:.2g} of the points"
    numbers = {"points": points(found.schedule.dag), "share": part}
    return Row("problem", text, "definition", numbers | {k: new for k, (_, new) in found.changed.items()})


def counted(func: LoweredFunc) -> dict[str, int]:
    """The interpreter's counters, on arrays of ones."""
    counts: dict[str, int] = {}
    run(func, ones(func.params), counts=counts, operations=True)
    return counts


def ones(params: tuple[Buffer, ...]) -> dict[str, np.ndarray]:
    """Arguments of ones, by name."""
    return {
        b.name: np.ones(tuple(int(E.evaluate(n, {})) for n in b.given or b.shape), np.dtype(b.dtype))
        for b in params
    }


def _replayed(dag: ComputeDAG, schedule: Schedule) -> Schedule | None:
    try:
        return Schedule.replay(dag, schedule.trace, schedule.target)
    except AutotuneError:
        return None


def _waste(nest: Nest) -> dict[str, float]:
    """{block: iterations of its loops for each point of its axes}."""
    found = iterations(nest.body)
    return {b.name: n / math.prod(const(i.extent) or 1 for i in b.iters) for b, n in found}


def iterations(s: Stmt, times: int = 1) -> list[tuple[Block, int]]:
    """Blocks with the iterations of the loops around them."""
    if isinstance(s, Block):
        return [(s, times)]
    if isinstance(s, Loop):
        return iterations(s.body, times * (const(s.extent) or 1))
    return [x for part in s.stmts for x in iterations(part, times)] if isinstance(s, Seq) else []


def _alike(usual: Mapping[str, float], here: Mapping[str, float]) -> bool:
    return usual.keys() == here.keys() and all(here[k] <= MORE_WASTE * max(usual[k], 1.0) for k in usual)
