"""Resize, and Upsample of older versions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.models.lowering import resize as r
from autotune.models.lowering.base import Array, UnsupportedForm, positives, stage
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Expr

# Most elements of an axis of the result, and most times that one shrinks with a filter as wide.
MOST, FEWEST = 2**20, 16


@onnx_op("Upsample", "Resize")
def _by_scales(node: OnnxNode, x: Value, scales: Value | None = None) -> te.Tensor:
    """The versions before Resize 11: outputs lie at i / scale. The nearest element is the one before, and the
    one after where an axis shrinks."""
    t, mode = node.tensor(x), node.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise ValueError(f"mode {mode!r} is unknown")
    if mode != "nearest" and not is_float(t.dtype):
        raise UnsupportedForm(f"mode {mode} of {t.dtype} is not supported")
    if node.version == 1:  # of images
        by = [1.0, 1.0, float(node.attr("height_scale")), float(node.attr("width_scale"))]
    else:
        given = node.attributes.get("scales") if scales is None else node.known(scales, "scales").reshape(-1)
        by = [float(s) for s in given] if given is not None else []
    out = _extents(t.shape, by)
    if out == list(t.shape):
        return t  # as ONNX Runtime, whatever the scales are
    for axis, (size, n, scale) in enumerate(zip(t.shape, out, by, strict=True)):
        if scale != 1:
            x_ = r.coordinates("asymmetric", size, n, scale)
            if mode == "nearest":
                taps = r.nearest_taps(x_, size, "ceil" if scale < 1 else "floor")
            else:
                taps = r.filter_taps(x_, size, scale, None, False, False)
            t = r.resample(t, axis, taps, scale, node.constant)
    return t


def _extents(extents: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Extents of the output for the scale of each axis."""
    if len(scales) != len(extents) or any(not math.isfinite(s) or s <= 0 for s in scales):
        raise ValueError(f"scales {scales} are not one number above 0 for each of {len(extents)} axes")
    out = [math.floor(n * s) for n, s in zip(extents, scales, strict=True)]
    return _checked(out)


def _checked(extents: list[int]) -> list[int]:
    """Themselves. Raises ValueError for extents that no result may have."""
    if any(not 1 <= n <= MOST for n in extents):
        raise ValueError(f"extents {extents} are not from 1 to {MOST}")
    return extents


@onnx_op("Resize", since=11)
def _resize(
    node: OnnxNode,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> te.Tensor:
    t = node.tensor(x)
    axes = positives(node.attr("axes", range(len(t.shape))), len(t.shape))
    extents = [t.shape[d] for d in axes]
    given = None if sizes is None else node.ints(sizes, "sizes")
    crop = node.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if crop and not given:
        raise UnsupportedForm("tf_crop_and_resize is supported with sizes only, not with scales")
    if given:
        out, by = _of_sizes(node, extents, given)
    else:
        if scales is None:
            raise ValueError("neither scales nor sizes are given")
        by = [float(s) for s in node.known(scales, "scales").reshape(-1)]
        out = _extents(extents, by)
    places = dict(zip(axes, _crop(node, roi, extents, out), strict=True)) if crop else {}
    made = _resampled(node, t, list(zip(axes, out, by, strict=True)), places)
    return _filled(node, made, places, t.shape)


def _crop(node: OnnxNode, roi: Value | None, extents: Sequence[int], out: Sequence[int]) -> list[Array]:
    """Where the outputs of each axis lie in the part of the input that ``roi`` tells. Rounded as by ONNX."""
    ends = node.known(roi, "roi").astype(np.float32).reshape(-1)
    if len(ends) != 2 * len(extents) or not np.isfinite(ends).all():
        raise ValueError(f"a roi of {len(ends)} numbers for {len(extents)} axes")
    found = []
    for a, b, n, size in zip(ends[: len(out)], ends[len(out) :], out, extents, strict=True):
        last, i = np.float32(size - 1), np.arange(n, dtype=np.float32)
        step = i * (b - a) * last / np.float32(n - 1) if n > 1 else (b - a) * last / np.full(1, 2, np.float32)
        found.append(step + a * last)
    return found


def _filled(node: OnnxNode, t: te.Tensor, places: Mapping[int, Array], shape: Sequence[int]) -> te.Tensor:
    """``t`` with what lies outside the input as ``extrapolation_value``, which is at the ends of axes."""
    inside: dict[int, tuple[int, int]] = {}
    for d, x in places.items():
        (at,) = np.nonzero((x >= 0) & (x <= shape[d] - 1))
        inside[d] = (int(at[0]), int(at[-1]) + 1) if at.size else (0, 0)
    cut = {d: ends for d, ends in inside.items() if ends != (0, t.shape[d])}
    if not cut:
        return t
    wide = computed(t.dtype)
    outside = float(node.attr("extrapolation_value", 0.0))
    other = te.const(outside if is_float(wide) else int(outside), wide)

    def value(*at: Expr) -> Expr:
        within = [c for d, (a, b) in cut.items() for c in (at[d] >= a, at[d] < b)]
        return te.cast(te.select(te.all(*within), te.cast(t[at], wide), other), t.dtype)

    return stage(t.shape, value, "crop")


def _of_sizes(node: OnnxNode, extents: list[int], sizes: list[int]) -> tuple[list[int], list[float]]:
    """(extents of the output, scales) for the sizes that are asked for."""
    if len(sizes) != len(extents) or any(n < 1 for n in sizes):
        raise ValueError(f"sizes {sizes} are not one number above 0 for each of {len(extents)} axes")
    by = [n / m for n, m in zip(sizes, extents, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return _checked(sizes), by
    scale = max(by) if policy == "not_smaller" else min(by)
    return _checked([math.floor(scale * n + 0.5) for n in extents]), [scale] * len(extents)


def _resampled(
    node: OnnxNode, t: te.Tensor, how: list[tuple[int, int, float]], places: Mapping[int, Array]
) -> te.Tensor:
    """``how``: (axis, extent, scale). ``places``: {axis: of its outputs}, if no transformation tells them."""
    mode, transform = node.attr("mode", "nearest"), node.attr("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"mode {mode!r} is unknown")
    if mode != "nearest" and not is_float(t.dtype):
        raise UnsupportedForm(f"mode {mode} of {t.dtype} is not supported")
    for axis, out, scale in how:
        size = t.shape[axis]
        if axis not in places and size == out and scale == 1:
            continue
        x = places[axis] if axis in places else r.coordinates(transform, size, out, scale)
        if mode == "nearest":
            taps = r.nearest_taps(x, size, node.attr("nearest_mode", "round_prefer_floor"))
        elif mode != "nearest" and node.attr("antialias", 0) and scale < 1 / FEWEST:
            raise UnsupportedForm(f"it shrinks more than {FEWEST} times with antialias")
        else:
            a = float(node.attr("cubic_coeff_a", -0.75)) if mode == "cubic" else None
            outside = bool(node.attr("exclude_outside", 0))
            taps = r.filter_taps(x, size, scale, a, bool(node.attr("antialias", 0)), outside)
        t = r.resample(t, axis, taps, scale, node.constant)
    return t
