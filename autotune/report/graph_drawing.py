"""Draws a graph as SVG, from top to bottom, so that also hundreds of nodes can be read by scrolling.

A node's layer is the longest path to it. Within a layer, nodes lie near what they read (the barycentre
heuristic of Sugiyama, Tagawa, Toda: Methods for visual understanding of hierarchical system structures,
1981), and are pushed apart where they would overlap. Edges over several layers bend around the nodes between
them.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

# Distances (pixels): between layers, of nodes in a layer, the height of a node, and the margin.
LAYER, GAP, HEIGHT, MARGIN = 52, 18, 34, 14
# Room for edges at both sides (pixels).
SIDE = 110
# Width of a letter, about, and most letters of a label.
LETTER, MOST = 6.3, 30
# Passes over the layers.
SWEEPS = 4
# Most nodes that are drawn.
MOST_NODES = 2000


@dataclass(frozen=True)
class DrawnNode:
    """``kind``: a class of the style. ``heat``: 0 to 1, how warm it is painted. ``tip``: what it says on
    pointing."""

    label: str
    under: str = ""
    kind: str = ""
    heat: float = 0.0
    tip: str = ""

    @property
    def width(self) -> float:
        """Pixels."""
        return 18 + LETTER * max(len(_cut(self.label)), len(self.under) - 2, 5)


@dataclass(frozen=True)
class Drawing:
    """``edges``: (from, to), by the numbers of nodes."""

    nodes: Sequence[DrawnNode]
    edges: Sequence[tuple[int, int]]


def svg(drawing: Drawing, title: str) -> str:
    """The drawing. All text is escaped. More than `MOST_NODES` nodes are not drawn, and it says so."""
    if len(drawing.nodes) > MOST_NODES:
        return f"<p>{len(drawing.nodes):,} nodes are too many to draw; the most are {MOST_NODES:,}.</p>"
    layers = _layers(drawing)
    x = _places(drawing, layers)
    left = min((x[n] - drawing.nodes[n].width / 2 for n in x), default=0.0)
    right = max((x[n] + drawing.nodes[n].width / 2 for n in x), default=0.0)
    y = {n: MARGIN + k * LAYER + HEIGHT / 2 for k, layer in enumerate(layers) for n in layer}
    shift = MARGIN + SIDE - left
    level = {n: k for k, layer in enumerate(layers) for n in layer}
    width, height = right - left + 2 * (MARGIN + SIDE), 2 * MARGIN + len(layers) * LAYER
    parts = [_edge(x[a] + shift, y[a], x[b] + shift, y[b], level[b] - level[a]) for a, b in drawing.edges]
    parts += [_node(drawing.nodes[n], x[n] + shift, y[n]) for n in x]
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )


def _layers(drawing: Drawing) -> list[list[int]]:
    """Nodes by the longest path to them. Edges that would close a circle, which a graph has none of, are left
    out."""
    readers: dict[int, list[int]] = {n: [] for n in range(len(drawing.nodes))}
    waits = dict.fromkeys(readers, 0)
    for a, b in drawing.edges:
        readers[a].append(b)
        waits[b] += 1
    level = dict.fromkeys(readers, 0)
    ready = [n for n, w in waits.items() if w == 0]
    while ready:
        n = ready.pop()
        for m in readers[n]:
            level[m] = max(level[m], level[n] + 1)
            waits[m] -= 1
            if waits[m] == 0:
                ready.append(m)
    # inputs stand just above what reads them
    for n, reading in readers.items():
        if level[n] == 0 and reading:
            level[n] = max(0, min(level[m] for m in reading) - 1)
    layers: list[list[int]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for n, k in level.items():
        layers[k].append(n)
    return layers


def _places(drawing: Drawing, layers: Sequence[list[int]]) -> dict[int, float]:
    """The middle of each node (pixels from the middle of the drawing)."""
    above: dict[int, list[int]] = {n: [] for n in range(len(drawing.nodes))}
    below: dict[int, list[int]] = {n: [] for n in range(len(drawing.nodes))}
    for a, b in drawing.edges:
        above[b].append(a)
        below[a].append(b)
    x: dict[int, float] = {}
    for layer in layers:
        _spread(drawing, layer, {n: _middle([x[m] for m in above[n] if m in x], 0.0) for n in layer}, x)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 1
        near = above if down else below
        for layer in layers if down else reversed(layers):
            _spread(drawing, layer, {n: _middle([x[m] for m in near[n]], x[n]) for n in layer}, x)
    return x


def _spread(drawing: Drawing, layer: Sequence[int], wanted: dict[int, float], x: dict[int, float]) -> None:
    """Place a layer's nodes where they are wanted, in that order and apart."""
    order = sorted(layer, key=lambda n: (wanted[n], n))
    edge = float("-inf")
    for n in order:
        half = drawing.nodes[n].width / 2
        x[n] = max(wanted[n], edge + half)
        edge = x[n] + half + GAP
    off = sum(x[n] - wanted[n] for n in order) / max(len(order), 1)
    for n in order:
        x[n] -= off


def _middle(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _edge(ax: float, ay: float, bx: float, by: float, layers: int) -> str:
    ay, by = ay + HEIGHT / 2, by - HEIGHT / 2
    if layers <= 1:
        middle = (ay + by) / 2
        return f'<path d="M{ax:.0f} {ay:.0f}C{ax:.0f} {middle:.0f} {bx:.0f} {middle:.0f} {bx:.0f} {by:.0f}"/>'
    side = (170 + 8 * min(layers, 20)) * (1 if bx >= ax else -1)  # around what stands between
    return (
        f'<path d="M{ax:.0f} {ay:.0f}C{ax + side:.0f} {ay + LAYER:.0f} {bx + side:.0f} {by - LAYER:.0f} '
        f'{bx:.0f} {by:.0f}"/>'
    )


def _node(node: DrawnNode, x: float, y: float) -> str:
    tip = html.escape(f"{node.label}\n{node.tip}" if node.tip else node.label)
    heat = (
        f' style="fill:color-mix(in srgb,#e8930c {8 + 72 * node.heat:.0f}%,var(--panel))"'
        if node.heat > 0
        else ""
    )
    kind = f' class="{html.escape(node.kind)}"' if node.kind else ""
    up = 4 if not node.under else -2
    place = f'x="{x:.0f}" y="{y + 12:.0f}"'
    under = f'<text {place} text-anchor="middle" class="soft">{html.escape(node.under)}</text>'
    return (
        f'<g><title>{tip}</title><rect x="{x - node.width / 2:.0f}" y="{y - HEIGHT / 2:.0f}" '
        f'width="{node.width:.0f}" height="{HEIGHT}" rx="7"{kind}{heat}/>'
        f'<text x="{x:.0f}" y="{y + up:.0f}" text-anchor="middle">{html.escape(_cut(node.label))}</text>'
        f"{under if node.under else ''}</g>"
    )


def _cut(label: str) -> str:
    return label if len(label) <= MOST else "…" + label[1 - MOST :]
