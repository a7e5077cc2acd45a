"""Bytes that a block moves between the caches and memory (constants: as of `quantities`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules.model import LINE
from schedules.space.estimate.counting import Number, number
from schedules.space.estimate.cpu.facts import AccessFacts, BlockFacts
from schedules.space.estimate.cpu.rates import CpuRates
from schedules.space.holes import Columns

# Lines to which streaming stores may go at a time.
STREAMS = 8
# Shortest run that streaming stores write at full speed (bytes).
PAIR = 128.0
# Bytes after which hardware prefetching begins anew.
PAGE = 4 << 10
# Runs read in turns that hardware prefetching follows at a time: without reuse; by instructions of their own.
FOLLOWED = 12
FOLLOWED_APART = 32
# Cycles that stores of tiles wait for a run of a row, and most for each of its lines.
RUN_WAITS, LINE_WAITS = 90.0, 16.0
# Pages touched before a row goes on, from which on it is waited for.
PAGES = 512.0
# Share of a cache that keeps what is used again.
HOLDS = 0.9


@dataclass(frozen=True, slots=True)
class BlockTraffic:
    """What a block moves, in bytes unless another unit is given."""

    inner: Number  # touched by the loops up to a full reduction
    whole: Number  # touched by the whole nest
    fetched: Number  # of lines that ordinary stores fetch first
    levels: tuple[Number, ...]  # from the second cache, the third, and memory
    asked: Number  # read from memory
    runs: Number  # the runs of addresses that these form
    strips: Number  # in so many strips come the bytes from beyond the second cache


def traffic(b: BlockFacts, lanes: Number, unrolled: Number, env: Columns, m: CpuRates) -> BlockTraffic:
    """What a block moves between the caches and memory. ``lanes``, ``unrolled``: of its register tile."""
    inner = whole = fetched = np.zeros_like(lanes)
    beyond, times = _again(b, env, m)
    asked = runs = np.zeros(())
    far = strips = np.zeros(())  # bytes from beyond the second cache, and those bytes times strips
    for a in b.accesses:
        inner = inner + number(a.inner, env) * a.item
        whole = whole + number(a.whole, env) * a.item
        streams = number(b.streams, env) if a.write else np.zeros(())
        here = _beyond(a, streams, lanes, unrolled, env, m)
        beyond = [x + y for x, y in zip(beyond, here, strict=True)]
        if a.write:  # an ordinary store fetches its line first
            fetched = fetched + number(a.whole, env) * a.item * (streams == 0)
        else:
            asked = asked + here[-1]
            runs = runs + here[-1] / a.item / _run_length(a, env)
            far = far + here[1]
            strips = strips + here[1] * np.maximum(number(a.inner, env) / number(a.reach, env), 1.0)
    levels = (beyond[0] - beyond[1], beyond[1] - beyond[2], beyond[2])
    strips = strips / np.maximum(far, 1.0)
    return BlockTraffic(inner, whole, fetched, levels, asked * times, runs * times, strips)


def _beyond(
    a: AccessFacts, streams: Number, lanes: Number, unrolled: Number, env: Columns, m: CpuRates
) -> list[Number]:
    """Bytes that an access brings from beyond the first cache, the second and the third, by the bytes touched
    since they were used last. What is written through the caches is fetched first; what is streamed goes to
    memory whatever they hold: in lines, one more for each run that nothing goes on with, or in pieces of
    lines where these are more than there are buffers; and lines one by one as slowly as pairs."""
    distance, count = number(a.distance, env), number(a.moved, env) * a.item
    through = 2.0 * count * (streams == 0) if a.write else count
    out = [np.where(distance > size, through, 0.0) for size in (m.l1, m.l2, m.l3)]
    if a.write:
        piece = np.minimum(lanes * a.item, LINE)
        run = number(a.run, env)
        alone: Number = a.item * np.where(number(a.tile, env) > run, run, _followed(a, env))
        torn = np.where(number(a.longer, env) > run, 0.0, LINE / a.item / run)  # at the ends of runs
        torn = np.where(streams > 1, 0.0, torn)  # they begin with a line
        pieces = np.where((piece < LINE) & (unrolled > STREAMS), LINE / piece, 1.0 + torn)
        pieces = np.maximum(pieces, PAIR / alone)
        out = [x + (streams > 0) * count * pieces for x in out]
    return out


def _again(b: BlockFacts, env: Columns, m: CpuRates) -> tuple[list[Number], Number]:
    """Bytes that are brought again from beyond each cache because it cannot hold what is touched until they
    are used again; and how many times over memory is read for that. A cache holds what the largest inner part
    of the loops touches that fits; of the next larger one nothing is left (the reuse distance of Wolf & Lam,
    1991, by whole loops)."""
    again: list[Number] = [np.zeros(())] * len(m.rates)
    once: Number = np.ones(())
    sizes = [HOLDS * size for size in (m.l1, m.l2, m.l3)]
    for k, part in enumerate(b.nested if len(b.nested) > 1 else ()):
        each = [number(n, env) * a.item for n, a in zip(part.points, b.accesses, strict=True)]
        touched = sum(each)
        both = touched + sum(x for x, a in zip(each, b.accesses, strict=True) if a.write)
        if k == 0:
            once = both
            continue
        # Rows that lie across lines are loaded as both of them.
        loaded = both + sum(x * (a.across - 1) for x, a in zip(each, b.accesses, strict=True))
        times, returns = number(part.times, env), number(part.back, env) > 1
        more = [np.where(returns, x * times - once, 0.0) for x in (loaded, both, both)]
        again = [
            np.maximum(x, np.where(touched > n, y, 0.0)) for x, y, n in zip(again, more, sizes, strict=True)
        ]
    return again, 1.0 + again[-1] / np.maximum(once, 1.0)


def _followed(a: AccessFacts, env: Columns) -> Number:
    """Elements that lie side by side in a row of a tile and, along loops that go on from there, beyond it."""
    length = number(a.run, env)
    still: Number = np.ones((), dtype=bool)
    for extent, upto in a.walk:
        run = number(upto, env)
        on = (number(extent, env) == 1) | (run > length)
        length, still = np.where(still, np.maximum(length, run), length), still & on
    return length


def waits(b: BlockFacts, env: Columns, m: CpuRates) -> Number:
    """Cycles that stores of tiles wait for lines from beyond the second cache. Rows of a tile lie in pages of
    their own. What goes on along a row comes in time if few other pages were touched meanwhile; else each run
    of a row is waited for, and its page looked up anew. Measured: docs/measurements/instructions.md."""
    out: Number = np.zeros(())
    for a in b.accesses if b.stores_tiles else ():
        if not a.write:
            continue
        length = number(a.run, env)
        rows = number(a.tile, env) / length
        on: Number = np.ones((), dtype=bool)  # while loops go on along rows,
        back: Number = np.ones((), dtype=bool)  # and until one does so again
        for extent, upto in a.walk:
            run, times = number(upto, env), number(extent, env)
            longer = run > length
            on, back = on & (longer | (times == 1)), back & (on | ~longer)
            length = np.where(on, np.maximum(length, run), length)
            rows = np.where(back & ~on, rows * times, rows)
        pages = rows * np.minimum(number(a.row, env) / PAGE, 1.0)
        bytes_ = number(a.whole, env) * a.item * (number(a.distance, env) > m.l2)
        each = np.minimum(RUN_WAITS * LINE / np.maximum(length * a.item, LINE), LINE_WAITS)
        out = out + bytes_ / LINE * each * np.minimum(pages / PAGES, 1.0)
    return out


def _run_length(a: AccessFacts, env: Columns) -> Number:
    """Elements that are read one after the other before memory is asked elsewhere: what a tile has of a run,
    or more where prefetching follows. It follows what each instruction reads (strides by the program counter;
    Baer & Chen, 1991), so along loops that go on until one goes elsewhere, of so many rows of a tile; and a
    few runs in turns, unless what is done with them keeps them apart."""
    run = number(a.run, env)
    share = np.minimum(1.0, FOLLOWED_APART * run / number(a.tile, env))
    length = 1.0 / (share / _followed(a, env) + (1.0 - share) / run)
    longer = number(a.longer, env)
    length = np.where(number(a.visits, env) <= FOLLOWED * longer, np.maximum(length, longer), length)
    return np.maximum(length, LINE / a.item)  # what else is in a line is used soon
