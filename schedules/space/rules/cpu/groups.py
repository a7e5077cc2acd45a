"""Decides which stages are scheduled together and by which rule, from the outputs back to the inputs."""

from __future__ import annotations

from schedules.errors import ScheduleError
from schedules.ir import Block
from schedules.ir.nest import loops_of, reads, writers
from schedules.space.rules.alike import schedule_alike
from schedules.space.rules.cpu.bands import schedule_bands
from schedules.space.rules.cpu.changed_operands import change_operands
from schedules.space.rules.cpu.dot_products import dot_product_axes, schedule_dot_products
from schedules.space.rules.cpu.elementwise import schedule_elementwise
from schedules.space.rules.cpu.instructed import instruction_fits, schedule_instructed
from schedules.space.rules.cpu.interleaved import split_interleaved
from schedules.space.rules.cpu.merged_sums import merging
from schedules.space.rules.cpu.nested import find_nested, schedule_nested
from schedules.space.rules.cpu.packed_operands import is_streamed
from schedules.space.rules.cpu.row_blocks import is_product, reads_once_from_memory, schedule_row_blocks
from schedules.space.rules.cpu.row_parts import rows_outgrow_cache
from schedules.space.rules.cpu.rows import schedule_rows, split_long_reduction
from schedules.space.rules.cpu.scan_tiles import scan_groups
from schedules.space.rules.cpu.scans import schedule_scans
from schedules.space.rules.cpu.scatters import made_ahead, schedule_scatter
from schedules.space.rules.cpu.streaming import stream_outputs
from schedules.space.rules.cpu.tiling import schedule_tiled
from schedules.space.rules.cpu.widened import may_widen
from schedules.space.rules.cpu.window_blocks import find_window_products, schedule_window_blocks
from schedules.space.rules.inline import inline_stages
from schedules.space.rules.merge import merge_neighbours
from schedules.space.rules.patterns import (
    is_map,
    is_placed,
    is_read_by_rows,
    is_row_reduction,
    is_short_window,
    reads_identity,
    reduction_length,
    sole_reader,
    spatial,
)
from schedules.space.rules.views import copy_views, order_axes, split_views
from schedules.space.sketch_builder import SketchBuilder

# Longest reduction (steps) for which a padding guard at every step is offered.
SHORT_REDUCTION = 64


def apply_rules(d: SketchBuilder) -> None:
    """Draw a whole sketch."""
    if any(x.scan for x in d.s.dag.stages):
        _with_scans(d)
        return
    split_views(d)
    stay = made_ahead(d)
    found = find_window_products(d)
    if not found:
        _draw(d, stay)
        return
    stay |= {made for made, _ in found.values()}
    if d.choose("windows", ("blocks", "apart")) == "blocks":
        d.window_products = found
        _draw(d, stay)
    else:
        with d.settled():
            _draw(d, stay)


def _draw(d: SketchBuilder, stay: set[str]) -> None:
    """Draw a sketch of an expression without scans. ``stay``: stages that are not inlined."""
    way = inline_stages(d, _inline_padding, costly_in_tiles=False, ways=("kept", "bands"), stay=stay)
    split_views(d)  # what reads through a stage that is gone now
    find_nested(d)
    copy_views(d)
    merge_neighbours(d)
    split_interleaved(d)
    order_axes(d)
    schedule_alike(d)
    for name in list(d.s.blocks()):
        if d.is_nested(name):
            continue
        if is_row_reduction(d.s.nest, d.block(name)):
            lanes = d.lanes_of(d.dtype(d.block(name)))
            if is_short_window(d.s.nest, d.block(name), lanes) and name not in d.roots:
                d.windows.add(name)
                continue
            if not is_read_by_rows(d.s.nest, d.block(name)):
                d.roots.add(name)
            split_long_reduction(d, name)
    banded = False
    while (last := d.last_unscheduled()) is not None:
        if way == "bands" and is_map(d.block(last)) and schedule_bands(d, last):
            d.done.add(last)
            banded = True
        else:
            with d.scheduling(last):
                _schedule(d, last)
    if way == "bands" and not banded:
        raise ScheduleError("no stage is read near its own row, so there are no bands")
    stream_outputs(d)


def _with_scans(d: SketchBuilder) -> None:
    """Draw a sketch of an expression with scans. What is cheap and read by a step is computed there; what
    stands before a scan or behind it has the rules that all stages have."""
    steps = {s.name for group in scan_groups(d) for s in group}
    split_views(d)
    d.done |= steps
    inline_stages(d, _inline_padding, costly_in_tiles=False, stay=steps)
    schedule_scans(d)
    d.schedule_rest(_schedule)


def _inline_padding(d: SketchBuilder, padding: Block, reducing: list[Block]) -> bool:
    """Whether to inline padding. If not, the tiling rule places the copy. A guard costs at every step, so it
    is offered where all reductions are short."""
    if d.window_products:
        return True
    short = all(reduction_length(u) <= SHORT_REDUCTION for u in reducing)
    return d.choose(padding.name, ("copy", "inline") if short else ("copy",)) == "inline"


def _schedule(d: SketchBuilder, name: str) -> None:
    b = d.block(name)
    if is_placed(b):
        schedule_scatter(d, name)
        return
    if b.reducer is not None:
        if name in d.nested:
            schedule_nested(d, d.nested[name], d.s.cache_write(name, "local"))
        elif name not in d.windows and (name in d.roots or is_row_reduction(d.s.nest, b)):  # parts too
            schedule_rows(d, name)
        elif not _by_dot_products(d, b):
            _tile(d, name)
        return
    tiled, rows = reductions_behind(d, b)
    while rows is not None and tiled is not None and len(d.nested.get(tiled.name, ())) == 1:
        d.roots.add(rows.name)  # such as the sum of activations, which the zero of weights is multiplied with
        tiled, rows = reductions_behind(d, b)
    if rows is not None:
        _by_rows(d, name, tiled)
    elif tiled is not None and loops_of(d.s.nest, name):
        if tiled.name in d.nested:
            schedule_nested(d, d.nested[tiled.name], name)
        elif _by_dot_products(d, tiled):
            schedule_elementwise(d, name)
        else:
            _tile(d, tiled.name, name)
    else:
        schedule_elementwise(d, name)


def _by_rows(d: SketchBuilder, name: str, tiled: Block | None) -> None:
    """Schedule a stage behind which rows are reduced: ``tiled``: a product that it may be the epilogue of."""
    products = [x for x in d.s.blocks() if x not in d.done and is_product(d.s.nest, d.block(x))]
    ways = ("blocks", "parts", "rows") if rows_outgrow_cache(d) else ("blocks", "rows")
    apart = _products_apart(d, products, tiled)
    if apart is None and any(reads_once_from_memory(d, d.block(x)) for x in products):
        ways = (*ways, "ahead")
    by = d.choose(f"{name}.by", ways if apart is None else (*ways, "apart")) if products else "rows"
    if by == "ahead":
        for x in reversed(products):
            with d.scheduling(x):
                _tile(d, x)
        schedule_rows(d, name)
    elif by == "apart" and apart is not None:
        for x, axes in apart.items():
            with d.scheduling(x):
                schedule_dot_products(d, x, axes, apart=True)
        if tiled is not None and tiled.name in products:
            _tile(d, tiled.name, name)
        else:
            schedule_rows(d, name)
    elif by == "rows":
        schedule_rows(d, name)
    else:
        schedule_row_blocks(d, name, in_parts=by == "parts")


def _tile(d: SketchBuilder, producer: str, consumer: str = "") -> None:
    """Tile a sum with the stage that stores its results. Without one a copy is made. An instruction of the
    target does the sum if one is it and is chosen."""
    p = d.block(producer)
    found = (
        {} if producer in d.window_products else instruction_fits(d, p, d.block(consumer) if consumer else p)
    )
    way = d.choose(f"{producer}.with", (*found, "")) if found else ""
    apart: list[str] = []
    fit = found.get(way)
    if fit is not None:
        for step in merging(d.s.nest, producer, fit.merged):
            d.s.apply(step)
        consumer, fit, apart = change_operands(d, producer, consumer, fit)
    consumer = consumer or d.s.cache_write(producer, "local")
    if producer in d.window_products:
        schedule_window_blocks(d, producer, consumer)
    elif fit is not None:
        schedule_instructed(d, producer, consumer, fit)
    else:
        schedule_tiled(d, producer, consumer, widens=may_widen(d, p, found.values()))
    with d.settled():
        for name in apart:
            _schedule(d, name)


def _products_apart(
    d: SketchBuilder, products: list[str], tiled: Block | None
) -> dict[str, list[str]] | None:
    """{product: its axes} of products that may be done as dot products before the rows that read them: all
    but the one that may be ``tiled`` with the reader of the rows, as it is read where it lies. So are scores
    of attention of one token, and the sum of its values. None if others are left."""
    found = {x: a for x in products if (a := dot_product_axes(d, d.block(x), apart=True))}
    left = [x for x in products if x not in found]
    if not left:
        return found
    return found if tiled is not None and left == [tiled.name] and is_streamed(d, tiled) else None


def _by_dot_products(d: SketchBuilder, b: Block) -> bool:
    """Schedule a product as dot products if that may pay and is chosen. Returns whether it was."""
    opened = any((b.name, v) in d.open for v in spatial(b))
    axes = dot_product_axes(d, b, opened)
    if not axes or not d.choose(f"{b.name}.by", ("", "dots")):
        return False
    schedule_dot_products(d, b.name, axes, opened)
    return True


def reductions_behind(
    d: SketchBuilder, b: Block, bare: set[str] | None = None
) -> tuple[Block | None, Block | None]:
    """Unscheduled reductions that ``b`` reads: (one to tile with ``b`` as its epilogue, one over rows).
    ``bare`` collects stages without a row reduction behind them, so that each is looked at once."""
    bare = set() if bare is None else bare
    tiled = rows = None
    for x in reads(b):
        for p in writers(d.s.nest, x.buffer):
            if p.name in d.done:
                continue
            if is_row_reduction(d.s.nest, p) and p.name not in d.windows and not d.is_nested(p.name):
                rows = rows if p.name in d.roots else p
            elif is_map(p):
                if rows is None and p.name not in bare:
                    rows = reductions_behind(d, p, bare)[1]
                    if rows is None:
                        bare.add(p.name)
            elif is_placed(p):
                continue
            elif len(p.writes) == 1 and reads_identity(b, x.buffer) and sole_reader(d.s.nest, p) is b:
                tiled = p
    return tiled, rows
