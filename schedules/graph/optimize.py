"""All rewrites, in the order in which each finds what the ones before it left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schedules.graph.added_products import add_products
from schedules.graph.apart import plain_part
from schedules.graph.biases import add_biases
from schedules.graph.common import eliminate_common
from schedules.graph.dead import eliminate_dead
from schedules.graph.digits import split_digits
from schedules.graph.fold import fold_constants
from schedules.graph.fuse_windows import fuse_windows
from schedules.graph.gathered_rows import gather_rows
from schedules.graph.graph import Graph
from schedules.graph.group_scales import scale_sums_of_groups
from schedules.graph.integers import integer_products
from schedules.graph.joins import join_in_place
from schedules.graph.layout import order_dimensions
from schedules.graph.literals import name_literals
from schedules.graph.maps import inline_maps
from schedules.graph.narrow import narrow
from schedules.graph.reassociate import reassociate
from schedules.graph.recompute import recompute
from schedules.graph.requantise import drop_requantised, fold_result_scales
from schedules.graph.rewrite import USUAL, AskedPlace, Choices, Optimized, Rewrite, RewritePlace
from schedules.graph.scale import fold_scales
from schedules.graph.side_by_side import lie_in_whole, stack_unequal
from schedules.graph.split_sums import split_sums
from schedules.graph.stack import stack_equal
from schedules.graph.states import write_in_place
from schedules.graph.store import store_maps
from schedules.graph.substitute import substitute, substituting
from schedules.graph.tables import tabulate
from schedules.graph.units import drop_unit_dimensions
from schedules.graph.valid_rows import end_with_valid_rows
from schedules.graph.views import compute_at_views, forward_views
from schedules.graph.wider_windows import widen_windows
from schedules.graph.winograd import winograd_2, winograd_4
from schedules.substitutions.rules import Substitution

# Each keeps the meaning: the evaluator says the same before and after. Those that may lose are a `Rewrite`.
REWRITES: tuple[Callable[[Graph], Graph], ...] = (
    eliminate_dead,
    write_in_place,
    narrow,
    drop_unit_dimensions,
    drop_requantised,
    integer_products,
    scale_sums_of_groups,
    fold_constants,
    eliminate_common,
    substitute,
    forward_views,
    compute_at_views,
    inline_maps,
    fold_result_scales,
    tabulate,
    fold_scales,
    reassociate,
    add_biases,
    fold_constants,
    add_products,
    split_digits,
    eliminate_common,
    widen_windows,
    stack_unequal,
    stack_equal,
    order_dimensions,
    winograd_4,
    winograd_2,
    gather_rows,
    split_sums,
    recompute,
    name_literals,
    join_in_place,
    lie_in_whole,
    end_with_valid_rows,
    store_maps,
    fuse_windows,
)

# Those that may lose, by name.
MAY_LOSE = {r.name: r for r in REWRITES if isinstance(r, Rewrite)}


# Reads the substitutions that are known.
Rules = Callable[[], Sequence[Substitution]]


def no_rules() -> Sequence[Substitution]:
    """No substitutions."""
    return ()


@dataclass(frozen=True)
class RewriteStep:
    """A graph before and after the rewrite of that name."""

    rewrite: str
    before: Graph
    after: Graph


def optimized(
    graph: Graph,
    choices: Choices = USUAL,
    rules: Rules = no_rules,
    each: Callable[[RewriteStep], object] | None = None,
) -> Optimized:
    """A graph after every rewrite of `REWRITES`, those that may lose where ``choices`` say so. They see plain
    stages only (`schedules.graph.apart`). ``rules``: for `substitute`, asked for where that looks for
    places. ``each``: is told of every rewrite."""
    asked: list[AskedPlace] = []
    part = plain_part(graph)
    now, whole = part.graph, graph
    for rewrite in REWRITES:
        after = rewritten(rewrite, now, choices, asked, rules)
        if each is not None:
            made = whole if after is now else part.whole(after)
            each(RewriteStep(name_of(rewrite), whole, made))
            whole = made
        now = after
    return Optimized(part.whole(now), tuple(asked))


def rewritten(
    rewrite: Callable[[Graph], Graph],
    graph: Graph,
    choices: Choices,
    asked: list[AskedPlace] | None = None,
    rules: Rules = no_rules,
) -> Graph:
    """A graph after one rewrite, by ``choices`` if it may lose. ``asked``: is told its places. ``rules``: as
    of `optimized`."""
    if not isinstance(rewrite, Rewrite):
        return rewrite(graph)
    if not choices.concern(rewrite):
        return graph
    if rewrite is substitute:
        rewrite = substituting(rules(), choices)

    def take(place: RewritePlace) -> bool:
        taken = choices.takes(rewrite, place)
        if asked is not None:
            asked.append(AskedPlace(rewrite.name, place, taken))
        return taken

    return rewrite.run(graph, take)


def optimize(graph: Graph) -> Graph:
    """The graph as it is rewritten where nothing was measured."""
    return optimized(graph).graph


def name_of(rewrite: Callable[[Graph], Graph]) -> str:
    """What people call a rewrite."""
    return rewrite.name if isinstance(rewrite, Rewrite) else rewrite.__name__
