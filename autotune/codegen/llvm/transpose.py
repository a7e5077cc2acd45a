"""A square of elements transposed in registers: from vectors that are rows to vectors that are columns.

First within 128-bit lanes, by interleaving pairs as x86's unpack instructions do, then whole lanes change
places (Eklundh's butterflies): n log2(n) shuffles of two operands, each a single instruction with AVX2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

LANE_BYTES = 16
Shuffle = Callable[[str, str, Sequence[int]], str]


def transpose(rows: Sequence[str], itemsize: int, shuffle: Shuffle) -> list[str]:
    """The columns of a square, a power of two on a side and at least a lane wide. ``shuffle(a, b, mask)``
    emits the vector of the elements ``mask`` of ``a`` and ``b`` end to end, and names it."""
    n, lane = len(rows), max(1, LANE_BYTES // itemsize)
    groups = [_within_lanes(list(rows[g : g + lane]), n, lane, shuffle) for g in range(0, n, lane)]
    return [column for group in _across_lanes(groups, n, lane, shuffle) for column in group]


def fits(n: int, itemsize: int) -> bool:
    """Whether `transpose` takes a square of this side."""
    return n > 1 and n & (n - 1) == 0 and n * itemsize >= LANE_BYTES


def _within_lanes(rows: list[str], n: int, lane: int, shuffle: Shuffle) -> list[str]:
    """``lane`` rows: vector k holds, in each lane, its element k of all of them."""
    width = 1
    while width < lane:
        low, high = (_interleaved(n, lane, width, half) for half in (0, lane // 2))
        out: list[str] = [""] * lane
        # vectors at a distance of ``width`` hold neighbouring rows (or groups of them) of the same columns
        for i in range(0, lane, 2 * width):
            for k in range(width):
                a, b = rows[i + k], rows[i + k + width]
                out[i + 2 * k], out[i + 2 * k + 1] = shuffle(a, b, low), shuffle(a, b, high)
        rows, width = out, 2 * width
    return rows


def _interleaved(n: int, lane: int, width: int, half: int) -> list[int]:
    """Runs of ``width`` elements of a and b by turns, from one half of each lane."""
    return [
        start + half + run * width + k + side * n
        for start in range(0, n, lane)
        for run in range(lane // 2 // width)
        for side in (0, 1)
        for k in range(width)
    ]


def _across_lanes(groups: list[list[str]], n: int, lane: int, shuffle: Shuffle) -> list[list[str]]:
    """The lanes of the groups' vectors as a square of their own, transposed."""
    m = len(groups)
    step = m // 2
    while step:
        out = [list(g) for g in groups]
        first = [_run(q if not q & step else m + q - step, lane) for q in range(m)]
        second = [_run(q + step if not q & step else m + q, lane) for q in range(m)]
        for g in range(m):
            if g & step:
                continue
            for k in range(lane):
                a, b = groups[g][k], groups[g + step][k]
                out[g][k] = shuffle(a, b, [x for run in first for x in run])
                out[g + step][k] = shuffle(a, b, [x for run in second for x in run])
        groups, step = out, step // 2
    return groups


def _run(block: int, lane: int) -> range:
    return range(block * lane, (block + 1) * lane)
