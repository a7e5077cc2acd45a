"""Winograd's convolutions: outputs in tiles, of fewer products and more sums.

A tile of m x m outputs of a convolution with r x r weights needs (m + r - 1)² products for each pair of
channels in place of m² r². Tiles of the data are transformed, one axis after the other. Then each of the
(m + r - 1)² places of a tile is a product of matrices over all tiles and channels. What it makes is
transformed back. Transforms are products with small constant matrices, so each stage is a kernel that spaces
know (Lavin & Gray, 2016). Transformed weights are known ahead: `fold_constants` computes them once.

Sums are others than those of the convolution, so results are rounded otherwise. The bounds of errors follow
from the stages as they are written. They grow with the tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Binary, Cast, Const, Expr, Load, Select, Var
from schedules.graph.edit import factors, is_map, is_product, remade
from schedules.graph.graph import Array, Graph
from schedules.graph.kinds import is_guarded
from schedules.graph.toom_cook import POINTS, Rows, short_convolution
from schedules.te.compute_dag import Axis, Reducer, Stage, Tensor, operand
from schedules.te.extent import is_open
from schedules.te.unique import Taken

WIDE = "float64"  # in which weights are transformed, ahead of all calls
_WIDE_SUM = Reducer("sum", (Const(0.0, WIDE),), (operand("x0", WIDE) + operand("y0", WIDE),))


@dataclass(frozen=True)
class WinogradPlace:
    """``stage``: the name of a convolution. ``tile``: how many rows and columns of outputs a tile has."""

    stage: str
    tile: int


@dataclass(frozen=True)
class Winograd:
    """Convolutions whose weights are constants, by tiles of ``tile`` x ``tile`` outputs.

    Windows are square, and move by one element along two axes. Tensors are float32 or float64. ``exact``:
    whether every rewrite of the kind rounds as the graph does; this one does not.

    >>> Winograd(4).places(te_graph)  # doctest: +SKIP
    (WinogradPlace(stage='conv', tile=4),)
    """

    tile: int = 4
    exact: ClassVar[bool] = False

    def places(self, graph: Graph) -> tuple[WinogradPlace, ...]:
        """The convolutions of a graph that may be computed so, in their order."""
        found = (s for s in graph.dag.stages if _window(s, graph, self.tile) is not None)
        return tuple(WinogradPlace(s.name, self.tile) for s in found)

    def apply(self, graph: Graph, place: WinogradPlace) -> Graph:
        """The graph with one convolution in tiles. Its result keeps its name, shape and dtype.

        Raises WorkloadError if the graph has no such convolution."""
        by_name = {s.name: s for s in graph.dag.stages}
        s = by_name.get(place.stage)
        w = None if s is None else _window(s, graph, place.tile)
        if s is None or w is None:
            raise WorkloadError(
                f"{place.stage!r} is no convolution that Winograd's tiles of {place.tile} x {place.tile} "
                "compute; take a place that `places` of the same graph names"
            )
        return _Tiles(graph, s, w, place.tile).made()


@dataclass(frozen=True)
class _Window:
    """A convolution. ``data``, ``weight``: its loads. ``rows``, ``columns``: its axes that the window moves
    along. ``taps``: their axes of the window. ``channel``: the axis summed beside them. ``out``: the axis
    that only weights walk."""

    data: Load
    weight: Load
    rows: Axis
    columns: Axis
    taps: tuple[Axis, Axis]
    channel: Axis
    out: Axis


def _window(s: Stage, graph: Graph, tile: int) -> _Window | None:
    """What a stage is as a convolution; None if it is none that tiles compute."""
    if (
        not is_product(s)
        or len(s.reduce_axes) != 3
        or any(is_open(a.extent) for a in (*s.axes, *s.reduce_axes))
    ):
        return None
    value = s.values[0]
    if not isinstance(value, Binary) or not isinstance(value.a, Load) or not isinstance(value.b, Load):
        return None
    pair = factors(value)
    known = [x for x in pair if x.buffer in graph.values]
    if len(known) != 1 or len({x.dtype for x in pair} | {s.outputs[0].dtype}) != 1:
        return None
    (weight,) = known
    (data,) = (x for x in pair if x is not weight)
    axes = {a.var: a for a in (*s.axes, *s.reduce_axes)}
    summed = {a.var for a in s.reduce_axes}
    moved: list[tuple[Axis, Axis]] = []
    plain: list[str] = []
    for i in data.indices:
        if isinstance(i, Var):
            plain.append(i.name)
            continue
        terms, start = affine.linear(i)
        used = [a for a in terms if isinstance(a, Var)]
        both = (
            [axes[a.name] for a in used if a.name not in summed],
            [axes[a.name] for a in used if a.name in summed],
        )
        if (
            start != Const(0)
            or len(terms) != 2
            or set(terms.values()) != {Const(1)}
            or [*map(len, both)] != [1, 1]
        ):
            return None
        moved.append((both[0][0], both[1][0]))
    if len(moved) != 2 or data.dtype not in ("float32", WIDE):
        return None
    (rows, r), (columns, c) = moved
    channel = [axes[v] for v in plain if v in summed]
    out = [a for a in s.axes if a.var not in plain and a not in (rows, columns)]
    every = [v for v in plain if v not in summed] + [rows.var, columns.var]
    walked = [i.name for i in weight.indices if isinstance(i, Var)]
    if len(channel) != 1 or len(out) != 1 or sorted([*every, out[0].var]) != sorted(a.var for a in s.axes):
        return None
    if len(walked) != len(weight.indices) or sorted(walked) != sorted((*summed, out[0].var)):
        return None
    n = tile + r.extent - 1
    if r.extent != c.extent or r.extent < 2 or tile < 2 or n > len(POINTS) + 1:
        return None
    if min(rows.extent, columns.extent) < tile:
        return None
    return _Window(data, weight, rows, columns, (r, c), channel[0], out[0])


class _Tiles:
    """The stages of one convolution in tiles."""

    def __init__(self, graph: Graph, conv: Stage, window: _Window, tile: int) -> None:
        self.graph, self.conv, self.w, self.tile = graph, conv, window, tile
        self.taken = Taken(graph.dag.tensors)
        self.matrices = short_convolution(tile, window.taps[0].extent)
        self.n = self.matrices.products
        self.stages: list[Stage] = []
        self.inputs: list[Tensor] = list(graph.dag.inputs)
        self.values: dict[str, Array] = dict(graph.values)

    def made(self) -> Graph:
        """The graph with them."""
        w, conv, n, m = self.w, self.conv, self.n, self.tile
        high, wide = (-(-a.extent // m) for a in (w.rows, w.columns))
        # Names of axes: i, j of a place in a tile, t, u of a tile, k of what is summed.
        batch = [a for a in conv.axes if a not in (w.rows, w.columns, w.out)]
        rest = Taken(a.var for a in batch)
        i, j, t, u, c, o, k = (rest.add(x) for x in "ijtucok")
        sides = Axis(i, n), Axis(j, n)
        tiles = Axis(t, high), Axis(u, wide)
        dtype = conv.outputs[0].dtype
        across = self._read_so_far(wide)
        data = self._data(high, wide)

        def at(x: str, y: str, over: str) -> tuple[Expr, ...]:
            """Indices of the data, in its order."""
            moved = {w.rows.var: Var(x) * m + Var(over), w.columns.var: Var(y)}
            return tuple(self._index(e, moved, c) for e in w.data.indices)

        b = self._matrix("data", self.matrices.data, dtype)
        a = self._matrix("inverse", self.matrices.inverse, dtype)
        column = Axis(u, across)
        down = self._sum(
            "rows",
            (sides[0], *batch, tiles[0], column, Axis(c, w.channel.extent)),
            Axis(k, n),
            self._at(b, i, k, dtype) * Load(data, at(t, u, k), dtype),
        )
        moved = Var(u) * m + Var(k)
        names = [Var(x.var) for x in batch]
        both = self._sum(
            "tiles",
            (*sides, *batch, *tiles, Axis(c, w.channel.extent)),
            Axis(k, n),
            self._at(b, j, k, dtype) * Load(down, (Var(i), *names, Var(t), moved, Var(c)), dtype),
        )
        weights = self._weights(dtype)
        product = self._sum(
            "products",
            (*sides, *batch, *tiles, Axis(o, w.out.extent)),
            Axis(k, w.channel.extent),
            Load(both, (Var(i), Var(j), *names, Var(t), Var(u), Var(k)), dtype)
            * Load(weights, (Var(i), Var(j), Var(k), Var(o)), dtype),
        )
        back = self._sum(
            "back",
            (Axis(i, m), sides[1], *batch, *tiles, Axis(o, w.out.extent)),
            Axis(k, n),
            self._at(a, i, k, dtype) * Load(product, (Var(k), Var(j), *names, Var(t), Var(u), Var(o)), dtype),
        )
        y, x, over = Var(w.rows.var), Var(w.columns.var), self._free(k)
        value = self._at(a, x % m, over, dtype) * Load(
            back, (y % m, Var(over), *names, y // m, x // m, Var(w.out.var)), dtype
        )
        last = replace(conv, reduce_axes=(Axis(over, n),), values=(value,))
        return self._with(last)

    def _read_so_far(self, tiles: int) -> int:
        """How many columns that many tiles read."""
        return tiles * self.tile + self.w.taps[0].extent - 1

    def _index(self, e: Expr, moved: dict[str, Expr], channel: str) -> Expr:
        """An index of the data, where a tile reads it."""
        walked = E.variables(e)
        for axis, there in moved.items():
            if axis in walked:
                return there
        return Var(channel) if walked == {self.w.channel.var} else e

    def _free(self, name: str) -> str:
        return Taken(a.var for a in self.conv.axes).add(name)

    def _at(self, matrix: str, row: str | Expr, column: str, dtype: str) -> Load:
        return Load(matrix, (Var(row) if isinstance(row, str) else row, Var(column)), dtype)

    def _sum(
        self, what: str, axes: tuple[Axis, ...], over: Axis, value: Expr, reducer: Reducer | None = None
    ) -> str:
        """Add a sum. Returns its name."""
        name = self.taken.add(f"{self.conv.name}_{what}")
        out = Tensor(name, tuple(x.extent for x in axes), E.dtype_of(value))
        self.stages.append(Stage((out,), axes, (over,), (value,), reducer or self.conv.reducer))
        return name

    def _matrix(self, what: str, rows: Rows, dtype: str) -> str:
        """A constant of the graph. Equal ones of other convolutions are made one by `eliminate_common`."""
        value = np.array([[float(x) for x in row] for row in rows], dtype)
        name = self.taken.add(f"{self.conv.name}_{what}_matrix")
        self.inputs.append(Tensor(name, value.shape, dtype))
        self.values[name] = value
        return name

    def _weights(self, dtype: str) -> str:
        """Transformed weights: (row, column of a tile, input channel, output channel)."""
        w, n, r = self.w, self.n, self.w.taps[0].extent
        g = self._matrix("weights", self.matrices.weights, WIDE)
        channels = Axis("c", w.channel.extent), Axis("o", w.out.extent)
        name = {w.taps[0].var: "k", w.taps[1].var: "b", w.channel.var: "c", w.out.var: "o"}
        there = (Var(name[v]) for i in w.weight.indices for v in E.variables(i))
        wide: Expr = Load(w.weight.buffer, tuple(there), dtype)
        wide = wide if dtype == WIDE else Cast(WIDE, wide)
        down = self._sum(
            "weights_rows", (Axis("i", n), Axis("b", r), *channels), Axis("k", r),
            self._at(g, "i", "k", WIDE) * wide, _WIDE_SUM,
        )  # fmt: skip
        half = Load(down, tuple(map(Var, "ikco")), WIDE)
        both = self._sum(
            "weights_tiles", (Axis("i", n), Axis("j", n), *channels), Axis("k", r),
            self._at(g, "j", "k", WIDE) * half, _WIDE_SUM,
        )  # fmt: skip
        if dtype == WIDE:
            return both
        last = self.stages[-1]
        rounded = self.taken.add(f"{self.conv.name}_weights_rounded")
        value = Cast(dtype, Load(both, tuple(Var(x.var) for x in last.axes), WIDE))
        self.stages.append(Stage((Tensor(rounded, last.outputs[0].shape, dtype),), last.axes, (), (value,)))
        return rounded

    def _data(self, high: int, wide: int) -> str:
        """The tensor that tiles are read from: the data, with zeros behind it where the last tiles go on."""
        w = self.w
        name = w.data.buffer
        t = self.graph.dag.tensors[name]
        needed = {w.rows.var: self._read_so_far(high), w.columns.var: self._read_so_far(wide)}
        axes, inside = [], []
        for d, (e, extent) in enumerate(zip(w.data.indices, t.shape, strict=True)):
            longer = next((n for v, n in needed.items() if v in E.variables(e)), extent)
            axes.append(Axis(f"d{d}", max(longer, extent)))
            if longer > extent:
                inside.append(Var(f"d{d}") < extent)
        if not inside:
            return name
        at = tuple(Var(a.var) for a in axes)
        value: Expr = Load(name, at, t.dtype)
        pad = next((s for s in self.graph.dag.stages if s.name == name), None)
        if pad is not None and is_map(pad) and is_guarded(pad):
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
        stages: list[Stage] = []
        for s in self.graph.dag.stages:
            stages += [*self.stages, last] if s is self.conv else [s]
        origin = self.graph.origins.get(self.conv.name)
        origins = dict(self.graph.origins) | ({s.name: origin for s in self.stages} if origin else {})
        return remade(replace(self.graph, origins=origins), stages, self.inputs, self.values)
