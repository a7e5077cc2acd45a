"""Geometry of windows that step over any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedules.expr import Expr, ExprLike

# Most places of an axis, with what is added around it.
MOST = 2**24
Sides = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Windows:
    """Windows over spatial axes, a number an axis each. ``sides``: elements added before and after.
    ``ceil``: a last window may reach beyond what is added, if it begins before its end."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    sides: Sides
    ceil: bool = False

    def __post_init__(self) -> None:
        ranks = {len(x) for x in (self.sizes, self.kernel, self.stride, self.dilation, self.sides)}
        if len(ranks) != 1:
            raise ValueError(
                f"kernel {list(self.kernel)}, strides {list(self.stride)}, dilations {list(self.dilation)} "
                f"and pads {list(self.sides)} are not one an axis of {list(self.sizes)}"
            )
        if any(n < 1 for n in (*self.kernel, *self.stride, *self.dilation)):
            raise ValueError("an extent of the kernel, a stride or a dilation is below 1")
        if any(n < 0 for side in self.sides for n in side):
            raise ValueError(f"pads {list(self.sides)} are negative")
        if max(*self.out, *(n + lo + hi for n, (lo, hi) in zip(self.sizes, self.sides, strict=True))) > MOST:
            raise ValueError(
                f"an axis of {list(self.sizes)} with pads {list(self.sides)} has more than {MOST} places"
            )
        if any(n < 1 for n in self.out):
            raise ValueError(
                f"no window of {list(self.reach)} fits {list(self.sizes)} with pads {self.sides}"
            )

    @property
    def reach(self) -> tuple[int, ...]:
        """Elements from the first of a window to its last."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def out(self) -> tuple[int, ...]:
        """Number of windows."""
        every = zip(self.sizes, self.reach, self.stride, self.sides, strict=True)
        return tuple(_count(n, r, s, lo, hi, self.ceil) for n, r, s, (lo, hi) in every)

    @property
    def padding(self) -> Sides:
        """What every window needs around the input: with ``ceil`` more may be needed behind."""
        every = zip(self.out, self.reach, self.stride, self.sizes, self.sides, strict=True)
        return tuple((lo, max(hi, (n - 1) * s + r - size - lo)) for n, r, s, size, (lo, hi) in every)

    def places(self, at: Sequence[Expr], taps: Sequence[ExprLike]) -> tuple[Expr, ...]:
        """The places in the padded input of the taps of windows."""
        every = zip(at, taps, self.stride, self.dilation, strict=True)
        return tuple(i * s + t * d for i, t, s, d in every)


def _count(size: int, reach: int, stride: int, before: int, after: int, ceil: bool) -> int:
    room = size + before + after - reach
    if room < 0 and not (ceil and room > -stride):
        return 0
    count = -(-room // stride) + 1 if ceil else room // stride + 1
    # A window that begins behind the input and what is before it would hold nothing.
    return count - (ceil and (count - 1) * stride >= size + before)


def same_sides(
    sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], upper: bool
) -> Sides:
    """Sides with which there are ⌈size / stride⌉ windows; of an odd sum the larger is behind if ``upper``."""
    out = []
    for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True):
        total = max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
        small, large = total // 2, total - total // 2
        out.append((small, large) if upper else (large, small))
    return tuple(out)
