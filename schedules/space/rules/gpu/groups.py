"""Decides which stages share a kernel and by which rule, from the outputs back to the inputs."""

from __future__ import annotations

from schedules.ir import Block
from schedules.space.rules.alike import schedule_alike
from schedules.space.rules.cpu.groups import reductions_behind
from schedules.space.rules.cpu.rows import row_rank
from schedules.space.rules.cpu.scan_tiles import scan_groups
from schedules.space.rules.gpu.chained_products import chained_products, schedule_chained_products
from schedules.space.rules.gpu.channels_last import channels_last
from schedules.space.rules.gpu.maps import schedule_map
from schedules.space.rules.gpu.matrix_units import (
    matrix_products,
    schedule_matrix_product,
    split_matrix_product,
)
from schedules.space.rules.gpu.plain import schedule_plainly
from schedules.space.rules.gpu.rows import schedule_rows, split_among_blocks
from schedules.space.rules.gpu.scans import schedule_scans
from schedules.space.rules.gpu.scatters import schedule_scatter
from schedules.space.rules.gpu.tiles import schedule_tiles, split_reduction
from schedules.space.rules.gpu.transposed import read_across, schedule_transposed
from schedules.space.rules.gpu.window_products import window_products
from schedules.space.rules.inline import inline_stages
from schedules.space.rules.merge import merge_neighbours
from schedules.space.rules.patterns import is_placed, is_row_reduction, spatial
from schedules.space.rules.views import order_axes, split_views
from schedules.space.sketch_builder import SketchBuilder


def apply_gpu_rules(d: SketchBuilder) -> None:
    """Draw a whole sketch."""
    if any(x.scan for x in d.s.dag.stages):
        _with_scans(d)
        return
    split_views(d)
    inline_stages(d, _inline_padding, costly_in_tiles=True)
    split_views(d)  # what reads through a stage that is gone now
    copies = channels_last(d)
    merge_neighbours(d)
    order_axes(d)
    schedule_alike(d)
    for name in copies:
        with d.scheduling(name), d.settled():
            _schedule(d, name)
    window_products(d)
    for name in list(d.s.blocks()):
        split_among_blocks(d, name)
        if not split_matrix_product(d, name):
            split_reduction(d, name)
    d.schedule_rest(_schedule)


def _with_scans(d: SketchBuilder) -> None:
    """Draw a sketch of an expression with scans, a kernel each. All other stages have the rules that they
    have elsewhere."""
    steps = {s.name for group in scan_groups(d) for s in group}
    split_views(d)
    d.done |= steps
    inline_stages(d, _inline_padding, costly_in_tiles=True, stay=steps)
    schedule_scans(d)
    d.schedule_rest(_schedule)


def _inline_padding(d: SketchBuilder, padding: Block, reducing: list[Block]) -> bool | None:
    """Whether to inline padding; None leaves it to `inline_stages`. The tile rule inlines it into shared
    copies."""
    return None if any(is_row_reduction(d.s.nest, u) for u in reducing) else False


def _schedule(d: SketchBuilder, name: str) -> None:
    b = d.block(name)
    d.roots.discard(name)  # it is scheduled now
    if is_placed(b):
        schedule_scatter(d, name)
    elif len(b.writes) > 1 or not spatial(b):
        schedule_plainly(d, name)
    elif b.reducer is not None and is_row_reduction(d.s.nest, b):
        schedule_rows(d, d.s.cache_write(name, "local"), len(spatial(b)))
    elif b.reducer is not None:
        _tile(d, name, d.s.cache_write(name, "local"))
    elif (chain := chained_products(d, name)) and d.choose(f"{name}.by", ("warps", "")):
        schedule_chained_products(d, name, chain)
    else:
        tiled, rows = reductions_behind(d, b)
        if tiled is not None:
            _tile(d, tiled.name, name)
        elif rows is not None and (rank := row_rank(d, b)):
            schedule_rows(d, name, rank)
        elif (across := read_across(d.s.nest, b)) and d.choose(f"{name}.by", ("squares", "")):
            schedule_transposed(d, name, *across)
        else:
            schedule_map(d, name)


def _tile(d: SketchBuilder, producer: str, consumer: str) -> None:
    """Tile a sum with the stage that stores its results. The matrix units do the sum if they can and are
    chosen."""
    apart = producer in d.windows_of_taps  # as a product its tiles have more rows
    found = {} if apart else matrix_products(d, producer, consumer)
    others = () if producer in d.in_parts else ("",)
    way = d.choose(f"{producer}.with", (*found, *others)) if found else ""
    if way:
        schedule_matrix_product(d, producer, consumer, found[way])
    else:
        schedule_tiles(d, producer, consumer)
