"""A depthwise convolution and the product of its channels as one kernel.

The kernel computes the windows of a block of points, and then the product of these, so that what lies between
stays in the first caches. Its product has fewer forms than one alone. Which is faster is a choice, as
*compute_at* is in Halide (Ragan-Kelley et al., PLDI 2013)."""

from __future__ import annotations

from dataclasses import replace

from schedules.graph.edit import alike
from schedules.graph.graph import Graph
from schedules.graph.partition import window_products
from schedules.graph.rewrite import RewritePlace, Take, may_lose


@may_lose(usual=False, lazy=True, promise=0.0)  # level in five blocks of a MobileNetV2, 0.95 to 1.06 times
def fuse_windows(graph: Graph, take: Take) -> Graph:
    """The graph whose depthwise convolutions are computed by the kernels of the products that read them."""
    places = [
        RewritePlace(windows.name, alike(windows, product)) for windows, product in window_products(graph)
    ]
    fused = {place.name for place in places if take(place)}
    return replace(graph, recut=graph.recut | fused) if fused else graph
