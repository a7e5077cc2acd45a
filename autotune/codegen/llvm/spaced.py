"""Lanes that lie a few elements apart, as those of every second column: whole vectors are loaded, and what
the lanes want is picked out of them.

Vectors begin at the first element and end at the last. So nothing is read outside of what the lanes span.
"""

from __future__ import annotations

from collections.abc import Iterator

# Most elements from lane to lane. There are as many loads, and one permutation less, in place of a load and
# an insertion for each lane.
MOST = 4


def fits(n: int, step: int | None) -> bool:
    """Whether `picks` takes ``n`` lanes that are ``step`` elements apart."""
    return step is not None and 1 < abs(step) <= MOST and n > abs(step)


def picks(n: int, step: int) -> tuple[list[int], Iterator[list[int]]]:
    """(where vectors of ``n`` elements begin, in elements from lane 0; the lanes of each permutation).

    The first permutation is of the first two vectors, each other of its result and of the next vector.
    Numbers from ``n`` on are the second operand's.

    >>> starts, lanes = picks(4, 2)
    >>> starts, list(lanes)
    ([0, 3], [[0, 2, 5, 7]])
    """
    apart = abs(step)
    least, last = min(0, step * (n - 1)), (apart - 1) * (n - 1)
    starts = [min(k * n, last) for k in range(apart)]
    place = [step * lane - least for lane in range(n)]

    def permutations() -> Iterator[list[int]]:
        for k in range(1, apart):
            begin = k * n if k < apart - 1 else last
            before = place if k == 1 else range(n)
            yield [
                n + p - begin if p >= k * n and p - begin < n else before[lane] if p < k * n else 0
                for lane, p in enumerate(place)
            ]

    return [least + s for s in starts], permutations()
