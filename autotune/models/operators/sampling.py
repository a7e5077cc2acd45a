"""Sampling at places that are data: between the elements of an image (Jaderberg et al., Spatial transformer
networks, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from autotune.models.operators.base import number, stage
from autotune.models.operators.table import Floats, Ints, aten, onnx_op
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr, ExprLike

MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
# {how older versions of ONNX call a mode: how newer ones do}.
_OLDER = {"bilinear": "linear", "bicubic": "cubic"}
# The coefficient of the cubic filter (Keys, Cubic convolution interpolation, 1981).
CUBIC = -0.75
# Places are cut off here before they are made integers: beyond it nothing is inside.
FAR = 2.0**24


@onnx_op("GridSample", names={"padding": "padding_mode"})
def grid_sample(
    x: Floats, grid: te.Tensor, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> te.Tensor:
    """``x`` (n, c, sizes…) at the places ``grid`` (n, out…, axes), whose last axis is (x, y) or (x, y, z)
    from -1 to 1 over the image, to (n, c, out…).

    ``mode``: of `MODES`. ``padding``: what is outside, of `PADDINGS`. ``align_corners``: -1 and 1 are the
    centres of the elements at the ends, else their outer edges. Raises ValueError for what does not fit.
    """
    rank, mode = len(x.shape) - 2, _OLDER.get(mode, mode)
    if mode not in MODES or padding not in PADDINGS:
        raise ValueError(f"mode {mode!r} or padding_mode {padding!r} is unknown")
    if rank < 1 or len(grid.shape) != rank + 2 or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise ValueError(f"a grid of {list(grid.shape)} for data of {list(x.shape)}")
    if mode == "cubic" and rank != 2:
        raise ValueError(f"mode 'cubic' is for images, not for {rank} axes")
    sizes, wide = x.shape[2:], computed(grid.dtype)

    places = [_place(grid, d, sizes[d], mode, padding, align_corners) for d in range(rank)]
    if mode == "nearest":
        bases = [_whole(p, te.round) for p in places]
        taps: Sequence[int] = (0,)
    else:
        bases = [_whole(p, te.floor) for p in places]
        taps = (0, 1) if mode == "linear" else (-1, 0, 1, 2)

    def value(n: Expr, c: Expr, *out: Expr) -> Expr:
        at = (n, *out)
        total: Expr | None = None
        for step in product(taps, repeat=rank):
            index: list[ExprLike] = []
            inside: list[Expr] = []
            for d, tap in enumerate(step):
                i, size = bases[d][at] + tap, sizes[d]
                if mode == "cubic" and padding != "zeros":
                    back = _turned(te.cast(i, wide), size, padding, align_corners)
                    i = te.cast(back, "int32")
                elif padding == "zeros":
                    inside += [i >= 0, i < size]
                index.append(te.maximum(te.minimum(i, size - 1), 0))
            own = te.cast(x[(n, c, *index)], wide)
            own = te.select(te.all(*inside), own, number(0, wide)) if inside else own
            if mode != "nearest":
                for d, tap in enumerate(step):
                    beyond = places[d][tuple(at)] - te.cast(bases[d][tuple(at)], wide)
                    own = own * _weight(mode, beyond, tap)
            total = own if total is None else total + own
        assert total is not None
        return te.cast(total, x.dtype)

    return stage((*x.shape[:2], *grid.shape[1:-1]), value, "grid_sample")


def _place(grid: te.Tensor, d: int, size: int, mode: str, padding: str, align_corners: bool) -> te.Tensor:
    """Of every output, along spatial axis ``d`` of ``size``, in elements."""
    own, wide = grid.shape[-1] - 1 - d, computed(grid.dtype)

    def value(*at: Expr) -> Expr:
        g = te.cast(grid[(*at, own)], wide)
        v = (g + 1.0) * 0.5 * float(size - 1) if align_corners else ((g + 1.0) * float(size) - 1.0) * 0.5
        if mode != "cubic":  # whose elements are turned back one by one
            v = _turned(v, size, padding, align_corners)
        return te.maximum(te.minimum(v, FAR), -FAR)

    return stage(grid.shape[:-1], value, f"place{d}")


def _weight(mode: str, beyond: Expr, tap: int) -> Expr:
    """Of an element ``tap`` behind the base of a place, which lies ``beyond`` its base."""
    if mode == "linear":
        return beyond if tap else 1.0 - beyond
    away = beyond - float(tap) if tap <= 0 else float(tap) - beyond
    near = ((away * (CUBIC + 2.0) - (CUBIC + 3.0)) * away) * away + 1.0
    far = ((away * CUBIC - 5.0 * CUBIC) * away + 8.0 * CUBIC) * away - 4.0 * CUBIC
    return near if tap in (0, 1) else far


def _whole(place: te.Tensor, of: object) -> te.Tensor:
    """A whole number near each place."""
    return stage(place.shape, lambda *at: te.cast(of(place[at]), "int32"), "base")  # type: ignore[operator]


def _turned(v: Expr, size: int, padding: str, align_corners: bool) -> Expr:
    """A place that is inside: at the border, or reflected there as often as it takes."""
    if padding == "zeros":
        return v
    if padding == "reflection":
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return v * 0.0
        away = te.abs(v - low)
        turns = te.floor(away / span)
        rest = away - turns * span
        odd = te.not_equal(te.floor(turns * 0.5) * 2.0, turns)
        v = te.select(odd, span - rest, rest) + low
    return te.maximum(te.minimum(v, float(size - 1)), 0.0)


def affine_grid(theta: te.Tensor, sizes: Sequence[int], align_corners: bool) -> te.Tensor:
    """Places for `grid_sample`: those of the elements of an image of ``sizes``, each times the matrix
    ``theta`` (n, axes, axes + 1) of its sample, to (n, sizes…, axes)."""
    rank = len(sizes)
    if theta.shape[1:] != (rank, rank + 1):
        raise ValueError(f"theta of {list(theta.shape)} for {rank} spatial axes")
    wide = computed(theta.dtype)

    def value(n: Expr, *at: Expr) -> Expr:
        *place, row = at
        total = te.cast(theta[n, row, rank], wide)
        for d, i in enumerate(place):
            size = sizes[d]
            if align_corners:
                step, start = (2.0 / (size - 1), -1.0) if size > 1 else (0.0, -1.0)
            else:
                step, start = 2.0 / size, 1.0 / size - 1.0
            c = te.cast(i, wide) * step + start
            total = total + te.cast(theta[n, row, rank - 1 - d], wide) * c
        return te.cast(total, theta.dtype)

    return stage((theta.shape[0], *sizes, rank), value, "affine_grid")


# --- rows -------------------------------------------------------------------------------------


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def _grid_sampler(x: Floats, grid: Floats, mode: int, padding: int, align_corners: bool) -> te.Tensor:
    return grid_sample(x, grid, MODES[mode], PADDINGS[padding], align_corners)


@onnx_op("AffineGrid")
def _affine_grid(theta: te.Tensor, size: Ints, *, align_corners: bool = False) -> te.Tensor:
    if size[:1] != [theta.shape[0]] or any(n < 1 for n in size):
        raise ValueError(f"size {size} for theta of {list(theta.shape)}")
    return affine_grid(theta, size[2:], align_corners)


@aten("affine_grid_generator.default")
def _affine_grid_generator(theta: Floats, size: Sequence[int], align_corners: bool) -> te.Tensor:
    return affine_grid(theta, [int(n) for n in size[2:]], align_corners)
