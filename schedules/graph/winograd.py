"""Winograd's convolutions: outputs in tiles, of fewer products and more sums.

A tile of m x m outputs of a convolution with r x r weights needs (m + r - 1)² products for each pair of
channels in place of m² r². Tiles of the data are transformed, one axis after the other. Then each of the
(m + r - 1)² places of a tile is a product of matrices over all tiles and channels. What it makes is
transformed back. So it is along one axis, or along three. Transforms are products with small constant
matrices, so each stage is a kernel that spaces know (Lavin & Gray, 2016). Transformed weights are known
ahead: `fold_constants` computes them once.

Sums are others than those of the convolution, so results are rounded otherwise. Bounds of errors follow from
the stages as they are written. Where results may be exact and something is decided by them, the convolution
stays (`steps_behind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Binary, Cast, Const, Expr, Load, Select, Var
from schedules.graph.edit import alike, factors, is_map, is_product, remade
from schedules.graph.fold import fold_constants
from schedules.graph.graph import Array, Graph
from schedules.graph.kinds import is_guarded
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.steps_behind import has_few_bits, has_step_behind
from schedules.graph.toom_cook import POINTS, Rows, short_convolution
from schedules.te.compute_dag import Axis, Reducer, Stage, Tensor, operand
from schedules.te.extent import is_open
from schedules.te.unique import Taken

WIDE = "float64"  # in which weights are transformed, ahead of all calls
_WIDE_SUM = Reducer("sum", (Const(0.0, WIDE),), (operand("x0", WIDE) + operand("y0", WIDE),))


@dataclass(frozen=True)
class WinogradPlace:
    """``stage``: the name of a convolution. ``tile``: outputs of a tile along each axis of the window."""

    stage: str
    tile: int


@dataclass(frozen=True)
class Winograd:
    """Convolutions whose weights are constants, in tiles of ``tile`` outputs along each axis of the window,
    which moves by one element. Tensors are float32 or float64. ``exact``: whether results are rounded as
    those of the graph; they are not.

    A larger tile has fewer products, larger errors, and more transformed weights to read.
    """

    tile: int = 4
    exact: ClassVar[bool] = False

    def places(self, graph: Graph) -> tuple[WinogradPlace, ...]:
        """The convolutions of a graph that may be computed so, in their order."""
        return tuple(
            WinogradPlace(s.name, self.tile)
            for s in graph.dag.stages
            if (w := _window(s, graph, self.tile)) is not None
            and not (has_few_bits(graph.values[w.weight.buffer]) and has_step_behind(graph, s.name))
        )

    def apply(self, graph: Graph, place: WinogradPlace) -> Graph:
        """The graph with one convolution in tiles. Its result keeps its name, shape and dtype. Take it after
        `order_dimensions`: new tensors have channels last.

        Raises WorkloadError if the graph has no such convolution."""
        s = next((s for s in graph.dag.stages if s.name == place.stage), None)
        w = None if s is None else _window(s, graph, place.tile)
        if s is None or w is None:
            raise WorkloadError(
                f"{place.stage!r} is no convolution that Winograd's tiles of {place.tile} compute; take a "
                "place that `places` of the same graph names"
            )
        return _Tiles(graph, s, w, place.tile).made()


@may_lose(usual=False, exact=False, lazy=True)
def winograd_4(graph: Graph, take: Take) -> Graph:
    """The graph with convolutions in Winograd's tiles of 4 outputs along each axis of the window."""
    return _in_tiles(graph, take, Winograd(4))


@may_lose(usual=False, exact=False, lazy=True)
def winograd_2(graph: Graph, take: Take) -> Graph:
    """The graph with convolutions in Winograd's tiles of 2 outputs along each axis of the window."""
    return _in_tiles(graph, take, Winograd(2))


def _in_tiles(graph: Graph, take: Take, by: Winograd) -> Graph:
    """The graph with the convolutions that are taken in tiles, their weights transformed ahead."""

    def places(graph: Graph) -> Iterator[RewritePlace]:
        stages = {s.name: s for s in graph.dag.stages}
        for found in by.places(graph):
            yield RewritePlace(found.stage, alike(stages[found.stage]))

    def apply(graph: Graph, place: RewritePlace) -> Graph:
        return by.apply(graph, WinogradPlace(place.name, by.tile))

    after = at_each(graph, take, places, apply)
    return graph if after is graph else fold_constants(after)


@dataclass(frozen=True)
class _Window:
    """A convolution. ``data``, ``weight``: its loads. ``moved``: (axis that the window moves along, axis of
    the window). ``channel``: the axis that is summed beside these. ``out``: the axis that only weights
    walk."""

    data: Load
    weight: Load
    moved: tuple[tuple[Axis, Axis], ...]
    channel: Axis
    out: Axis


def _window(s: Stage, graph: Graph, tile: int) -> _Window | None:
    """What a stage is as a convolution; None if it is none that tiles compute."""
    every = (*s.axes, *s.reduce_axes)
    if not is_product(s) or any(is_open(a.extent) for a in every):
        return None
    pair = factors(s.values[0])
    known = [x for x in pair if x.buffer in graph.values]
    bare = isinstance(s.values[0], Binary) and all(x in (s.values[0].a, s.values[0].b) for x in pair)
    if not bare or len(known) != 1:
        return None
    (weight,), (data,) = known, [x for x in pair if x is not known[0]]
    axes = {a.var: a for a in every}
    plain = [axes[i.name] for i in data.indices if isinstance(i, Var)]
    moved = tuple(_moved(i, axes, s) for i in data.indices if not isinstance(i, Var))
    pairs = tuple(x for x in moved if x is not None)
    channel = [a for a in plain if a in s.reduce_axes]
    walked = [*plain, *(a for both in pairs for a in both)]
    out = [a for a in s.axes if a not in walked]
    if not pairs or len(pairs) < len(moved) or len(channel) != 1 or len(out) != 1:
        return None
    if len({*walked}) < len(walked) or {*walked, *out} != {*every} or data.dtype not in ("float32", WIDE):
        return None
    if sorted(weight.indices, key=str) != sorted((Var(a.var) for a in (*s.reduce_axes, *out)), key=str):
        return None
    least, most = 2, len(POINTS) + 2 - tile  # taps
    fits = tile > 1 and all(tile <= a.extent and least <= r.extent <= most for a, r in pairs)
    return _Window(data, weight, pairs, channel[0], out[0]) if fits else None


def _moved(index: Expr, axes: dict[str, Axis], s: Stage) -> tuple[Axis, Axis] | None:
    """The two axes of which an index is the sum, that of the output and that of the window."""
    terms, start = affine.linear(index)
    used = [axes[a.name] for a in terms if isinstance(a, Var)]
    outer, inner = ([a for a in used if a in some] for some in (s.axes, s.reduce_axes))
    steady = start == Const(0) and len(terms) == 2 and set(terms.values()) == {Const(1)}
    return (outer[0], inner[0]) if steady and len(outer) == len(inner) == 1 else None


class _Tiles:
    """The stages of one convolution in tiles. Their tensors have the places of a tile first, then what is no
    part of the window, the tiles, and channels."""

    def __init__(self, graph: Graph, conv: Stage, window: _Window, tile: int) -> None:
        self.graph, self.conv, self.w, self.tile = graph, conv, window, tile
        self.taken = Taken(graph.dag.tensors)
        self.dtype = conv.outputs[0].dtype
        self.stages: list[Stage] = []
        self.inputs: list[Tensor] = list(graph.dag.inputs)
        self.values: dict[str, Array] = dict(graph.values)
        self.matrices: dict[tuple[Rows, str], str] = {}
        self.short = [short_convolution(tile, r.extent) for _, r in window.moved]
        moved = [a for a, _ in window.moved]
        self.batch = [a for a in conv.axes if a not in (*moved, window.out)]
        own = Taken(a.var for a in conv.axes)  # names of new axes
        self.places = [Axis(own.add(f"i{d}"), x.products) for d, x in enumerate(self.short)]
        self.tiles = [Axis(own.add(f"t{d}"), -(-a.extent // tile)) for d, a in enumerate(moved)]
        # what tiles are read from, along each axis of the window
        reads = [t.extent * tile + r.extent - 1 for t, (_, r) in zip(self.tiles, window.moved, strict=True)]
        self.read = [replace(t, extent=n) for t, n in zip(self.tiles, reads, strict=True)]
        self.channel = Axis(own.add("c"), window.channel.extent)
        self.over = own.add("k")  # what is summed

    def made(self) -> Graph:
        """The graph with them."""
        data, weights = self._data(), self._weights()
        axes = [*self.places, *self.batch, *self.tiles]
        k = Axis(self.over, self.channel.extent)
        at = [*_vars(axes), Var(k.var)], [*_vars(self.places), Var(k.var), Var(self.w.out.var)]
        value = Load(data, tuple(at[0]), self.dtype) * Load(weights, tuple(at[1]), self.dtype)
        return self._with(self._back(self._sum("products", [*axes, self.w.out], k, value)))

    def _data(self) -> str:
        """Tiles of the data, transformed along each axis."""
        name = self._padded()
        read = {a.var: v for (a, _), v in zip(self.w.moved, _vars(self.read), strict=True)}
        read[self.w.channel.var] = Var(self.channel.var)
        at = [next((v for a, v in read.items() if a in E.variables(i)), i) for i in self.w.data.indices]
        for d, t in enumerate(self.tiles):
            there = Var(t.var) * self.tile + Var(self.over)
            load = Load(name, tuple(there if i == Var(t.var) else i for i in at), self.dtype)
            axes = [
                *self.places[: d + 1],
                *self.batch,
                *self.tiles[: d + 1],
                *self.read[d + 1 :],
                self.channel,
            ]
            k = Axis(self.over, self.places[d].extent)
            matrix = self._at(self.short[d].data, Var(self.places[d].var))
            name, at = self._sum(f"data_{d}", axes, k, matrix * load), list(_vars(axes))
        return name

    def _weights(self) -> str:
        """Transformed weights: places of a tile, channels that are summed, channels of the output."""
        w, name = self.w, self.w.weight.buffer
        taps = [r for _, r in w.moved]
        load: Expr = w.weight if self.dtype == WIDE else Cast(WIDE, w.weight)
        for d, tap in enumerate(taps):
            axes = [*self.places[: d + 1], *taps[d + 1 :], w.channel, w.out]
            matrix = self._at(self.short[d].weights, Var(self.places[d].var), WIDE, tap.var)
            name = self._sum(f"weights_{d}", axes, tap, matrix * load, _WIDE_SUM)
            load = Load(name, tuple(_vars(axes)), WIDE)
        if self.dtype == WIDE:
            return name
        rounded = self.taken.add(f"{self.conv.name}_weights")
        out = Tensor(rounded, tuple(a.extent for a in axes), self.dtype)
        self.stages.append(Stage((out,), tuple(axes), (), (Cast(self.dtype, load),)))
        return rounded

    def _back(self, name: str) -> Stage:
        """The stage of the convolution, which transforms products back along the last axis."""
        last = len(self.tiles) - 1
        inner = [replace(p, extent=self.tile) for p in self.places]
        for d, place in enumerate(self.places[:last]):
            axes = [*inner[: d + 1], *self.places[d + 1 :], *self.batch, *self.tiles, self.w.out]
            at = [Var(self.over) if i == Var(place.var) else i for i in _vars(axes)]
            matrix = self._at(self.short[d].inverse, Var(place.var))
            k = Axis(self.over, place.extent)
            name = self._sum(f"back_{d}", axes, k, matrix * Load(name, tuple(at), self.dtype))
        outputs = _vars([a for a, _ in self.w.moved])
        inside = [*(v % self.tile for v in outputs[:last]), Var(self.over)]
        at = [*inside, *_vars(self.batch), *(v // self.tile for v in outputs), Var(self.w.out.var)]
        value = self._at(self.short[last].inverse, outputs[last] % self.tile) * Load(
            name, tuple(at), self.dtype
        )
        k = Axis(self.over, self.places[last].extent)
        return replace(self.conv, reduce_axes=(k,), values=(value,))

    def _at(self, rows: Rows, row: Expr, dtype: str | None = None, column: str | None = None) -> Load:
        """An element of a matrix, a constant of the graph."""
        dtype = dtype or self.dtype
        if (rows, dtype) not in self.matrices:
            value = np.array([[float(x) for x in row] for row in rows], dtype)
            self.matrices[rows, dtype] = name = self.taken.add(f"{self.conv.name}_matrix")
            self.inputs.append(Tensor(name, value.shape, dtype))
            self.values[name] = value
        return Load(self.matrices[rows, dtype], (row, Var(column or self.over)), dtype)

    def _sum(
        self, what: str, axes: Sequence[Axis], over: Axis, value: Expr, reducer: Reducer | None = None
    ) -> str:
        """Add a sum. Returns its name."""
        name = self.taken.add(f"{self.conv.name}_{what}")
        out = Tensor(name, tuple(a.extent for a in axes), E.dtype_of(value))
        self.stages.append(Stage((out,), tuple(axes), (over,), (value,), reducer or self.conv.reducer))
        return name

    def _padded(self) -> str:
        """The tensor that tiles are read from: the data, with zeros behind it where the last tiles go on."""
        name = self.w.data.buffer
        t = self.graph.dag.tensors[name]
        needed = {a.var: n.extent for (a, _), n in zip(self.w.moved, self.read, strict=True)}
        axes, inside = [], []
        for d, (e, extent) in enumerate(zip(self.w.data.indices, t.shape, strict=True)):
            longest = max(extent, *(n for v, n in needed.items() if v in E.variables(e)), 1)
            axes.append(Axis(f"d{d}", longest))
            if longest > extent:
                inside.append(Var(f"d{d}") < extent)
        if not inside:
            return name
        at = tuple(_vars(axes))
        value: Expr = Load(name, at, t.dtype)
        pad = next((s for s in self.graph.dag.stages if s.name == name), None)
        if pad is not None and is_map(pad) and is_guarded(pad):  # one guard, not a guard of another
            value = E.substitute(pad.values[0], {a.var: v for a, v in zip(pad.axes, at, strict=True)})
        other: Expr = Const(0.0, t.dtype)
        match value:
            case Select(cond=cond, a=value, b=other):
                inside.append(cond)
        made = self.taken.add(f"{self.conv.name}_padded")
        out = Tensor(made, tuple(a.extent for a in axes), t.dtype)
        self.stages.append(Stage((out,), tuple(axes), (), (Select(E.all_of(*inside), value, other),)))
        return made

    def _with(self, last: Stage) -> Graph:
        """The graph with the stages, ``last`` in the place of the convolution."""
        stages: list[Stage] = []
        for s in self.graph.dag.stages:
            stages += [*self.stages, last] if s is self.conv else [s]
        origin = self.graph.origins.get(self.conv.name)
        origins = dict(self.graph.origins) | ({s.name: origin for s in self.stages} if origin else {})
        return remade(replace(self.graph, origins=origins), stages, self.inputs, self.values)


def _vars(axes: Sequence[Axis]) -> list[Expr]:
    return [Var(a.var) for a in axes]
