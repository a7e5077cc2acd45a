"""Transposes a square of elements in registers: from vectors of rows to vectors of columns.

First pairs are interleaved within 128-bit lanes, as x86's unpack instructions do. Then whole lanes change
places (Eklundh's butterflies). That makes n log2(n) shuffles of two operands, each one instruction with AVX2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Bytes of a lane of x86's shuffles.
LANE_BYTES = 16
# (a, b, mask) -> name of the vector of elements ``mask`` of ``a`` and ``b`` end to end.
Shuffle = Callable[[str, str, Sequence[int]], str]


def transpose(rows: Sequence[str], itemsize: int, shuffle: Shuffle) -> list[str]:
    """The columns of a square. Its side is a power of two and at least a lane wide. ``shuffle``: emits an
    instruction and names its result."""
    n, lane = len(rows), max(1, LANE_BYTES // itemsize)
    groups = [_within_lanes(list(rows[g : g + lane]), n, lane, shuffle) for g in range(0, n, lane)]
    return [column for group in _across_lanes(groups, n, lane, shuffle) for column in group]


def fits(n: int, itemsize: int) -> bool:
    """Whether `transpose` takes a square with this side."""
    return n > 1 and n & (n - 1) == 0 and n * itemsize >= LANE_BYTES


def _within_lanes(rows: list[str], n: int, lane: int, shuffle: Shuffle) -> list[str]:
    """Transpose ``lane`` rows within lanes: lane l of vector k then holds element k of lane l of all rows."""
    width = 1
    while width < lane:
        low, high = (_interleaved(n, lane, width, half) for half in (0, lane // 2))
        out: list[str] = [""] * lane
        # Vectors ``width`` apart hold neighbouring rows (or groups of rows) of the same columns.
        for i in range(0, lane, 2 * width):
            for k in range(width):
                a, b = rows[i + k], rows[i + k + width]
                out[i + 2 * k], out[i + 2 * k + 1] = shuffle(a, b, low), shuffle(a, b, high)
        rows, width = out, 2 * width
    return rows


def _interleaved(n: int, lane: int, width: int, half: int) -> list[int]:
    """Alternating runs of ``width`` elements of a and b, from one half of each lane."""
    return [
        start + half + run * width + k + side * n
        for start in range(0, n, lane)
        for run in range(lane // 2 // width)
        for side in (0, 1)
        for k in range(width)
    ]


def _across_lanes(groups: list[list[str]], n: int, lane: int, shuffle: Shuffle) -> list[list[str]]:
    """Transpose the square that the lanes of the groups' vectors form."""
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
