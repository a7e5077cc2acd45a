"""Geometry of windows that step over any number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.models.operators.axes import reshape
from autotune.models.operators.node import OnnxNode
from schedules import te
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


def spatial(t: te.Tensor) -> tuple[int, ...]:
    """The extents after batch and channels. Raises ValueError where there are none."""
    if len(t.shape) < 3:
        raise ValueError(f"{list(t.shape)} has no spatial axes after its batch and channels")
    return t.shape[2:]


def onnx_windows(node: OnnxNode, sizes: Sequence[int], kernel: Sequence[int], ceil: bool = False) -> Windows:
    """The windows that the attributes of a node of ONNX state."""
    rank, given = len(sizes), node.attributes
    stride = tuple(given.get("strides") or [1] * rank)
    dilation = tuple(given.get("dilations") or [1] * rank)
    auto, kernel = given.get("auto_pad", "NOTSET"), tuple(kernel)
    if any(len(x) != rank for x in (stride, dilation, kernel)) or any(
        n < 1 for n in (*stride, *dilation, *kernel)
    ):
        raise ValueError(f"kernel, strides and dilations are not one number above 0 for each of {rank} axes")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sides: Sides = same_sides(sizes, kernel, stride, dilation, auto == "SAME_UPPER")
    elif auto in ("NOTSET", "VALID", ""):
        pads = (given.get("pads") if auto != "VALID" else None) or [0] * 2 * rank
        if len(pads) != 2 * rank:
            raise ValueError(f"{len(pads)} pads for {rank} axes; two are needed for each")
        sides = tuple(zip(pads[:rank], pads[rank:], strict=True))
    else:
        raise ValueError(f"auto_pad {auto!r} is unknown")
    return Windows(tuple(sizes), kernel, stride, dilation, sides, ceil)


def aten_windows(
    sizes: Sequence[int], kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil: bool = False,
) -> Windows:  # fmt: skip
    """The windows that arguments of ATen state: one number an axis, one for all, or none. Without a stride
    windows lie side by side."""
    rank = len(sizes)
    size = each(kernel, rank, 1)
    by = each(stride, rank, 1) if stride not in ((), []) else size
    sides = tuple((p, p) for p in each(padding, rank, 0))
    return Windows(tuple(sizes), size, by, each(dilation, rank, 1), sides, ceil)


def each(given: int | Sequence[int], rank: int, default: int) -> tuple[int, ...]:
    """One number an axis; one for all, or none, is taken too."""
    found = ((given,) if isinstance(given, int) else tuple(int(n) for n in given)) or (default,)
    return found * rank if len(found) == 1 else found


def batched(t: te.Tensor, rank: int) -> te.Tensor:
    """With batch and channels in front of ``rank`` spatial axes."""
    return reshape(t, (*[1] * (rank + 2 - len(t.shape)), *t.shape))
